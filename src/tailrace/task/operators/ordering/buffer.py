"""Records that wait for event time, as keyed state of their operator."""

from __future__ import annotations

import heapq
from typing import Any

from tailrace.state.backend import Backend
from tailrace.state.format import WAITING
from tailrace.state.tables import MISSING
from tailrace.task.operators.timer_heap import Keyed

Entry = tuple[Any, int, int, int]
"""Place of a record that waits: its key, its time, its input, and the order in which it came."""


class RecordBuffer:
    """Records of one operator in one subtask, which come out in order of time; of one time those of the first input first,
    and of one input in the order in which they came.

    The records are a table of state, entry -> record, in whatever backend the operator has. A heap in memory has their
    entries. After a restore it is made from the table.

    Invariant T5: the table and the heap hold the same entries: the records that came and have not come out.
    """

    __slots__ = ("_came", "_heap", "_table", "_top")

    def __init__(self, backend: Backend) -> None:
        self._table = backend.table(WAITING.name, kind=WAITING.kind, group_by=_key_of)
        self._top = self._table.top
        self._table.users.append(self)
        self._heap: list[tuple[int, int, int, Entry]] = []
        """Each entry behind its time, its input and its rank: the order in which it came here."""
        self._came = 0
        """Number that is greater than those of all entries and all ranks."""
        backend.after_restore.append(self.rebuild)

    def __len__(self) -> int:
        return len(self._heap)

    def rebuild(self) -> None:
        """Makes the heap from the table, after a restore. Each old subtask has counted its own records: of those with one
        number the one whose key has the smaller bytes is first."""
        entries = sorted(self._table.keys(), key=lambda entry: (entry[3], Keyed(entry[0])))
        self._heap = [(entry[1], entry[2], rank, entry) for rank, entry in enumerate(entries)]
        heapq.heapify(self._heap)
        self._came = max(len(entries), 1 + max((entry[3] for entry in entries), default=-1))

    def inputs(self) -> set[int]:
        """Inputs of the records that wait."""
        return {entry[1] for entry in self._heap}

    def add(self, keys: list[Any], times: list[int], values: list[Any], port: int) -> None:
        """Adds records of one input, in the order in which they came."""
        top, heap, came = self._top, self._heap, self._came
        for key, time, value in zip(keys, times, values, strict=True):
            entry = (key, time, port, came)
            top[entry] = value
            heapq.heappush(heap, (time, port, came, entry))
            came += 1
        self._came = came

    def next_time(self) -> int | None:
        """Time of the next record, or None."""
        return self._heap[0][0] if self._heap else None

    def prepare(self, until: int, limit: int) -> None:
        """Does nothing: all records are ready."""

    def settle(self) -> None:
        """Does nothing: a record that was taken is not in the table."""

    def pop(self) -> tuple[Any, int, int, Any]:
        """Takes the next record: (key, time, input, record)."""
        entry = heapq.heappop(self._heap)[3]
        value = self._table.pop(entry, MISSING)
        assert value is not MISSING, "T5"
        return entry[0], entry[1], entry[2], value


def _key_of(entry: Entry) -> Any:
    return entry[0]
