"""The source of a PostgreSQL query: ranges of one column in parallel, then rows as they come.

**How rows that come late are found.** A number of a sequence is taken before its row is committed: number 5 may be seen
when 6 was read already. So a followed column is read up to a *settled* value only. The source looks up the largest value,
and which transactions run then. When all of them have ended, every row up to that value is committed or will never be:
transactions that began later get larger values. This holds for columns that the server fills: a sequence without CACHE,
`DEFAULT now()` or `clock_timestamp()`, `pg_current_xact_id()`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from tailrace.api.connectors import Enumerator, Reader, Source
from tailrace.connectors.postgres.fetching import Fetching, with_patience
from tailrace.connectors.postgres.lineage import LogPlace, check_descent, place_now
from tailrace.connectors.postgres.query import (
    Query,
    as_texts,
    check_followed,
    check_sequence,
    describe_query,
    range_bounds,
    range_statement,
)
from tailrace.connectors.postgres.server import BEGIN_READING, Server, client, identifier
from tailrace.elements.batches import Form
from tailrace.elements.durations import Duration, span_seconds
from tailrace.errors import ConfigError

CHUNK = 5_000
"""Number of rows that are fetched at once."""
CLOCK_MARGIN = "100 milliseconds"
"""Times are followed up to so long ago: two transactions may have one time, and clocks are set back a little."""
_RUNNING = """
SELECT l.virtualxid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()
  AND (a.pid IS NULL OR a.datname = current_database() AND a.usesysid IS NOT NULL)
  AND coalesce(a.application_name, '') <> 'tailrace read'
"""
_RUNNING_STILL = f"SELECT count(*) FROM ({_RUNNING}) AS r WHERE r.virtualxid = ANY(%s)"
_PREPARED = "SELECT transaction::text FROM pg_prepared_xacts WHERE database = current_database()"
_PREPARED_STILL = f"SELECT count(*) FROM ({_PREPARED}) AS r WHERE r.transaction = ANY(%s)"


class Range(NamedTuple):
    """A split: the rows whose values of the split column are above `low`, up to `high`; None: without a limit."""

    low: Any
    high: Any
    snapshot: str | None = None
    """Name of the snapshot in which all ranges are read, as long as it is there."""
    upto: Any = None
    """Largest value of the followed column; rows with larger ones are left to the split that follows."""


class Behind(NamedTuple):
    """A split: all rows whose values of the followed column are above `low`, as they come."""

    low: Any
    place: LogPlace | None = None
    """The place in the server's log at which `low` was settled."""


class At(NamedTuple):
    """A position: behind so many rows with this value."""

    value: Any
    rows: int
    high: Any = None
    """Upper end of the range that is read, of a followed split."""
    place: LogPlace | None = None
    """The place in the server's log at which `high` was settled, of a followed split."""


class Postgres(Source):
    """A source of the rows of a query or a table of PostgreSQL, as rows with names, or batches with `form="columns"`.

    The rows are read in ranges of one column, in parallel; a restart goes on in the middle of a range. With `follow` the
    source goes on, without end, with rows whose value in that column is larger than all before.

    - `dsn`: the server and database, as libpq takes it.
    - `query` or `table`: a SELECT, or the name of a table. Columns of types that do not come out whole are refused.
    - `split_by`: the column with the ranges. It is never NULL, and has an index if the table is large. Default: `follow`.
    - `follow`: a column that the server fills with growing values: a serial or identity number, or a `timestamptz` with
      `DEFAULT now()`. Rows are read when all transactions have ended that ran when their value was seen.
    - `splits`: number of ranges; they have about as many rows each. Default: four for each subtask, with `follow` one.
    - `every`: the time between two looks for new rows (seconds, a `timedelta` or a text).

    Raises `ConfigError` for wrong arguments, and when the job starts for what the server does not have or allow.
    """

    description = "postgres"

    def __init__(
        self,
        dsn: str,
        query: str | None = None,
        *,
        table: str | None = None,
        split_by: str | None = None,
        follow: str | None = None,
        form: Form = "rows",
        splits: int | None = None,
        every: Duration = 1.0,
    ) -> None:
        self.server = Server(dsn, "sources.Postgres")
        if (query is None) == (table is None) or not isinstance(query or table, str):
            raise ConfigError("sources.Postgres takes query='SELECT ...' or table='name', one of them")
        if form not in ("rows", "columns"):
            raise ConfigError(f"sources.Postgres: form must be 'rows' or 'columns', not {form!r}")
        if splits is not None and (not isinstance(splits, int) or isinstance(splits, bool) or splits < 1):
            raise ConfigError(f"sources.Postgres: splits is a number of at least 1, not {splits!r}")
        split_by = split_by if split_by is not None else follow
        if not isinstance(split_by, str) or not (follow is None or isinstance(follow, str)):
            raise ConfigError("sources.Postgres needs split_by='column', by which rows are read in ranges")
        try:
            self.every = span_seconds(every)
        except (TypeError, OverflowError) as error:
            raise ConfigError(f"sources.Postgres: every: {error}") from None
        if self.every <= 0:
            raise ConfigError(f"sources.Postgres: every must be positive, not {every!r}")
        self.query = query.strip().rstrip(";") if query is not None else f"SELECT * FROM {table}"
        self.what = "query (query=)" if table is None else f"table {table!r} (table=)"
        self.split_by, self.follow, self.form, self.count = split_by, follow, form, splits
        self.bounded = follow is None
        self._described: Query | None = None

    def __repr__(self) -> str:
        return f"Postgres({self.server.name!r}, {self.query!r}, split_by={self.split_by!r}, follow={self.follow!r})"

    @property
    def position_format(self) -> str:
        return "Postgres" if self.follow is None else "Postgres(follow)"

    @property
    def columns(self) -> tuple[str, ...] | None:  # type: ignore[override]
        return self.described.names if self.form == "columns" else None

    @property
    def schema(self) -> Any:  # type: ignore[override]
        return self.described.schema if self.form == "columns" else None

    @property
    def described(self) -> Query:
        """The query as the server has described it. Raises `ConfigError`."""
        if self._described is None:
            with self.server.checking(self.what) as connection:
                try:
                    found = describe_query(connection, self.query, self.form)
                    for setting, column in (("split_by", self.split_by), ("follow", self.follow)):
                        if column is not None and column not in found.names:
                            raise ConfigError(
                                f"it has no column {column!r} ({setting}=); it has {', '.join(found.names)}"
                            )
                    if self.follow is not None:
                        check_followed(connection, found, self.follow)
                except ConfigError as error:
                    raise ConfigError(f"sources.Postgres: {self.server.name}: {self.what}: {error}") from None
            self._described = found
        return self._described

    def check(self) -> None:
        self._described = None
        _ = self.described

    def splits(self, parallelism: int) -> Sequence[Any]:
        raise NotImplementedError  # there is an enumerator

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator:
        return _Ranges(self, parallelism, position)

    def reader(self, split: Any, position: Any = None) -> Reader:
        if isinstance(split, Range):
            return _RangeReader(self, split, position)
        return _FollowingReader(self, split, position)

    def connect(self) -> Any:
        """A connection that reads. A slow reader keeps its transaction as long as it takes."""
        connection = self.server.connect("read")
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        if self.form == "columns":
            as_texts(connection)
        return connection

    def settle(self, connection: Any, above: Any, wait: Callable[[float], object]) -> Any:
        """The largest value of the followed column, behind which no smaller one will come any more; None if there is none
        above `above`. Waits for the transactions that run now."""
        assert self.follow is not None
        by, kind = identifier(self.follow), self.described.kinds[self.follow]
        limits = [] if above is None else [f"{by} > %(above)s::{kind}"]
        if kind.startswith("timestamp"):
            limits.append(f"{by} < statement_timestamp() - interval '{CLOCK_MARGIN}'")
        where = f"WHERE {' AND '.join([*limits, f'{by} IS NOT NULL'])}"
        text = self.described.text.replace("%", "%%")
        statement = f"SELECT {by} FROM {text} {where} ORDER BY {by} DESC LIMIT 1"
        found = connection.execute(statement, {"above": above}).fetchone()
        if found is None:
            return None
        # In this order: a running transaction may turn into a prepared one, not the reverse.
        for running, still in ((_RUNNING, _RUNNING_STILL), (_PREPARED, _PREPARED_STILL)):
            names = [name for (name,) in connection.execute(running)]
            while names and connection.execute(still, [names]).fetchone() != (0,):
                if wait(min(0.05, self.every)):
                    return None
        return found[0]


class _Ranges(Enumerator):
    """The ranges of a query, listed in a thread. The transaction whose snapshot they are read in stays open until they are
    read."""

    def __init__(self, source: Postgres, parallelism: int, position: Any) -> None:
        self.source, self.parallelism = source, parallelism
        self._listed = position is not None
        self._found: list[Any] | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._snapshot: Any = None
        self._left = 0

    def discover(self, now: float) -> Sequence[Any] | None:
        if self._listed:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._list, name="postgres ranges", daemon=True)
            self._thread.start()
        self._thread.join(0.02)
        if self._error is not None:
            raise self._error
        if self._found is None:
            return []
        self._listed, self._left = True, sum(isinstance(one, Range) for one in self._found)
        return self._found

    def next_at(self, now: float) -> float:
        return now + 0.05

    @property
    def position(self) -> Any:
        return True if self._listed else None

    def ended(self, split: Any) -> None:
        self._left -= isinstance(split, Range)
        if self._left <= 0:
            self.close()

    def _list(self) -> None:
        try:
            with contextlib.closing(with_patience(self._listing, self.source.server.name, self._stop.wait)) as listing:
                self._found = next(iter(listing), [])
        except BaseException as error:
            self._error = error

    def _listing(self) -> Generator[list[Any], None, None]:
        source = self.source
        connection = source.connect()
        upto = None if source.follow is None else source.settle(connection, None, self._stop.wait)
        if self._stop.is_set():
            connection.close()
            return
        connection.execute(BEGIN_READING)
        snapshot = connection.execute("SELECT pg_export_snapshot()").fetchone()[0]
        count = source.count or self.parallelism * (4 if source.follow is None else 1)
        try:
            bounds = range_bounds(connection, source.described, source.split_by, count)
        except ConfigError as error:
            raise ConfigError(f"sources.Postgres: {source.server.name}: {source.what}: {error} (split_by=)") from None
        ranges: list[Any] = [
            Range(low, high, snapshot, upto) for low, high in zip([None, *bounds[:-1]], bounds, strict=False)
        ]
        self._snapshot = connection
        yield (
            ranges
            if source.follow is None
            else [*([] if upto is None else ranges), Behind(upto, place_now(connection))]
        )

    def close(self) -> None:
        self._stop.set()
        if self._snapshot is not None:
            self._snapshot.close()


class _RowReader(Fetching):
    """A reader of rows in the order of one column."""

    def __init__(self, source: Postgres, column: str, position: At | None) -> None:
        super().__init__()
        self.source, self.query = source, source.described
        self.column = self.query.names.index(column)
        self._at = position
        self._fetched = position
        """Position behind the rows that were fetched. Only the thread uses it."""

    def take(self, chunk: Any, start: int, stop: int) -> Any:
        self._at = self._behind(chunk, start, stop, self._at)
        return self.query.records(chunk[start:stop], self.source.form)

    @property
    def position(self) -> At | None:
        return self._at

    def _behind(self, rows: Sequence[Any], start: int, stop: int, before: At | None) -> At:
        value, at = rows[stop - 1][self.column], stop - 1
        while at > start and rows[at - 1][self.column] == value:
            at -= 1
        same = before is not None and at == start and before.value == value
        return At(value, stop - at + (before.rows if same and before is not None else 0))

    def rows_of(self, connection: Any, low: Any, high: Any, upto: Any = None) -> Generator[Any, None, None]:
        """The rows behind the position within a range, in chunks, in the transaction that is open."""
        at, column = self._fetched, self.query.names[self.column]
        lowest, done = (low, 0) if at is None else (at.value, at.rows)
        query = self.query._replace(text=self.query.text.replace("%", "%%"))
        if upto is not None and self.source.follow is not None:
            follow = identifier(self.source.follow)
            inner = f"SELECT * FROM {query.text} WHERE {follow} <= %(upto)s::{query.kinds[self.source.follow]}"
            query = query._replace(text=f"({inner}) AS q")
        statement = range_statement(query, column, above=lowest is not None, upto=high is not None, inclusive=done > 0)
        given = {"low": lowest, "high": high, "upto": upto}
        with connection.cursor(name="tailrace") as cursor:
            cursor.execute(statement, given)
            while rows := cursor.fetchmany(CHUNK):
                while done and rows and rows[0][self.column] == lowest:
                    done, rows = done - 1, rows[1:]
                if not rows:
                    continue
                done = 0
                self._fetched = self._behind(rows, 0, len(rows), self._fetched)
                yield rows


class _RangeReader(_RowReader):
    def __init__(self, source: Postgres, split: Range, position: At | None) -> None:
        super().__init__(source, source.split_by, position)
        self.split = split

    def chunks(self, wait: Callable[[float], object]) -> Generator[Any, None, None]:
        return with_patience(self._read, self.source.server.name, wait)

    def _read(self) -> Generator[Any, None, None]:
        with self.source.connect() as connection:
            self._begin(connection)
            yield from self.rows_of(connection, self.split.low, self.split.high, self.split.upto)

    def _begin(self, connection: Any) -> None:
        """Begins a transaction in the snapshot of the split, or, if that is gone, in one of this moment."""
        begin, errors = BEGIN_READING, client().errors
        connection.execute(begin)
        if self.split.snapshot is not None:
            try:
                connection.execute(f"SET TRANSACTION SNAPSHOT '{self.split.snapshot}'")
            except (errors.InvalidParameterValue, errors.UndefinedObject):
                connection.execute("ROLLBACK")
                connection.execute(begin)


class _FollowingReader(_RowReader):
    """A reader of a followed column: of one settled range after the other."""

    def __init__(self, source: Postgres, split: Behind, position: At | None) -> None:
        assert source.follow is not None
        super().__init__(source, source.follow, position or At(split.low, 0, place=split.place))
        self._high = None if position is None else position.high
        self._place = split.place if position is None else position.place
        """The place at which the server had what was read."""

    def take(self, chunk: Any, start: int, stop: int) -> Any:
        rows = chunk.rows
        self._at = self._behind(rows, start, stop, self._at)._replace(high=chunk.high, place=chunk.place)
        return self.query.records(rows[start:stop], self.source.form)

    def chunks(self, wait: Callable[[float], object]) -> Generator[Any, None, None]:
        self._wait = wait
        return with_patience(self._follow, self.source.server.name, wait)

    def _follow(self) -> Generator[Any, None, None]:
        with self.source.connect() as connection:
            if self._place is not None:
                self._check_descent(connection, self._place)
            while True:
                if self._high is None:
                    assert self._fetched is not None
                    high = self.source.settle(connection, self._fetched.value, self._wait)
                    if high is not None:
                        self._place, self._high = place_now(connection), high
                if self._high is not None:
                    connection.execute(BEGIN_READING)
                    self._place = place_now(connection)  # the first statement takes the snapshot
                    for rows in self.rows_of(connection, None, self._high):
                        yield _Chunk(rows, self._high, self._place)
                    connection.execute("COMMIT")
                    self._fetched, self._high = At(self._high, 0), None
                else:
                    if self._fetched is not None and self._fetched.value is not None:
                        with self._with_name():
                            check_sequence(connection, self.query, self.query.names[self.column], self._fetched.value)
                    if self._wait(self.source.every):
                        return

    def _check_descent(self, connection: Any, place: LogPlace) -> None:
        """Raises `ConfigError` if the server has lost what was read: it gives the numbers of lost rows to other rows."""
        with self._with_name():
            check_descent(place, place_now(connection), self.source.server)

    @contextlib.contextmanager
    def _with_name(self) -> Generator[None, None, None]:
        """A context that adds the server and the table to a `ConfigError`."""
        try:
            yield
        except ConfigError as error:
            raise self.source.server.refusal(self.source.what, error) from None


class _Chunk(NamedTuple):
    rows: Sequence[Any]
    high: Any
    place: LogPlace

    def __len__(self) -> int:
        return len(self.rows)
