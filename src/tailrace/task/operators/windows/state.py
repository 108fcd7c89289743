"""Windows of built-in aggregates in arrays.

Each distinct key has a slot. Each pair of a key and the start of a window has another slot, by which accumulators and
timers are arrays. All windows are in arrays, or none is. While they are, the tables of entries below hold only what they
held at the last cut, for the checkpoints (`fronts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.keyslots import KeySlots
from tailrace.elements.slottables import Slots, WordTable, grow
from tailrace.task.operators.aggregates.accumulators import Accumulators, Answers, accumulators_of
from tailrace.task.operators.aggregates.state import AccumulatorSnapshot
from tailrace.task.operators.windows.timers import NOWHERE, SlotTimers

Array = np.ndarray[Any, Any]
_DIRECT = 1 << 20
"""Number of slots of keys up to which the windows of one start are found without a look at the table of pairs."""
_ROOM = 4_096
"""Number of slots that may belong to windows that are over, however few are open."""
_NO_SLOTS = np.empty(0, np.int64)


@dataclass
class Due:
    """Timers that fired together: the windows that have reached their end, in order, and the windows that are over."""

    ended: Slots
    over: Slots


class WindowState:
    """All open windows of one operator.

    Invariant W3: a window is `live` exactly from its first record until its clean-up timer, and while it is, its clean-up
    timer is set. What is not live has no timer.
    """

    def __init__(
        self, keys: KeySlots, aggregates: list[Any], kinds: list[Any], size: int, lateness: int, order: int
    ) -> None:
        self.keys = keys
        self.aggregates, self.kinds = aggregates, kinds
        """Aggregates (`aggregates`), and the types of the columns that they aggregate (`kinds`)."""
        self.accumulators = self._new_accumulators()
        self.pairs = WordTable(2)
        """Slots of windows by (slot of the key, start of the window)."""
        self._direct: dict[int, Slots] = {}
        """Slots of windows by start of the window and slot of the key, for the starts that came last; -1 where it is not
        known."""
        self.live = np.zeros(0, np.bool_)
        self.used = np.zeros(0, np.bool_)
        """By slot, True if it is not live and still has the accumulators of a window that is over."""
        self.alive = 0
        """Number of windows that are live."""
        self.open = np.zeros(0, np.int64)
        """Number of windows of each key, by slot of the key."""
        self.dirty = np.zeros(0, np.bool_)
        """By slot of a key, True if its windows are not what the table has."""
        self.below = np.zeros(0, np.bool_)
        """By slot of a key, True if the table has, or may have, an entry of the key."""
        self.ends = SlotTimers(size - 1)
        self.cleanups = SlotTimers(size - 1 + lateness) if lateness else None
        """Timers for the clean-up; None if a window is over as soon as it has reached its end."""
        self.order = order
        """Number of timers that were ever set."""
        self.kept: AccumulatorSnapshot | None = None
        """Snapshot that a checkpoint has still to take."""

    def _new_accumulators(self) -> list[Accumulators]:
        made = [accumulators_of(one, of) for one, of in zip(self.aggregates, self.kinds, strict=True)]
        assert all(one is not None for one in made)
        return [one for one in made if one is not None]

    @property
    def timers(self) -> list[SlotTimers]:
        """Timers of all kinds."""
        return [self.ends] if self.cleanups is None else [self.ends, self.cleanups]

    def starts(self, slots: Slots) -> Array:
        """Starts of the windows in these slots."""
        return self.pairs.words[1][slots]

    def keys_of(self, slots: Slots) -> Slots:
        """Slots of the keys of the windows in these slots."""
        return self.pairs.words[0][slots]

    def slots(self, keys: Slots, starts: Array) -> Slots:
        """Slots of windows, by key and start. New windows get the next slots, and are not live yet."""
        if self.keys.count > len(self.open):
            self.open, self.dirty = grow(self.open, self.keys.count), grow(self.dirty, self.keys.count)
            self.below = grow(self.below, self.keys.count)
        found = self._looked_up(keys, starts)
        count = self.pairs.count
        if count > len(self.live):
            self.live, self.used = grow(self.live, count), grow(self.used, count)
            for accumulators in self.accumulators:
                accumulators.grow(len(self.live))
            for timers in self.timers:
                timers.grow(len(self.live))
        return found

    def _looked_up(self, keys: Slots, starts: Array) -> Slots:
        """Slots of windows, looked up or new. Most batches are of one window, and that is one of the last ones: for those
        the slots by key are at hand."""
        if not len(starts) or self.keys.count > _DIRECT or (starts != starts[0]).any():
            return self.pairs.slots([keys, starts])
        start = int(starts[0])
        direct = self._direct.pop(start, _NO_SLOTS)
        if len(direct) < self.keys.count:
            longer = np.full(len(self.open), -1, np.int64)
            longer[: len(direct)] = direct
            direct = longer
        if len(self._direct) > 1:
            del self._direct[next(iter(self._direct))]
        self._direct[start] = direct
        slots = direct.take(keys)
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            slots[missing] = direct[keys[missing]] = self.pairs.slots([keys[missing], starts[missing]])
        return slots

    # Records in.

    def merge(self, keys: Slots, starts: Array, answers: Sequence[Answers], first: Array) -> Slots:
        """Adds the results of a batch by key and window; returns the slots of the windows. `first`: the positions of
        their first records; windows begin in that order. Raises `NotInArrays` before any accumulator is changed, except
        for windows that are over."""
        slots = self.slots(keys, starts)
        new = ~self.live[slots]
        if new.any():
            self._clear(slots[new & self.used[slots]])
        made = [one.merge(slots, found) for one, found in zip(self.accumulators, answers, strict=True)]
        if self.kept is not None:
            self.kept.keep(slots)
        for one, values in zip(self.accumulators, made, strict=True):
            one.store(slots, values)
        if new.any():
            which = np.flatnonzero(new)
            self._begin(slots[which[np.argsort(first[which])]])
        self.dirty[keys] = True
        return slots

    def _clear(self, slots: Slots) -> None:
        """Resets slots of windows that are over to the accumulators of no records."""
        if self.kept is not None:
            self.kept.keep(slots)
        for one in self.accumulators:
            one.store(slots, [np.zeros(len(slots), array.dtype) for array in one.arrays])
        self.used[slots] = False

    def _begin(self, slots: Slots) -> None:
        """Begins windows with their first records, in this order: sets their timers and makes them live."""
        starts, timers = self.starts(slots), self.timers
        orders = self.order + 1 + len(timers) * np.arange(len(slots))
        for i, one in enumerate(timers):
            one.set(slots, starts, orders + i)
        self.order += len(timers) * len(slots)
        self.put(slots)

    def put(self, slots: Slots) -> None:
        """Makes windows live."""
        self.live[slots] = True
        self.alive += len(slots)
        np.add.at(self.open, self.keys_of(slots), 1)

    # Windows out.

    def next_time(self) -> int | None:
        """Time at which the earliest timer is due, or None."""
        times = [time for one in self.timers if (time := one.next_time()) is not None]
        return min(times, default=None)

    def due(self, time: int, limit: int) -> Due:
        """Fires the first timers that are due at or before `time`, at most `limit`; returns their windows."""
        ends = self.ends.due(time, limit)
        if self.cleanups is None:
            ended = self.ends.take(ends, self.starts(ends), limit)
            return Due(ended, ended)
        cleanups = self.cleanups.due(time, limit)
        count = len(ends)
        times = np.concatenate(
            [self.starts(ends) + self.ends.delay, self.starts(cleanups) + self.cleanups.delay],
        )
        orders = np.concatenate([self.ends.order[ends], self.cleanups.order[cleanups]])
        first = np.lexsort((orders, times))[:limit]
        of_ends = int(np.count_nonzero(first < count))
        ended = self.ends.take(ends, self.starts(ends), of_ends)
        return Due(ended, self.cleanups.take(cleanups, self.starts(cleanups), len(first) - of_ends))

    def drop(self, slots: Slots) -> None:
        """Ends windows that are over."""
        keys = self.keys_of(slots)
        self.live[slots] = False
        self.used[slots] = True
        self.alive -= len(slots)
        np.subtract.at(self.open, keys, 1)
        self.dirty[keys] = True

    def results(self, slots: Slots, kinds: list[pa.DataType]) -> list[pa.Array]:
        """Results of windows, in columns of these types. Raises `NotInArrays`."""
        return [one.results(one.at(slots), kind) for one, kind in zip(self.accumulators, kinds, strict=True)]

    # Room.

    @property
    def sparse(self) -> bool:
        """True if most slots are of windows that are over."""
        return self.pairs.count > 2 * self.alive + _ROOM

    def tidy(self) -> None:
        """Gives slots back that hold nothing any more. To be called only while no checkpoint has anything to take."""
        held = self.live.copy()
        for one in self.timers:
            held |= one.below != NOWHERE
        old = np.flatnonzero(held)
        starts, keys = self.starts(old), self._tidy_keys(self.keys_of(old))
        pairs = WordTable(2)
        new = pairs.slots([keys, starts])
        accumulators = self._new_accumulators()
        for mine, others in zip(accumulators, self.accumulators, strict=True):
            mine.grow(pairs.count)
            mine.store(new, others.at(old))
        live, used = np.zeros(pairs.count, np.bool_), np.zeros(pairs.count, np.bool_)
        live[new], used[new] = self.live[old], self.used[old]
        self.ends = self.ends.move(old, new, pairs.count)
        self.cleanups = None if self.cleanups is None else self.cleanups.move(old, new, pairs.count)
        self._direct = {}
        self.pairs, self.accumulators, self.live, self.used, self.kept = pairs, accumulators, live, used, None

    def _tidy_keys(self, keys: Slots) -> Slots:
        """Slots of these keys. If most slots of keys are of keys without windows, the needed keys move to new slots
        first."""
        dirty = self.dirty & self.below  # their entries in the table are still to be deleted
        dirty[keys] = True
        old = np.flatnonzero(dirty)
        if self.keys.count <= 2 * len(old) + _ROOM:
            return keys
        self.keys, columns = self.keys.empty(), self.keys.columns(old)
        new = self.keys.slots(columns)
        to = np.zeros(len(dirty), np.int64)
        to[old] = new
        places = np.empty(len(old), np.int64)
        places[new] = old
        self.open, self.dirty, self.below = self.open[places], self.dirty[places], self.below[places]
        found: Slots = to[keys]
        return found

    def check(self) -> None:
        """Raises `AssertionError` where the arrays contradict each other."""
        assert self.alive == np.count_nonzero(self.live)
        count = np.bincount(self.keys_of(np.flatnonzero(self.live)), minlength=len(self.open))
        assert (count == self.open).all()
        last = self.timers[-1]
        assert (last.is_set == self.live).all()
        assert not (self.ends.is_set & ~self.live).any()
        for one in self.timers:
            one.check()
