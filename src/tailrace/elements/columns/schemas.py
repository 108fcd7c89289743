"""Whole batches: rows as a batch of a schema, a batch as one of another schema, and the one schema of a stream."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.casts import column_as
from tailrace.elements.columns.encoding import plain_array
from tailrace.elements.columns.kinds import is_plain, plain_schema
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.named import check_names, column_lists


def columns_of(values: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Records as one batch of `schema`. Raises `Misfit` for the first that does not fit, naming the column."""
    lists = column_lists(values, schema.names)
    arrays = [column_of_values(column, field) for column, field in zip(lists, schema, strict=True)]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(values), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_as(batch: pa.RecordBatch, schema: pa.Schema, *, select: bool = False) -> pa.RecordBatch:
    """The same records with the columns of `schema`, found by name. Columns that the schema does not have are left out
    where `select`, else they are a `Misfit`, as is a column that the batch does not have, or a value that does not fit."""
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
    """The same records in plain columns (see `encoding`)."""
    if all(is_plain(kind) for kind in batch.schema.types):
        return batch
    return pa.RecordBatch.from_arrays(list(map(plain_array, batch.columns)), schema=plain_schema(batch.schema))


class OneSchema:
    """The schema of a stream in columns: known, or that of its first batch. What comes later fits, or is a `Misfit`.

    A column that was null only has no type yet: it gets that of the first batch that has one.
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = None if schema is None else plain_schema(schema)
        self._known = schema is not None
        self._raw: pa.Schema | None = None
        """The schema of the last batch that went out: a batch that comes with it needs no look at its columns."""
        self._open = self.schema is not None and _has_nulls(self.schema)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the stream's schema. Raises `Misfit`."""
        if self._raw is not None and batch.schema.equals(self._raw):
            return batch
        batch = plain_batch(batch)
        if self.schema is None:
            self.schema = pa.schema([field.with_nullable(True) for field in batch.schema])
            self._open = _has_nulls(self.schema)
        if not batch.schema.equals(self.schema):
            if self._open:
                self._settle(batch.schema)
            batch = self._fitted(batch)
        self._raw = batch.schema
        return batch

    def join(self, other: pa.Schema) -> bool:
        """Takes over what another part of the stream has found to be its schema. False where it is another one."""
        if self.schema is None:
            self.schema = other
            self._open = _has_nulls(other)
            return True
        if other.names != self.schema.names:
            return False
        if self._open:
            self._settle(other)
        return all(a == b or pa.types.is_null(b) for a, b in zip(self.schema.types, other.types, strict=True))

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert self.schema is not None
        try:
            return batch_as(batch, self.schema)
        except Misfit as error:
            raise Misfit(
                f"a stream in columns has one schema, {'declared' if self._known else 'that of its first batch'}: "
                f"({described(self.schema)}), and {error}; declare another with to_columns(schema) where the "
                f"columns are made",
                error.row,
            ) from None

    def _settle(self, other: pa.Schema) -> None:
        """Columns that had no type yet get one."""
        assert self.schema is not None
        fields = []
        for field in self.schema:
            at = other.get_field_index(field.name)
            known = not pa.types.is_null(field.type) or at < 0
            fields.append(field if known else field.with_type(other.field(at).type))
        self.schema = pa.schema(fields)
        self._open = _has_nulls(self.schema)


def described(schema: pa.Schema | None) -> str:
    """Names and types, for errors."""
    return ", ".join(f"{field.name} {field.type}" for field in schema or ())


def _has_nulls(schema: pa.Schema) -> bool:
    return any(pa.types.is_null(kind) for kind in schema.types)
