"""Timers of windows in arrays, by slot. Timers that are due at once come out together, in the order of
`task.operators.timer_heap`."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from tailrace.elements.slottables import Slots, grow

Array = np.ndarray[Any, Any]
NOWHERE, AS_IT_IS, OTHERWISE = 0, 1, 2
"""State of a timer's entry in the table of timers: there is none, it is true, or it was, or may have been, true."""


class SlotTimers:
    """Timers of one kind. Each is due `delay` after the start of its window.

    They are kept in groups by that start. There are few starts, so finding the timers that are due looks at no other
    timer.

    Invariant T3: the groups hold exactly the timers that are set, each once, and the timers of each group in order of
    setting.
    """

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self.order = np.zeros(0, np.int64)
        """By slot, the order of setting, as `task.operators.timer_heap` counts it."""
        self.is_set = np.zeros(0, np.bool_)
        self.below = np.zeros(0, np.int8)
        """By slot, the state of its entry in the table of timers: `NOWHERE`, `AS_IT_IS` or `OTHERWISE`."""
        self.count = 0
        self._groups: dict[int, list[Slots]] = {}
        self._heap: list[int] = []
        """Starts of all groups, and some starts that have no group any more."""

    def grow(self, count: int) -> None:
        """Makes room for `count` slots."""
        self.order, self.is_set = grow(self.order, count), grow(self.is_set, count)
        self.below = grow(self.below, count)

    def set(self, slots: Slots, starts: Array, orders: Array) -> None:
        """Sets timers that are not set, in this order."""
        self.order[slots] = orders
        self.is_set[slots] = True
        self.below[slots] = np.where(self.below[slots] == NOWHERE, NOWHERE, OTHERWISE)
        self.count += len(slots)
        self._put(slots, starts)

    def _put(self, slots: Slots, starts: Array) -> None:
        if not len(slots):
            return
        if starts[0] == starts[-1] and (starts == starts[0]).all():
            parts = [(int(starts[0]), slots)]
        else:
            sequence = np.argsort(starts, kind="stable")
            found, begins = np.unique(starts[sequence], return_index=True)
            parts = list(zip(found.tolist(), np.split(slots[sequence], begins[1:]), strict=True))
        for start, part in parts:
            group = self._groups.get(start)
            if group is None:
                self._groups[start] = [part]
                heapq.heappush(self._heap, start)
            else:
                group.append(part)

    def delete(self, slots: Slots, starts: Array) -> None:
        """Deletes the timers in these slots that are set."""
        there = self.is_set[slots]
        self._unset(slots[there])
        for start in np.unique(starts[there]).tolist():
            left = np.concatenate(self._groups.pop(start))
            left = left[self.is_set[left]]
            if len(left):
                self._groups[start] = [left]

    def _unset(self, slots: Slots) -> None:
        self.is_set[slots] = False
        self.count -= len(slots)

    def next_time(self) -> int | None:
        """Time at which the earliest timer is due, or None."""
        while self._heap:
            if self._heap[0] in self._groups:
                return self._heap[0] + self.delay
            heapq.heappop(self._heap)
        return None

    def due(self, time: int, limit: int) -> Slots:
        """Slots of timers that are due at or before `time`, in order: `limit` of them, or all, or some more. The caller
        has to pass them to `take`."""
        found: list[Slots] = []
        enough = 0
        while enough < limit and self._heap and self._heap[0] + self.delay <= time:
            group = self._groups.pop(heapq.heappop(self._heap), [])
            found += group
            enough += sum(map(len, group))
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def take(self, slots: Slots, starts: Array, count: int) -> Slots:
        """Fires the first `count` of the timers that `due` has returned, and puts the others back; returns the slots of
        the fired ones."""
        self._unset(slots[:count])
        self._put(slots[count:], starts[count:])
        return slots[:count]

    def move(self, old: Slots, new: Slots, slots: int) -> SlotTimers:
        """Timers after their windows moved from the slots `old` to the slots `new`. No timer is set in a slot that does
        not move."""
        made = SlotTimers(self.delay)
        made.grow(slots)
        for mine, others in ((made.order, self.order), (made.is_set, self.is_set), (made.below, self.below)):
            mine[new] = others[old]
        to = np.zeros(len(self.is_set), np.int64)
        to[old] = new
        made.count = self.count
        made._groups = {start: [to[np.concatenate(group)]] for start, group in self._groups.items()}
        made._heap = sorted(made._groups)
        return made

    def check(self) -> None:
        """Raises `AssertionError` where the groups are not the timers that are set."""
        held = np.concatenate([part for group in self._groups.values() for part in group] or [np.empty(0, np.int64)])
        assert sorted(held.tolist()) == np.flatnonzero(self.is_set).tolist()
        assert self.count == len(held)
        assert set(self._groups) <= set(self._heap)
