"""Built-in sinks (`tr.sinks`).

File sinks write under cover (`connectors.folders`) and begin a new file after each `prepare`; a published file has a plain
name. Names never repeat, so publishing twice is harmless, and a file tells whose it is.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.api.connectors import NO_RECORD, Sink, SinkContext, SinkWriter
from tailrace.connectors import folders, hidden
from tailrace.connectors.agreement import Agreement
from tailrace.connectors.hidden import Hidden, Origin
from tailrace.connectors.lengths import Limit
from tailrace.connectors.parquet import columns_with_statistics
from tailrace.elements.columns.common import has_nulls, settled
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import batch_as
from tailrace.errors import ConfigError, GraphError


class _FileWriter(SinkWriter):
    """A file under cover per transaction, made with its first record."""

    suffix = ""

    def __init__(self, path: str, ctx: SinkContext) -> None:
        self.folder = folders.folder_at(path)
        self.hidden: Hidden | None = None
        self._ctx = ctx
        self._count = 0

    def _begin(self) -> Any:
        """The file of the running transaction: takes bytes."""
        if self.hidden is None:
            ctx = self._ctx
            name = hidden.name_of(ctx.subtask, ctx.run_id, ctx.incarnation, ctx.uid, self._count, self.suffix)
            self._count += 1
            self.hidden = self.folder.create(name)
        return self.hidden.stream

    def _flush(self) -> None:
        """The last writes of a transaction."""

    def prepare(self) -> bytes | None:
        if self.hidden is None:
            return None
        self._flush()
        token, self.hidden = self.hidden.finish(), None
        return token

    def close(self) -> None:
        if self.hidden is not None:
            self.hidden.discard()
            self.hidden = None


class _FileSink(Sink):
    """A sink whose writers are `_FileWriter`s."""

    same_columns = True
    """Its files have the same ones: it cannot go on where its subtasks had different ones, nor with others than before."""
    path: str | None = None
    """The folder, a path or URL; None until it is known."""
    _unsettled: frozenset[bytes] = frozenset()
    """Files that this object has published and may be asked for again: their traces stay."""
    _agreement: Agreement | None = None
    """About the columns of its files; where it publishes."""

    @property
    def place(self) -> str | None:
        return self.path

    def publish(self, prepared: Sequence[bytes]) -> None:
        self._agreement = self._agreement or Agreement()
        self._agreement.check(prepared)
        folders.publish_files(prepared)
        self._unsettled |= frozenset(prepared)

    def settled(self, prepared: Sequence[bytes]) -> None:
        folders.settle_files(prepared)
        self._unsettled -= frozenset(prepared)

    def recover(self, run_ids: Sequence[str], incarnation: int, uid: str) -> None:
        whose = hidden.whose(uid)
        self._sweep(
            lambda of: of.run_id in run_ids and of.incarnation < incarnation and of.whose == whose,
            list(self._unsettled),
        )

    def _sweep(self, wanted: Callable[[Origin], bool], keep: Sequence[bytes] = ()) -> None:
        if self.path is not None:
            folders.folder_at(self.path).sweep(wanted, {hidden.plain_name(one) for one in keep})


def remove_unfinished(sink: Sink, run_id: str, uid: str | None = None, keep: Sequence[bytes] = ()) -> None:
    """Removes what a run that has ended left under cover: files of killed workers, and prepared files that will never
    be published; and the traces of published ones. `keep` is the output that sinks prepared for a checkpoint that
    stays: a later start publishes it, or needs to know that it was published. Without a `uid` the files of all sinks of
    the run in that folder are meant."""
    if isinstance(sink, _FileSink):
        whose = None if uid is None else hidden.whose(uid)
        sink._sweep(lambda of: of.run_id == run_id and whose in (None, of.whose), keep)


class TextFiles(_FileSink):
    """One line of text per record (`str(record)`) in files of the folder `path`, a path or URL. A record with a line break
    in it is refused, because it could not be read back."""

    description = "text files"

    def __init__(self, path: str) -> None:
        self.path = hidden.normal(path)

    def writer(self, ctx: SinkContext) -> SinkWriter:
        assert self.path is not None
        return _TextWriter(self.path, ctx)


class _TextWriter(_FileWriter):
    suffix = ".txt"

    def write(self, batch: list[Any]) -> None:
        lines = list(map(str, batch))
        text = "\n".join(lines) + "\n"
        if text.count("\n") != len(lines) or "\r\n" in text:
            at = next(i for i, line in enumerate(lines) if "\n" in line or line.endswith("\r"))
            self.record = batch[at]
            raise ValueError("a record has a line break in it and cannot be one line")
        self._begin().write(text.encode())


class Parquet(_FileSink):
    """Parquet files of `schema` in the folder `path`, a path or URL. A stream in columns may leave the schema out."""

    description = "parquet"
    form = "columns"

    def __init__(self, path: str, schema: Any = None) -> None:
        self.path = hidden.normal(path)
        self.schema = _arrow_schema(schema)

    def writer(self, ctx: SinkContext) -> SinkWriter:
        assert self.path is not None
        return _ParquetWriter(self.path, ctx, self.schema)


def _arrow_schema(schema: Any) -> pa.Schema | None:
    from tailrace.api.launch import launcher

    return schema if schema is None or isinstance(schema, pa.Schema) else launcher().arrow_schema(schema)


class _ParquetWriter(_FileWriter):
    suffix = ".parquet"
    group_rows = 65_536

    def __init__(self, path: str, ctx: SinkContext, schema: pa.Schema | None) -> None:
        super().__init__(path, ctx)
        self.schema = schema
        """None until the first file is begun, where it was not declared."""
        self._declared = schema is not None
        self._found: Any = None
        """The columns, as far as they are known. No file is begun while something is null only."""
        self.file: pq.ParquetWriter | None = None
        self.waiting: list[pa.RecordBatch] = []
        self.rows = 0
        self._statistics: list[str] = []

    def write(self, batch: Any) -> None:
        if self.schema is None:
            self._found = batch.schema if self._found is None else settled(self._found, batch.schema)
            self.waiting.append(batch)
        else:
            self.waiting.append(self._fitted(batch))
        self.rows += batch.num_rows
        if self.file is None and not (self.schema is None and has_nulls(self._found)):
            self._open()
        if self.rows >= self.group_rows:
            self._write_group()

    def _open(self) -> None:
        """Begins the file: its columns are known, or cannot be waited for any longer."""
        if self.schema is None:
            self.schema = self._columns(self._found)
            self.waiting = list(map(self._fitted, self.waiting))
        self._statistics = self._statistics or columns_with_statistics(self.schema)
        self.file = pq.ParquetWriter(
            self._begin(), self.schema, compression="zstd", write_statistics=self._statistics or False
        )

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Batches come in one schema. Only a column that was null so far may have got a type since this file was begun.
        assert self.schema is not None
        try:
            return self._fitting(batch_as(batch, self.schema))
        except Misfit as error:
            if self._declared or not has_nulls(self.schema):
                raise
            raise ValueError(
                f"{error}; it was null only when its file was begun: give the sink a schema, or the stream one with "
                f"to_columns(schema)"
            ) from error

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the file, where the stream's are these and none were given."""
        return schema

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch as it is written. Raises `ValueError` for what does not fit."""
        return batch

    def _write_group(self) -> None:
        if self.waiting:
            if self.file is None:
                self._open()
            assert self.file is not None
            self.file.write_table(pa.Table.from_batches(self.waiting, self.schema))
        self.waiting, self.rows = [], 0

    def prepare(self) -> bytes | None:
        self._write_group()
        token = super().prepare()
        if token is None or self._declared:
            return token
        assert self.schema is not None
        return hidden.with_columns(token, [(field.name, str(field.type)) for field in self.schema])

    def _flush(self) -> None:
        assert self.file is not None
        self.file.close()
        self.file = None

    def close(self) -> None:
        if self.file is not None:
            with contextlib.suppress(Exception):  # its last words go into a file that is given up
                self.file.close()
        self.file, self.waiting, self.rows = None, [], 0
        super().close()


class _TableWriter(_ParquetWriter):
    """Refuses what Spark's INSERT would refuse, and pads what it would pad."""

    def __init__(self, path: str, ctx: SinkContext, schema: pa.Schema | None, limits: dict[str, Limit]) -> None:
        super().__init__(path, ctx, schema)
        self.limits = limits

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, limit in self.limits.items():
            at = batch.schema.get_field_index(name)
            row = limit.first_too_long(batch.column(at))
            if row is not None:
                self.record = batch.slice(row, 1).to_pylist()[0]
                raise ValueError(f"column {name!r} is {limit.text}, and a value is longer than that")
            if limit.pads:
                batch = batch.set_column(at, batch.schema.field(at), limit.padded(batch.column(at)))
        return batch


class Table(_FileSink):
    """Rows of a Spark table: a Parquet table that is not partitioned. `name` is as Spark knows it. A table that is not
    there is created with `schema`; the columns of one that is there must be those of `schema`, where it is given."""

    description = "table"
    form = "columns"

    def __init__(self, name: str, schema: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"Table takes the name of a table, not {name!r}")
        self.name = name
        self.schema = _arrow_schema(schema)
        self.limits: dict[str, Limit] = {}
        self._refresh: Callable[[], object] | None = None

    @property
    def place(self) -> str | None:
        return f"table {self.name}"

    def bind(
        self, path: str, schema: pa.Schema, refresh: Callable[[], object], limits: dict[str, Limit] | None = None
    ) -> None:
        """The launcher has found the table: where it is, its columns, how Spark is told that there are more rows, and how
        long their texts may be."""
        self.path, self.schema, self._refresh, self.limits = hidden.normal(path), schema, refresh, limits or {}

    def writer(self, ctx: SinkContext) -> SinkWriter:
        if self.path is None:
            raise ConfigError(f"table {self.name!r}: tables are Spark's, so the job must run on Spark: env.execute()")
        return _TableWriter(self.path, ctx, self.schema, self.limits)

    def published(self) -> None:
        if self._refresh is not None:
            self._refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_refresh": None}  # Spark stays in the driver


class Result(_FileSink):
    """A sink whose files live in a folder that the launcher gives, until the Spark session ends."""

    def bind(self, directory: str) -> None:
        """The launcher says where; called once before the job starts."""
        self.path = directory

    def publish(self, prepared: Sequence[bytes]) -> None:
        """Output that an earlier run prepared lies in its folder, and is no part of this run's result."""
        here = f"{self._bound()}{os.sep}"
        super().publish([one for one in prepared if hidden.plain_name(one).startswith(here)])

    @property
    def directory(self) -> str | None:
        """The folder; None before the job started."""
        return self.path

    def _bound(self) -> str:
        if self.path is None:
            raise ConfigError(f"the {self.description} sink has no folder: it was not started by a job")
        return self.path

    def files(self) -> list[str]:
        """The published files, in the order of subtasks. Raises `GraphError` before the job has run."""
        if self.path is None:
            raise GraphError("there is no result yet: the job of this sink has not run")
        if not os.path.isdir(self.path):
            return []
        names = sorted(name for name in os.listdir(self.path) if not name.startswith((".", "_")))
        return [os.path.join(self.path, name) for name in names]


class Collect(Result):
    """Keeps the records; `result()` gives them as a list once the job has finished."""

    description = "collect"
    form = "rows"

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _PickleWriter(self._bound(), ctx)

    def result(self) -> list[Any]:
        """The records, in the order of subtasks and in order within each. Raises `GraphError` before the job ran."""
        records: list[Any] = []
        for path in self.files():
            with open(path, "rb") as file:
                while file.peek(1):
                    records.extend(pickle.load(file))
        return records


class _PickleWriter(_FileWriter):
    suffix = ".pickle"

    def write(self, batch: list[Any]) -> None:
        try:
            data = pickle.dumps(batch, 5)
        except Exception:
            for self.record in batch:
                pickle.dumps(self.record, 5)  # raises for the one that it was
            raise
        self._begin().write(data)


def DataFrame(schema: Any = None) -> Any:
    """Keeps the records; `dataframe()` gives them as a Spark DataFrame once the job has finished. For several DataFrames
    from one job; for a single one there is `to_dataframe`. `schema` is DDL text, a `StructType` or a `pyarrow.Schema`; a
    stream in columns may leave it out."""
    from tailrace.api.launch import launcher

    return launcher().dataframe_sink(schema)


class Print(Sink):
    """Prints each record on the worker's standard output, with the subtask before it where there are several."""

    description = "print"

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def writer(self, ctx: SinkContext) -> SinkWriter:
        subtask = f"{ctx.subtask}> " if ctx.parallelism > 1 else ""
        return _PrintWriter(f"{self.prefix}{subtask}")


class _PrintWriter(SinkWriter):
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def write(self, batch: list[Any]) -> None:
        sys.stdout.write("".join(f"{self.prefix}{record}\n" for record in batch))
        sys.stdout.flush()


class Callback(Sink):
    """Calls `fn(record)` for each record, in the worker."""

    description = "callback"

    def __init__(self, fn: Callable[[Any], object]) -> None:
        if not callable(fn):
            raise ConfigError(f"Callback takes a function, not {fn!r}")
        self.fn = fn

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _CallbackWriter(self.fn)


class _CallbackWriter(SinkWriter):
    def __init__(self, fn: Callable[[Any], object]) -> None:
        self.fn = fn

    def write(self, batch: list[Any]) -> None:
        for record in batch:
            self.record = record
            self.fn(record)
        self.record = NO_RECORD
