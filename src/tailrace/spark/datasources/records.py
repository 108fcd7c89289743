"""What readers of data sources yield, as record batches and rows: tuples, lists, rows and record batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tailrace.elements.batches import Form
from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import batch_as
from tailrace.elements.rows import rows_of

_CONVERTED = ("StringType", "TimestampType", "ArrayType", "MapType", "StructType")
"""Types into which Spark converts values that do not fit as they are, and cuts nothing: any value into a text, a moment
without a zone from local time, objects and incomplete dicts into structs."""


class WrongRecord(TypeError):
    """The error for what a reader yields and Spark would refuse as well."""


class RowConverter:
    """The conversion of what a reader yields into records of the schema."""

    def __init__(self, struct: Any, schema: pa.Schema, form: Form) -> None:
        self.struct, self.schema, self.form = struct, schema, form
        self._converters: list[Callable[[Any], Any]] | None = None

    def of_rows(self, rows: Sequence[Any]) -> Any:
        """Tuples, lists or rows as records in the form of the source. Raises `WrongRecord`, `Misfit`, or an error of Spark,
        for a value that does not fit its column."""
        return self._in_form(self._batch(rows))

    def of_batch(self, batch: pa.RecordBatch) -> Any:
        """A record batch of the reader as records in the form of the source. Its columns are found by their names. Raises
        `Misfit` for a value that does not fit."""
        return self._in_form(batch_as(batch, self.schema))

    def _in_form(self, batch: pa.RecordBatch) -> Any:
        return batch if self.form == "columns" else rows_of(batch)

    def _batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        width = len(self.schema)
        if set(map(type, rows)) != {tuple}:
            rows = list(map(self._as_tuple, rows))
        if set(map(len, rows)) - {width}:
            wrong = next(row for row in rows if len(row) != width)
            raise WrongRecord(f"it yields a row of {len(wrong)} values, and its schema has {width} columns: {wrong!r}")
        if not width:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
        arrays = [self._array(at, values) for at, values in enumerate(zip(*rows, strict=True))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, at: int, values: Sequence[Any]) -> pa.Array:
        field = self.schema.field(at)
        try:
            try:
                return column_of_values(values, field)
            except Misfit:
                if type(self.struct.fields[at].dataType).__name__ not in _CONVERTED:
                    raise
            convert = self._converter(at)
            return column_of_values([None if value is None else convert(value) for value in values], field)
        except Exception as error:
            error.add_note(f"in column {field.name!r} of the data source, which is {field.type}")
            raise

    def _converter(self, at: int) -> Callable[[Any], Any]:
        if self._converters is None:
            made = conversion()._create_converter
            self._converters = [made(field.dataType) for field in self.struct.fields]
        return self._converters[at]

    def _as_tuple(self, row: Any) -> Any:
        if not isinstance(row, tuple | list):
            raise WrongRecord(
                f"it yields {type(row).__name__} {row!r}; rows must be tuples, lists or pyspark.sql.Row, or record batches"
            )
        fields = getattr(row, "__fields__", None)
        if fields is None:
            return tuple(row)
        if sorted(fields) != sorted(self.schema.names):
            raise WrongRecord(
                f"it yields a Row with the names {', '.join(fields)}, and its schema has {', '.join(self.schema.names)}"
            )
        return tuple(row[name] for name in self.schema.names)


def conversion() -> Any:
    """PySpark's conversion of Python values into those that Arrow takes."""
    try:
        from pyspark.sql.conversion import LocalDataToArrowConversion
    except ImportError:  # PySpark 4.0
        from pyspark.sql.connect.conversion import LocalDataToArrowConversion  # type: ignore[no-redef, attr-defined]
    return LocalDataToArrowConversion
