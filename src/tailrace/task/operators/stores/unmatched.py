"""Records without a partner that have to come out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tailrace.task.operators.stores.places import KeptPlaces, shift
from tailrace.task.operators.stores.segments import GONE, KeptSegment

Array = np.ndarray[Any, Any]


class Unmatched:
    """Kept records that event time has found to be without a partner. They come out in the order of the times of their
    results, then of inputs, then in the order in which they came."""

    def __init__(self, spans: tuple[int, int]) -> None:
        self._spans = spans
        """For each input, how far the time of a result is behind that of its record."""
        self._parts: list[tuple[int, KeptSegment, Array]] = []
        """Input, segment, places there."""
        self._order: Array | None = None
        """The order of all records in `_parts`; None if it is not known."""
        self._places = KeptPlaces([], np.empty(0, np.int64), np.empty(0, np.int64))
        """All records in `_parts`."""
        self._times: Array = np.empty(0, np.int64)
        self._at = 0
        """Number of records that have come out, in this order."""

    def __len__(self) -> int:
        return sum(len(rows) for _, _, rows in self._parts) - self._at

    def next_time(self) -> int | None:
        """Time of the next result, or None."""
        self._sort()
        return int(self._times[self._order[self._at]]) if self._order is not None and len(self) else None

    def add(self, port: int, segment: KeptSegment, rows: Array) -> int:
        """Adds some records of a segment; returns their number."""
        if self._at:
            parts = [(port, one, rows[one.records.marks[rows] & GONE == 0]) for port, one, rows in self._parts]
            self._parts, self._at = [part for part in parts if len(part[2])], 0
        self._parts.append((port, segment, rows))
        self._order = None
        return len(rows)

    def take(self, limit: int) -> Iterator[tuple[int, KeptPlaces, Array]]:
        """The next records, at most `limit`, of one input at a time: input, places, times of results. The caller marks them
        as gone."""
        self._sort()
        if self._order is None:
            return
        some = self._order[self._at : self._at + limit]
        ports = np.array([port for port, _, _ in self._parts])[self._places.parts[some]]
        ends = [*(np.flatnonzero(np.diff(ports)) + 1).tolist(), len(some)]
        begin = 0
        for end in ends:
            if end > begin:
                yield int(ports[begin]), self._places.some(some[begin:end]), self._times[some[begin:end]]
            begin = end
        self._at += len(some)
        if not len(self):
            self._parts, self._order, self._at = [], None, 0

    def _sort(self) -> None:
        if self._order is not None or not self._parts:
            return
        counts = [len(rows) for _, _, rows in self._parts]
        numbers, rows = np.repeat(np.arange(len(counts)), counts), np.concatenate([part[2] for part in self._parts])
        self._places = KeptPlaces([one for _, one, _ in self._parts], numbers, rows)
        self._times = np.concatenate(
            [shift(one.records.times[rows], self._spans[port]) for port, one, rows in self._parts]
        )
        ports = np.repeat([port for port, _, _ in self._parts], counts)
        self._order = np.lexsort((self._places.seqs(), ports, self._times))
