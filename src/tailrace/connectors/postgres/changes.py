"""The source of the changes of PostgreSQL tables, by logical replication.

The tables are read first, in a snapshot, and then their changes from that point of the log (LSN) on. The snapshot is that of
a temporary slot, so its point is exact: it holds what was committed before the point, and changes begin there.

**A restart in the middle of the snapshot** reads the rest in a snapshot of its own, at a later point. For rows of that part,
changes before the later point are left out: the snapshot holds them (`Part`).

**Positions.** Transactions come in the order of their commits. A position is behind a transaction, with the number of
changes that were given of the next one. The slot is confirmed up to positions that no restart goes back behind.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import select
import struct
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from tailrace.api.connectors import Source, SourceContext, SourceLag, SplitReader
from tailrace.connectors.postgres import pgoutput
from tailrace.connectors.postgres.fetching import Fetching, FetchingReader, with_patience
from tailrace.connectors.postgres.lineage import LogPlace, check_descent, identify, lsn_of, lsn_text
from tailrace.connectors.postgres.replicated import (
    ReplicatedTable,
    RowLoaders,
    check_publication,
    check_published,
    check_slot,
    describe_tables,
    made_anew,
)
from tailrace.connectors.postgres.server import BEGIN_READING, Server, client
from tailrace.elements.rows import made_rows
from tailrace.errors import ConfigError

CHUNK = 2_000
"""Number of changes that are handed to the reader at once."""
WAIT = 0.05
"""Seconds that the thread waits for the next change at a time."""
REPORT_EVERY = 5.0
"""Seconds between two reports to the server, which ends a connection that is silent."""
CHECK_EVERY = 5.0
"""Seconds between two checks that each table still has its name and is published."""
_EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


class Change(NamedTuple):
    """A change of a row of a table. An update that changes the key comes as a delete and an insert."""

    op: str
    """ "insert", "update", "delete" or "truncate" (of the whole table)."""
    table: str
    """The name of the table, as the source was given it."""
    key: tuple[Any, ...] | None
    """The values of the primary key, or of the columns of the replica identity."""
    row: Any
    """The new row; None behind a delete. Large values that an update has not changed are not in it (`unchanged`)."""
    old: Any
    """The old row, where the replica identity is FULL; else None."""
    lsn: int
    """The place of its commit in the log of the server; of a row of the snapshot, the point of that."""
    time: dt.datetime | None
    """The time of its commit; None for a row of the snapshot."""
    unchanged: tuple[str, ...] = ()
    """Names of columns whose values the server has not sent: they are large, and the update did not change them."""


class Part(NamedTuple):
    """A part of the snapshot: the rows of a table behind the part before, up to the key `upto`; None: all."""

    table: str
    upto: tuple[Any, ...] | None
    point: int
    """The point of the log at which it was read."""


class LogPosition(NamedTuple):
    """A position."""

    system: str
    """The identity of the server."""
    lsn: int
    """The place behind the last transaction whose changes were all given."""
    commit: int = 0
    """The place of the commit of the next transaction, if some of its changes were given."""
    given: int = 0
    """The number of changes given of it."""
    parts: tuple[Part, ...] = ()
    """The parts of the snapshot, while they were read at several points, or not all are read."""
    reading: bool = False
    """True if rows of the snapshot are still to be read: those behind the last part."""
    timeline: int = 0
    """The timeline of the server's log; 0 if it is not known."""
    tables: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    """The tables that are read: their names, the numbers that the server has given them, and their keys."""

    @property
    def place(self) -> LogPlace:
        """The place of the log that a server must have to go on from here."""
        seen = [self.lsn, *(part.point for part in self.parts)]
        return LogPlace(self.system, self.timeline, max(seen) if not self.given else max(*seen, self.commit + 1))


class PostgresChanges(Source):
    """A source of the changes of tables of PostgreSQL: records `Change` with op, table, key, row and old row. One subtask
    reads them in the order of their commits.

    - `dsn`: the server and database; `tables`: names of tables, as in SQL, each with a primary key.
    - `slot`: the name of the replication slot. It is created where it does not exist, and stays: the server keeps its log
      from there on. Drop it when the job is gone for good.
    - `publication`: the name of the publication, by default that of the slot. It is created where it does not exist.
    - `snapshot`: False to leave out the rows that are there at the start: changes begin where the slot is.

    Raises `ConfigError` for wrong arguments, and when the job starts for what the server does not have or allow.
    """

    description = "postgres changes"
    bounded = False

    def __init__(
        self,
        dsn: str,
        tables: Sequence[str],
        slot: str,
        *,
        publication: str | None = None,
        snapshot: bool = True,
    ) -> None:
        self.server = Server(dsn, "sources.PostgresChanges")
        if isinstance(tables, str) or not tables or not all(isinstance(one, str) and one for one in tables):
            raise ConfigError(f"sources.PostgresChanges: tables is a list of names of tables, not {tables!r}")
        if len(set(tables)) < len(tables):
            raise ConfigError(f"sources.PostgresChanges: a table is named twice in {list(tables)!r}")
        if not isinstance(slot, str) or not slot or set(slot) - set("abcdefghijklmnopqrstuvwxyz0123456789_"):
            raise ConfigError(f"sources.PostgresChanges: slot is a name of a-z, 0-9 and _, not {slot!r}")
        self.tables, self.slot, self.snapshot = list(tables), slot, snapshot
        self.publication = slot if publication is None else publication

    def __repr__(self) -> str:
        return f"PostgresChanges({self.server.name!r}, {self.tables!r}, slot={self.slot!r})"

    def check(self) -> None:
        with self.refusing_all("tables="), self.server.checking(f"tables {self.tables!r} (tables=)") as connection:
            describe_tables(connection, self.tables)
            check_publication(connection, self.publication, self.tables)
        slot = f"slot {self.slot!r} (slot=)"
        with self.refusing_all(slot), self.server.checking(slot) as connection:
            check_slot(connection, self.slot, None)
        with (
            self.server.checking("a connection for replication (dsn=)"),
            contextlib.closing(self.replication()) as connection,
        ):
            connection.execute("IDENTIFY_SYSTEM")

    @contextlib.contextmanager
    def refusing_all(self, setting: str) -> Generator[None, None, None]:
        """A context that adds the server and the setting to a `ConfigError`."""
        try:
            yield
        except ConfigError as error:
            text = str(error)
            raise error if self.server.name in text else self.server.refusal(setting, error) from None

    def replication(self) -> Any:
        """A connection for commands of replication."""
        return self.server.connect("changes", replication="database")

    def splits(self, parallelism: int) -> Sequence[Any]:
        return [self.slot]

    def reader(self, split: str, position: LogPosition | None = None) -> Fetching:
        return _ChangesReader(self, position)

    def split_reader(self, ctx: SourceContext) -> SplitReader:
        return FetchingReader(self.reader)


class _Chunk(NamedTuple):
    changes: list[Change]
    positions: list[LogPosition]
    """The position behind each change; with no changes, one position."""

    def __len__(self) -> int:
        return len(self.changes)


class _ChangesReader(Fetching):
    def __init__(self, source: PostgresChanges, position: LogPosition | None) -> None:
        super().__init__()
        self.source = source
        self._at = self._reached = position
        """Positions behind what was given, and behind what was fetched."""
        self._confirmed = 0
        self._reported = threading.Event()
        self._stream: _Stream | None = None
        self._newest: dt.datetime | None = None
        """The commit of the newest change that was given."""

    @property
    def position(self) -> LogPosition | None:
        return self._at

    def take(self, chunk: Any, start: int, stop: int) -> Any:
        self._at, self._newest = chunk.positions[stop - 1], chunk.changes[stop - 1].time
        return chunk.changes[start:stop]

    def pass_by(self, chunk: Any) -> None:
        self._at = chunk.positions[-1]

    def lag(self, now: float) -> SourceLag | None:
        """The time since the commit of the newest change that was given, while the server has written more of its log than
        the reader has gone through. How many changes that is only the server's decoding would tell."""
        stream, at = self._stream, self._at
        if stream is None or at is None or at.reading:
            return None
        if at.lsn >= stream.ahead and not at.given:
            return SourceLag(seconds=0.0)
        return None if self._newest is None else SourceLag(seconds=max(0.0, now - self._newest.timestamp()))

    def completed(self, position: LogPosition | None) -> None:
        """Confirms that the server need not keep its log up to a position."""
        if position is not None and not position.reading and position.lsn > self._confirmed:
            self._reported.clear()
            self._confirmed = position.lsn
            self._reported.wait(2.0)

    def beat(self) -> None:
        if self._stream is not None:
            self._stream.report(self._confirmed)
            self._reported.set()

    def chunks(self, wait: Callable[[float], object]) -> Generator[Any, None, None]:
        self._wait = wait
        return with_patience(self._fetched_chunks, self.source.server.name, wait)

    def _fetched_chunks(self) -> Generator[Any, None, None]:
        source = self.source
        with source.refusing_all(f"slot {source.slot!r} (slot=)"), source.server.connect("changes") as connection:
            tables = describe_tables(connection, source.tables)
            for name, oid, keys in () if self._reached is None else self._reached.tables:
                for one in tables:
                    if one.name == name and one.oid != oid:
                        raise made_anew(name)
                    if one.name == name and one.keys != keys:
                        raise _other_key(name, keys, one.keys)
            loaders = RowLoaders()
            if self._reached is None or self._reached.reading:
                yield from self._snapshot(connection, tables, loaders)
            yield from self._changes(connection, tables, loaders)

    def _give_chunk(self, changes: list[Change], positions: list[LogPosition]) -> _Chunk:
        self._reached = positions[-1]
        return _Chunk(changes, positions)

    # The snapshot.

    def _snapshot(
        self, connection: Any, tables: Sequence[ReplicatedTable], loaders: RowLoaders
    ) -> Generator[Any, None, None]:
        """Reads the tables, or what is left of them, at a point of the log."""
        source = self.source
        with contextlib.closing(source.replication()) as replication:
            now = identify(replication)
            before = self._reached or LogPosition(now.system, 0, reading=True)
            at = LogPosition(now.system, 0, timeline=now.timeline, tables=_places_of(tables))
            first = min((part.point for part in before.parts), default=0)
            check_slot(connection, source.slot, None if self._reached is None else first)
            check_descent(before.place, now, source.server)
            self._create_slot(connection, replication)
            if not source.snapshot:
                confirmed = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
                start = int(connection.execute(confirmed, [source.slot]).fetchone()[0])
                yield self._give_chunk([], [at._replace(lsn=start)])
                return
            name = f"tailrace_{uuid.uuid4().hex[:12]}"
            made = f'CREATE_REPLICATION_SLOT "{name}" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT'
            _, point_text, snapshot, _ = replication.execute(made).fetchone()
            point = lsn_of(point_text)
            connection.execute(BEGIN_READING)
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        parts = before.parts
        for table in tables:
            mine = [part for part in parts if part.table == table.name]
            if mine and mine[-1].upto is None:
                continue
            low = mine[-1].upto if mine else None
            columns = loaders.of_table(connection, table)
            with connection.cursor(name="tailrace") as cursor:
                cursor.execute(*table.statement(low))
                while rows := cursor.fetchmany(CHUNK):
                    changes = [
                        Change("insert", table.name, table.key_of(row), row, None, point, None)
                        for row in made_rows(columns, rows)
                    ]
                    positions = [
                        at._replace(parts=_with_part(parts, Part(table.name, one.key, point)), reading=True)
                        for one in changes
                    ]
                    yield self._give_chunk(changes, positions)
            parts = _with_part(parts, Part(table.name, None, point))
        connection.execute("COMMIT")
        points = {part.point for part in parts}
        yield self._give_chunk([], [at._replace(lsn=min(points), parts=parts if len(points) > 1 else ())])

    def _create_slot(self, connection: Any, replication: Any) -> None:
        exists = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
        if connection.execute(exists, [self.source.slot]).fetchone() is None:
            with contextlib.suppress(client().errors.DuplicateObject):
                replication.execute(f'CREATE_REPLICATION_SLOT "{self.source.slot}" LOGICAL pgoutput NOEXPORT_SNAPSHOT')

    # The changes.

    def _changes(
        self, connection: Any, tables: Sequence[ReplicatedTable], loaders: RowLoaders
    ) -> Generator[Any, None, None]:
        source, at = self.source, self._reached
        assert at is not None
        with contextlib.closing(source.replication()) as replication:
            now = identify(replication)
            check_slot(connection, source.slot, at.lsn)
            check_descent(at.place, now, source.server)
            at = at._replace(timeline=now.timeline, tables=_places_of(tables))
            self._stream = _Stream(replication, source.slot, at.lsn, source.publication)
            try:
                check = partial(check_published, connection, source.publication, tables)
                yield from self._transactions(self._stream, _Decoder(connection, tables, loaders), at, check)
            finally:
                self._stream = None

    def _transactions(
        self, stream: _Stream, decoder: _Decoder, at: LogPosition, check: Callable[[], None]
    ) -> Generator[Any, None, None]:
        """Chunks of the changes of transactions. `check` raises an error if changes of tables no longer come."""
        check_at = 0.0
        changes: list[Change] = []
        positions: list[LogPosition] = []
        skip_in, skip = at.commit, at.given
        begun: pgoutput.BeginMessage | None = None
        now = at
        """Position behind all messages so far."""
        while not self._wait(0):
            if time.monotonic() >= check_at:
                check()
                check_at = time.monotonic() + CHECK_EVERY
            message = stream.next(0.0 if changes else WAIT)
            if message is None:
                if changes:
                    yield self._give_chunk(changes, positions)
                    changes, positions = [], []
                elif begun is None and stream.idle_at > now.lsn:
                    now = _behind(now, stream.idle_at)
                    yield self._give_chunk([], [now])
                self._keep_alive(stream)
                continue
            if isinstance(message, pgoutput.BeginMessage):
                begun, now = message, now._replace(commit=message.commit, given=0)
                moment = _EPOCH + dt.timedelta(microseconds=message.time)
            elif isinstance(message, pgoutput.CommitMessage):
                begun, now = None, _behind(now, message.end)
                if positions and positions[-1].commit:
                    positions[-1] = now
            else:
                assert begun is not None
                for change in decoder.changes(message, begun.commit, moment, now.parts):
                    now = now._replace(given=now.given + 1)
                    if begun.commit != skip_in or now.given > skip:
                        changes.append(change)
                        positions.append(now)
            if len(changes) >= CHUNK:
                yield self._give_chunk(changes, positions)
                changes, positions = [], []
                self._keep_alive(stream)

    def _keep_alive(self, stream: _Stream) -> None:
        if stream.due or stream.confirmed < self._confirmed:
            stream.report(self._confirmed)
            self._reported.set()


class _Decoder:
    """Makes changes of messages."""

    def __init__(self, connection: Any, tables: Sequence[ReplicatedTable], loaders: RowLoaders) -> None:
        self.connection, self.loaders = connection, loaders
        self.tables = {(one.schema, one.relation): one for one in tables}
        self.oids = {one.oid: one for one in tables}
        self.known: dict[int, _Layout | None] = {}
        """Oid of a relation -> its layout; None for one that is not read."""

    def changes(
        self, message: pgoutput.Message | None, commit: int, moment: dt.datetime, parts: tuple[Part, ...]
    ) -> Generator[Change, None, None]:
        """The changes of a message, without those that the snapshot holds."""
        if isinstance(message, pgoutput.RelationMessage):
            self._describe(message)
        elif isinstance(message, pgoutput.TruncateMessage):
            for oid in message.relations:
                known = self.known.get(oid)
                if known is not None:
                    _check_truncated(known.table.name, commit, parts)
                    yield Change("truncate", known.table.name, None, None, None, commit, moment)
        elif isinstance(message, pgoutput.InsertMessage | pgoutput.UpdateMessage | pgoutput.DeleteMessage):
            known = self.known.get(message.relation)
            for change in () if known is None else _changes_of_row(message, known, commit, moment):
                if not parts or commit >= _point_of(change, parts):
                    yield change

    def _describe(self, relation: pgoutput.RelationMessage) -> None:
        table = self.tables.get((relation.schema, relation.name))
        here = self.oids.get(relation.oid)
        if table is not here:
            raise made_anew((table or here).name)  # type: ignore[union-attr]
        if table is None:
            self.known[relation.oid] = None
            return
        names, full = tuple(column.name for column in relation.columns), relation.identity == "f"
        sent = {column.name for column in relation.columns if column.is_key}
        if not sent.issuperset(table.keys) or (not full and len(sent) > len(table.keys)):
            raise _other_key(table.name, table.keys, sorted(sent))
        loaders = self.loaders.of_types(self.connection, [column.type for column in relation.columns])
        self.known[relation.oid] = _Layout(table, names, loaders, [names.index(name) for name in table.keys], full)


class _Layout(NamedTuple):
    """The columns of a table, as its changes have them."""

    table: ReplicatedTable
    names: tuple[str, ...]
    loaders: list[Any]
    keys: list[int]
    """The indexes of the columns of the key."""
    full: bool
    """True if changes have the whole old row."""

    def values_of(self, values: pgoutput.Values) -> list[Any]:
        return [
            load(value) if isinstance(value, bytes) else value for load, value in zip(self.loaders, values, strict=True)
        ]

    def key_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[at] for at in self.keys)


def _changes_of_row(
    message: pgoutput.InsertMessage | pgoutput.UpdateMessage | pgoutput.DeleteMessage,
    layout: _Layout,
    commit: int,
    moment: dt.datetime,
) -> Generator[Change, None, None]:
    name, names, key_of = layout.table.name, layout.names, layout.key_of
    old = None if isinstance(message, pgoutput.InsertMessage) or message.key is None else layout.values_of(message.key)
    whole = made_rows(names, [tuple(old)])[0] if old is not None and layout.full else None
    if isinstance(message, pgoutput.DeleteMessage):
        assert old is not None
        yield Change("delete", name, key_of(old), None, whole, commit, moment)
        return
    new = layout.values_of(message.row)
    if old is not None:  # a large key that has not changed is there only
        old_there = range(len(names)) if layout.full else layout.keys
        new = [old[at] if value is pgoutput.UNCHANGED and at in old_there else value for at, value in enumerate(new)]
    op = "insert" if isinstance(message, pgoutput.InsertMessage) else "update"
    if old is not None and key_of(old) != key_of(new):
        yield Change("delete", name, key_of(old), None, whole, commit, moment)
        op, whole = "insert", None
    missing = tuple(one for one, value in zip(names, new, strict=True) if value is pgoutput.UNCHANGED)
    there = [(one, value) for one, value in zip(names, new, strict=True) if value is not pgoutput.UNCHANGED]
    row = made_rows(tuple(one for one, _ in there), [tuple(value for _, value in there)])[0]
    yield Change(op, name, key_of(new), row, whole, commit, moment, missing)


class _Stream:
    """A stream of messages from the slot, on a connection for replication."""

    def __init__(self, connection: Any, slot: str, start: int, publication: str) -> None:
        self._raw = connection.pgconn
        name = publication.replace('"', '""').replace("'", "''")
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(start)} '
            f"(proto_version '1', publication_names '\"{name}\"')"
        )
        result = self._raw.exec_(command.encode())
        if result.status != client().pq.ExecStatus.COPY_BOTH:
            raise client().errors.error_from_result(result)
        self.confirmed = 0
        self.idle_at = 0
        """The place up to which the server has sent all, as its messages without changes give it."""
        self._received = self.ahead = start
        self._report_at = 0.0
        self._requested = False

    @property
    def due(self) -> bool:
        """True if the server waits for a report."""
        return self._requested or time.monotonic() >= self._report_at

    def next(self, wait: float) -> pgoutput.Message | None:
        """The next message; None where there is none for so many seconds."""
        while True:
            size, data = self._raw.get_copy_data(1)
            if size == 0:
                if not select.select([self._raw.socket], [], [], wait)[0]:
                    return None
                self._raw.consume_input()
                continue
            if size < 0:
                result = self._raw.get_result()
                reason = "" if result is None else result.error_message.decode(errors="replace").strip()
                raise client().OperationalError(f"the server has ended the stream. {reason}")
            message = bytes(data)
            if message[:1] == b"k":
                self.idle_at, _, reply = struct.unpack_from(">QQB", message, 1)
                self.ahead = max(self.ahead, self.idle_at)
                self._requested = self._requested or bool(reply)
                return None
            self._received = max(self._received, struct.unpack_from(">Q", message, 9)[0])
            self.ahead = max(self.ahead, self._received)
            found = pgoutput.read_message(message[25:])
            if found is not None:
                return found

    def report(self, confirmed: int) -> None:
        """Reports to the server how far the job has come for good. 0: nothing is known yet."""
        self._raw.put_copy_data(
            b"r" + struct.pack(">QQQqB", max(self._received, confirmed), confirmed, confirmed, 0, 0)
        )
        self._raw.flush()
        self.confirmed, self._requested = confirmed, False
        self._report_at = time.monotonic() + REPORT_EVERY


def _places_of(tables: Sequence[ReplicatedTable]) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
    return tuple((one.name, one.oid, one.keys) for one in tables)


def _other_key(table: str, known: Sequence[str], now: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"the key of table {table!r} is ({', '.join(known)}), and changes of it have the key ({', '.join(now)}): it was "
        f"altered. Start the job anew, without the checkpoint: it reads a new snapshot"
    )


def _with_part(parts: tuple[Part, ...], part: Part) -> tuple[Part, ...]:
    """Parts with the last one of its table moved on, or one more if that was read at another point."""
    last = parts[-1] if parts else None
    if last is not None and last.table == part.table and last.point == part.point:
        return (*parts[:-1], part)
    return (*parts, part)


def _behind(at: LogPosition, end: int) -> LogPosition:
    """The position behind a transaction. Parts are dropped when all changes count."""
    parts = at.parts if any(end <= part.point for part in at.parts) else ()
    return at._replace(lsn=end, commit=0, given=0, parts=parts)


def _point_of(change: Change, parts: tuple[Part, ...]) -> int:
    """The point at which the snapshot has read the row of a change."""
    mine = [part for part in parts if part.table == change.table]
    key = ReplicatedTable.order(change.key or ())
    return next((part.point for part in mine if part.upto is None or key <= ReplicatedTable.order(part.upto)), 0)


def _check_truncated(table: str, commit: int, parts: tuple[Part, ...]) -> None:
    points = {part.point for part in parts if part.table == table}
    if len(points) > 1 and commit < max(points):
        raise ConfigError(f"table {table!r} was truncated while its snapshot was read in two parts: start the job anew")
