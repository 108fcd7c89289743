"""A writer of batches in columns into files: in large groups of rows, with declared columns or the ones found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tailrace.api.connectors import SinkContext
from tailrace.connectors import hidden
from tailrace.connectors.files.rolling import Roll
from tailrace.connectors.filesinks import FileWriter
from tailrace.connectors.hidden import SinkFolder
from tailrace.elements.columns.common_schema import fill_nulls, has_nulls
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.required_fields import filled_batch
from tailrace.elements.columns.schemas import batch_as


class ColumnsWriter(FileWriter):
    """A writer of batches in columns, one file per transaction, in groups of at least `group_rows` rows but for the last. A
    subclass makes the file of its format."""

    group_rows = 65_536

    def __init__(
        self,
        place: str | SinkFolder,
        ctx: SinkContext,
        schema: pa.Schema | None,
        roll: Roll | None = None,
        numbers: Iterator[int] | None = None,
        declared: bool = True,
    ) -> None:
        """`declared`: false if `schema` is that of the first batches, and not the user's."""
        super().__init__(place, ctx, roll, numbers)
        self.schema = schema
        """Columns of the files; None until the first file is begun, if they were not declared."""
        self._declared = declared and schema is not None
        self._found: Any = None
        """Columns of the batches so far. The writer begins no file while a column of them, or a part, has nulls only."""
        self.file: Any = None
        self.waiting: list[pa.RecordBatch] = []
        self.rows = self.bytes = 0

    def new_file(self, stream: Any, schema: pa.Schema) -> Any:
        """A file of these columns, written to a binary stream: it has `write_table` and `close`. Raises `ValueError` for
        columns that the format does not have."""
        raise NotImplementedError

    def write(self, batch: Any) -> None:
        self._roll_by_time()
        if self.schema is None:
            self._found = batch.schema if self._found is None else fill_nulls(self._found, batch.schema)
            self.waiting.append(batch)
        else:
            self.waiting.append(self._fit(batch))
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        if self.file is None and not (self.schema is None and has_nulls(self._found)):
            self._open()
        if self.rows >= self.group_rows or (self._roll.bytes is not None and self.bytes >= self._roll.bytes):
            self.write_group()
            self._roll_by_size()

    def _open(self) -> None:
        """Begins the file: its columns are known, or the writer cannot wait for them any longer."""
        if self.schema is None:
            self.schema = self._columns(self._found)
            self.waiting = list(map(self._fit, self.waiting))
        self.file = self.new_file(self._begin(), self.schema)

    def _fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Batches come in one schema. Only a column of nulls may have got a type since this file was begun.
        assert self.schema is not None
        try:
            return self._fitting(batch_as(batch, self.schema))
        except Misfit as error:
            if self._declared or not has_nulls(self.schema):
                raise
            raise ValueError(
                f"{error}; it held only null when its file was begun: give the sink a schema, or the stream one with "
                f"to_columns(schema)"
            ) from error

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a file for batches in `schema`, if no columns are declared."""
        return schema

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch as it is written. Raises `ValueError` for a value that does not fit."""
        return batch

    def write_group(self) -> None:
        """Writes the rows that wait."""
        if self.waiting:
            if self.file is None:
                self._open()
            self.file.write_table(pa.Table.from_batches(list(map(filled_batch, self.waiting)), self.schema))
        self.waiting, self.rows, self.bytes = [], 0, 0

    def _end_file(self) -> None:
        self.write_group()
        super()._end_file()

    def _token(self, token: bytes) -> bytes:
        if self._declared:
            return token
        assert self.schema is not None
        return hidden.with_columns(token, [(field.name, str(field.type)) for field in self.schema])

    def _flush(self) -> None:
        assert self.file is not None
        self.file.close()
        self.file = None

    def close(self) -> None:
        if self.file is not None:
            with contextlib.suppress(Exception):  # the file that it flushes to is given up
                self.file.close()
        self.file, self.waiting, self.rows, self.bytes = None, [], 0, 0
        super().close()
