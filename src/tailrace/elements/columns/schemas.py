"""Conversion of whole batches: rows to a batch of a schema, a batch to another schema; and the one schema of a stream."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.casts import column_as
from tailrace.elements.columns.common_schema import fill_nulls, has_nulls
from tailrace.elements.columns.encoding import plain_array
from tailrace.elements.columns.kinds import is_plain, plain_schema
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.named_records import check_names, column_lists


def columns_of(values: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Records as one batch of `schema`. Raises `Misfit`, with the column, for the first record that does not fit."""
    lists = column_lists(values, schema.names)
    arrays = [column_of_values(column, field) for column, field in zip(lists, schema, strict=True)]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(values), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_as(batch: pa.RecordBatch, schema: pa.Schema, *, select: bool = False) -> pa.RecordBatch:
    """A batch of these records with the columns of `schema`, found by name. With `select`, columns that the schema does not
    have are left out. Raises `Misfit` for such columns otherwise, for a missing column, and for a value that does not
    fit."""
    if batch.schema.equals(schema):
        return batch
    have = batch.schema.names
    chosen = [name for name in have if name in schema.names] if select else have
    check_names(chosen, schema.names, "a batch of columns")
    arrays = [column_as(batch.column(have.index(field.name)), field) for field in schema]
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of these records in plain columns (see `encoding`)."""
    if all(is_plain(kind) for kind in batch.schema.types):
        return batch
    columns = list(map(plain_array, batch.columns, batch.schema.names))
    return pa.RecordBatch.from_arrays(columns, schema=plain_schema(batch.schema))


class OneSchema:
    """The schema of a stream in columns: declared, or the schema of its first batch. Later batches fit, or are a `Misfit`. A
    column of nulls only gets the type of the first batch that has one.
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = None if schema is None else plain_schema(schema)
        self._whose = "that of its first batch" if schema is None else "declared"
        self._raw: pa.Schema | None = None
        """Schema of the last batch that `fit` returned: a batch with this schema needs no look at its columns."""
        self._open = self.schema is not None and has_nulls(self.schema)
        self._saved: tuple[pa.Schema, bytes] | None = None

    @property
    def declared(self) -> bool:
        """True if the schema was declared, so that it need not be found."""
        return self._whose == "declared"

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the stream's schema. Raises `Misfit` if it does not fit."""
        if self._raw is not None and batch.schema.equals(self._raw):
            return batch
        batch = plain_batch(batch)
        if self.schema is None:
            self.schema = pa.schema([field.with_nullable(True) for field in batch.schema])
            self._open = has_nulls(self.schema)
        if not batch.schema.equals(self.schema):
            if self._open:
                self.schema = fill_nulls(self.schema, batch.schema)
                self._open = has_nulls(self.schema)
            batch = self._fit(batch)
        self._raw = batch.schema
        return batch

    def to_bytes(self) -> bytes | None:
        """The schema as bytes for a checkpoint; None if it was declared, or is not known yet."""
        if self.schema is None or self.declared:
            return None
        if self._saved is None or self._saved[0] is not self.schema:
            self._saved = (self.schema, self.schema.serialize().to_pybytes())
        return self._saved[1]

    def go_on_with(self, schema: pa.Schema) -> None:
        """Takes over the schema that was found before a restart. A declared one stays."""
        if not self.declared:
            self.schema, self._open, self._raw = schema, has_nulls(schema), None
            self._whose = "that of its first batch, before the restart"

    def close(self) -> None:
        """Fixes the types of columns that had nulls only: files with such columns are written."""
        self._open = False

    def _fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert self.schema is not None
        try:
            return batch_as(batch, self.schema)
        except Misfit as error:
            raise Misfit(
                f"a stream in columns has one schema, {self._whose}: ({text_of(self.schema)}), and {error}; declare "
                f"another with to_columns(schema) where the columns are made",
                error.row,
            ) from None


def text_of(schema: pa.Schema | None) -> str:
    """The names and types of a schema, for errors."""
    return ", ".join(f"{field.name} {field.type}" for field in schema or ())
