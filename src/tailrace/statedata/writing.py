"""The writing of new state: files of whole key groups, from entries and from parts of another checkpoint. Together with the
manifest they form a checkpoint from which a job starts like from any other, and which needs no other folder.

The code that a job uses encodes the state (`state.blocks`) and builds the files (`task.subtask.snapshot`). Each key group
of an operator is in one file, as a whole.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tailrace.elements.keygroups import KeyGroups, group_range
from tailrace.elements.plainkeys import plain_key
from tailrace.elements.rows import plain_values
from tailrace.errors import IncompatibleState, TailraceError, UserCodeError, error_text, short_repr
from tailrace.state.backend import Block
from tailrace.state.blocks import Blocks, Encoder
from tailrace.state.codecs import Codec, codec_for, pickle_codec
from tailrace.state.format import JOINED, Index, OperatorPart, TableInfo
from tailrace.state.manifest import StateFile
from tailrace.state.memory_tables import MemoryBase
from tailrace.state.operator_state import BROADCAST, saved_copy
from tailrace.state.parts import BlockOf
from tailrace.state.paths import state_file
from tailrace.state.tables import StateTable
from tailrace.statedata.key_group_split import Dealing
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.statedata.values import is_tuple, state_values
from tailrace.storage.opening import open_folder
from tailrace.storage.reading import read_state
from tailrace.storage.store import Store
from tailrace.task.subtask.snapshot import FileBuilder, with_broadcast_states

INCARNATION = CHECKPOINT = 1
"""Incarnation and number of the one checkpoint in the folder."""
ENTRIES = pa.schema([("part", pa.int32()), ("group", pa.int32()), ("table", pa.int32()), ("entry", pa.binary())])
"""Schema of entries on their way to the tasks that write them. `entry` is a pickle of key and value. Each part also has a
row with a group below zero, so that a part without entries is written, too."""
TOLD = pa.schema([("slot", pa.int32()), ("name", pa.string()), ("size", pa.int64()), ("entries", pa.int64())])
"""Schema of the report on a file that was written."""

Pairs = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class NewTable:
    """A table that gets entries: its description in files, and the encoding of its values."""

    info: TableInfo
    type: Any = object
    """The declared type."""

    def codec(self) -> Codec:
        """The codec of its values. Raises `ConfigError`."""
        if self.info.encoding == "pickle":
            return pickle_codec()
        kind = "map" if self.info.kind == BROADCAST else self.info.kind
        return codec_for(kind, self.type, self.info.encoding, self.info.name)


@dataclass(frozen=True)
class KeptTables:
    """Tables that are kept as another checkpoint has them."""

    path: str
    options: Mapping[str, Any] | None = field(repr=False)
    tables: tuple[TableInfo, ...]


@dataclass(frozen=True)
class OperatorJob:
    """The state of one operator to be written, and its place. It is sent to the tasks that write."""

    folder: str
    """The folder of the new savepoint."""
    options: Mapping[str, Any] | None = field(repr=False)
    job: str
    max_parallelism: int
    uid: str
    name: str
    tables: tuple[NewTable, ...]
    kept: KeptTables | None = None
    parts: int = 1
    """Number of files that are written of the operator."""
    first_slot: int = 0
    """The slot of the first of these files."""
    copies: Mapping[str, tuple[TableInfo, bytes]] = field(default_factory=dict)
    """Name -> description and bytes of each broadcast state that is made anew (`new_copy`)."""
    gone: Collection[str] = ()
    """Names of the other broadcast states of the checkpoint that are left out."""
    fresh: bool = True
    """True if no part that is taken over has a meta: then the first file has one, if there are copies."""

    def infos(self) -> list[TableInfo]:
        """The tables, in the order in which files count them: new ones first."""
        return [*(one.info for one in self.tables), *(self.kept.tables if self.kept is not None else ())]

    def meta(self, part: OperatorPart) -> bytes | None:
        """The meta of a part that is taken over, with broadcast states as they are to be."""
        if part.meta is None or not (self.copies or self.gone):
            return part.meta
        return with_broadcast_states(part.meta, part.subtask, self._data_of_copies(), self.gone)

    def first_meta(self) -> bytes | None:
        """The meta of the first file."""
        return with_broadcast_states(None, 0, self._data_of_copies()) if self.fresh and self.copies else None

    def _data_of_copies(self) -> dict[str, bytes]:
        return {name: data for name, (_, data) in self.copies.items()}

    def groups(self, part: int) -> range:
        """The key groups of a part."""
        return group_range(part, self.parts, self.max_parallelism)

    def part_of(self, group: int) -> int:
        """The part that a key group belongs to."""
        return group * self.parts // self.max_parallelism


# Entries on their way.


@dataclass(frozen=True)
class Conversion:
    """The conversion of rows into entries of a table. `key` and `value` are functions of the user that receive the Python
    value of a column's value."""

    job: OperatorJob
    table: int
    key: Callable[[Any], Any] | None = None
    value: Callable[[Any], Any] | None = None

    def batch(self, data: pa.RecordBatch) -> pa.RecordBatch:
        """The entries of a batch with columns `key` and `value`, to be sent. Raises as `pairs` does."""
        return entry_batch(self.job, self.table, self.pairs(data))

    def pairs(self, data: pa.RecordBatch) -> list[tuple[Any, Any]]:
        """The keys and values of a batch. Raises `UserCodeError` if a function of the user raises, and `IncompatibleState`
        for a value that the state does not take."""
        keys = self._make(data.column(0), self.key, "key")
        values = self._make(data.column(1), self.value, "value")
        check = _taker(self.job.tables[self.table])
        for key, value in zip(keys, values, strict=True):
            why = check(key, value)
            if why is not None:
                raise _refusal(self.job, self.table, key, value, why)
        return list(zip(keys, values, strict=True))

    @property
    def _who(self) -> str:
        return f"state {self.job.tables[self.table].info.name!r} of operator {self.job.uid!r}"

    def _make(self, column: pa.Array, made: Callable[[Any], Any] | None, what: str) -> list[Any]:
        if made is None:
            return state_values(column, what)
        value: Any = None
        found, values = [], plain_values(column, what)
        try:
            for value in values:
                found.append(made(value))
        except Exception as error:
            raise UserCodeError(
                f"{self._who}: the function for its {what}s raised {error_text(error)} for {short_repr(value)}",
                operator=self.job.uid,
                subtask=0,
                permanent=True,
            ) from error
        return found


def unsettled_struct(kind: pa.DataType) -> bool:
    """True if a type has a struct with names: only the user knows which class it stands for."""
    if pa.types.is_map(kind):
        return unsettled_struct(kind.key_type) or unsettled_struct(kind.item_type)
    if pa.types.is_struct(kind):
        if not is_tuple([one.name for one in kind]):
            return True
    return any(unsettled_struct(kind.field(i).type) for i in range(kind.num_fields))


_KINDS: dict[str, type[Any]] = {"list": list, "map": dict}
_CHECKED: dict[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,), bool: (bool,), bytes: (bytes,)}
_BY_NAME: dict[str, tuple[type, ...]] = {one.__name__: taken for one, taken in _CHECKED.items()}
_NO_VALUE = "is None: leave the row out, or say with value= what it is to be"
Taker = Callable[[Any, Any], str | None]


def _taker(table: NewTable, *, kept: bool = False) -> Taker:
    """A function that returns the reason why the state does not take a value of a key; None if it takes it. `kept`: the
    table keeps the declaration of the checkpoint, of which only the name of the type is known."""
    declared = table.type if isinstance(table.type, tuple) else (table.type,)
    plain = [_CHECKED.get(one) for one in declared]
    if kept:
        names = table.info.type.split(", ") if table.info.kind in ("map", BROADCAST) else [table.info.type]
        plain = [_BY_NAME.get(name) for name in names] if len(names) < 3 else []
    expected = _KINDS.get(table.info.kind)
    if expected is not None:
        return _inside(table, expected, plain)
    if table.info.kind == BROADCAST:
        return _of_entries(table, plain)
    if table.info.kind not in ("value", "reducing"):
        plain = [None]

    def check(key: Any, value: Any) -> str | None:
        if value is None:
            return _NO_VALUE
        return None if _fits(value, plain[0]) else f"is of type {type(value).__name__}, and {_advice(table)}"

    return check


def _inside(table: NewTable, expected: type[Any], plain: list[tuple[type, ...] | None]) -> Taker:
    """A function like the one of `_taker`, for a list or a map whose items are of the declared types."""

    def check(key: Any, value: Any) -> str | None:
        if type(value) is not expected:
            return f"is no {expected.__name__}, and the state is of kind {table.info.kind!r}"
        parts: tuple[Iterable[Any], ...] = (value,)
        if isinstance(value, dict):
            parts = value.keys(), value.values()
        for items, kinds in zip(parts, plain, strict=False):
            for item in items if kinds is not None else ():
                if not _fits(item, kinds):
                    return f"holds {short_repr(item, 80)} of type {type(item).__name__}, and {_advice(table)}"
        return None

    return check


def _of_entries(table: NewTable, plain: list[tuple[type, ...] | None]) -> Taker:
    """A function like the one of `_taker`, for the entries of a broadcast state, whose keys are declared as well."""

    def check(key: Any, value: Any) -> str | None:
        if value is None:
            return _NO_VALUE
        for what, one, kinds in zip(("key", "value"), (key, value), plain, strict=False):
            if not _fits(one, kinds):
                return f"does not fit: the {what} is of type {type(one).__name__}, and {_advice(table)}"
        return None

    return check


def _refusal(job: OperatorJob, table: int, key: Any, value: Any, why: str) -> IncompatibleState:
    who = f"state {job.tables[table].info.name!r} of operator {job.uid!r}"
    return IncompatibleState(f"{who}: the value {short_repr(value, 80)} of key {short_repr(key, 80)} {why}")


def _fits(value: Any, kinds: tuple[type, ...] | None) -> bool:
    return kinds is None or type(value) in kinds


def _advice(table: NewTable) -> str:
    return f"{table.info.type} is declared: cast it, or give value="


def entry_batch(job: OperatorJob, table: int, pairs: Sequence[tuple[Any, Any]]) -> pa.RecordBatch:
    """Entries of a table, with the key group and the part of each. Raises `IncompatibleState` for an entry that has no key
    group, or cannot be pickled."""
    try:
        groups = KeyGroups(job.max_parallelism).groups_of([key for key, _ in pairs]).tolist()
        entries = [pickle.dumps(pair, 5) for pair in pairs]
    except Exception as error:
        name = job.tables[table].info.name
        message = str(error) if isinstance(error, TailraceError) else f"{error_text(error)}"
        raise IncompatibleState(f"state {name!r} of operator {job.uid!r}: {message}") from error
    return pa.RecordBatch.from_arrays(
        [
            pa.array([job.part_of(group) for group in groups], pa.int32()),
            pa.array(groups, pa.int32()),
            pa.array([table] * len(pairs), pa.int32()),
            pa.array(entries, pa.binary()),
        ],
        schema=ENTRIES,
    )


def marker_rows(parts: int) -> list[tuple[int, int, int, bytes]]:
    """One row for each part, so that parts without entries are written as well."""
    return [(part, -1, 0, b"") for part in range(parts)]


def changed_entries(
    job: OperatorJob, table: int, kept: KeptTables, groups: tuple[int, int], change: Callable[[Any, Any], Pairs]
) -> Iterator[pa.RecordBatch]:
    """The entries that a function of the user makes of the entries of the one table in `kept`, to be sent. Raises as
    `changed_pairs` does."""
    return (entry_batch(job, table, pairs) for pairs in changed_pairs(job, table, kept, groups, change) if pairs)


def changed_pairs(
    job: OperatorJob, table: int, kept: KeptTables, groups: tuple[int, int], change: Callable[[Any, Any], Pairs]
) -> Iterator[list[tuple[Any, Any]]]:
    """The keys and values that a function of the user makes of the entries of the one table in `kept`. Raises
    `UserCodeError` if the function raises, and `IncompatibleState` for a value that the state does not take."""
    stored = StoredCheckpoint.open(kept.path, kept.options)
    name = kept.tables[0].name
    keeps = job.tables[table].info == kept.tables[0]
    check = _taker(job.tables[table], kept=keeps)
    shaped = kept.tables[0].kind == "aggregate"
    for one in stored.entries(job.uid, {name}, groups):
        pairs: list[tuple[Any, Any]] = []
        key: Any = None
        try:
            for key, value in one.entries.items():
                strict = not keeps or check(key, value) is None  # a job may have left values of undeclared types
                for pair in change(key, value):
                    new, held = pair
                    why = check(new, held) if strict else None
                    if shaped and not (type(held) is type(value) and _alike(value[1:], held[1:])):
                        why = _SHAPE
                    if why is not None:
                        raise _refusal(job, table, new, held, why)
                    pairs.append((new, held))
        except IncompatibleState:
            raise
        except Exception as error:
            raise UserCodeError(
                f"state {name!r} of operator {job.uid!r}: the function that changes it raised {type(error).__name__}: "
                f"{error} for key {short_repr(key, 80)}; it gives pairs of key and value: lambda key, value: [(key, value)]",
                operator=job.uid,
                subtask=0,
                permanent=True,
            ) from error
        yield pairs


def new_copy(table: NewTable, uid: str, pairs: Pairs) -> tuple[TableInfo, bytes]:
    """The description and the bytes of a broadcast state of an operator, with these entries. Raises `IncompatibleState` for
    a key that is there twice, and for what cannot be a key, or cannot be saved."""
    who, entries, key = f"state {table.info.name!r} of operator {uid!r}", dict[Any, Any](), None
    try:
        for key, value in pairs:
            if key in entries:
                raise IncompatibleState(f"{who}: {_twice(key)}")
            entries[key] = value
        return saved_copy(table.info, table.codec(), entries)
    except TailraceError:
        raise
    except Exception as error:
        raise IncompatibleState(f"{who} cannot be saved: {error_text(error)}") from error


def _twice(key: Any) -> str:
    return f"key {key!r} is there twice; a key has one value: group the rows by key first"


_SHAPE = "is made of other parts than it was: of `aggregate` it is the key, and an accumulator for each aggregate"


def _alike(old: Any, new: Any) -> bool:
    """True if new accumulators can replace old ones: lists of equal length, and numbers, or None, for numbers."""
    if isinstance(old, list | tuple):
        return type(new) is type(old) and len(new) == len(old) and all(map(_alike, old, new))
    numbers = int | float | Decimal
    if isinstance(old, numbers) and not isinstance(old, bool):
        return new is None or (isinstance(new, numbers) and not isinstance(new, bool))
    return old is None or type(new) is type(old)


# Files.


class Written(NamedTuple):
    """A state file that was written."""

    file: StateFile
    entries: int


@dataclass
class _Part:
    """One file that is being written: key groups in order, in each first the new entries and then the kept blocks."""

    job: OperatorJob
    part: int
    epoch: int
    entries: int = 0
    at: int = field(init=False)
    """The next key group to be written."""

    def __post_init__(self) -> None:
        job = self.job
        self.store = Store(job.folder, job.job, folder=open_folder(job.folder, job.options))
        name = state_file(INCARNATION, CHECKPOINT, job.first_slot + self.part, self.epoch)
        index = Index(job.job, INCARNATION, CHECKPOINT, job.first_slot + self.part, job.max_parallelism)
        self.builder = FileBuilder(name, index)
        self.writer = self.store.writer(name)
        meta = None if self.part else job.first_meta()
        self.operator = OperatorPart(job.uid, job.name, 0, 1, meta=meta, tables=job.infos())
        self.groups = job.groups(self.part)
        self.at = self.groups.start
        self.full: list[int] = []
        self.kept: dict[int, list[Block]] = {}
        if job.kept is not None and job.kept.tables:
            stored = StoredCheckpoint.open(job.kept.path, job.kept.options)
            names = {info.name for info in job.kept.tables}
            dealing = Dealing(stored, job.max_parallelism)
            for old in dealing.origins(self.groups):
                found = kept_blocks(dealing, job.uid, old, names, self.operator.tables)
                self.kept.update((group, blocks) for group, blocks in found.items() if group in self.groups)
        encoder = Encoder(job.name, 0, KeyGroups(job.max_parallelism))
        self.blocks = Blocks(encoder)
        self.tables = [
            StateTable(i, one.info, one.type, one.codec(), MemoryBase(), None) for i, one in enumerate(job.tables)
        ]
        self.seen: set[Any] = set()
        self.table = -1

    def put(self, group: int, table: int, key: Any, value: Any) -> None:
        """Adds an entry. Raises `IncompatibleState` for a key that was added before."""
        if group != self.at:
            self._through(group)
        if table != self.table:
            self.table, self.seen = table, set()
        known = plain_key(key)
        if known in self.seen:
            name = self.job.tables[table].info.name
            raise IncompatibleState(f"state {name!r} of operator {self.job.uid!r}: {_twice(key)}")
        self.seen.add(known)
        self.blocks.put(self.tables[table], group, known, value, None)
        self.entries += 1

    def _through(self, group: int) -> None:
        """Completes and writes all key groups before this one."""
        while self.at < group:
            for _ in self.blocks.close():
                pass
            found = [*self.blocks.take(), *self.kept.pop(self.at, ())]
            for block in found:
                self.builder.add(self.operator, block)
            if found:
                self.full.append(self.at)
            self.at += 1
            self.table = -1
            self._send()

    def _send(self) -> None:
        for piece in self.builder.fresh:
            self.writer.append(piece)
        self.builder.fresh.clear()

    def close(self) -> Written:
        """Completes the file, after its last entry."""
        self._through(self.groups.stop)
        name = self.builder.name
        for i, table in enumerate(self.tables):
            self.operator.tables[i] = msgspec.structs.replace(self.operator.tables[i], classes=table.codec.notes.listed)
        self.builder.close_part(self.operator, self.full, dict.fromkeys(self.full, (name,)))
        self.builder.finish()
        self._send()
        self.writer.close()
        return Written(StateFile(self.builder.index.slot, name, self.builder.offset), self.entries)


def kept_blocks(
    dealing: Dealing, uid: str, groups: range, names: Collection[str], tables: list[TableInfo]
) -> dict[int, list[Block]]:
    """Key group -> blocks of tables that are kept, in the order in which they are to be applied. `groups` are those of the
    checkpoint; where the savepoint has more, their entries are dealt out, else blocks are unchanged. One table may have
    blocks in files of several checkpoints, with different encodings: descriptions that are missing in `tables` are appended
    to it."""
    found: dict[int, list[Block]] = {}
    stored = dealing.base
    for part in read_state(stored.store, stored.manifest, {uid: (groups.start, groups.stop)}, tables=names):
        if isinstance(part, BlockOf):
            if part.table not in tables:
                tables.append(part.table)
            for block in dealing.blocks(part, tables.index(part.table)):
                found.setdefault(block.group, []).append(block)
    if JOINED.name in names:
        for block in dealing.column_blocks(uid, groups, tables):
            found.setdefault(block.group, []).append(block)
    return found


def write_parts(rows: Iterable[pa.RecordBatch], job: OperatorJob, epoch: int) -> Iterator[pa.RecordBatch]:
    """Writes the files of some parts, and yields a report on each. The rows are in order of part, key group and table.
    `epoch` distinguishes this attempt at writing from other attempts."""
    open_: _Part | None = None
    try:
        for batch in rows:
            for part, group, table, entry in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if open_ is None or open_.part != part:
                    if open_ is not None:
                        yield _report(open_.close())
                    open_ = _Part(job, part, epoch)
                if group >= 0:
                    open_.put(group, table, *pickle.loads(entry))
        if open_ is not None:
            yield _report(open_.close())
    except BaseException:
        if open_ is not None:
            open_.writer.discard()
        raise


def _report(written: Written) -> pa.RecordBatch:
    file = written.file
    return pa.RecordBatch.from_pylist(
        [{"slot": file.slot, "name": file.name, "size": file.size, "entries": written.entries}], TOLD
    )
