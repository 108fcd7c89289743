"""Built-in sinks (`tr.sinks`).

File sinks write under a name that starts with `.` and rename when the job publishes; a finished file has a plain name.
Renaming twice is harmless: what is not there any more was published before.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.api.connectors import NO_RECORD, Sink, SinkContext, SinkWriter
from tailrace.errors import ConfigError, GraphError


class _FileWriter(SinkWriter):
    """One hidden file per subtask, made with the first record."""

    suffix = ""

    def __init__(self, directory: str, ctx: SinkContext) -> None:
        # Two sinks of one job may write into one folder: the digest tells whose file it is.
        whose = hashlib.sha256(ctx.uid.encode()).hexdigest()[:8]
        name = f"part-{ctx.subtask:05d}-{ctx.run_id}-{ctx.incarnation}-{whose}{self.suffix}"
        self.final = os.path.join(directory, name)
        self.hidden = os.path.join(directory, f".{name}.inprogress")
        self.prepared = False
        self.file: Any = None

    def _open(self) -> Any:
        """Opens the hidden file."""
        os.makedirs(os.path.dirname(self.hidden), exist_ok=True)
        return open(self.hidden, "wb")

    def _finish(self) -> None:
        """Closes the file so that all of it is on disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def prepare(self) -> bytes | None:
        if self.file is None:
            return None
        self._finish()
        self.file = None
        self.prepared = True
        return pickle.dumps((self.hidden, self.final), 5)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        if not self.prepared and os.path.exists(self.hidden):
            os.unlink(self.hidden)


def publish_files(prepared: Sequence[bytes]) -> None:
    """Gives prepared files their plain names. Raises `FileNotFoundError` where neither name exists."""
    for one in prepared:
        hidden, final = pickle.loads(one)
        try:
            os.replace(hidden, final)
        except FileNotFoundError:
            if not os.path.exists(final):
                raise


def remove_unfinished(sink: Sink, run_id: str) -> None:
    """Removes the hidden files of a run that did not finish: those of workers that were killed, and those that were
    prepared and will never be published."""
    directory = getattr(sink, "path", None) or getattr(sink, "directory", None)
    if directory is None or not isinstance(sink, TextFiles | Parquet | Result):
        return
    for path in glob.glob(os.path.join(glob.escape(directory), f".part-*-{run_id}-*.inprogress")):
        with contextlib.suppress(OSError):
            os.unlink(path)


class TextFiles(Sink):
    """One line of text per record (`str(record)`) in files of the folder `path`. A record with a line break in it is
    refused, because it could not be read back."""

    description = "text files"

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(os.fspath(path))

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _TextWriter(self.path, ctx)

    def publish(self, prepared: Sequence[bytes]) -> None:
        publish_files(prepared)


class _TextWriter(_FileWriter):
    suffix = ".txt"

    def write(self, batch: list[Any]) -> None:
        if self.file is None:
            self.file = self._open()
        lines = list(map(str, batch))
        text = "\n".join(lines) + "\n"
        if text.count("\n") != len(lines) or "\r\n" in text:
            at = next(i for i, line in enumerate(lines) if "\n" in line or line.endswith("\r"))
            self.record = batch[at]
            raise ValueError("a record has a line break in it and cannot be one line")
        self.file.write(text.encode())


class Parquet(Sink):
    """Parquet files of `schema` in the folder `path`. A stream in columns may leave the schema out."""

    description = "parquet"
    form = "columns"

    def __init__(self, path: str, schema: Any = None) -> None:
        from tailrace.api.launch import launcher

        self.path = os.path.abspath(os.fspath(path))
        self.schema = schema if schema is None or isinstance(schema, pa.Schema) else launcher().arrow_schema(schema)

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _ParquetWriter(self.path, ctx, self.schema)

    def publish(self, prepared: Sequence[bytes]) -> None:
        publish_files(prepared)


class _ParquetWriter(_FileWriter):
    suffix = ".parquet"
    group_rows = 65_536

    def __init__(self, directory: str, ctx: SinkContext, schema: pa.Schema | None) -> None:
        super().__init__(directory, ctx)
        self.schema = schema
        self.waiting: list[pa.RecordBatch] = []
        self.rows = 0

    def write(self, batch: Any) -> None:
        if self.schema is None:
            self.schema = batch.schema
        if batch.schema != self.schema:
            batch = pa.Table.from_batches([batch]).select(self.schema.names).cast(self.schema).combine_chunks()
            self.waiting.extend(batch.to_batches())
        else:
            self.waiting.append(batch)
        self.rows += batch.num_rows
        if self.file is None:
            os.makedirs(os.path.dirname(self.hidden), exist_ok=True)
            self.file = pq.ParquetWriter(self.hidden, self.schema, compression="zstd")
        if self.rows >= self.group_rows:
            self._write_group()

    def _write_group(self) -> None:
        if self.waiting:
            self.file.write_table(pa.Table.from_batches(self.waiting, self.schema))
        self.waiting, self.rows = [], 0

    def _finish(self) -> None:
        self._write_group()
        self.file.close()
        with open(self.hidden, "rb+") as file:
            os.fsync(file.fileno())


class Result(Sink):
    """A sink whose files live in a folder that the launcher gives, until the Spark session ends."""

    directory: str | None = None

    def bind(self, directory: str) -> None:
        """The launcher says where; called once before the job starts."""
        self.directory = directory

    def publish(self, prepared: Sequence[bytes]) -> None:
        publish_files(prepared)

    def _bound(self) -> str:
        if self.directory is None:
            raise ConfigError(f"the {self.description} sink has no folder: it was not started by a job")
        return self.directory

    def files(self) -> list[str]:
        """The published files, in the order of subtasks. Raises `GraphError` before the job has run."""
        if self.directory is None:
            raise GraphError("there is no result yet: the job of this sink has not run")
        if not os.path.isdir(self.directory):
            return []
        names = sorted(name for name in os.listdir(self.directory) if not name.startswith((".", "_")))
        return [os.path.join(self.directory, name) for name in names]


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
        if self.file is None:
            self.file = self._open()
        try:
            data = pickle.dumps(batch, 5)
        except Exception:
            for self.record in batch:
                pickle.dumps(self.record, 5)  # raises for the one that it was
            raise
        self.file.write(data)


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
