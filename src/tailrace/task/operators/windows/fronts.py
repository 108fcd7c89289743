"""View of windows in arrays for checkpoints: the fronts above the tables of windows and of their timers
(`state.tables.Front`).

Of what was written and deleted between two cuts, the entries are made as they would be in rows: all windows of each key
with a window that changed, and the timers that were set.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tailrace.elements.slottables import Slots, places_by_slot
from tailrace.state.tables import FrozenColumns
from tailrace.task.channels.key_readers import settled_keys
from tailrace.task.operators.aggregates.state import AccumulatorSnapshot
from tailrace.task.operators.windows.state import WindowState
from tailrace.task.operators.windows.timers import AS_IT_IS, NOWHERE, OTHERWISE

Array = np.ndarray[Any, Any]


class WindowFront:
    """Front of the windows, above the table key -> {start: accumulators}."""

    def __init__(self, state: WindowState) -> None:
        self.state = state

    def entries(self) -> int:
        """Number of keys that have windows."""
        return int(np.count_nonzero(self.state.open))

    about = entries

    def everything(self) -> dict[Any, Any]:
        """All keys that have windows, each with its windows."""
        state, live = self.state, self.state.live[: self.state.pairs.count].copy()
        keys = self.entries()
        return FrozenWindows(state, AccumulatorSnapshot(state.accumulators, live), np.empty(0, np.int64), keys).take(
            keys
        )

    def cut(self) -> FrozenColumns | None:
        """Windows written since the last cut; None if there are none. Copies no accumulators (`AccumulatorSnapshot`)."""
        state = self.state
        count = state.pairs.count
        dirty, there = state.dirty, state.open > 0
        deleted = np.flatnonzero(dirty & state.below & ~there)
        waiting = state.live[:count] & dirty[state.pairs.words[0][:count]]
        changed = int(np.count_nonzero(dirty & there))
        state.below = np.where(dirty, there, state.below)
        state.dirty = np.zeros_like(dirty)
        if not changed and not len(deleted):
            return None
        state.kept = AccumulatorSnapshot(state.accumulators, waiting)
        return FrozenWindows(state, state.kept, deleted, changed)

    def take_back(self, columns: FrozenColumns, taken: int) -> None:
        """Counts what is left of a cut as written again, with the keys that were taken last."""
        assert isinstance(columns, FrozenWindows)
        self.state.kept = None
        keys = columns.remaining()
        self.state.dirty[keys] = self.state.below[keys] = True

    def take_written(self) -> tuple[dict[Any, Any], list[Any]]:
        """Entries written since the last cut, and the keys whose windows are all over."""
        columns = self.cut()
        found = _everything(columns)
        self.state.kept = None
        return found


class FrozenWindows:
    """Entries of windows written between two cuts. An entry is in the arrays of the state until it is taken."""

    def __init__(self, state: WindowState, kept: AccumulatorSnapshot, deleted: Slots, changed: int) -> None:
        self._keys, self._pairs = state.keys, state.pairs
        self._kept = kept
        self._deleted = deleted
        """Slots of the deleted keys."""
        self._dropped = 0
        """Number of deleted keys that are used up."""
        self._left = changed
        self._slots: Slots | None = None
        """Slots of the windows, key by key."""
        self._begins = np.empty(0, np.int64)
        """Index in `_slots` at which the windows of each key begin; at last its length."""
        self._at = self._last = 0
        """Number of keys that are used up (`_at`), and how many were before the last `take` (`_last`)."""

    def __len__(self) -> int:
        return self._left + self.drops

    @property
    def drops(self) -> int:
        """Number of deleted keys that are left."""
        return len(self._deleted) - self._dropped

    def _by_key(self) -> Slots:
        if self._slots is None:
            slots = np.flatnonzero(self._kept.waiting)
            keys = self._pairs.words[0][slots]
            sequence = places_by_slot(keys)
            self._slots, keys = slots[sequence], keys[sequence]
            ends = np.flatnonzero(np.diff(keys)) + 1
            self._begins = np.concatenate([[0], ends, [len(keys)]]) if len(keys) else np.zeros(1, np.int64)
        return self._slots

    def take(self, limit: int) -> dict[Any, Any]:
        """The next `limit` keys at most, with all their windows."""
        windows = self._by_key()
        self._last = self._at
        self._at = min(self._at + limit, len(self._begins) - 1)
        self._left -= self._at - self._last
        if self._at == self._last:
            return {}
        begins = self._begins[self._last : self._at + 1]
        slots = windows[begins[0] : begins[-1]]
        keys = settled_keys(self._keys.keys(self._pairs.words[0][windows[begins[:-1]]]))
        starts = self._pairs.words[1][slots].tolist()
        states = list(zip(*self._kept.take(slots), strict=True))
        if len(starts) == len(keys):
            return {key: {start: one} for key, start, one in zip(keys, starts, states, strict=True)}
        bounds = (begins - begins[0]).tolist()
        parts = pairwise(bounds)
        return {key: dict(zip(starts[a:b], states[a:b], strict=True)) for key, (a, b) in zip(keys, parts, strict=True)}

    def drop(self, limit: int) -> list[Any]:
        """The next `limit` keys at most that have no windows any more."""
        slots = self._deleted[self._dropped : self._dropped + limit]
        self._dropped += len(slots)
        return settled_keys(self._keys.keys(slots)) if len(slots) else []

    def remaining(self) -> Slots:
        """Slots of the keys that are left, of the keys that were taken last, and of all deleted keys."""
        windows = self._by_key()
        return np.concatenate([self._pairs.words[0][windows[self._begins[self._last : -1]]], self._deleted])


class TimerFront:
    """Front of the timers of windows, above the table ((key, start), time) -> order."""

    def __init__(self, state: WindowState) -> None:
        self.state = state

    def entries(self) -> int:
        """Number of timers that are set."""
        return sum(one.count for one in self.state.timers)

    about = entries

    def everything(self) -> dict[Any, Any]:
        """All timers that are set."""
        every = [(one, np.flatnonzero(one.is_set)) for one in self.state.timers]
        return _next([_Some(self.state, slots, one.delay, one.order[slots]) for one, slots in every], self.entries())

    def cut(self) -> FrozenColumns | None:
        """Timers that were set since the last cut, and timers that were deleted or have fired; None if there are neither."""
        state, set_, gone = self.state, [], []
        for one in state.timers:
            new = np.flatnonzero(one.is_set & (one.below != AS_IT_IS))
            old = np.flatnonzero(~one.is_set & (one.below != NOWHERE))
            set_.append(_Some(state, new, one.delay, one.order[new]))
            gone.append(_Some(state, old, one.delay, one.order[old]))
            one.below[new], one.below[old] = AS_IT_IS, NOWHERE
        made = FrozenTimers(set_, gone)
        return made if made else None

    def take_back(self, columns: FrozenColumns, taken: int) -> None:
        """Counts what is left of a cut as written again, with the timers that were taken last."""
        assert isinstance(columns, FrozenTimers)
        for one, slots in zip(self.state.timers, columns.remaining(), strict=True):
            one.below[slots] = OTHERWISE

    def take_written(self) -> tuple[dict[Any, Any], list[Any]]:
        """Timers that were set and deleted since the last cut."""
        return _everything(self.cut())


class _Some:
    """Timers of one kind in some slots, as they are now."""

    def __init__(self, state: WindowState, slots: Slots, delay: int, orders: Array) -> None:
        # What is in a slot of a key, or of a pair, never changes.
        self._keys, self._pairs = state.keys, state.pairs
        self.slots, self._delay, self._orders = slots, delay, orders
        self.at = self.last = 0
        """Number of timers that are used up (`at`), and how many were before the last `take` (`last`)."""

    def __len__(self) -> int:
        return len(self.slots) - self.at

    def take(self, limit: int) -> dict[Any, Any]:
        """The next `limit` timers at most."""
        self.last, self.at = self.at, min(self.at + limit, len(self.slots))
        if self.last == self.at:
            return {}
        part = slice(self.last, self.at)
        of_keys, starts = (words[self.slots[part]] for words in self._pairs.words)
        keys = settled_keys(self._keys.keys(of_keys))
        pairs = zip(keys, starts.tolist(), strict=True)
        timers = zip(pairs, (starts + self._delay).tolist(), strict=True)
        return dict(zip(timers, self._orders[part].tolist(), strict=True))


class FrozenTimers:
    """Timers that were set and deleted between two cuts, by kind."""

    def __init__(self, set_: list[_Some], gone: list[_Some]) -> None:
        self._set, self._gone = set_, gone

    def __len__(self) -> int:
        return sum(map(len, self._set)) + self.drops

    @property
    def drops(self) -> int:
        """Number of deleted timers that are left."""
        return sum(map(len, self._gone))

    def take(self, limit: int) -> dict[Any, Any]:
        """The next `limit` timers at most that were set."""
        return _next(self._set, limit)

    def drop(self, limit: int) -> list[Any]:
        """The next `limit` timers at most that were deleted."""
        return [*_next(self._gone, limit)]

    def remaining(self) -> list[Slots]:
        """Slots by kind of the timers that are left, of the timers that were taken last, and of all deleted timers."""
        return [np.concatenate([a.slots[a.last :], b.slots]) for a, b in zip(self._set, self._gone, strict=True)]


def _next(some: list[_Some], limit: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for one in some:
        found |= one.take(limit - len(found))
    return found


def _everything(columns: FrozenColumns | None) -> tuple[dict[Any, Any], list[Any]]:
    if columns is None:
        return {}, []
    limit = len(columns)
    return columns.take(limit), columns.drop(limit)
