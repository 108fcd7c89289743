"""A checkpoint opened for reading: its operators and states by name, and the entries of a state by key group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tailrace.elements.keygroups import group_range
from tailrace.elements.plainkeys import plain_key
from tailrace.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    ConfigError,
    IncompatibleState,
    TailraceError,
    error_text,
)
from tailrace.state.backend import MetaPart
from tailrace.state.codecs import unpack
from tailrace.state.format import OURS, Index, TableInfo
from tailrace.state.manifest import Manifest, OperatorRecord
from tailrace.state.operator_state import BROADCAST, saved_copies
from tailrace.state.parts import BlockOf, ChainsOf, Part
from tailrace.state.ttl import UNSTAMPED, living, unwrap, wrap
from tailrace.statedata.types import declared_decoder
from tailrace.storage.checkpoint_lookup import find_by_number, resolve
from tailrace.storage.reading import load_index, own_indexes, read_state
from tailrace.storage.store import Store
from tailrace.task.operators.broadcasts.waiting import waiting_of, without_waiting
from tailrace.task.subtask.snapshot import read_meta


class TableSize(NamedTuple):
    """The amount of one table that a restore reads, including deltas and deletions."""

    entries: int
    bytes: int


@dataclass
class StoredCheckpoint:
    """A complete checkpoint, opened for reading. Reading it claims nothing, and does not disturb a running job."""

    store: Store
    name: str
    """The name of its manifest, within the store."""
    manifest: Manifest = field(init=False)

    def __post_init__(self) -> None:
        self.manifest = self.store.manifest(self.name)

    @classmethod
    def open(cls, path: str, options: Mapping[str, Any] | None = None, number: int | None = None) -> StoredCheckpoint:
        """The checkpoint at a path or URL, as `from_checkpoint` takes it; for a folder the newest one in it, or the one of
        this number. `options` are passed to the filesystem. Raises `CheckpointNotFound`, with a list of what is there,
        `CheckpointCorrupt`, and `ConfigError` for a scheme that is not supported."""
        return cls(*(resolve(path, options=options) if number is None else find_by_number(path, number, options)))

    @property
    def url(self) -> str:
        """The full path or URL of its manifest."""
        return self.store.url_of(self.name)

    @cached_property
    def indexes(self) -> dict[str, Index]:
        """Name -> index of each file that the checkpoint wrote itself."""
        with self.reading("its files"):
            return own_indexes(self.store, self.manifest)

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """A context for reading parts of the checkpoint. A failure because a job has removed the checkpoint meanwhile raises
        `CheckpointNotFound`. A value that cannot be unpickled here raises `IncompatibleState`."""
        try:
            yield
        except (CheckpointCorrupt, FileNotFoundError) as error:
            if self.store.folder.exists(self.name):
                raise
            raise CheckpointNotFound(
                f"{self.url} was removed while it was read: a job that runs removes its older checkpoints. Read a newer "
                f"one, let more be kept (CheckpointConfig(keep=...)), or copy the folder first"
            ) from error
        except (IncompatibleState, ConfigError, OSError):
            raise
        except Exception as error:
            text = str(error) if isinstance(error, TailraceError) else f"{error_text(error)}"
            raise IncompatibleState(
                f"{self.url}: {what} cannot be read here: {text}; it needs the classes of the program that wrote it, under "
                f"the same names: make them importable where it is read"
            ) from error

    # Operators and states.

    def operator(self, uid: str) -> OperatorRecord:
        """The operator of this uid. Raises `CheckpointNotFound`, with a list of all operators."""
        for one in self.manifest.operators:
            if one.uid == uid:
                return one
        raise CheckpointNotFound(f"{self.url} has no operator with uid {uid!r}; {self.contents()}")

    def table(self, uid: str, state: str | None) -> TableInfo:
        """A state of an operator; without a name its only state. Raises `CheckpointNotFound`, with a list of all states."""
        tables = self.operator(uid).tables
        declared = [one for one in tables if one.kind not in OURS]
        if state is None and len(declared) == 1:
            return declared[0]
        shared = [one for one in self.operator(uid).own if one.kind == BROADCAST]
        for one in (*declared, *shared):
            if one.name == state:
                return one
        if state is None:
            what = "has several states: say which" if declared else "has no keyed state"
            raise CheckpointNotFound(f"{self.url}: operator {uid!r} {what}; {self.contents()}")
        raise CheckpointNotFound(f"{self.url}: operator {uid!r} has no state {state!r}; {self.contents()}")

    def check_copies(self, uid: str) -> None:
        """Raises `ConfigError` if the broadcast states of an operator cannot be changed: its subtasks are called in order,
        and had come to different broadcast records, so that their copies differ."""
        waiting = [waiting_of(part) for part in self.metas(uid)]
        if len({(one.received, *one.coming) for one in waiting if one is not None}) > 1:
            raise ConfigError(
                f"{self.url}: the subtasks of operator {uid!r}, which is called in order, had come to different broadcast "
                f"records, so their copies of its broadcast states differ; begin with another checkpoint of the job"
            )

    def contents(self) -> str:
        """The operators with their states, as a text for a message."""
        lines = []
        for one in self.manifest.operators:
            tables = [*one.tables, *(table for table in one.own if table.kind == BROADCAST)]
            states = [f"{table.name!r} ({_type_text(table)})" for table in tables if table.kind not in OURS]
            lines.append(f"{one.uid!r} ({one.name}) with {', '.join(states) or 'no keyed state'}")
        return f"it has the operators {'; '.join(lines)}" if lines else "it has no operators"

    def sizes(self) -> dict[tuple[str, str], TableSize]:
        """(uid, table) -> the amount of it that a restore reads."""
        found: dict[tuple[str, str], TableSize] = {}
        for (uid, table, _), one in self._by_group.items():
            before = found.get((uid, table), TableSize(0, 0))
            found[uid, table] = TableSize(before.entries + one.entries, before.bytes + one.bytes)
        return found

    def weights(self, uid: str, tables: Collection[str]) -> dict[int, int]:
        """Key group -> bytes that a restore reads of these tables of an operator; groups without any are absent."""
        found: dict[int, int] = {}
        if self._copies(uid).keys() & tables:
            found[0] = sum(len(data) for name, (_, data) in self._copies(uid).items() if name in tables)
        for (one, table, group), held in self._by_group.items():
            if one == uid and table in tables:
                found[group] = found.get(group, 0) + held.bytes
        return found

    @cached_property
    def _by_group(self) -> dict[tuple[str, str, int], TableSize]:
        indexes = dict(self.indexes)
        needed: dict[str, set[tuple[str, int]]] = {}
        for index in self.indexes.values():
            for part in index.operators:
                for group, chain in part.chains.items():
                    for i in chain:
                        needed.setdefault(index.files[i], set()).add((part.uid, group))
        found: dict[tuple[str, str, int], TableSize] = {}
        for name, groups in needed.items():
            if name not in indexes:
                with self.reading("its files"):
                    indexes[name] = load_index(self.store, name)
            for part in indexes[name].operators:
                for block in part.blocks:
                    if (part.uid, block.group) in groups:
                        place = part.uid, part.tables[block.table].name, block.group
                        before = found.get(place, TableSize(0, 0))
                        found[place] = TableSize(before.entries + block.count, before.bytes + block.length)
        return found

    # Entries.

    def _copies(self, uid: str) -> dict[str, tuple[TableInfo, bytes]]:
        """The broadcast states of an operator. They count as being in the first key group."""
        found: dict[str, tuple[TableInfo, bytes]] = {}
        if any(table.kind == BROADCAST for one in self.manifest.operators if one.uid == uid for table in one.own):
            for part in sorted(self.metas(uid), key=lambda one: one.subtask, reverse=True):
                bare = without_waiting(part).data
                found |= {} if bare is None else saved_copies(bare)
        return found

    def metas(self, uid: str) -> list[MetaPart]:
        """What the subtasks of an operator have beside keyed state."""
        parts = [part for index in self.indexes.values() for part in index.operators if part.uid == uid]
        return [
            MetaPart(part.subtask, part.parallelism, part.finished, read_meta(part.meta).data)
            for part in parts
            if part.meta is not None
        ]

    def entries(self, uid: str, tables: Collection[str], groups: tuple[int, int]) -> Iterator[GroupEntries]:
        """The entries of these tables of an operator in the key groups [first, last): each key once, with its value in the
        checkpoint, without what its time to live has ended. Holds one group at a time in memory, but all groups that are in
        several files at once. Raises `CheckpointCorrupt`, and `IncompatibleState` for a value that cannot be unpickled."""
        decoders: dict[TableInfo, Callable[[Any], Any]] = {}
        chains: dict[int, tuple[str, ...]] = {}
        whole: dict[tuple[int, str], GroupEntries] = {}
        last: int | None = None
        for name, (table, data) in self._copies(uid).items() if groups[0] == 0 else ():
            if name in tables:
                with self.reading(f"state {name!r} of operator {uid!r}"):
                    yield GroupEntries(table, 0, declared_decoder(table)(data))
        for part in self._parts(uid, groups, tables):
            if isinstance(part, ChainsOf):
                chains.update(part.chains)
            if not isinstance(part, BlockOf):
                continue
            if part.group != last and last is not None and len(chains[last]) == 1:
                yield from self._take(uid, whole, last)
            last = part.group
            table = part.table
            place = part.group, table.name
            if place not in whole:
                whole[place] = GroupEntries(table, part.group, {})
            elif whole[place].table != table:
                whole[place] = GroupEntries(table, part.group, _in_form(whole[place], table))
            if table not in decoders:
                decoders[table] = declared_decoder(table)
            self._apply(uid, part, whole[place].entries, decoders[table])
        for group in sorted({group for group, _ in whole}):
            yield from self._take(uid, whole, group)

    def _take(self, uid: str, whole: dict[tuple[int, str], GroupEntries], group: int) -> Iterator[GroupEntries]:
        """Takes the entries of a group that is complete."""
        for place in [place for place in whole if place[0] == group]:
            found = whole.pop(place)
            if found.table.stamps:
                lives = self._lives(uid, found.table, group)
                left = {key: living(found.table.kind, held, lives) for key, held in found.entries.items()}
                shown = {key: unwrap(found.table.kind, held) for key, held in left.items() if held is not None}
                found = found._replace(entries=shown)
            yield found

    def _lives(self, uid: str, table: TableInfo, group: int) -> Callable[[int], bool]:
        """A test of the time of a write to a key group of a table: true if that entry lived at the cut."""
        most = self.manifest.max_parallelism
        for part in [part for index in self.indexes.values() for part in index.operators if part.uid == uid]:
            if part.meta is not None and group in group_range(part.subtask, part.parallelism, most):
                expiry = read_meta(part.meta).expiries.get(table.name)
                if expiry is not None and expiry.stamps == table.stamps:
                    return expiry.lives_in(group)
        return lambda stamp: True

    def _parts(self, uid: str, groups: tuple[int, int], tables: Collection[str]) -> Iterator[Part]:
        parts = read_state(self.store, self.manifest, {uid: groups}, tables=tables)
        while True:
            with self.reading("its files"):
                part = next(parts, None)
            if part is None:
                return
            yield part

    def _apply(self, uid: str, part: BlockOf, entries: dict[Any, Any], decode: Callable[[Any], Any]) -> None:
        with self.reading(f"state {part.table.name!r} of operator {uid!r}"):
            found = unpack(part.data)
            for key in found.deleted:
                entries.pop(plain_key(key), None)
            entries.update(zip(map(plain_key, found.keys), found.values, strict=True))
            entries.update(zip(map(plain_key, found.single_keys), map(decode, found.singles), strict=True))


def _in_form(found: GroupEntries, table: TableInfo) -> dict[Any, Any]:
    """Entries of older blocks in the form of the table now."""
    kind, entries = table.kind, found.entries
    if found.table.stamps and found.table.stamps != table.stamps:
        entries = {key: unwrap(kind, held) for key, held in entries.items()}
    if table.stamps and found.table.stamps != table.stamps:
        entries = {key: wrap(kind, value, UNSTAMPED) for key, value in entries.items()}
    return entries


class GroupEntries(NamedTuple):
    """The entries of one table in one key group."""

    table: TableInfo
    group: int
    entries: dict[Any, Any]


def _type_text(table: TableInfo) -> str:
    return f"{table.kind} {table.type}".strip()
