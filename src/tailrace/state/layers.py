"""Incremental snapshots of layered tables, for both backends. The cut swaps the top layer of each table. A checkpoint then
writes the changes since the last *confirmed* one: the keys of this freeze, and the keys of every freeze since whose
checkpoint was aborted or is still pending. For a key group it writes either such a delta, or everything (a *full* write),
so that the chain of files of a group stays short. While the state is small, all groups are written in full. Otherwise the
groups with the oldest full write are, until about as many entries were rewritten as have changed; entries that the last
checkpoint rewrote beyond that number count.

Invariant B3: a key whose value differs from what the confirmed chain of its group says is in `top`, `deleted`, `spilled`
or the frozen layer of its table, or in a generation that is newer than the last confirmed one; or its group is not in
`written`, and will be written as a whole.
Invariant B4: while a checkpoint is encoded, the base (as at its cut) with the frozen layer over it holds exactly the
state of the cut, except objects that were handed out since; `_early` has the bytes of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, compress, islice, repeat
from typing import Any

import msgspec

from tailrace.elements.cuts import CutRequest
from tailrace.elements.keygroups import KeyGroups
from tailrace.errors import InternalError, UserCodeError
from tailrace.state.backend import Block
from tailrace.state.blocks import Blocks, Encoder
from tailrace.state.codecs import Codec, all_immutable, codec_for
from tailrace.state.declarations import type_name
from tailrace.state.format import TableInfo
from tailrace.state.memory_tables import ExactBase, MemoryBase, Stored
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.state.restoring import Restoring
from tailrace.state.tables import Base, Keys, Layer, StateTable
from tailrace.state.ttl import Ttl, stamped_codec
from tailrace.state.ttl_lifetimes import ExpiryOf

SMALL = 20_000
"""Number of entries up to which each checkpoint writes all state of an operator."""
_PORTION = 32
"""Number of entries between two checks of the limit."""
_UNPACKED = 1_024
"""Number of entries of frozen columns that become objects at once."""


class Generation:
    """One freeze whose checkpoint is not confirmed: the keys it changed, and the groups it wrote."""

    def __init__(self, checkpoint: int, tables: int) -> None:
        self.checkpoint = checkpoint
        self.aborted = False
        self.changed: list[list[Keys]] = [[{}] for _ in range(tables)]
        """By table, the keys that the freeze changed, in one or several parts."""
        self.full: list[int] = []
        self.delta: list[int] = []
        self.empty: set[int] = set()
        """Groups that were written as a whole and have no entry."""

    def absorb(self, other: Generation) -> None:
        """Takes over the keys of another aborted freeze."""
        for mine, others in zip(self.changed, other.changed, strict=True):
            parts = sorted([*mine, *others], key=len)
            largest = parts.pop()
            for part in parts:
                largest.update(part)
            mine[:] = [largest]

    def size(self) -> int:
        """Number of keys in all parts."""
        return sum(len(one) for parts in self.changed for one in parts)


class LayeredBackend:
    """All keyed state of one operator in one subtask. Subclasses define the bases."""

    def __init__(
        self,
        max_parallelism: int = 128,
        uid: str = "",
        subtask: int = 0,
        allow_dropped: bool | Collection[str] = False,
        *,
        operator: str = "",
        small: int | None = None,
    ) -> None:
        self.uid = uid
        self.subtask = subtask
        self.small = small
        """Number of entries up to which each checkpoint writes all state of the operator; None: `SMALL`."""
        self.allow_dropped = allow_dropped if isinstance(allow_dropped, bool) else uid in allow_dropped
        """True if state of a checkpoint that is not declared any more is left behind instead of refused."""
        self.tables: dict[str, StateTable] = {}
        self.written: dict[int, int] = {}
        """Key group with a confirmed chain -> the checkpoint that last wrote it as a whole (0: one before the restore)."""
        self.generations: list[Generation] = []
        """Freezes whose checkpoints are not confirmed, in order of their checkpoints. Two aborted ones in a row become one
        at the next freeze."""
        self.on_inexact: Callable[[], None] | None = None
        """A callback, set before any table is declared if another worker may have to go on from a checkpoint. The backend
        calls it for a value that differs from what that worker would read (B8)."""
        self.after_restore: list[Callable[[], None]] = []
        """Functions that are called when restoring is over."""
        self._groups = KeyGroups(max_parallelism)
        self._must: set[int] = set()
        """Groups that the next checkpoint must write as a whole, because changes to them were forgotten."""
        self._encoder = Encoder(operator or uid, subtask, self._groups)
        self._group_of = self._encoder.group_of
        self._restoring = Restoring(self._encoder, uid, self.tables, self.allow_dropped)
        self._current: Generation | None = None
        """The freeze that is being encoded; None if there is none."""
        self._work: Iterator[int] | None = None
        self._draining = False
        """True while the frozen layers are on their way into the bases: nothing else may be written to a base."""
        self._older: list[list[Keys]] = []
        self._known: set[int] = set()
        """The groups with a confirmed chain at the freeze."""
        self._overlapping = False
        """True if another checkpoint was pending when `_known` was determined."""
        self._whole: set[int] = set()
        """Groups among `_known` that are written as a whole all the same."""
        self._everything = False
        self._ahead = 0
        """Number of entries that the last checkpoint rewrote beyond the number of changed entries, because a group is
        rewritten as a whole."""
        self._touched: set[int] = set()
        """Groups in which entries were changed or deleted, among the groups that are written as a whole."""
        self._failed: UserCodeError | None = None
        self._early: list[dict[Any, bytes]] = []
        """By table: key -> the bytes at the cut of an object that was handed out before it was encoded."""
        self._blocks = Blocks(self._encoder)

    @property
    def _few(self) -> int:
        return SMALL if self.small is None else self.small

    @property
    def restamped(self) -> set[str]:
        """Names of tables that were restored with entries whose last writes have no time on their clock."""
        return self._restoring.restamped

    @property
    def operator(self) -> str:
        """The operator's name, for errors. It may be set after the backend was made."""
        return self._encoder.operator

    @operator.setter
    def operator(self, name: str) -> None:
        self._encoder.operator = name

    def make_base(self, index: int, codec: Codec, group_of: Callable[[Any], int]) -> Base:
        """The lowest layer of the table with this index. `group_of` returns the key group of a key of the table."""
        raise NotImplementedError

    # Tables.

    def table(
        self,
        name: str,
        *,
        kind: str = "value",
        type: Any = object,
        encoding: str | None = None,
        group_by: Callable[[Any], Any] | None = None,
        in_memory: bool = False,
        ttl: Ttl | None = None,
    ) -> StateTable:
        """The table of this name; the same object at each call."""
        found = self.tables.get(name)
        if found is None:
            codec = codec_for(kind, type, encoding, name)
            stamps = ""
            if ttl is not None:
                codec, stamps = stamped_codec(kind, codec), ttl.stamps
            info = TableInfo(name, kind, codec.name, type_name(type), times_up=kind == "timers", stamps=stamps)
            index = len(self.tables)
            exact = self.on_inexact is not None and not in_memory
            base = MemoryBase() if in_memory else self.make_base(index, codec, self._grouping(group_by))
            if exact and base.mutable:
                base = ExactBase(codec)
            found = self.tables[name] = StateTable(index, info, type, codec, base, group_by)
            found.exact = self._as_stored if exact else None
        return found

    def _grouping(self, group_by: Callable[[Any], Any] | None) -> Callable[[Any], int]:
        groups = self._groups
        return groups.group_of if group_by is None else lambda key: groups.group_of(group_by(key))

    def tables_info(self) -> list[TableInfo]:
        """The tables, in the order in which `Block.table` counts them, with the classes of the values that were encoded."""
        return [msgspec.structs.replace(table.info, classes=table.codec.notes.listed) for table in self.tables.values()]

    def entries(self) -> int:
        """Number of entries. An estimate if very many were written since the last checkpoint."""
        return sum(table.about() for table in self.tables.values())

    def relieve(self) -> None:
        """Does nothing: this backend needs no work between batches."""

    def close(self) -> None:
        """Does nothing: this backend holds no resources."""

    # The cut.

    def freeze(self, cut: CutRequest) -> None:
        """Makes the cut: the checkpoint holds the state as it is now. Takes time for each table, not for each entry."""
        if self._current is not None:
            raise InternalError(f"freeze({cut.number}) while checkpoint {self._current.checkpoint} is being encoded")
        self._merge_aborted()
        tables = list(self.tables.values())
        self._older = [[one for g in self.generations for one in g.changed[t.index]] for t in tables]
        made = Generation(cut.number, len(tables))
        for table in tables:
            spilled = table.freeze(self._few)
            if spilled:
                made.changed[table.index].append(spilled)
                self._older[table.index].append(spilled)
            table.hurry = self._hurry
        self.generations.append(made)
        self._current = made
        self._early = [{} for _ in tables]
        self._blocks = Blocks(self._encoder)
        self._work = self._encoding(made, tables, cut.kind.whole)
        self._draining = True
        self._everything = (
            True  # until the first `encode` chooses, so that `_hurry` saves every object handed out before
        )

    def _merge_aborted(self) -> None:
        """Merges the keys of several aborted checkpoints in a row into one set. Drops the set if it is too large; then every
        group is written as a whole."""
        kept: list[Generation] = []
        for one in self.generations:
            if one.aborted and kept and kept[-1].aborted:
                one.absorb(kept.pop())
            kept.append(one)
        self.generations = kept
        # Only if nothing is pending: a pending checkpoint, once confirmed, could give a chain to a group that `_must` lacks.
        alone = len(kept) == 1 and kept[0].aborted
        if alone and kept[0].size() > sum(t.base.count for t in self.tables.values()) + self._few:
            kept.pop()
            self._must.update(self.written)

    def _hurry(self, table: StateTable, key: Any, value: Any) -> None:
        """Encodes an object from below, if it still has to be encoded, before it is handed out and perhaps changed in
        place."""
        early = self._early[table.index]
        if key in early:
            return
        waiting = table.frozen is not None and key in table.frozen.entries
        if not waiting and table.base.mutable:
            waiting = any(key in keys for keys in self._older[table.index])
            waiting = waiting or self._is_whole(self._group_of(table, key))
        if not waiting:
            return
        try:
            early[key] = self._encoder.value(table, key, value)
        except UserCodeError as error:
            self._failed = error  # `encode` raises it: the function that reads the state did nothing wrong
            early[key] = b""

    def _as_stored(self, table: StateTable, key: Any, value: Any) -> Any:
        """A value of a frozen layer as it comes back from a checkpoint. The value itself stays in the layer, and no code
        changes it."""
        early = {} if self._current is None else self._early[table.index]
        if key not in early:
            try:
                early[key] = self._encoder.value(table, key, value)
            except UserCodeError as error:
                self._failed = error  # as in `_hurry`; if no checkpoint is being encoded, the next `encode` raises it
                return value
        return table.codec.decode(early[key])

    # Encoding.

    def encode(self, limit: int) -> tuple[list[Block], bool]:
        """Encodes about `limit` more entries: (blocks, True if that was all)."""
        spent = 0
        while self._work is not None and spent < limit:
            cost = next(self._work, None)
            if cost is None:
                self._end()
            else:
                spent += cost
            if self._failed is not None:
                raise self._failed
        return self._blocks.take(), self._work is None

    def _encoding(self, made: Generation, tables: list[StateTable], whole_cut: bool) -> Iterator[int]:
        """The pieces of work after a freeze. Yields for each the approximate number of entries."""
        self._choose(tables, whole_cut)
        for table in tables:
            yield from self._drain(table, made.changed[table.index][0], self._blocks.put)
        for table in tables:
            table.base.cut()
        alive = [group for table in tables for group in table.base.alive]
        self._draining = False
        for table in tables:
            yield from self._earlier(table, made.changed[table.index][0])
        whole = {group for group in chain(alive, self._known, self._touched) if self._is_whole(group)}
        made.delta = sorted(self._blocks.touched)
        yield from self._blocks.close()
        yield from self._wholes(made, tables, sorted(whole))

    def _choose(self, tables: list[StateTable], whole_cut: bool) -> None:
        """Chooses the groups that are written as a whole, in addition to the groups in `_must`. `whole_cut` chooses all of
        them."""
        self._known, self._whole = set(self.written), set(self._must)
        self._overlapping = len(self.generations) > 1
        self._touched = set()
        frozen = [table.frozen for table in tables if table.frozen is not None]
        changed = sum(map(len, frozen))
        changed += sum(len(keys) for parts in self._older for keys in parts)
        entries = sum(table.base.count for table in tables) + sum(len(one) - one.deletions for one in frozen)
        self._everything = whole_cut or entries <= self._few
        ahead, self._ahead = self._ahead, 0
        if self._everything:
            return
        rewritten = sum(table.base.alive.get(group, 0) for group in self._must for table in tables)
        for group in sorted(self.written, key=lambda group: (self.written[group], group)):
            if rewritten + ahead >= changed and rewritten + ahead:
                break
            self._whole.add(group)
            rewritten += sum(table.base.alive.get(group, 0) for table in tables)
        if rewritten:  # one of two checkpoints in a row rewrites a group, so that chains stay short
            self._ahead = max(0, rewritten + ahead - changed)

    def _is_whole(self, group: int) -> bool:
        return self._everything or group in self._whole or group not in self._known

    def _drain(
        self,
        table: StateTable,
        changed: Keys,
        emit: Callable[[StateTable, int, Any, Any, bytes | None], None] | None,
    ) -> Iterator[int]:
        """Moves the frozen layer of a table into its base, a portion at a time."""
        frozen, base = table.frozen, table.base
        if frozen is None:
            return
        entries, deleted = frozen.entries, frozen.deleted
        everything, whole, known = self._everything, self._whole, self._known
        take, objects = entries.popitem, base if isinstance(base, MemoryBase) else None
        exact = table.exact is not None
        # A group without a confirmed chain is written as a whole next time, too. Its changed keys need not be noted, unless
        # a checkpoint that was pending when `known` was determined may give the group a chain without these changes.
        noted = emit is None or self._overlapping
        early: dict[Any, bytes] = self._early[table.index] if emit is not None else {}
        while frozen:
            while deleted:
                yield self._drain_deleted(table, frozen, changed, emit is None, noted)
            if not entries:
                frozen.unpack(_UNPACKED)
                continue
            pairs = [take() for _ in range(min(len(entries), _PORTION))]
            keys, values = zip(*pairs, strict=True)
            groups = self._groups_of(table, keys)
            encoded: Iterable[bytes | None] = repeat(None, len(pairs))
            if objects is not None and early.keys().isdisjoint(keys) and (not exact or all_immutable(values)):
                objects.put_each(keys, values, groups)
            else:
                encoded = [
                    self._put(table, key, value, group, early.get(key))
                    for key, value, group in zip(keys, values, groups, strict=True)
                ]
                base.commit()
            changed.update(dict.fromkeys(keys if noted else compress(keys, map(known.__contains__, groups))))
            if emit is not None and not everything:
                for key, value, group, data in zip(keys, values, groups, encoded, strict=True):
                    if group in known and group not in whole:
                        emit(table, group, key, value, data)
            yield len(pairs)
        table.drop_frozen()

    def _put(self, table: StateTable, key: Any, value: Any, group: int, data: bytes | None) -> bytes | None:
        """Writes an entry of a frozen layer into the base. Returns its value as bytes where the base holds bytes, or `data`,
        the bytes of the cut, was there."""
        if data is None and (not table.base.mutable or (table.exact is not None and not comes_back(value))):
            data = self._encoder.value(table, key, value)
        return table.base.put(key, value, group, data) or data

    def _groups_of(self, table: StateTable, keys: Sequence[Any]) -> list[int]:
        """The key groups of entries."""
        by, groups = table.group_by, self._groups
        try:
            return list(map(groups.__getitem__, keys if by is None else map(by, keys)))
        except Exception:  # a key that the cache cannot look up
            return [self._group_of(table, key) for key in keys]

    def _drain_deleted(self, table: StateTable, frozen: Layer, changed: Keys, quietly: bool, noted: bool) -> int:
        """Removes a portion of the deleted keys of a frozen layer from the base, and returns their number. `noted`: each of
        them is noted as changed."""
        deleted = frozen.deleted
        count = min(len(deleted), _PORTION)
        for _ in range(count):
            key, _ = deleted.popitem()
            if key in frozen.entries:
                continue
            group = self._group_of(table, key)
            table.base.remove(key, group)
            if noted or group in self._known:
                changed[key] = None
            if quietly or self._is_whole(group):
                self._touched.add(group)
            else:
                self._blocks.delete(table, group, key)
        table.base.commit()
        return count

    def _earlier(self, table: StateTable, drained: Keys) -> Iterator[int]:
        """Encodes the keys that earlier freezes with unconfirmed checkpoints have changed, and this one has not."""
        older, early, base = self._older[table.index], self._early[table.index], table.base
        for i, keys in enumerate(older):
            newer = [drained, *older[i + 1 :]]
            walk = iter(keys)
            while portion := list(islice(walk, _PORTION)):
                for key in portion:
                    if any(key in one for one in newer):
                        continue
                    group = self._group_of(table, key)
                    if self._is_whole(group):
                        self._touched.add(group)
                        continue
                    found = base.entry_at_cut(key, group)
                    if found is None:
                        self._blocks.delete(table, group, key)
                    else:
                        self._blocks.put(table, group, found[0], found[1], early.get(key, found[2]))
                yield len(portion)

    def _wholes(self, made: Generation, tables: list[StateTable], groups: list[int]) -> Iterator[int]:
        """Encodes the groups that are written as a whole: all tables of each."""
        for group in groups:
            nothing = True
            for table in tables:
                early = self._early[table.index]
                for keys, values, encoded in table.base.group(group, _PORTION):
                    if values is None:  # as encoded in `early`, before they went into the base
                        self._blocks.put_all(table, group, keys, encoded)
                    elif early.keys().isdisjoint(keys) and all_immutable(values):
                        self._blocks.put_values(table, group, keys, values)
                    else:
                        for key, value in zip(keys, values, strict=True):
                            known = early.get(key) if early else None
                            known = value.data if type(value) is Stored else known
                            self._blocks.put(table, group, key, value, known)
                    nothing = False
                    yield len(keys)
            self._whole.discard(group)
            made.full.append(group)
            if nothing:
                made.empty.add(group)
            yield from self._blocks.close()

    def groups(self, checkpoint: int) -> tuple[list[int], list[int]]:
        """The groups of a checkpoint, once it is encoded: (groups written as a whole, groups of which only the changes were
        written)."""
        for one in self.generations:
            if one.checkpoint == checkpoint:
                return list(one.full), list(one.delta)
        raise InternalError(f"operator {self.operator!r}: checkpoint {checkpoint} was never frozen, or is over")

    # The outcome.

    def _end(self) -> None:
        """Ends the encoding, complete or not."""
        self._work = self._current = None
        self._older, self._early = [], []
        self._blocks.forget()
        self._failed, self._draining = None, False
        for table in self.tables.values():
            table.hurry = None
            table.base.uncut()

    def confirm(self, checkpoint: int) -> None:
        """Notes that the checkpoint is complete: later ones do not write its entries again."""
        for one in self.generations:
            if one.checkpoint == checkpoint and not one.aborted:
                self.written.update(dict.fromkeys(one.full, checkpoint))
                for group in one.empty:
                    del self.written[group]
                for (
                    group
                ) in one.delta:  # a checkpoint confirmed since may have emptied this group: its chain restarts here
                    self.written.setdefault(group, checkpoint)
                self._must.difference_update(one.full)
        self.generations = [one for one in self.generations if one.checkpoint > checkpoint]

    def abort(self, checkpoint: int) -> None:
        """Notes that the checkpoint will not be complete: a later one writes its entries again."""
        if self._current is not None and self._current.checkpoint == checkpoint:
            self._end()
            self._blocks.take()
        for one in self.generations:
            if one.checkpoint == checkpoint:
                one.aborted = True
                self._ahead = 0

    # Restoring.

    def apply(self, table: TableInfo, group: int, data: bytes | memoryview) -> None:
        """Applies the entries of a block, while restoring, oldest block first."""
        self._restoring.apply(table, group, data)

    def holds(self, groups: Iterable[int]) -> None:
        """Notes, while restoring, that the checkpoint has state in these key groups."""
        self._restoring.seen.update(groups)

    def note_expiries(self, table: str, parts: Iterable[ExpiryOf]) -> None:
        """Notes, while restoring and before any `apply`, what the checkpoint has of the lifetimes of a table's entries."""
        self._restoring.expiries.setdefault(table, []).extend(parts)

    def forget(self, group: int) -> None:
        """Drops, while restoring, what was applied of a key group."""
        self._restoring.seen.discard(group)
        for table in self.tables.values():
            base = table.base
            base.cut()
            keys = [key for portion in base.group(group, _PORTION) for key in portion[0]]
            base.uncut()
            for key in keys:
                base.remove(key, group)
            base.commit()

    def detach(self) -> None:
        """Detaches the operator that has declared the tables: another one of its kind will declare the same tables."""
        self.after_restore.clear()
        for table in self.tables.values():
            table.users.clear()
            table.front = None

    def forget_files(self) -> None:
        """Notes that what files of earlier checkpoints hold does not count: the next one writes every group as a whole."""
        self.written, self._must = {}, set()

    def end_restore(self, own_files: bool) -> None:
        """Ends restoring."""
        if own_files:  # later checkpoints refer to blocks of these files, whose values are not encoded anew
            for name, classes in self._restoring.classes.items():
                self.tables[name].codec.notes.add(classes)
        self.written = dict.fromkeys(sorted(self._restoring.seen), 0) if own_files else {}
        self._must = set(self.written) if self._restoring.dropped or self._restoring.rewrites else set()
        for call in self.after_restore:
            call()
