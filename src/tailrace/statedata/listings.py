"""The content of a checkpoint besides the entries of states, as rows: its operators, the positions of sources, timers, and
the records that were in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.rows import plain_values, rows_of
from tailrace.elements.timestamps import NO_TIME
from tailrace.elements.valuepickling import load_described
from tailrace.errors import CheckpointNotFound, ConfigError, IncompatibleState
from tailrace.state.format import CALLS, JOINED, JOINING, WAITING, Index, LogKind, OperatorPart
from tailrace.state.parts import LogOf
from tailrace.statedata.columns import (
    BATCH_ROWS,
    GROUPS_AT_ONCE,
    SAMPLE,
    Shown,
    StateColumns,
    check_form,
    show,
    split_groups,
)
from tailrace.statedata.keyed_states import KeyedStates
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.statedata.types import MOMENT, NoColumn, column_for
from tailrace.storage.checkpoint_lookup import checkpoints_in
from tailrace.storage.reading import read_logs
from tailrace.task.channels.channel_logs import restored_frame
from tailrace.task.operators.joins.interval import TIMES
from tailrace.task.operators.sources.splits import SourceState, decode_state, join_states
from tailrace.task.operators.stores.chunks import BLOCK, read_block
from tailrace.task.subtask.snapshot import read_meta

Part = tuple[int, int]
"""A range that is read together: key groups [first, last), or files of a checkpoint."""
_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()


class Listing:
    """Rows of a fixed kind. Subclasses define the columns."""

    columns: tuple[tuple[str, pa.DataType], ...] = ()
    open: tuple[str, ...] = ()
    """Columns with values of the user. They are shown in the form `how`, or by a type that is found from the values."""
    absent = False
    """True if None in one of these columns stands for a missing value."""
    option = "values"
    """The option that sets the form of these columns."""

    def __init__(self, stored: StoredCheckpoint, how: str) -> None:
        self.stored = stored
        self.how: Shown = check_form(how, self.option)

    def schema(self) -> pa.Schema:
        """The columns, with types of Arrow. Raises `NoColumn` if the values of a column have no common type."""
        return pa.schema([(name, self._type(name, kind)) for name, kind in self.columns])

    def _type(self, name: str, kind: pa.DataType) -> pa.DataType:
        if name not in self.open:
            return kind
        if self.how != "columns":
            return _TEXT if self.how == "text" else pa.binary()
        try:
            place = [one for one, _ in self.columns].index(name)
            rows = (row for part in self.parts() for row in self._each(part))
            return column_for(row[place] for row in islice(rows, SAMPLE))
        except NoColumn as error:
            raise NoColumn(f"{name}s have no common type of column: {error}; {self._instead}") from None

    @property
    def _instead(self) -> str:
        return f'read them as text, .option("{self.option}", "text"), or pickled, .option("{self.option}", "pickle")'

    def parts(self, most: int | None = None) -> list[Part]:
        """The ranges that are read together."""
        return [(0, 1)]

    def batches(self, part: Part, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a part in these columns. Raises `ConfigError` for an unknown column, and `IncompatibleState` for a
        value that does not fit its column."""
        there = [name for name, _ in self.columns]
        unknown = [name for name in schema.names if name not in there]
        if unknown:
            raise ConfigError(f"there is no column {unknown[0]!r}; the columns are {', '.join(there)}")
        walk = iter(self._each(part))
        while some := list(islice(walk, BATCH_ROWS)):
            rows = dict(zip(there, map(list, zip(*some, strict=True)), strict=True))
            yield pa.RecordBatch.from_arrays([self._array(rows[field.name], field) for field in schema], schema=schema)

    def _array(self, values: list[Any], field: pa.Field) -> pa.Array:
        if field.name in self.open and self.how != "columns":
            return show(values, self.how, field, [value is None for value in values] if self.absent else None)
        if pa.types.is_timestamp(field.type) and field.name not in self.open:
            return _maybe_moments(values, field)
        try:
            return column_of_values(values, field)
        except Misfit as error:
            raise IncompatibleState(f"{error}; {self._instead}") from None

    def _each(self, part: Part) -> Iterable[tuple[Any, ...]]:
        """The rows of a part."""
        raise NotImplementedError


def _maybe_moments(values: list[int | None], field: pa.Field) -> pa.Array:
    return pa.array(values, pa.int64()).cast(field.type)


class Operators(Listing):
    """One row for each state of each operator. An operator without states has one row as well."""

    columns = (
        ("uid", _TEXT), ("name", _TEXT), ("parallelism", _INT), ("finished", _INT), ("state", _TEXT), ("kind", _TEXT),
        ("encoding", _TEXT), ("type", _TEXT), ("entries", _LONG), ("bytes", _LONG),
    )  # fmt: skip

    def _each(self, part: Part) -> Iterator[tuple[Any, ...]]:
        held = self.stored.sizes()
        for one in self.stored.manifest.operators:
            own = (one.uid, one.name, one.parallelism, sum(one.finished))
            if not one.tables:
                yield (*own, *[None] * 6)
            for table in one.tables:
                size = held.get((one.uid, table.name), (0, 0))
                yield (*own, table.name, table.kind, table.encoding, table.type or None, *size)


class KeptCheckpoints(Listing):
    """The checkpoints of the job that are there, this one among them."""

    columns = (("checkpoint", _LONG), ("time", MOMENT), ("bytes", _LONG), ("kind", _TEXT), ("path", _TEXT))

    def _each(self, part: Part) -> Iterator[tuple[Any, ...]]:
        store = self.stored.store
        for name, one in checkpoints_in(store):
            yield one.checkpoint, one.timestamp, one.size, one.kind, store.url_of(name)


class Positions(Listing):
    """The splits of sources that are not read to their end, with the position of the reader."""

    columns = (
        ("uid", _TEXT), ("name", _TEXT), ("subtask", _INT), ("status", _TEXT), ("number", _LONG), ("split", _TEXT),
        ("position", _TEXT),
    )  # fmt: skip
    open = ("split", "position")
    absent = True

    def __init__(self, stored: StoredCheckpoint, how: str, uid: str | None) -> None:
        super().__init__(stored, how)
        self.uid = None if uid is None else stored.operator(uid).uid

    def _each(self, part: Part) -> Iterator[tuple[Any, ...]]:
        sources: dict[str, list[tuple[OperatorPart, SourceState]]] = {}
        for index in self.stored.indexes.values():
            for one in index.operators:
                state = source_state(one)
                if state is not None and self.uid in (None, one.uid):
                    sources.setdefault(one.uid, []).append((one, state))
        for found in sources.values():
            found.sort(key=lambda pair: pair[0].subtask)
            first = found[0][0]
            for one, state in found:
                for held in state.held:
                    at = None if held.position is None else self._read(held.position, one)
                    yield one.uid, one.name, one.subtask, "held", held.index, self._read(held.split, one), at
            known, held_by_some, ended = join_states([(one.subtask, one.parallelism, state) for one, state in found])
            for number, split in known.splits if known is not None else ():
                if number not in held_by_some and number not in ended:
                    yield first.uid, first.name, None, "unassigned", number, self._read(split, first), None
            if known is not None and known.position is not None:
                yield first.uid, first.name, 0, "enumerator", None, None, self._read(known.position, first)

    def _read(self, data: bytes, of: OperatorPart) -> Any:
        with self.stored.reading(f"a split or position of source {of.uid!r}"):
            return load_described(data)


def source_state(part: OperatorPart) -> SourceState | None:
    """The state of a subtask of a source; None for other operators, whose state has another form."""
    data = None if part.meta is None else read_meta(part.meta).data
    if data is None:
        return None
    try:
        found = msgspec.msgpack.decode(data)
        own = type(found) is dict and set(found) <= set(SourceState.__struct_fields__)
        return decode_state(data) if own else None
    except msgspec.MsgspecError:
        return None


def splits_of(stored: StoredCheckpoint, uid: str) -> list[tuple[Any, Any]]:
    """The splits that a source has left to read in a checkpoint, each with its position, or None for its beginning."""
    with stored.reading(f"a split or position of source {uid!r}"):
        return [
            (load_described(split), None if at is None else load_described(at))
            for split, at in pickled_splits(stored.indexes.values(), uid)
        ]


def pickled_splits(indexes: Iterable[Index], uid: str) -> list[tuple[bytes, bytes | None]]:
    """The splits that a source has left to read by the indexes of a checkpoint's files, each with its position, or None for
    its beginning. All are pickled."""
    parts = [part for index in indexes for part in index.operators if part.uid == uid]
    states = [(part.subtask, part.parallelism, state) for part in parts if (state := source_state(part)) is not None]
    known, held, ended = join_states(states)
    left = [split for number, split in (known.splits if known is not None else ()) if number not in held | ended]
    reads = [(one.split, one.position) for _, _, state in states for one in state.held]
    return [*reads, *((split, None) for split in left)]


def reading_within(stored: StoredCheckpoint, folders: Iterable[str]) -> set[str]:
    """The uids of the sources that have files left to read in one of these folders. Unpickles nothing."""
    within = [f"{folder.rstrip('/')}/".encode() for folder in folders if folder]
    splits: dict[tuple[str, int], bytes] = {}
    ended: set[tuple[str, int]] = set()
    for part in [part for index in stored.indexes.values() for part in index.operators]:
        state = source_state(part)
        if state is not None:
            splits |= {(part.uid, held.index): held.split for held in state.held}
            splits |= {(part.uid, number): split for number, split in (state.known.splits if state.known else ())}
            ended |= {(part.uid, number) for number in state.ended}
    left = [(uid, split) for (uid, number), split in splits.items() if (uid, number) not in ended]
    return {uid for uid, split in left if any(folder in split for folder in within)}


class TimerListing(Listing):
    """The timers of an operator that are set. Timers of a window have the start of the window as namespace."""

    columns: tuple[tuple[str, pa.DataType], ...] = (("key", _TEXT), ("time", MOMENT), ("clock", _TEXT))
    open = ("key",)
    option = "keys"

    def __init__(self, stored: StoredCheckpoint, how: str, uid: str) -> None:
        super().__init__(stored, how)
        record = stored.operator(uid)
        self.uid = uid
        self.parallelism = record.parallelism
        self.windowed = any(table.kind == "window" for table in record.tables)
        self.tables = {table.name for table in record.tables if table.kind == "timers"}
        if self.windowed:
            self.columns = (self.columns[0], ("namespace", MOMENT), *self.columns[1:])

    def parts(self, most: int | None = None) -> list[Part]:
        weights = self.stored.weights(self.uid, self.tables)
        return split_groups(weights, most or max(self.parallelism, sum(weights.values()) // GROUPS_AT_ONCE + 1))

    def _each(self, part: Part) -> Iterator[tuple[Any, ...]]:
        for one in self.stored.entries(self.uid, self.tables, part):
            clock = one.table.name.rpartition(":")[2]
            for key, time in one.entries:
                yield (*key, time, clock) if self.windowed else (key, time, clock)


class WaitingListing(Listing):
    """The records of an operator that wait for event time: in front of a function that is called in order, or in a join; and
    the records of asynchronous calls whose results have not gone on."""

    columns: tuple[tuple[str, pa.DataType], ...] = (
        ("key", _TEXT), ("timestamp", MOMENT), ("port", _INT), ("value", _TEXT),
    )  # fmt: skip
    open = ("key", "value")

    def __init__(self, stored: StoredCheckpoint, how: str, uid: str) -> None:
        super().__init__(stored, how)
        record = stored.operator(uid)
        self.uid, self.parallelism = record.uid, record.parallelism
        self.tables = {WAITING.name, JOINING.name, JOINED.name, CALLS.name}

    def parts(self, most: int | None = None) -> list[Part]:
        weights = self.stored.weights(self.uid, self.tables)
        return split_groups(weights, most or max(self.parallelism, sum(weights.values()) // GROUPS_AT_ONCE + 1))

    def _each(self, part: Part) -> Iterator[tuple[Any, ...]]:
        for one in self.stored.entries(self.uid, self.tables, part):
            if one.table.name == JOINING.name:
                yield from _joining(one.entries)
                continue
            if one.table.name == JOINED.name:
                with self.stored.reading("the records that a join in columns keeps"):
                    yield from _of_blocks(one.entries)
                continue
            if one.table.name == CALLS.name:
                called = sorted(one.entries.items(), key=lambda entry: entry[0][2:])
                yield from ((key, time, 0, value) for (key, time, *_), value in called)
                continue
            waiting = sorted(one.entries.items(), key=lambda entry: entry[0][1:])
            for (key, time, port, _), value in waiting:
                yield key, time, port, value


def _joining(entries: Mapping[Any, Any]) -> Iterator[tuple[Any, ...]]:
    """The records that a join keeps, key by key in the order in which keys came."""
    for key, held in sorted(entries.items(), key=lambda entry: entry[1][0]):
        for port, at in enumerate(TIMES):
            for time, value in zip(held[at], held[at + 1], strict=True):
                yield key, time, port, value


def _of_blocks(entries: Mapping[Any, Any]) -> Iterator[tuple[Any, ...]]:
    """The records that a join in columns keeps, block by block."""
    for place in sorted((place for place in entries if place[3] == BLOCK), key=lambda place: place[1:3]):
        block = read_block(entries, place).without_gone()
        keys = [plain_values(block.data.column(name)) for name in block.names]
        tupled = isinstance(place[0], tuple)
        for i, value in enumerate(rows_of(block.data)):
            key = tuple(column[i] for column in keys)
            yield key if tupled else key[0], int(block.times[i]), place[1], value


class InFlightListing(Listing):
    """The records that barriers had overtaken; with `feedback`, the records that were on their way around loops."""

    columns = (
        ("uid", _TEXT), ("subtask", _INT), ("port", _INT), ("source", _TEXT), ("tag", _TEXT), ("source_subtask", _INT),
        ("kind", _TEXT), ("round", _LONG), ("key_group", _INT), ("timestamp", MOMENT), ("value", _TEXT),
    )  # fmt: skip
    open = ("value",)

    def __init__(self, stored: StoredCheckpoint, how: str, uid: str | None, feedback: bool) -> None:
        super().__init__(stored, how)
        self.uid = None if uid is None else stored.operator(uid).uid
        self.feedback = feedback

    def parts(self, most: int | None = None) -> list[Part]:
        return [(i, i + 1) for i in range(len(self.stored.manifest.files))]

    def _each(self, part: Part) -> Iterator[tuple[Any, ...]]:
        for file in self.stored.manifest.files[part[0] : part[1]]:
            for one in read_logs(self.stored.store, file.name, self.stored.indexes[file.name]):
                shown = (one.kind is LogKind.FEEDBACK) is self.feedback and self.uid in (None, one.uid)
                if one.count and shown:
                    yield from self._records(one)

    def _records(self, one: LogOf) -> Iterator[tuple[Any, ...]]:
        channel = one.channel
        with self.stored.reading(f"what was in flight from {channel.source!r} to {channel.target!r}"):
            batch = restored_frame(one, channel.target, channel.target_subtask).batch(f"the log of {channel}")
            rows = batch.to_rows()
        times = [None] * len(rows) if rows.times is None else [None if t == NO_TIME else t for t in rows.times.tolist()]
        groups = [None] * len(rows) if batch.groups is None else batch.groups.tolist()
        own = (
            channel.target, channel.target_subtask, channel.port, channel.source or None, channel.tag,
            channel.source_subtask, one.kind.name.lower(), one.round or None,
        )  # fmt: skip
        for value, time, group in zip(rows.values, times, groups, strict=True):
            yield (*own, group, time, value)


View = StateColumns | KeyedStates | Listing
WHATS = ("state", "timers", "positions", "waiting", "inflight", "feedback", "operators", "checkpoints")
"""The parts of a checkpoint that can be read, and the list of checkpoints."""


def view_of(
    stored: StoredCheckpoint,
    what: str = "state",
    uid: str | None = None,
    state: str | None = None,
    keys: str = "columns",
    values: str | None = None,
    states: Sequence[str] | None = None,
) -> View:
    """One part of a checkpoint as rows. `states` names several states of an operator, which are read together. `keys` and
    `values` set the form in which these are shown; without `values`, states are shown as columns, and everything else as
    text. Raises `ConfigError` for options that do not go together, and
    `CheckpointNotFound`, with a list of what there is, for an operator or state that does not exist."""
    if what not in WHATS:
        raise ConfigError(f'option "what" is one of {", ".join(WHATS)}, not {what!r}')
    if state is not None and what != "state":
        raise ConfigError(f'option "state" names a state, and "what" asks for {what}: leave one of them out')
    if states is not None and (state is not None or what != "state"):
        raise ConfigError('option "states" names several states: it goes without "state", and without "what"')
    if what == "state":
        if uid is None:
            raise CheckpointNotFound(f"{stored.url}: say of which operator, with its uid; {stored.contents()}")
        if states is not None:
            return KeyedStates(stored, uid, states, keys, values or "columns")
        return StateColumns(stored, uid, state, keys, values or "columns")
    if what == "timers":
        return TimerListing(stored, keys, _one_with(stored, "timers", uid))
    if what == "waiting":
        return WaitingListing(stored, values or "text", _one_with(stored, "records", uid))
    if what == "operators":
        return Operators(stored, values or "text")
    if what == "checkpoints":
        return KeptCheckpoints(stored, values or "text")
    if what == "positions":
        return Positions(stored, values or "text", uid)
    return InFlightListing(stored, values or "text", uid, what == "feedback")


def _one_with(stored: StoredCheckpoint, kind: str, uid: str | None) -> str:
    """The uid of the operator that is meant: the given one, or the only one with a table of this kind."""
    if uid is not None:
        return uid
    able = [one.uid for one in stored.manifest.operators if any(table.kind == kind for table in one.tables)]
    if len(able) == 1:
        return able[0]
    raise CheckpointNotFound(
        f"{stored.url}: say of which operator the {kind} are; those with {kind} are {', '.join(map(repr, able)) or 'none'}"
    )
