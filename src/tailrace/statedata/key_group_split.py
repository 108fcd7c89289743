"""The dealing of keyed state to more key groups, for a savepoint with a larger `max_parallelism` than its checkpoint.

The new number is a multiple of the old one, so a new key group has keys of one old group only: groups are read one by one,
and their entries are copied in the order in which they were written. Keys are read, values are not. Each subtask goes on
with what it had without keys, and with other keys than before. So all subtasks of an operator must have come to equal event
times: a timer, or a record, would come to where it is late otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tailrace.elements.frame_codec import without_groups
from tailrace.elements.keygroups import KeyGroups, group_range
from tailrace.elements.keys import UnsupportedKey
from tailrace.elements.plainkeys import plain_key
from tailrace.elements.rows import plain_values
from tailrace.errors import CheckpointCorrupt, ConfigError, InternalError
from tailrace.state.backend import Block
from tailrace.state.codecs import Entries, pack, unpack
from tailrace.state.format import CALLS, JOINED, WAITING, OperatorPart, TableInfo
from tailrace.state.parts import BlockOf
from tailrace.state.ttl_lifetimes import Expiry
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.task.channels.channel_logs import LogFrame
from tailrace.task.operators.broadcasts.waiting import waiting_of
from tailrace.task.operators.stores.chunks import BLOCK, KeptBlock, read_block, write_blocks
from tailrace.task.subtask.snapshot import OperatorMeta, read_meta, with_key_groups

Array = np.ndarray[Any, Any]
_OF_ENTRIES = (WAITING.name, CALLS.name, JOINED.name)
"""Tables whose entries are kept under tuples that begin with a key. Timers are, too; of windows with a pair that does."""


@dataclass(frozen=True)
class Dealing:
    """The parts of a checkpoint as they are with another number of key groups; if it is the checkpoint's own, unchanged."""

    base: StoredCheckpoint
    groups: int
    """The number of key groups from now on."""

    @property
    def old(self) -> int:
        """The number of key groups of the checkpoint."""
        return self.base.manifest.max_parallelism

    @property
    def copies(self) -> bool:
        """True if nothing is dealt out."""
        return self.groups == self.old

    @cached_property
    def _cache(self) -> KeyGroups:
        return KeyGroups(self.groups)

    def origins(self, groups: range) -> list[range]:
        """The key groups of the checkpoint from which these key groups come."""
        if self.copies:
            return [groups]
        if len(groups) >= self.old:
            return [range(self.old)]
        first, last = groups.start % self.old, (groups.stop - 1) % self.old
        if not groups:
            return []
        return [range(first, last + 1)] if first <= last else [range(last + 1), range(first, self.old)]

    # Refusals.

    def check(self, dropped: Collection[str] = ()) -> None:
        """Raises `ConfigError` for a checkpoint whose keys cannot change their subtask. `dropped`: the uids of operators
        that are left out."""
        if self.copies:
            return
        if self.groups % self.old:
            raise InternalError(f"{self.old} key groups cannot be split into {self.groups}")
        overtaken = {log.channel.target for one in self.base.indexes.values() for log in one.logs if log.overtaken}
        if overtaken - set(dropped):
            raise self._refusal(f"has records in flight to operator {min(overtaken - set(dropped))!r}")
        for uid, parts in self._parts.items():
            if uid not in dropped:
                self._check_operator(uid, parts)

    def _check_operator(self, uid: str, parts: list[OperatorPart]) -> None:
        metas = [(part, read_meta(part.meta)) for part in parts if part.meta is not None]
        if any(meta.floors for _, meta in metas):
            raise self._refusal(f"has key groups of operator {uid!r} that had come to different event times")
        if not any(part.chains for part in parts):
            return
        if len({(meta.reached, meta.came, part.finished) for part, meta in metas}) > 1:
            raise self._refusal(f"has subtasks of operator {uid!r} that had come to different event times")
        waiting = [one for part in self.base.metas(uid) if (one := waiting_of(part)) is not None]
        if any(one.done for one in waiting) or len({(one.received, *one.coming) for one in waiting}) > 1:
            raise self._refusal(f"has subtasks of operator {uid!r} that had come to different broadcast records")

    def _refusal(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self.base.url} {why}, so its keys stay in their {self.old} key groups: begin with a savepoint that "
            f"job.stop(savepoint=True) takes, or with a later one"
        )

    # Parts without a key.

    @cached_property
    def _parts(self) -> dict[str, list[OperatorPart]]:
        found: dict[str, list[OperatorPart]] = {}
        for part in [part for index in self.base.indexes.values() for part in index.operators]:
            found.setdefault(part.uid, []).append(part)
        return found

    def meta(self, part: OperatorPart) -> bytes | None:
        """The meta of a subtask: lifetimes hold for the key groups that come from those that the subtasks had."""
        if part.meta is None or self.copies:
            return part.meta
        meta = read_meta(part.meta)
        if not meta.expiries and not meta.closed:
            return part.meta
        metas = [(one, read_meta(one.meta)) for one in self._parts[part.uid] if one.meta is not None]
        expiries = {table: self._expiry(table, metas) for table in meta.expiries}
        closed = [
            (*groups, time) for _, one in metas for *range_, time in one.closed for groups in self._groups_from(*range_)
        ]
        return with_key_groups(part.meta, expiries, closed)

    def _groups_from(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The key groups from now on that come from the key groups [first, last)."""
        return ((first + shift, last + shift) for shift in range(0, self.groups, self.old))

    def _expiry(self, table: str, metas: list[tuple[OperatorPart, OperatorMeta]]) -> Expiry:
        """The lifetime of a table in every subtask, with what each key group had reached as its floor."""
        known = [(part, one) for part, meta in metas if (one := meta.expiries.get(table)) is not None]
        every = [one for _, one in known]
        reached, dead = [one.reached for one in every], [one.dead for one in every]
        floors = [floor for one in every for floor in one.floors]
        if len({*zip(reached, dead, strict=True)}) > 1:
            for part, one in known:
                owned = group_range(part.subtask, part.parallelism, self.old)
                floors.append((owned.start, owned.stop, one.reached, one.dead))
        return Expiry(
            every[0].stamps,
            (min if every[0].stamps == "event" else max)(reached),
            min(dead),
            max(one.since for one in every),
            max(one.offset for one in every),
            any(one.pending for one in every),
            every[0].attempt,
            [(*groups, time, over) for *range_, time, over in floors for groups in self._groups_from(*range_)],
        )

    def frame(self, frame: LogFrame) -> LogFrame:
        """Feedback on its way around a loop: it is dealt out by its keys at the start."""
        return (
            frame if self.copies or not frame.count else LogFrame(frame.round, frame.count, without_groups(frame.data))
        )

    # Entries.

    def blocks(self, part: BlockOf, table: int) -> Iterator[Block]:
        """A block of the checkpoint as blocks of the key groups from now on. `table` is the place of its table."""
        if self.copies:
            yield Block(table, part.group, part.count, bytes(part.data))
            return
        if part.table.name == JOINED.name:
            return  # `column_blocks` has its records
        with self.base.reading(f"state {part.table.name!r} of operator {part.uid!r}"):
            found = unpack(part.data)
            group_of = self._grouping(part.table, part.group, part.uid)
            dealt: dict[int, Entries] = {}

            def of(key: Any) -> Entries:
                return dealt.setdefault(group_of(key), Entries([], [], [], [], []))

            for key, value in zip(found.keys, found.values, strict=True):
                into = of(key)
                into.keys.append(key)
                into.values.append(value)
            for key, data in zip(found.single_keys, found.singles, strict=True):
                into = of(key)
                into.single_keys.append(key)
                into.singles.append(data)
            for key in found.deleted:
                of(key).deleted.append(key)
            for group, one in sorted(dealt.items()):
                yield Block(table, group, len(one.keys) + len(one.singles) + len(one.deleted), pack(one))

    def _grouping(self, table: TableInfo, old: int, uid: str) -> Callable[[Any], int]:
        """The key group of an entry that is in this key group of the checkpoint. Raises `CheckpointCorrupt` for an entry
        that does not belong there."""
        cache, before = self._cache, self.old
        by_first = table.kind == "timers" or table.name in _OF_ENTRIES
        windowed = table.kind == "timers" and any(one.kind == "window" for one in self.base.operator(uid).tables)

        def group_of(entry: Any) -> int:
            place = entry[0] if by_first else entry
            key = plain_key(place[0] if windowed else place)
            try:
                group = cache.group_of(key)
            except UnsupportedKey:
                group = -1
            if group < 0 or group % before != old:
                raise CheckpointCorrupt(
                    f"{self.base.url}: state {table.name!r} of operator {uid!r} has {key!r} in key group {old}, where it "
                    f"does not belong"
                )
            return group

        return group_of

    def column_blocks(self, uid: str, groups: range, tables: list[TableInfo]) -> Iterator[Block]:
        """The records that an operator keeps in columns, as blocks of the key groups from now on. Each block there is has
        all of its key group, as it was at the cut."""
        for one in () if self.copies else self.base.entries(uid, {JOINED.name}, (groups.start, groups.stop)):
            with self.base.reading(f"the records that operator {uid!r} keeps in columns"):
                group_of = self._grouping(one.table, one.group, uid)
                for place in one.entries:
                    if place[3] != BLOCK or not len((block := read_block(one.entries, place).without_gone()).seqs):
                        continue
                    for group, key, value in _split_block(block, isinstance(place[0], tuple), group_of):
                        entries = Entries([(key, *place[1:])], [value], [], [], [])
                        yield Block(tables.index(one.table), group, 1, pack(entries))


def _split_block(
    block: KeptBlock, tupled: bool, group_of: Callable[[Any], int]
) -> Iterator[tuple[int, Any, tuple[Any, ...]]]:
    """The key groups of a block of columns: each with one of its keys, and its records."""
    named = [plain_values(block.data.column(name)) for name in block.names]
    keys = [plain_key(key) for key in (zip(*named, strict=True) if tupled else named[0])]
    groups = np.array([group_of((key,)) for key in keys], np.int64)
    columns = np.array([block.seqs, block.times, block.marks], np.int64)
    firsts, blocks = write_blocks(block.data, columns, groups, block.names)
    for first, (group, value) in zip(firsts, blocks.items(), strict=True):
        yield group, keys[first], value
