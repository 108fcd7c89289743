"""The differences between Spark and Arrow in the meaning of Parquet files.

- Arrow leaves NaN out of the smallest and largest value of a column. To Spark NaN is above all numbers, and it skips whole
  row groups by these values: `columns_with_statistics` lists the columns that may have them.
- INT96 is a moment to Spark, of any year. Arrow takes it for nanoseconds without a zone, which wrap around outside the
  years 1677 to 2262: `ParquetRows` reads it as Spark does.
- Before 1582 (dates) and 1900 (times) files may count days by the old calendar, with a note in the file that Arrow does not
  read: `ParquetRows` refuses such values.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.connectors.files.places import open_file
from tailrace.connectors.hidden import protocol_of
from tailrace.elements.columns.casts import column_as
from tailrace.elements.columns.misfit import Misfit
from tailrace.errors import ConfigError

_BATCH_ROWS = 8192
_FIRST_GREGORIAN_DAY = -141_427
"""The day 1582-10-15, in days since 1970."""
_FIRST_SAME_INSTANT = -2_208_988_800_000_000
"""The instant 1900-01-01 UTC, in microseconds since 1970: from then on zones are equal in both calendars of Spark."""


def columns_with_statistics(schema: pa.Schema) -> list[str]:
    """The columns, by their names in the file, for which smallest and largest values may be written: all but floating-point
    ones, also inside of other columns."""
    empty = io.BytesIO()
    with pq.ParquetWriter(empty, schema):
        pass
    columns = pq.ParquetFile(empty).schema
    found = [columns.column(i) for i in range(len(columns))]
    floating = {column.path for column in found if _is_floating(column)}
    return sorted({column.path for column in found} - floating)


def _is_floating(column: Any) -> bool:
    return column.physical_type in ("FLOAT", "DOUBLE") or column.logical_type.type == "FLOAT16"


def read_schema(path: str) -> pa.Schema:
    """The columns of a Parquet file, as `ParquetRows` reads them. Raises `ConfigError` for what is no Parquet file."""
    try:
        with open_file(path) as opened, pq.ParquetFile(opened) as file:
            return _schema(file)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from None


class ParquetRows:
    """The rows of a Parquet file, batch by batch, in the columns `like` of the source's first file. Raises `ConfigError` for
    a file with other columns. Errors name the file."""

    columns: list[str] | None = None
    """The columns that are read from the file; None: all."""

    def __init__(self, path: str, like: pa.Schema, opened: Any = None) -> None:
        """`opened`: the file, if it is open already."""
        self.path, self.schema = path, like
        try:
            self._opened: Any = opened or (path if protocol_of(path) is None else open_file(path))
            self.file = pq.ParquetFile(self._opened, coerce_int96_timestamp_unit="us")
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"{path} cannot be read as Parquet: {error}") from None
        self._read_as, self._has_int96 = _schema(self.file), _has_int96(self.file)
        self._check_columns()
        self._old_calendar = _old_calendar(self.file)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        batches = self.file.iter_batches(batch_size=_BATCH_ROWS, columns=self.columns)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"{self.path}, behind row {rows}: {error}") from error
            if batch is None:
                return
            batch = self._as_first(batch, rows)
            if self._old_calendar:
                self._refuse_old(batch, rows)
            rows += batch.num_rows
            yield batch

    def _as_first(self, batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
        """A batch in the columns of the first file of the source. Raises `ValueError` for a value that they cannot hold."""
        try:
            arrays = [self._column(batch, f) for f in self.schema]
        except Misfit as error:
            at = f", row {rows + error.row}" if error.row is not None else f", rows {rows} to {rows + batch.num_rows}"
            raise ValueError(f"{self.path}{at}: {error}") from error
        return _batch(arrays, self.schema, batch.num_rows)

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """A column of a batch as `field`. Raises `Misfit` for a value that it cannot hold."""
        return column_as(self._moments(batch, field.name), field)

    def _moments(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """A column in which INT96 has its zone UTC, which Arrow leaves out. No value changes by that."""
        kind = self._read_as.field(name).type
        return batch.column(name).cast(kind) if self._has_int96 else batch.column(name)

    def _check_columns(self) -> None:
        """Raises `ConfigError` if the file has other columns than the first one of the source."""
        here = {field.name: str(field.type) for field in self._read_as}
        expected = {field.name: str(field.type) for field in self.schema}
        if here != expected:
            raise ConfigError(
                f"{self.path} has the columns {_text(here)}, and the first file of this source {_text(expected)}; read them "
                f"as two sources, or let Spark merge them: env.from_dataframe(spark.read...)"
            )

    def _refuse_old(self, batch: pa.RecordBatch, rows: int) -> None:
        """Raises `ValueError` if a value is from before the calendars agree."""
        for field, array in zip(batch.schema, batch.columns, strict=True):
            for leaf in leaves_of(array):
                if _is_old(leaf):
                    raise ValueError(
                        f"{self.path}, rows {rows} to {rows + batch.num_rows}, column {field.name!r}: dates before 1582 "
                        f"or times before 1900, which this file counts by the old (Julian) calendar of Spark; let Spark "
                        f"read it: env.from_dataframe(spark.read.parquet(...))"
                    )

    def close(self) -> None:
        self.file.close()
        if self._opened is not self.path:
            self._opened.close()


def _text(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none"


def _batch(arrays: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))  # rows without columns


def _schema(file: pq.ParquetFile) -> pa.Schema:
    """The columns of a file, with moments for INT96. Whether a column may have nulls differs from file to file, and is left
    out."""
    physical = [file.schema.column(i).physical_type for i in range(len(file.schema))]
    leaves = iter(physical)
    return pa.schema([pa.field(field.name, _read_as(field.type, leaves)) for field in file.schema_arrow])


def _read_as(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """A type with its INT96 leaves as moments. `leaves` are the physical types of the file's leaves that were not read
    yet."""
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(_read_as(child.type, leaves)) for child in kind])
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_read_as(kind.key_type, leaves))
        return pa.map_(key, kind.item_field.with_type(_read_as(kind.item_type, leaves)), kind.keys_sorted)
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type, leaves)))
    if isinstance(kind, pa.LargeListType):
        return pa.large_list(kind.value_field.with_type(_read_as(kind.value_type, leaves)))
    if isinstance(kind, pa.FixedSizeListType):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type, leaves)), kind.list_size)
    return pa.timestamp("us", "UTC") if next(leaves) == "INT96" else kind


def _old_calendar(file: pq.ParquetFile) -> bool:
    """True if Spark wrote old dates or times by the Julian calendar, according to the notes in the file."""
    notes = file.metadata.metadata or {}
    if b"org.apache.spark.legacyDateTime" in notes or b"org.apache.spark.legacyINT96" in notes:
        return True
    version = re.match(rb"(\d+)\.(\d+)", notes.get(b"org.apache.spark.version", b""))
    if version is None:
        return False
    major, minor = int(version[1]), int(version[2])
    return major < 3 or (_has_int96(file) and (major, minor) < (3, 1))


def _has_int96(file: pq.ParquetFile) -> bool:
    return any(file.schema.column(i).physical_type == "INT96" for i in range(len(file.schema)))


def leaves_of(array: pa.Array) -> Iterator[pa.Array]:
    """The leaves of an array: the arrays without parts that it is made of."""
    kind = array.type
    if pa.types.is_struct(kind):
        for child in array.flatten():
            yield from leaves_of(child)
    elif pa.types.is_map(kind):
        yield from leaves_of(array.keys)
        yield from leaves_of(array.items)
    elif pa.types.is_nested(kind):
        yield from leaves_of(array.flatten())
    else:
        yield array


def _is_old(leaf: pa.Array) -> bool:
    kind = leaf.type
    if pa.types.is_date(kind):
        smallest = pc.min(leaf.cast(pa.date32()).cast(pa.int32())).as_py()
        return smallest is not None and smallest < _FIRST_GREGORIAN_DAY
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        smallest = pc.min(leaf.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())).as_py()
        return smallest is not None and smallest < _FIRST_SAME_INSTANT
    return False
