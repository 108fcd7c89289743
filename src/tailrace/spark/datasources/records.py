"""What readers of data sources yield, as record batches and rows: tuples, lists, rows and record batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tailrace.elements.batches import Form
from tailrace.elements.rows import rows_of

_PLAIN = (
    "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "StringType", "BinaryType",
    "DateType",
)  # fmt: skip
"""Types whose Python values Arrow takes as Spark does."""


class WrongRecord(TypeError):
    """The error for what a reader yields and Spark would refuse as well."""


class RowConverter:
    """The conversion of what a reader yields into records of the schema."""

    def __init__(self, struct: Any, schema: pa.Schema, form: Form) -> None:
        self.struct, self.schema, self.form = struct, schema, form
        self._plain = [type(field.dataType).__name__ in _PLAIN for field in struct.fields]
        self._converters: list[Callable[[Any], Any]] | None = None

    def of_rows(self, rows: Sequence[Any]) -> Any:
        """Tuples, lists or rows as records in the form of the source. Raises `WrongRecord`, or an error of Arrow or Spark,
        for a value that does not fit its column."""
        return self._in_form(self._batch(rows))

    def of_batch(self, batch: pa.RecordBatch) -> Any:
        """A record batch of the reader as records in the form of the source. Its columns are found by their names."""
        if batch.schema != self.schema:
            if sorted(batch.schema.names) != sorted(self.schema.names):
                raise WrongRecord(
                    f"it yields a record batch with the columns {', '.join(batch.schema.names)}, and its schema has "
                    f"{', '.join(self.schema.names)}"
                )
            arrays = [batch.column(field.name).cast(field.type) for field in self.schema]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return self._in_form(batch)

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
        columns = zip(*rows, strict=True)
        arrays = [self._array(at, values) for at, values in enumerate(columns)]
        for field, array in zip(self.schema, arrays, strict=True):
            if array.null_count and not field.nullable:
                raise WrongRecord(f"it yields None in column {field.name!r}, which is NOT NULL in its schema")
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, at: int, values: Sequence[Any]) -> pa.Array:
        kind = self.schema.field(at).type
        if self._plain[at]:
            try:
                return pa.array(values, kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                pass  # Spark converts some values, such as numbers to texts, and has its own errors for the rest
        convert = self._converter(at)
        try:
            return pa.array([None if value is None else convert(value) for value in values], kind)
        except Exception as error:
            error.add_note(f"in column {self.schema.names[at]!r} of the data source, which is {kind}")
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
