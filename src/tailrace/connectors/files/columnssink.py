"""The base of sinks of files in columns: partitioned, rolled, held back over checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors import folders, hidden
from tailrace.connectors.files.columnswriter import ColumnsWriter
from tailrace.connectors.files.holding import held_writer
from tailrace.connectors.files.partitioned import PartitionedWriter, check_keys
from tailrace.connectors.files.rolling import Roll, check_roll
from tailrace.connectors.files.textwriters import TextWriter, check_compression
from tailrace.connectors.filesinks import FileSink
from tailrace.connectors.hidden import SinkFolder
from tailrace.connectors.schemas import declared_schema
from tailrace.spelling import with_hints


@with_hints
class ColumnsSink(FileSink):
    """The base of sinks of files in columns."""

    form = "columns"
    file_writer: Callable[..., ColumnsWriter]
    """The writer of one file after the other, for the arguments of a `ColumnsWriter`."""

    def __init__(
        self,
        path: str,
        schema: Any = None,
        *,
        partition_by: str | Sequence[str] | None = None,
        roll: Roll | None = None,
    ) -> None:
        who = type(self).__name__
        self.path = hidden.folder_for_files(path, who)
        self.schema = None if schema is None else declared_schema(schema, "the sink")
        self.roll = check_roll(roll, who)
        self.partition_by = check_keys(partition_by, self.schema, who)
        if self.schema is not None:
            self.check_columns(pa.schema([field for field in self.schema if field.name not in self.partition_by]))

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises `ConfigError` for columns that the files cannot have."""

    def writer(self, ctx: SinkContext) -> SinkWriter:
        assert self.path is not None
        if not self.partition_by:
            return held_writer(self.file_writer(self.path, ctx, self.schema, self.roll), self.roll)
        declared = self.schema is not None

        def make(folder: SinkFolder, numbers: Iterator[int], schema: pa.Schema) -> ColumnsWriter:
            return self.file_writer(folder, ctx, schema, self.roll, numbers, declared)

        folder, who = folders.folder_at(self.path), type(self).__name__
        return held_writer(PartitionedWriter(folder, self.partition_by, self.schema, make, ctx, who), self.roll)


class TextColumnsSink(ColumnsSink):
    """The base of sinks of files of text in columns, which may be compressed."""

    text_writer: ClassVar[type[TextWriter]]

    def __init__(
        self,
        path: str,
        schema: Any = None,
        *,
        partition_by: str | Sequence[str] | None = None,
        roll: Roll | None = None,
        compression: str | None = None,
    ) -> None:
        super().__init__(path, schema, partition_by=partition_by, roll=roll)
        self.file_writer = partial(self.text_writer, compression=check_compression(compression, type(self).__name__))
