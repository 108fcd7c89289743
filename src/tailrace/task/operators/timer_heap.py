"""Timers of one operator on one clock: a heap with lazy deletion. Due timers come in order of time, then of setting, then
of their keys' bytes: each old subtask of a restored job has counted its settings for itself."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from tailrace.elements.keys import canonical_bytes
from tailrace.state.backend import Backend
from tailrace.state.codecs import pickle_codec
from tailrace.state.format import TableInfo
from tailrace.state.memory_tables import MemoryBase
from tailrace.state.tables import MISSING, StateTable
from tailrace.state.undo_log import Journal

_SLACK = 64


class Timers:
    """Set of timers, which are (key, time) pairs; setting one twice is setting it once.

    The timers that are set are a table of state, (key, time) -> the order of setting. It goes into checkpoints like any
    other. After a restore the heap is made from it again.

    Invariant T1: the table holds exactly the timers that are set; an entry of the heap that is not the live one of its
    (key, time) was deleted and is dropped when it comes up.
    Invariant T2: the heap holds at most twice as many entries as there are timers, and a few: a timer that is moved on
    with each record (a session's end) must not leave a trail.
    """

    __slots__ = ("_count", "_heap", "_top", "order", "table")

    def __init__(self, table: StateTable | None = None) -> None:
        if table is None:
            table = StateTable(
                0, TableInfo("timers", "timers", times_up=True), object, pickle_codec(), MemoryBase(), None
            )
        self._heap: list[tuple[int, int, Keyed]] = []
        self.table = table
        self._top = table.top
        table.users.append(self)
        self.order = 0
        """Number of timers that were ever set; after a restore, the highest order of a timer that is set."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def rebuild(self) -> None:
        """Makes the heap from the table, after a restore."""
        self._heap = sorted([(time, order, Keyed(key)) for (key, time), order in self.table.items()])
        self._count = len(self._heap)
        self.order = max((entry[1] for entry in self._heap), default=0)

    def rest(self) -> None:
        """Lets go of the heap: another object sees to the table from here on, until `rebuild`."""
        self._heap, self._count = [], 0

    def _find(self, entry: tuple[Any, int]) -> int | None:
        """Order of a timer that is set; None if it is not."""
        order: int | None = self._top.get(entry)
        return self.table.find(entry) if order is None else order

    def set(self, key: Any, time: int) -> None:
        """Sets a timer, unless it is set."""
        entry = (key, time)
        if entry not in self._top and self.table.find(entry) is None:
            self.order += 1
            self._top[entry] = self.order
            self._count += 1
            heapq.heappush(self._heap, (time, self.order, Keyed(key)))
            if len(self._heap) > 2 * self._count + _SLACK:
                self._sweep()

    def delete(self, key: Any, time: int) -> None:
        """Deletes a timer, if it is set."""
        if self.table.pop((key, time), MISSING) is not MISSING:
            self._count -= 1

    def _sweep(self) -> None:
        """Drops the entries of deleted timers."""
        self._heap = [e for e in self._heap if self._find((e[2].key, e[0])) == e[1]]
        heapq.heapify(self._heap)

    def next_time(self) -> int | None:
        """Time at which the earliest timer is due, or None."""
        heap = self._heap
        while heap:
            time, order, keyed = heap[0]
            if self._find((keyed.key, time)) == order:
                return time
            heapq.heappop(heap)
        return None

    def pop_due(self, until: int) -> tuple[Any, int] | None:
        """Takes the earliest timer due at or before `until`: (key, time), or None."""
        time = self.next_time()
        if time is None or time > until:
            return None
        keyed = heapq.heappop(self._heap)[2]
        self.table.pop((keyed.key, time))
        self._count -= 1
        return keyed.key, time

    def clear(self) -> None:
        """Deletes all timers."""
        self._heap.clear()
        if self._count:
            self.table.clear()
            self._count = 0


class JournaledTimers(Timers):
    """Timers of an operator that undoes what a failed call has changed."""

    __slots__ = ("_journal",)

    def __init__(self, table: StateTable, journal: Journal) -> None:
        super().__init__(table)
        self._journal = journal

    def set(self, key: Any, time: int) -> None:
        if self._find((key, time)) is None:
            self._journal.add(lambda: Timers.delete(self, key, time))
        super().set(key, time)

    def delete(self, key: Any, time: int) -> None:
        order = self._find((key, time))
        if order is not None:
            self._journal.add(lambda: self._set_back(key, time, order))
        super().delete(key, time)

    def _set_back(self, key: Any, time: int, order: int) -> None:
        """Sets a timer that was deleted, in its old order. Its old entry may still be in the heap; a second one is dropped
        when it comes up."""
        self._top[key, time] = order
        self._count += 1
        heapq.heappush(self._heap, (time, order, Keyed(key)))


class Keyed:
    """Key that orders timers behind the order of setting. That order is unique, but for timers that different subtasks
    had set before a start at another parallelism: of two such keys the one with the smaller bytes is first, in every
    process."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: Keyed) -> bool:
        return canonical_bytes(self.key) < canonical_bytes(other.key)


def timers_of(backend: Backend, clock: str, key_of: Callable[[Any], Any], journal: Journal | None = None) -> Timers:
    """Timers of an operator on one clock, as a table of its state. `key_of` finds the key of the state in an entry of the
    table: a pair of what the timers are kept by, and the time. A `journal` notes what calls change."""
    table = backend.table(f"timers:{clock}", kind="timers", group_by=key_of, in_memory=True)
    timers = Timers(table) if journal is None else JournaledTimers(table, journal)
    backend.after_restore.append(timers.rebuild)
    return timers
