"""Timers of one operator on one clock: a heap with lazy deletion. Due timers come in order of time, then of setting."""

from __future__ import annotations

import heapq
from typing import Any

_SLACK = 64


class Timers:
    """(key, time) pairs; setting one twice is setting it once.

    Invariant T1: `_live` holds exactly the timers that are set; an entry of the heap that is not the live one of its
    (key, time) was deleted and is dropped when it comes up.
    Invariant T2: the heap holds at most twice as many entries as there are timers, and a few: a timer that is moved on
    with each record (a session's end) must not leave a trail.
    """

    __slots__ = ("_heap", "_live", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._live: dict[tuple[Any, int], int] = {}
        self._order = 0

    def __len__(self) -> int:
        return len(self._live)

    def set(self, key: Any, time: int) -> None:
        """Sets a timer, unless it is set."""
        if (key, time) not in self._live:
            self._order += 1
            self._live[key, time] = self._order
            heapq.heappush(self._heap, (time, self._order, _Keyed(key)))
            if len(self._heap) > 2 * len(self._live) + _SLACK:
                self._sweep()

    def delete(self, key: Any, time: int) -> None:
        """Deletes a timer, if it is set."""
        self._live.pop((key, time), None)

    def _sweep(self) -> None:
        """Drops the entries of deleted timers."""
        self._heap = [e for e in self._heap if self._live.get((e[2].key, e[0])) == e[1]]
        heapq.heapify(self._heap)

    def next_time(self) -> int | None:
        """When the earliest timer is due, or None."""
        heap = self._heap
        while heap:
            time, order, keyed = heap[0]
            if self._live.get((keyed.key, time)) == order:
                return time
            heapq.heappop(heap)
        return None

    def pop_due(self, until: int) -> tuple[Any, int] | None:
        """Takes the earliest timer due at or before `until`: (key, time), or None."""
        time = self.next_time()
        if time is None or time > until:
            return None
        keyed = heapq.heappop(self._heap)[2]
        del self._live[keyed.key, time]
        return keyed.key, time

    def clear(self) -> None:
        """Deletes all timers."""
        self._heap.clear()
        self._live.clear()


class _Keyed:
    """A key in a heap entry. Never compared: the order before it is unique."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key
