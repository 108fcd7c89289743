"""The sink of a PostgreSQL table: rows travel through the checkpoint as CSV, and are written with a mark."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import msgspec
import pyarrow as pa

from tailrace.api.connectors import NO_RECORD, SinkContext, SinkWriter
from tailrace.connectors.postgres.kinds import column_from, csv_of
from tailrace.connectors.postgres.server import SET_LOCAL, Server, client, passing_errors
from tailrace.connectors.postgres.target import (
    GONE,
    ORDER,
    STAGING,
    Table,
    check_target,
    copy_statement,
    describe,
    staging_statement,
    upsert_statements,
)
from tailrace.connectors.transactional import Scope, ServerTransaction, TransactionalSink, TransactionWriter
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.named_records import column_lists, declared_names, names_of
from tailrace.elements.rows import field_getter
from tailrace.errors import ConfigError

Mode = Literal["append", "upsert"]


class CsvRows(msgspec.Struct, array_like=True):
    """CsvRows in a checkpoint: their columns, and their values as CSV, in order. With "upsert" two more columns follow: True
    for a tombstone, and the number of the row in its writer."""

    names: list[str]
    data: bytes


class Postgres(TransactionalSink):
    """A sink that writes into a table of PostgreSQL, each record once.

    A record has the names of columns: a dictionary, a row, a named tuple or a dataclass, or a batch in columns. Columns of
    the table that records do not have get their default. All rows of a checkpoint are one transaction of the server for each
    subtask, with a mark.

    - `dsn`: the server and database, as libpq takes it; `table`: the name of the table, as in SQL (`schema.table`).
    - `mode`: "append" adds rows. "upsert" writes over the row with the same `keys`, which need a unique index. The last
      record of a key wins: partition the stream by the keys.
    - `delete`: with "upsert", a function that returns True for a record that deletes the row with its keys, or the name of a
      column with truth values, which is not written. Such a record needs nothing but the keys.
    - `columns`: the names of columns that are written; None: all that the records have.
    - `marks`: the name of the table with the marks. It is created where it does not exist.
    - `lost_output`: "fail", the job fails where the server has lost what it had committed, or "ignore".

    Raises `ConfigError` for wrong arguments, and when the job starts for what the server does not have or allow.
    """

    description = "postgres"
    form = None

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        mode: Mode = "append",
        keys: Sequence[str] | None = None,
        delete: str | Callable[[Any], bool] | None = None,
        columns: Sequence[str] | None = None,
        marks: str = "tailrace_marks",
        lost_output: Literal["fail", "ignore"] = "fail",
    ) -> None:
        self.server = Server(dsn, "sinks.Postgres")
        for setting, given in (("table", table), ("marks", marks)):
            if not isinstance(given, str) or not given:
                raise ConfigError(f"sinks.Postgres: {setting} is the name of a table, not {given!r}")
        if mode not in get_args(Mode):
            raise ConfigError(f"sinks.Postgres: mode must be 'append' or 'upsert', not {mode!r}")
        if lost_output not in ("fail", "ignore"):
            raise ConfigError(f"sinks.Postgres: lost_output must be 'fail' or 'ignore', not {lost_output!r}")
        self.keys, self.columns = _names(keys, "keys"), _names(columns, "columns")
        if (mode == "upsert") != bool(self.keys):
            raise ConfigError(
                "sinks.Postgres: mode='upsert' needs keys=[...], the columns of a unique index, and only it"
            )
        if delete is not None and not (mode == "upsert" and (callable(delete) or isinstance(delete, str))):
            raise ConfigError("sinks.Postgres: delete is a function or the name of a column, for mode='upsert'")
        missing = [one for one in self.keys if self.columns and one not in self.columns]
        if missing:
            raise ConfigError(f"sinks.Postgres: key {missing[0]!r} is not in columns=")
        self.table, self.mode, self.delete, self.marks = table, mode, delete, marks
        self.lost_output = lost_output

    def __repr__(self) -> str:
        return f"Postgres({self.server.name!r}, {self.table!r}, mode={self.mode!r})"

    @property
    def place(self) -> str | None:
        return f"{self.server.name} table {self.table}" if self.mode == "append" else None

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        return passing_errors()

    def check(self) -> None:
        with self.server.checking(f"table {self.table!r} (table=)") as connection:
            self.table_at(connection)
        with self.server.checking(f"table {self.marks!r} of marks (marks=)") as connection:
            _create_marks(connection, self.marks)
            connection.execute(f"SELECT scope, mark FROM {self.marks} LIMIT 0")
            can = "SELECT has_table_privilege(to_regclass(%s), 'INSERT') AND has_table_privilege(to_regclass(%s), 'UPDATE')"
            if connection.execute(can, [self.marks, self.marks]).fetchone() != (True,):
                raise self._refusal(
                    f"table {self.marks!r} (marks=)", "this user lacks the right INSERT or UPDATE on it"
                )

    def table_at(self, connection: Any) -> Table:
        """The table of the sink. Raises `ConfigError` where the sink cannot write into it."""
        found = describe(connection, self.table)
        what = f"table {self.table!r} (table=)"
        if found is None:
            raise self._refusal(what, "there is none that this user sees")
        try:
            check_target(found, self.keys, self.columns, self.delete is not None)
        except ConfigError as error:
            raise self._refusal(what, str(error)) from None
        return found

    def _refusal(self, what: str, why: str) -> ConfigError:
        return ConfigError(f"sinks.Postgres: {self.server.name}: {what}: {why}")

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _Writer(self, ctx)

    def encode(self, batch: Any) -> Iterable[bytes]:
        raise NotImplementedError  # the writer knows the table

    def transaction(self, scope: Scope) -> ServerTransaction:
        return _Connection(self, scope)


class _Writer(TransactionWriter):
    """A writer that knows the columns of the table from the server."""

    def __init__(self, sink: Postgres, ctx: SinkContext) -> None:
        super().__init__(sink, ctx)
        self._rows = _Encoder(sink)
        self._encode = self._rows.encode

    def write(self, batch: Any) -> None:
        try:
            super().write(batch)
        except Misfit as error:
            if error.row is not None and self.record is NO_RECORD:
                row = error.row
                self.record = batch[row] if isinstance(batch, list) else batch.slice(row, 1).to_pylist()[0]
            raise


class _Encoder:
    """Makes rows of batches, in the columns of the table as the server has it when the writer opens."""

    def __init__(self, sink: Postgres) -> None:
        self.sink = sink
        with sink.server.refusing(f"table {sink.table!r}"), sink.server.connect("write") as connection:
            self.table = sink.table_at(connection)
        self._written = 0

    def encode(self, batch: Any) -> list[bytes]:
        """The rows of a batch, with a piece for each run of records with the same names."""
        gone = self._tombstones(batch)
        if isinstance(batch, pa.RecordBatch):
            have = tuple(batch.schema.names)
            return [
                self._piece(self._columns_for(have), lambda name: batch.column(have.index(name)), len(batch), gone, 0)
            ]
        pieces = []
        for start, stop, names in _runs(batch):
            records = batch[start:stop]
            if names is None:
                read = _by_place(records, self.sink.columns)
                chosen = list(self.sink.columns)
            else:
                read = partial(_field, records)
                chosen = self._columns_for(names, all(gone[start:stop]) if gone else False)
            pieces.append(self._piece(chosen, read, len(records), gone and gone[start:stop], start))
        return pieces

    def _tombstones(self, batch: Any) -> list[bool] | None:
        """True for each record that deletes, of a batch; None where the sink does not delete."""
        delete = self.sink.delete
        if delete is None:
            return None
        if not isinstance(batch, pa.RecordBatch):
            given = (
                [field_getter(delete, one)(one) for one in batch]
                if isinstance(delete, str)
                else list(map(delete, batch))
            )
        elif isinstance(delete, str):
            given = batch.column(delete).to_pylist()
        else:
            raise TypeError("delete is a function, and the stream is in columns: give the name of a column")
        for at, value in enumerate(given):
            if not isinstance(value, bool):
                raise Misfit(f"delete must be True or False for each record, and is {value!r}", at)
        return given

    def _columns_for(self, names: Sequence[str], tombstones: bool = False) -> list[str]:
        """The columns that records with these names fill. Raises `ValueError` where they do not fit the table."""
        sink, columns = self.sink, self.table.columns
        have = [one for one in names if one != sink.delete]
        chosen = list(sink.keys) if tombstones else list(sink.columns) or have
        missing = [one for one in (*sink.keys, *chosen) if one not in have]
        if missing:
            raise Misfit(f"a record has no {missing[0]!r}; it has {', '.join(map(repr, names))}", 0)
        unknown = [one for one in chosen if one not in columns or one in self.table.computed]
        if unknown:
            why = "makes the values itself of" if unknown[0] in columns else "does not have"
            raise Misfit(
                f"a record has {unknown[0]!r}, a column that table {self.table.name} {why}; leave it out, or name the "
                f"columns to write (columns=)",
                0,
            )
        lacking = [one.name for one in columns.values() if one.required and one.name not in chosen]
        if lacking and not tombstones:
            raise Misfit(f"a record has no {lacking[0]!r}, which is NOT NULL in table {self.table.name}", 0)
        return chosen

    def _piece(
        self, names: list[str], read: Callable[[str], Any], count: int, gone: list[bool] | None, start: int
    ) -> bytes:
        arrays = []
        for name in names:
            column, values = self.table.columns[name], read(name)
            if gone is not None and any(gone) and name not in self.sink.keys:
                values = values.to_pylist() if isinstance(values, pa.Array) else values
                values = [None if dead else value for value, dead in zip(values, gone, strict=True)]
                column = column._replace(required=False)
                self._check_required(name, values, gone, start)
            try:
                arrays.append(column_from(values, column))
            except Misfit as error:
                raise Misfit(str(error), None if error.row is None else start + error.row) from None
        if self.sink.keys:
            arrays.append(pa.array(gone or [False] * count, pa.bool_()))
            arrays.append(pa.array(range(self._written, self._written + count), pa.int64()))
            self._written += count
        return msgspec.msgpack.encode(CsvRows(names, csv_of(arrays)))

    def _check_required(self, name: str, values: Sequence[Any], gone: Sequence[bool], start: int) -> None:
        if self.table.columns[name].required:
            at = next((i for i, value in enumerate(values) if value is None and not gone[i]), None)
            if at is not None:
                raise Misfit(f"column {name!r} is NOT NULL, and a value is None", start + at)


def _field(records: Sequence[Any], name: str) -> list[Any]:
    return list(map(field_getter(name, records[0]), records))


def _runs(records: Sequence[Any]) -> Iterator[tuple[int, int, tuple[str, ...] | None]]:
    """Runs of records with the same names: (start, stop, names); None as names for records without."""
    kinds = set(map(type, records))
    if len(kinds) == 1 and (names := declared_names(next(iter(kinds)))):
        yield 0, len(records), names
        return
    start = 0
    for key, run in itertools.groupby(records, lambda one: (type(one), names_of(one))):
        stop = start + sum(1 for _ in run)
        yield start, stop, key[1]
        start = stop


def _by_place(records: Sequence[Any], columns: Sequence[str]) -> Callable[[str], Sequence[Any]]:
    """A function that reads a column of records without names."""
    if not columns:
        raise TypeError(
            "a record must have the names of columns (a dictionary, a row, a named tuple, a dataclass); or give "
            "columns=[...] for tuples"
        )
    lists = dict(zip(columns, column_lists(list(records), list(columns)), strict=True))
    return lists.__getitem__


class _Connection:
    """A connection that writes the transactions of one scope."""

    def __init__(self, sink: Postgres, scope: Scope) -> None:
        self.sink, self.scope = sink, scope.name
        with sink.server.refusing("a connection (dsn=)"):
            self._connection = sink.server.connect("write")
        try:
            with sink.server.refusing(f"table {sink.marks!r} of marks (marks=)"):
                _create_marks(self._connection, sink.marks)
        except BaseException:
            self.close()
            raise

    def last(self) -> int | None:
        statement = f"SELECT mark FROM {self.sink.marks} WHERE scope = %s"
        with self.sink.server.refusing(f"table {self.sink.marks!r} of marks (marks=)"):
            found = self._connection.execute(statement, [self.scope]).fetchone()
        return None if found is None else int(found[0])

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        with self.sink.server.refusing(f"table {self.sink.table!r}"), self._connection.transaction():
            self._connection.execute(SET_LOCAL)
            if not self._move_mark(counter):
                return  # another process was faster
            rows = [msgspec.msgpack.decode(piece, type=CsvRows) for piece in pieces]
            for names, group in itertools.groupby(rows, lambda one: one.names):
                self._write(names, [one.data for one in group])

    def _move_mark(self, counter: int) -> bool:
        """Sets the mark, which locks it until the end of the transaction. False if it is not below `counter`."""
        marks = self.sink.marks
        statement = (
            f"INSERT INTO {marks} AS known (scope, mark) VALUES (%s, %s) ON CONFLICT (scope) DO UPDATE "
            f"SET mark = EXCLUDED.mark, at = now() WHERE known.mark < EXCLUDED.mark RETURNING mark"
        )
        return self._connection.execute(statement, [self.scope, counter]).fetchone() is not None

    def _write(self, names: list[str], data: Sequence[bytes]) -> None:
        table, keys = self.sink.table, self.sink.keys
        if not keys:
            self._copy(copy_statement(table, names), data)
            return
        self._connection.execute(staging_statement(table, names))
        self._copy(copy_statement(STAGING, [*names, GONE, ORDER]), data)
        for statement in upsert_statements(table, names, keys, self.sink.delete is not None):
            self._connection.execute(statement)
        self._connection.execute(f"DROP TABLE {STAGING}")

    def _copy(self, statement: str, data: Sequence[bytes]) -> None:
        with self._connection.cursor().copy(statement) as copy:
            for one in data:
                copy.write(one)

    def close(self) -> None:
        self._connection.close()


def _create_marks(connection: Any, marks: str) -> None:
    """Creates the table of marks if there is none, unless another job does so at this moment."""
    if connection.execute("SELECT to_regclass(%s)", [marks]).fetchone() != (None,):
        return
    errors = client().errors
    with contextlib.suppress(errors.UniqueViolation, errors.DuplicateTable):
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {marks} (scope text PRIMARY KEY, mark bigint NOT NULL, "
            f"at timestamptz NOT NULL DEFAULT now())"
        )


def _names(given: Any, setting: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not all(isinstance(one, str) for one in given) or len(set(given)) < len(given):
        raise ConfigError(f"sinks.Postgres: {setting} is a list of names of columns, not {given!r}")
    return tuple(given)
