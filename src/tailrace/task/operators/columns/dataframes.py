"""Batches as frames of pandas and Polars, for functions that work on these, and the batches that such functions return.

No value changes on the way. pandas gets columns in Arrow's types (`pandas.ArrowDtype`), so that a null among whole
numbers stays a null. Polars gets only columns that it has a type for. What a frame has beside its columns would be lost,
and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.encoding import plain_array
from tailrace.elements.columns.kinds import is_list
from tailrace.elements.columns.misfit import Misfit
from tailrace.graph.operators import BatchFormat


class Frames(Protocol):
    """Conversion between record batches and what a function of batches takes and returns."""

    accepted: str
    """Name of the format in errors."""

    def convert(self, batch: pa.RecordBatch) -> Any:
        """Batch as the function gets it. Raises `TypeError` for a column that the format cannot hold."""

    def batches(self, made: Any) -> list[pa.RecordBatch] | None:
        """Batches of what the function returned; None if that is not of this format. Raises `ValueError`, `TypeError` or
        an error of Arrow for data that no stream can carry."""


def frames_of(format: BatchFormat) -> Frames:
    """Conversion for a format. Raises `ImportError` if its package is not installed."""
    kinds: dict[BatchFormat, Callable[[], Frames]]
    kinds = {"arrow": ArrowBatches, "pandas": PandasFrames, "polars": PolarsFrames}
    return kinds[format]()


def format_of(made: Any) -> BatchFormat | None:
    """Format of a batch or a frame; None for anything else, for example a list of them."""
    package = type(made).__module__.partition(".")[0]
    if isinstance(made, pa.RecordBatch | pa.Table):
        return "arrow"
    return package if package in ("pandas", "polars") else None  # type: ignore[return-value]


class ArrowBatches:
    """Record batches as they are."""

    accepted = "pyarrow.RecordBatch(es)"

    def convert(self, batch: pa.RecordBatch) -> Any:
        return batch

    def batches(self, made: Any) -> list[pa.RecordBatch] | None:
        if isinstance(made, pa.RecordBatch):
            return [made]
        return made.combine_chunks().to_batches() if isinstance(made, pa.Table) else None


class PandasFrames:
    """Frames of pandas, their columns in Arrow's types."""

    accepted = "pandas.DataFrame(s)"

    def __init__(self) -> None:
        self._pandas = import_module("pandas")

    def convert(self, batch: pa.RecordBatch) -> Any:
        return batch.to_pandas(types_mapper=self._pandas.ArrowDtype, ignore_metadata=True)

    def batches(self, made: Any) -> list[pa.RecordBatch] | None:
        if not isinstance(made, self._pandas.DataFrame):
            return None
        _check_names(list(made.columns))
        named = [name for name in made.index.names if name is not None]
        if named or made.index.nlevels > 1:
            raise ValueError(
                f"the frame has an index {named}, which no stream carries; make columns of it: reset_index()"
            )
        arrays = [_array(made.iloc[:, at], name) for at, name in enumerate(made.columns)]
        return [pa.RecordBatch.from_arrays(arrays, names=list(made.columns))]


def _array(series: Any, name: str) -> pa.Array:
    """Arrow array of a column of pandas. A NaN in a type of NumPy stays a NaN: it does not become null. For Python
    objects, Arrow finds only the type: it would truncate values that are not quite of that type, a datetime among dates,
    a truth value among floats."""
    try:
        array = pa.array(series, from_pandas=False)
        if series.dtype == object:
            array = column_of_values(series.tolist(), pa.field(name, array.type))
    except (Misfit, pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"column {name!r} ({series.dtype}) has values that Arrow has no one type for: {error}; give it a type: "
            f"astype(pandas.ArrowDtype(...))"
        ) from None
    if isinstance(array.type, pa.BaseExtensionType):
        raise ValueError(
            f"column {name!r} is {series.dtype}, which no stream carries; make texts, times or numbers of it"
        )
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


class PolarsFrames:
    """Frames of Polars."""

    accepted = "polars.DataFrame(s)"

    def __init__(self) -> None:
        self._polars = import_module("polars")
        self._fits: pa.Schema | None = None
        """Schema of the last batch, of which Polars has all types."""

    def convert(self, batch: pa.RecordBatch) -> Any:
        if self._fits is None or not batch.schema.equals(self._fits):
            self._check(batch.schema)
            self._fits = batch.schema
        return self._polars.from_arrow(batch)

    def _check(self, schema: pa.Schema) -> None:
        for field in schema:
            try:
                back = self._narrow(self._polars.from_arrow(pa.table({field.name: pa.array([], field.type)})))
            except (Exception, self._polars.exceptions.PanicException) as error:  # a panic is no `Exception`
                raise TypeError(f"{_not_in_polars(field)}: {error}") from None
            if back.schema.field(0).type != _narrow_type(field.type):
                raise TypeError(_not_in_polars(field))

    def batches(self, made: Any) -> list[pa.RecordBatch] | None:
        if isinstance(made, self._polars.LazyFrame):
            raise TypeError("it is a polars.LazyFrame; return lazy.collect()")
        return [self._narrow(made)] if isinstance(made, self._polars.DataFrame) else None

    def _narrow(self, frame: Any) -> pa.RecordBatch:
        table = frame.to_arrow().combine_chunks()
        arrays = [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in table.columns]
        plain = [plain_array(array) for array in arrays]
        cast = [array.cast(_narrow_type(array.type)) for array in plain]
        return pa.RecordBatch.from_arrays(cast, names=table.column_names)


def _not_in_polars(field: pa.Field) -> str:
    return (
        f"column {field.name!r} is {field.type}, which is another type in Polars; cast it or leave it out before, with "
        f"to_columns(schema) or select(...), or use format='arrow'"
    )


def _narrow_type(kind: pa.DataType) -> pa.DataType:
    """Type in which streams usually carry what Polars has only with offsets of 64 bits."""
    if kind in (pa.large_string(), pa.string()):
        return pa.string()
    if kind in (pa.large_binary(), pa.binary()):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(_narrow_type(kind.key_type), _narrow_type(kind.item_type))
    if is_list(kind):
        return pa.list_(_narrow_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_narrow_type(kind.value_type), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _narrow_type(field.type)) for field in kind])
    return kind


def _check_names(names: list[Any]) -> None:
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise ValueError(f"the frame has columns whose names are no texts: {wrong}; rename them")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the frame has several columns {', '.join(map(repr, twice))}; rename them")
