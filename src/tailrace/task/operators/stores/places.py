"""Places of kept records of one input, over all its segments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.task.operators.stores.segments import KeptSegment

Array = np.ndarray[Any, Any]


class KeptPlaces:
    """Some kept records: for each, the number of its segment and its place there. Without any, only `some` may be used."""

    __slots__ = ("parts", "rows", "segments")

    def __init__(self, segments: list[KeptSegment], parts: Array, rows: Array) -> None:
        self.segments, self.parts, self.rows = segments, parts, rows

    def some(self, which: Any) -> KeptPlaces:
        """Some of them, by an index of numpy."""
        return KeptPlaces(self.segments, self.parts[which], self.rows[which])

    def by_segment(self) -> Iterator[tuple[KeptSegment, Array, Array]]:
        """Each segment with the places of its records here and there."""
        if (self.parts == self.parts[0]).all():
            yield self.segments[int(self.parts[0])], np.arange(len(self.parts)), self.rows
            return
        for number in np.flatnonzero(np.bincount(self.parts)).tolist():
            here = np.flatnonzero(self.parts == number)
            yield self.segments[number], here, self.rows[here]

    def data(self) -> pa.RecordBatch:
        """The records."""
        found = [*self.by_segment()]
        taken = [one.records.data.take(pa.array(rows)) for one, _, rows in found]
        if len(found) == 1:
            return taken[0]
        back = np.empty(len(self.parts), np.int64)
        back[np.concatenate([here for _, here, _ in found])] = np.arange(len(self.parts))
        return pa.concat_batches(taken).take(pa.array(back))

    def times(self) -> Array:
        """The times of the records."""
        return self._each("times")

    def seqs(self) -> Array:
        """The numbers of the records."""
        return self._each("seqs")

    def hashes(self) -> Array:
        """The hashes of the keys of the records."""
        return self._each("hashes")

    def _each(self, name: str) -> Array:
        first: Array = getattr(self.segments[int(self.parts[0])].records, name)
        found = np.empty(len(self.parts), first.dtype)
        for one, here, rows in self.by_segment():
            found[here] = getattr(one.records, name)[rows]
        return found


def shift(times: Array, by: int) -> Array:
    """Times, later by so much, within the range of times."""
    if by > 0:
        return np.minimum(times, MAX_TIME - by) + by
    return np.maximum(times, MIN_TIME - by) + by
