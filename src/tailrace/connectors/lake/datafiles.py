"""The files of a lake table: their writers, and what a commit needs of each.

On a local path a file lies under cover until it is published (`connectors.folders`), so what a lost job leaves can be
found and removed. In a store it has its name at once: no reader of the table sees it until a commit lists it, and `VACUUM`
removes what none lists.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors import hidden
from tailrace.connectors.files.partitioned import PartitionedWriter, check_types
from tailrace.connectors.files.partitions import keys_of
from tailrace.connectors.files.rolling import Roll
from tailrace.connectors.hidden import CoveredFile, FileOrigin, Hidden, SinkFolder
from tailrace.connectors.lake.statistics import statistics_of
from tailrace.connectors.parquetwriter import ParquetWriter
from tailrace.connectors.transactional import PreparedTransaction, TransactionalSink, TransactionWriter
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import batch_as


class DataFile(msgspec.Struct, frozen=True):
    """A finished file of a table."""

    path: str
    """The path below the table's folder, with `/`."""
    cover: str | None
    """The path or URL under cover; None if the file has its name."""
    size: int
    rows: int
    partition: dict[str, str | None]
    """Partition column -> value as text; None for null."""
    statistics: str


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(DataFile)


class StoreFolder(SinkFolder):
    """A folder of a table in a store. `open(path)` opens a file below it for writing, which exists once it is closed."""

    def __init__(self, base: str, open_file: Callable[[str], Any]) -> None:
        self.base, self._open = base, open_file

    def create(self, name: str) -> Hidden:
        return _StoreFile(self._open(name), f"{self.base}/{name}")

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        """Removes nothing: a file may have been listed since, and only the table's vacuum knows."""


class _StoreFile(Hidden):
    def __init__(self, stream: Any, path: str) -> None:
        self.stream, self.path = stream, path

    def finish(self) -> bytes:
        self.stream.close()
        return msgspec.json.encode(CoveredFile(self.path, self.path))

    def discard(self) -> None:
        with contextlib.suppress(Exception):  # a store that is away takes nothing; no commit lists the file
            self.stream.close()


class DataFileWriter(ParquetWriter):
    """A writer of the files of one partition. Each finished one is put into `found`, by its plain name."""

    def __init__(
        self,
        base: str,
        folder: SinkFolder,
        ctx: SinkContext,
        schema: pa.Schema,
        roll: Roll | None,
        found: dict[str, DataFile],
        numbers: Iterator[int] | None = None,
    ) -> None:
        super().__init__(folder, ctx, schema, roll, numbers)
        self._base, self._made = base, found
        self._footer: Any = None
        self._size = 0

    def _flush(self) -> None:
        file, stream = self.file, self.hidden
        super()._flush()
        assert file is not None and stream is not None
        self._footer, self._size = file.writer.metadata, stream.stream.tell()

    def _token(self, token: bytes) -> bytes:
        [made] = hidden.files_in(token)
        assert isinstance(made, CoveredFile) and self.schema is not None
        cover = made.hidden if made.hidden != made.final else None
        self._made[made.final] = DataFile(
            made.final[len(self._base) + 1 :],
            cover,
            self._size,
            self._footer.num_rows,
            dict(keys_of(self._base, made.final)),
            statistics_of(self._footer, self.schema),
        )
        return token


class FilesWriter(TransactionWriter):
    """A writer of transactions whose pieces are the schema of the files, and the files."""

    def __init__(
        self,
        sink: TransactionalSink,
        ctx: SinkContext,
        base: str,
        folder: SinkFolder,
        schema: pa.Schema | None,
        fit_schema: Callable[[pa.Schema], pa.Schema],
        partition_by: Sequence[str],
        roll: Roll | None,
        keep_keys: bool = False,
    ) -> None:
        """`schema`: the columns of the files; None if `fit_schema` is to make them of the columns of the first batch.
        `keep_keys`: the files have the partition columns, too."""
        super().__init__(sink, ctx)
        self.schema, self._keep_keys = schema, keep_keys
        self._fit_schema, self._folder, self._base = fit_schema, folder, base
        self._ctx, self._keys, self._roll = ctx, tuple(partition_by), roll
        self._writer: SinkWriter | None = None
        self._found: dict[str, DataFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self.schema = self.schema or self._fit_schema(batch.schema)
            self._writer = self._open(self.schema)
        assert self.schema is not None
        try:
            fitting = batch_as(batch, self.schema)
        except Misfit as error:
            if error.row is not None:
                self.record = batch.slice(error.row, 1).to_pylist()[0]
            raise
        self._writer.write(fitting)

    def _open(self, schema: pa.Schema) -> SinkWriter:
        if not self._keys:
            return DataFileWriter(self._base, self._folder, self._ctx, schema, self._roll, self._found)
        check_types(schema, self._keys, "the sink")

        def make(folder: SinkFolder, numbers: Iterator[int], own: pa.Schema) -> ParquetWriter:
            return DataFileWriter(self._base, folder, self._ctx, own, self._roll, self._found, numbers)

        return PartitionedWriter(self._folder, self._keys, schema, make, self._ctx, "the sink", self._keep_keys)

    def prepare(self) -> bytes | None:
        token = None if self._writer is None else self._writer.prepare()
        if token is None or self.schema is None:
            return None
        made = [self._found.pop(hidden.name_of_file(one)) for one in hidden.files_in(token)]
        self._pieces = [self.schema.serialize().to_pybytes(), *map(_encoder.encode, made)]
        return super().prepare()

    def took_over(self) -> None:
        writer = self._writer or DataFileWriter(self._base, self._folder, self._ctx, pa.schema([]), None, {})
        writer.took_over()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def schema_in(output: PreparedTransaction) -> pa.Schema:
    """The columns of the files of a transaction."""
    return pa.ipc.read_schema(pa.py_buffer(output.pieces[0]))


def files_in(output: PreparedTransaction) -> list[DataFile]:
    """The files of a transaction."""
    return list(map(_decoder.decode, output.pieces[1:]))


def covered_names(prepared: Iterable[bytes]) -> set[str]:
    """The plain names of the files of these transactions, without folders."""
    outputs = map(PreparedTransaction.decode, prepared)
    return {file.path.rpartition("/")[2] for output in outputs for file in files_in(output)}


def uncover(base: str, files: Iterable[DataFile]) -> list[int]:
    """Gives files on local paths their names, and returns the times of their last writes, in milliseconds since 1970.
    Raises `FileNotFoundError` for one that is gone."""
    folders, times = set(), []
    for file in files:
        final = os.path.join(base, file.path)
        if file.cover is not None:
            os.makedirs(os.path.dirname(final), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another publisher was quicker
                os.replace(file.cover, final)
                folders.add(os.path.dirname(final))
        status = os.stat(final) if os.path.exists(final) else None
        check_size(file, final, None if status is None else status.st_size)
        times.append(0 if status is None else status.st_mtime_ns // 1_000_000)
    for folder in folders:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return times


def check_size(file: DataFile, where: str, size: int | None) -> None:
    """Raises `FileNotFoundError` unless a file has its size. None: it is not there."""
    if size != file.size:
        state = "is gone" if size is None else f"has {size} bytes in place of {file.size}"
        raise FileNotFoundError(
            f"{where}: prepared by a sink for a commit, and {state}: its {file.rows} rows are lost. Somebody has removed "
            f"it, such as a VACUUM with a shorter retention than the time that the job was down. Start from an older "
            f"checkpoint or savepoint to write them again"
        )
