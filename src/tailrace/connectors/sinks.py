"""The built-in sinks (`tr.sinks`): their arguments, and their ways to write a record.

`filesinks` writes files under cover and publishes them; `results` finds the files of a result again.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tailrace.api.checks.hints import SINKS
from tailrace.api.connectors import NO_RECORD, Sink, SinkContext, SinkWriter
from tailrace.connectors import hidden
from tailrace.connectors.files.columnssink import ColumnsSink, TextColumnsSink
from tailrace.connectors.files.holding import held_writer
from tailrace.connectors.files.rolling import Roll, check_roll
from tailrace.connectors.files.textwriters import CsvWriter, JsonWriter, check_csv, check_json
from tailrace.connectors.filesinks import FileSink, FileWriter
from tailrace.connectors.lengths import Limit
from tailrace.connectors.parquetwriter import ParquetWriter, TableWriter
from tailrace.connectors.results import Result
from tailrace.connectors.schemas import declared_schema
from tailrace.elements.callables import misfit_function, work_not_done
from tailrace.errors import ConfigError
from tailrace.lazynames import resolve
from tailrace.spelling import missing, with_hints

_PLACES: dict[str, str] = {
    "Database": "tailrace.connectors.databases",
    "Delta": "tailrace.connectors.lake.deltasink",
    "Iceberg": "tailrace.connectors.lake.icebergsink",
    "Kafka": "tailrace.connectors.kafka.sink",
    "Nats": "tailrace.connectors.nats.sink",
    "Postgres": "tailrace.connectors.postgres.sink",
    "RedisHash": "tailrace.connectors.redis.sinks",
    "RedisStream": "tailrace.connectors.redis.sinks",
}
"""Name -> module that has it: connectors of servers. A program imports the clients of those that it uses."""


@with_hints
class TextFiles(FileSink):
    """A sink that writes one line of text per record (`str(record)`) into files in the folder `path`, a path or URL. It
    refuses a record with a line break, because it could not be read back. `roll`: when another file begins. Raises
    `ConfigError` for a path that is none, or of a file."""

    description = "text files"

    def __init__(self, path: str, *, roll: Roll | None = None) -> None:
        self.path = hidden.folder_for_files(path, "TextFiles")
        self.roll = check_roll(roll, "TextFiles")

    def writer(self, ctx: SinkContext) -> SinkWriter:
        assert self.path is not None
        return held_writer(_TextWriter(self.path, ctx, self.roll), self.roll)


class _TextWriter(FileWriter):
    suffix = ".txt"

    def write(self, batch: list[Any]) -> None:
        self._roll_by_time()
        lines = list(map(str, batch))
        text = "\n".join(lines) + "\n"
        if text.count("\n") != len(lines) or "\r\n" in text:
            at = next(i for i, line in enumerate(lines) if "\n" in line or line.endswith("\r"))
            self.record = batch[at]
            raise ValueError(
                "the record contains a line break and would not be one line; replace the break before the sink"
            )
        self._begin().write(text.encode())
        self._roll_by_size()


class Parquet(ColumnsSink):
    """A sink that writes Parquet files of `schema` into the folder `path`, a path or URL.

    - `schema`: DDL text, a `StructType` or a `pyarrow.Schema`; a stream in columns does not need it.
    - `partition_by`: columns whose values are names of folders (`day=2024-01-01`), as in Spark; the files do not have them.
    - `roll`: when another file begins.

    Raises `ConfigError` for a path that is none, or of a file, and for a column that cannot be in names of folders, and
    `GraphError` for a schema with two columns of one name."""

    description = "parquet"
    file_writer = ParquetWriter


class Csv(TextColumnsSink):
    """A sink that writes CSV files, with a header, into the folder `path`. Its arguments are those of `Parquet`, and
    `compression`: "gzip" (`.csv.gz`), "zstd" (`.csv.zst`), or None. Raises `ConfigError` as that does, and for a column that
    holds no single value."""

    description = "csv"
    text_writer = CsvWriter

    def check_columns(self, schema: pa.Schema) -> None:
        check_csv(schema)


class Json(TextColumnsSink):
    """A sink that writes JSON lines, an object for each record, into files in the folder `path`. Its arguments are those of
    `Csv`. Raises `ConfigError` as `Parquet` does, and for a column of a type that JSON does not have."""

    description = "json"
    text_writer = JsonWriter

    def check_columns(self, schema: pa.Schema) -> None:
        check_json(schema)


def _arrow_schema(schema: Any) -> pa.Schema | None:
    return None if schema is None else declared_schema(schema, "the sink")


@with_hints
class Table(FileSink):
    """A sink that adds rows to a Spark table: a Parquet table that is not partitioned. `name` is its name in Spark. A table
    that does not exist is created with `schema` (DDL text, a `StructType` or a `pyarrow.Schema`). If the table exists and
    `schema` is given, its columns must be equal. Raises `ConfigError` for a name that is none."""

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
        """Sets what the launcher has found of the table: its folder, its columns, a function that refreshes the table in
        Spark when there are more rows, and the limits of its texts."""
        self.path, self.schema, self._refresh, self.limits = hidden.normal(path), schema, refresh, limits or {}

    def writer(self, ctx: SinkContext) -> SinkWriter:
        if self.path is None:
            raise ConfigError(f"table {self.name!r}: tables are Spark's, so the job must run on Spark: env.execute()")
        return TableWriter(self.path, ctx, self.schema, self.limits)

    def published(self) -> None:
        if self._refresh is not None:
            self._refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_refresh": None}  # Spark stays in the driver


@with_hints
class Collect(Result):
    """A sink that keeps the records. `result()` returns them as a list once the job has finished."""

    description = "collect"
    form = "rows"

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _PickleWriter(self._writes_into(), ctx)

    def result(self) -> list[Any]:
        """The records, in the order of subtasks and in order within each. Raises `GraphError` before the job has run, and
        `ConfigError` if published records were removed."""
        records: list[Any] = []
        for path in self.files():
            with self._open_file(path) as file:
                while file.peek(1):
                    records.extend(pickle.load(file))
        return records


class _PickleWriter(FileWriter):
    suffix = ".pickle"

    def write(self, batch: list[Any]) -> None:
        try:
            data = pickle.dumps(batch, 5)
        except Exception:
            for self.record in batch:
                pickle.dumps(self.record, 5)  # raises for the record that cannot be pickled
            raise
        self._begin().write(data)


def DataFrame(schema: Any = None) -> Any:
    """A sink that keeps the records. `dataframe()` returns them as a Spark DataFrame once the job has finished. It is for
    several DataFrames from one job; for a single one there is `to_dataframe`. `schema` is DDL text, a `StructType` or a
    `pyarrow.Schema`; a stream in columns does not need it."""
    from tailrace.api.launch import launcher

    return launcher().dataframe_sink(schema)


def ForeachBatch(fn: Callable[[Any, int], object], schema: Any = None) -> Any:
    """A sink that calls `fn(df, number)` in the program, behind each complete checkpoint with records: `df` is a Spark
    DataFrame of them, which `fn` writes wherever Spark can write. No call is made for a number whose call has returned. If
    the program dies during a call, a start from the checkpoint makes it again, with the same number and records. An
    exception of `fn` fails the job. `schema` is DDL text, a `StructType` or a `pyarrow.Schema`; a stream in columns does not
    need it."""
    from tailrace.api.launch import launcher

    return launcher().foreach_sink(fn, schema)


@with_hints
class Print(Sink):
    """A sink that prints each record on the worker's standard output, after `prefix`, and after the number of the subtask
    if there are several."""

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
        output = getattr(sys.stdout, "own", sys.stdout)  # of the worker, not what stands in for it to reach the driver
        output.write("".join(f"{self.prefix}{record}\n" for record in batch))
        output.flush()


@with_hints
class Callback(Sink):
    """A sink that calls `fn(record)` for each record, in the worker. After a failure it may call `fn` again for a record.
    Raises `ConfigError` for what is no plain function."""

    description = "callback"

    def __init__(self, fn: Callable[[Any], object]) -> None:
        if not callable(fn):
            raise ConfigError(f"Callback takes a function, not {fn!r}")
        wrong = misfit_function(fn)
        if wrong is not None:
            raise ConfigError(f"Callback: {getattr(fn, '__name__', type(fn).__name__)} {wrong}")
        self.fn = fn

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _CallbackWriter(self.fn)


class _CallbackWriter(SinkWriter):
    def __init__(self, fn: Callable[[Any], object]) -> None:
        self.fn = fn

    def write(self, batch: list[Any]) -> None:
        for record in batch:
            self.record = record
            returned = self.fn(record)
            if returned is not None and work_not_done(returned) is not None:
                raise TypeError(
                    f"a callback does its work when it is called, and it returned a {type(returned).__name__}, which has "
                    f"done nothing yet"
                )
        self.record = NO_RECORD


def __getattr__(name: str) -> Any:
    found = resolve(__name__, name, _PLACES)
    if found is not None:
        return found
    own = [each for each, value in globals().items() if isinstance(value, type) and value.__module__ == __name__]
    raise missing("tr.sinks", name, SINKS, [*own, *_PLACES])
