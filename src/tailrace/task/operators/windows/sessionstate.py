"""Sessions of built-in aggregates in arrays.

Each distinct key has a slot, and each session has another one, by which its bounds and accumulators are arrays. All
sessions are in arrays, or none is. While they are, the table of entries below holds only what it held at the last cut, for
the checkpoints (`sessionfront`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.keyslots import KeySlots
from tailrace.elements.slottables import Slots, grow, places_by_slot
from tailrace.task.channels.key_readers import settled_keys
from tailrace.task.operators.aggregates.accumulators import Accumulators, Answers, NotInArrays, accumulators_of
from tailrace.task.operators.timer_heap import Keyed
from tailrace.task.operators.windows.agenda import Agenda
from tailrace.task.operators.windows.sessionbatch import BatchGroups

Array = np.ndarray[Any, Any]
_NONE = -1
_ROOM = 4_096
"""Number of slots of keys that may be of keys without sessions, however few have some."""
_FEW = 32
"""Number of keys up to which their sessions are found one by one."""


class SessionState:
    """All sessions of one operator: open ones, and the newest emitted one of each key.

    Invariant W6: `order` is above zero exactly for slots of open sessions, and below for emitted ones; each open session of
    a key is `one`, or comes behind it by `next_slot`.
    """

    def __init__(self, keys: KeySlots, aggregates: list[Any], kinds: list[Any], reach: int) -> None:
        self.keys = keys
        self.aggregates, self.kinds = aggregates, kinds
        """Aggregates (`aggregates`), and the types of the columns that they aggregate (`kinds`)."""
        made = [accumulators_of(one, of) for one, of in zip(aggregates, kinds, strict=True)]
        if any(one is None for one in made):
            raise NotInArrays
        self.accumulators: list[Accumulators] = [one for one in made if one is not None]
        self.reach = reach
        # Not empty, so that an index of `_NONE` finds something, which is masked.
        self.key = np.zeros(1, np.int64)
        """By slot of a session, the slot of its key; likewise the following."""
        self.start, self.end = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.next_slot = np.zeros(1, np.int64)
        """The slot of the next open session of its key; `_NONE` behind the last one."""
        self.order = np.zeros(1, np.int64)
        """Zero: the slot is free."""
        self._count = 0
        self._free: list[Slots] = []
        width = max(reach // 16, 1) if reach else 1_000_000
        self.ends, self.forgets = Agenda(width), Agenda(width)
        """Open sessions by their ends, and emitted ones by the times at which they are forgotten."""
        self.one = np.zeros(0, np.int64)
        """By slot of a key, the slot of an open session; `_NONE` if it has none."""
        self.emitted = np.zeros(0, np.int64)
        """By slot of a key, the slot of its newest emitted session; `_NONE` if there is none any more."""
        self.dirty = np.zeros(0, np.bool_)
        """By slot of a key, True if its sessions are not what the table has."""
        self.below = np.zeros(0, np.bool_)
        """By slot of a key, True if the table has, or may have, an entry of the key."""
        self._tidied = 0
        """Number of keys that had sessions when that was looked at last."""

    # Slots.

    def grow_keys(self) -> None:
        """Makes room for all keys."""
        before, count = len(self.one), self.keys.count
        if count > before:
            self.one, self.emitted = grow(self.one, count), grow(self.emitted, count)
            self.one[before:] = self.emitted[before:] = _NONE
            self.dirty, self.below = grow(self.dirty, len(self.one)), grow(self.below, len(self.one))

    def take_slots(self, count: int) -> Slots:
        """Free slots, with the accumulators of no records. They stay free until they have an order."""
        found: list[Slots] = []
        missing = count
        while missing and self._free:
            some = self._free.pop()
            if len(some) > missing:
                self._free.append(some[missing:])
                some = some[:missing]
            found.append(some)
            missing -= len(some)
        if missing:
            first, self._count = self._count, self._count + missing
            found.append(np.arange(first, self._count))
            self.key, self.start, self.end, self.order, self.next_slot = (
                grow(one, self._count) for one in (self.key, self.start, self.end, self.order, self.next_slot)
            )
            for accumulators in self.accumulators:
                accumulators.grow(len(self.key))
            self.ends.grow(len(self.key))
            self.forgets.grow(len(self.key))
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def free(self, slots: Slots) -> None:
        """Gives slots back."""
        if len(slots):
            self.order[slots] = 0
            self.clear(slots)
            self.ends.drop(slots)
            self.forgets.drop(slots)
            self._free.append(slots)

    def clear(self, slots: Slots) -> None:
        """Resets accumulators to those of no records."""
        for one in self.accumulators:
            one.store(slots, [np.zeros(len(slots), array.dtype) for array in one.arrays])

    @property
    def live(self) -> Slots:
        """Slots of all sessions, open and emitted."""
        return np.flatnonzero(self.order)

    def open_of(self, keys: Slots) -> Slots:
        """Open sessions of these distinct keys."""
        found, slots = list[Slots](), self.one[keys]
        while len(slots := slots[slots != _NONE]) > _FEW:
            found.append(slots)
            slots = self.next_slot[slots]
        rest = list[int]()
        for slot in slots.tolist():
            while slot != _NONE:
                rest.append(slot)
                slot = self.next_slot.item(slot)
        return np.concatenate([*found, np.array(rest, np.int64)])

    def put(self, slots: Slots) -> None:
        """Makes sessions known by their keys and times, which were written before."""
        opened = slots[self.order[slots] > 0]
        emitted = slots[self.order[slots] < 0]
        self.emitted[self.key[emitted]] = emitted
        self.forgets.put(emitted, self.end[emitted] + self.reach)
        self.ends.put(opened, self.end[opened])
        self._link(opened)

    def _link(self, slots: Slots) -> None:
        """Makes open sessions known by their keys, beside what these have."""
        if not len(slots):
            return
        slots = slots[places_by_slot(self.key[slots])]
        keys = self.key[slots]
        parted = np.append(keys[1:] != keys[:-1], True)
        self.next_slot[slots] = np.where(parted, self.one[keys], np.append(slots[1:], _NONE))
        first = np.append(True, parted[:-1])
        self.one[keys[first]] = slots[first]

    def _part(self, slots: Slots) -> None:
        """Takes open sessions from their keys."""
        keys = self.key[slots]
        if (self.one[keys] == slots).all():  # each is the first of its key
            self.one[keys] = self.next_slot[slots]
            return
        left = np.zeros(len(self.key), np.bool_)
        left[known := self.open_of(np.unique(keys))] = True
        left[slots] = False
        self.one[keys] = _NONE
        self._link(known[left[known]])

    # Records in.

    def welcome(self, keys: Slots, times: Array, reached: int) -> Array:
        """Mask of the records behind the watermark that are not late."""
        slots, emitted = self.open_of(np.unique(keys)), self.emitted[keys]
        sequence = places_by_slot(np.append(self.key[slots], keys), np.append(self.start[slots], times))
        places = np.arange(len(sequence))
        # The open sessions of a key do not touch: only the last one that begins by a record's time can hold it.
        before = np.empty(len(sequence), np.int64)
        before[sequence] = np.maximum.accumulate(np.where(sequence < len(slots), places, _NONE))
        before = before[len(slots) :]
        last = np.append(slots, _NONE)[np.where(before == _NONE, _NONE, sequence[before])]
        inside = (last != _NONE) & (self.key[last] == keys) & (times <= self.end[last])
        opens = (times > reached - self.reach) & ((emitted == _NONE) | (times > self.end[emitted]))
        found: Array = inside | opens
        return found

    def merge(self, groups: BatchGroups, answers: Sequence[Answers]) -> None:
        """Adds the groups of a batch, with their results by aggregate. Raises `NotInArrays` before anything is changed."""
        targets = groups.targets.copy()
        new = np.flatnonzero(targets == _NONE)
        targets[new] = self.take_slots(len(new))
        made = [one.merge(targets, found) for one, found in zip(self.accumulators, answers, strict=True)]
        orders = np.where(groups.targets == _NONE, groups.orders, self.order[targets])
        absorbed = [slot for slots in groups.absorbed.values() for slot in slots]
        for group, slots in groups.absorbed.items():
            self._absorb(made, group, slots)
            orders[group] = min(int(orders[group]), *self.order[slots].tolist())
        for one, values in zip(self.accumulators, made, strict=True):
            one.store(targets, values)
        if absorbed:
            gone = np.array(absorbed, np.int64)
            self._part(gone)
            self.free(gone)
        self.key[targets], self.start[targets], self.end[targets] = groups.keys, groups.starts, groups.ends
        self.order[targets] = orders
        self.put(targets[new])
        self.dirty[groups.keys] = True

    def _absorb(self, made: list[list[Array]], group: int, slots: list[int]) -> None:
        """Adds the accumulators of other sessions to those of a group."""
        for aggregate, one, arrays in zip(self.aggregates, self.accumulators, made, strict=True):
            [value] = one.values([array[group : group + 1] for array in arrays])
            for other in one.values(one.at(np.array(slots, np.int64))):
                value = aggregate.merge(value, other)
            for array, [word] in zip(arrays, one.arrays_of([value]), strict=True):
                array[group] = word

    # Sessions out.

    def next_time(self) -> int | None:
        """Time at which the first session is to be emitted or forgotten, or None."""
        times = (self.ends.next_time(self.end), self.forgets.next_time(self.end + self.reach))
        return min((time for time in times if time is not None), default=None)

    def due(self, time: int, limit: int) -> Slots:
        """Takes the first open sessions that are due, at most `limit`, in order of their ends, then of opening."""
        slots = self.ends.due(time, self.end, limit)
        return self._in_order(slots, self.ends, self.end, limit)

    def _in_order(self, slots: Slots, agenda: Agenda, times: Array, limit: int) -> Slots:
        if not len(slots):
            return slots
        slots = slots[np.lexsort((np.abs(self.order[slots]), times[slots]))]
        slots = self._by_key_where_equal(slots, times)
        agenda.put(slots[limit:], times[slots[limit:]])
        return slots[:limit]

    def _by_key_where_equal(self, slots: Slots, times: Array) -> Slots:
        """Orders sessions of equal time and order by their keys: different subtasks had opened them before a start at
        another parallelism."""
        same = (np.diff(times[slots]) == 0) & (np.diff(np.abs(self.order[slots])) == 0)
        if not same.any():
            return slots
        keys = settled_keys(self.keys.keys(self.key[slots]))
        rows = zip(
            times[slots].tolist(), np.abs(self.order[slots]).tolist(), map(Keyed, keys), slots.tolist(), strict=True
        )
        return np.array([row[3] for row in sorted(rows)], np.int64)

    def emit(self, slots: Slots) -> None:
        """Counts sessions as emitted, in this order. Only the newest emitted one of a key is kept, if any can be touched."""
        if not len(slots):
            return
        self._part(slots)
        keys = self.key[slots]
        self.dirty[keys] = True
        if not self.reach:
            self.free(slots)
            return
        old = self.emitted[keys]
        newest = np.zeros(len(slots), np.bool_)
        newest[len(slots) - 1 - np.unique(keys[::-1], return_index=True)[1]] = True
        self.free(np.unique(old[old != _NONE]))
        self.free(slots[~newest])
        kept = slots[newest]
        self.order[kept] = -self.order[kept]
        self.clear(kept)
        self.put(kept)

    def forget(self, time: int, limit: int) -> bool:
        """Forgets emitted sessions that nothing can touch any more, at most `limit`. True if none is left."""
        if not self.forgets.begins_by(time):
            return True
        times = self.end + self.reach
        slots = self._in_order(self.forgets.due(time, times, limit), self.forgets, times, limit)
        self.emitted[self.key[slots]] = _NONE
        self.dirty[self.key[slots]] = True
        self.free(slots)
        return not self.forgets.any_due(time, times)

    def results(self, slots: Slots, kinds: list[pa.DataType]) -> list[pa.Array]:
        """Results of sessions, in columns of these types. Raises `NotInArrays`."""
        return [one.results(one.at(slots), kind) for one, kind in zip(self.accumulators, kinds, strict=True)]

    # Room.

    def has(self) -> Array:
        """By slot of a key, True if the key has sessions."""
        found: Array = (self.one != _NONE) | (self.emitted != _NONE)
        return found

    def tidy(self) -> None:
        """Gives slots of keys back if most are of keys without sessions. To be called only while no checkpoint has anything
        to take."""
        if self.keys.count <= 2 * self._tidied + _ROOM:
            return
        needed = self.has() | (self.dirty & self.below)
        old = np.flatnonzero(needed)
        self._tidied = max(len(old), self.keys.count // 2)
        if self.keys.count <= 2 * len(old) + _ROOM:
            return
        self.keys, columns = self.keys.empty(), self.keys.columns(old)
        new = self.keys.slots(columns)
        to = np.zeros(len(needed), np.int64)
        to[old] = new
        places = np.empty(len(old), np.int64)
        places[new] = old
        self.one, self.emitted = self.one[places], self.emitted[places]
        self.dirty, self.below = self.dirty[places], self.below[places]
        live = self.live
        self.key[live] = to[self.key[live]]

    def check(self) -> None:
        """Raises `AssertionError` where the arrays contradict each other."""
        opened, emitted = np.flatnonzero(self.order > 0), np.flatnonzero(self.order < 0)
        known, keys, slots = list[int](), np.arange(len(self.one)), self.one
        while (some := slots != _NONE).any():
            keys, slots = keys[some], slots[some]
            assert (self.key[slots] == keys).all()
            known += slots.tolist()
            slots = self.next_slot[slots]
        assert sorted(known) == opened.tolist()
        assert sorted(self.emitted[self.emitted != _NONE].tolist()) == emitted.tolist()
        self.ends.check(opened, self.end)
        self.forgets.check(emitted, self.end + self.reach)
        free = np.concatenate([*self._free, np.empty(0, np.int64)])
        assert len(free) + len(opened) + len(emitted) == self._count
