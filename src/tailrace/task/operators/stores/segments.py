"""Records that are kept of one input in columns: segments of columns, most with an index by key and time.

A batch becomes a segment. Small neighbours are merged, so that there are few. Nothing that is emitted depends on how records
are spread over segments: each record has a number, by which results are put in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.timestamps import MAX_TIME, MIN_TIME

Array = np.ndarray[Any, Any]
MATCHED, GONE = 1, 2
"""Marks of a record: it had a partner; it is not kept any more."""
UNWRITTEN = -1
"""Chunk of a record that no checkpoint has."""
LARGEST = 1 << 19
"""Number of records of a segment at most, but for one batch that has more."""
_TIME_BITS = (36, 42, 48, 54)
"""Possible numbers of bits for the time in a word of an index; the others are for the hash of the key."""
_SMALL = 4_096
"""Number of records up to which a segment is not made anew because most of them are gone."""
_NONE = np.empty(0, np.int64)
Index = tuple[int, int, Array, Array]
"""An index by key and time: base, bits, words, rows (`JoinSegment`)."""


@dataclass
class JoinRecords:
    """Records of one input, in the order of their numbers."""

    data: pa.RecordBatch
    seqs: Array
    """Numbers of the records."""
    times: Array
    hashes: Array
    """Hashes of their keys (uint64)."""
    groups: Array
    """Key groups."""
    chunks: Array
    """For each, the chunk of the table that has it; `UNWRITTEN` if none has."""
    marks: Array

    def __len__(self) -> int:
        return len(self.seqs)

    def _arrays(self) -> tuple[Array, ...]:
        return self.seqs, self.times, self.hashes, self.groups, self.chunks, self.marks

    def some(self, rows: Array) -> JoinRecords:
        """The records in these places."""
        return JoinRecords(self.data.take(pa.array(rows)), *(array[rows] for array in self._arrays()))

    @classmethod
    def together(cls, one: JoinRecords, other: JoinRecords) -> JoinRecords:
        """The records of both. Those of the first have the smaller numbers."""
        arrays = (np.concatenate(pair) for pair in zip(one._arrays(), other._arrays(), strict=True))
        return cls(pa.concat_batches([one.data, other.data]), *arrays)


class KeptSegment:
    """Some records of one input, in the order of their numbers."""

    __slots__ = ("_by_time", "_in_order", "alive", "base", "last", "passed", "reached", "records", "waiting")

    def __init__(self, records: JoinRecords, reached: int = MIN_TIME) -> None:
        """`reached`: the time up to which records have passed."""
        self.records = records
        self.base, self.last = int(records.times.min()), int(records.times.max())
        self.alive = int(np.count_nonzero(records.marks & GONE == 0))
        """Number of records that are kept, and do not wait to come out."""
        self.passed = 0
        """Number of records, in the order of time, that event time has passed."""
        self.reached = MIN_TIME
        self.waiting = 0
        """Number of records among them that have still to come out."""
        self._by_time: Array | None = None
        self._in_order: Array = _NONE
        self.pass_by(reached)

    def __len__(self) -> int:
        return len(self.records)

    def next_time(self) -> int | None:
        """The least time of the records that event time has not passed; None if there are none."""
        if not self.passed:
            return self.base
        return int(self._in_order[self.passed]) if self.passed < len(self) else None

    def pass_by(self, time: int) -> Array:
        """Counts the records up to a time as passed; returns the places of those that were not."""
        self.reached = max(self.reached, time)
        if self.base > time or self.passed == len(self):
            return _NONE
        if self._by_time is None:
            self._by_time = np.argsort(self.records.times, kind="stable")
            self._in_order = self.records.times[self._by_time]
        begin, self.passed = self.passed, int(np.searchsorted(self._in_order, time, "right"))
        return self._by_time[begin : self.passed]

    @property
    def sparse(self) -> bool:
        """True if most records are gone, and none waits to come out."""
        return not self.waiting and len(self) > _SMALL and 2 * self.alive < len(self)

    @property
    def over(self) -> bool:
        """True if nothing is left of it."""
        return not self.alive and not self.waiting

    def shrink(self) -> KeptSegment | None:
        """A segment of what is kept, where no record waits to come out; None if nothing is."""
        if not self.alive:
            return None
        if self.alive == len(self):
            return self
        return self._some(self.records.marks & GONE == 0)

    def _some(self, there: Array) -> KeptSegment:
        """A segment of the records of a mask."""
        return type(self)(self.records.some(np.flatnonzero(there)), self.reached)

    def takes(self, other: KeptSegment) -> bool:
        """True if the records of both can be in one segment."""
        return bool(self.records.data.schema.equals(other.records.data.schema))

    def merge(self, other: KeptSegment) -> KeptSegment | None:
        """What is kept of both segments as one; None if nothing is."""
        first, second = self.shrink(), other.shrink()
        return first or second if first is None or second is None else first._with(second)

    def _with(self, other: Any) -> KeptSegment:
        """A segment of all records of both."""
        return type(self)(JoinRecords.together(self.records, other.records), max(self.reached, other.reached))


class Sought:
    """Keys by their hashes, and for each the times, from `low` to `high`, of the records that are looked for. They are found
    fast if they come in the order of their hashes."""

    def __init__(self, hashes: Array, low: Array, high: Array) -> None:
        self.hashes, self.low, self.high = hashes, low, high
        self.least, self.most = int(low.min()), int(high.max())
        self._heads: dict[int, Array] = {}

    def heads(self, bits: int) -> Array:
        """The parts of words that are for the keys."""
        found = self._heads.get(bits)
        if found is None:
            found = self._heads[bits] = _heads(self.hashes, bits)
        return found


class JoinSegment(KeptSegment):
    """A segment with an index by key and time.

    Invariant T25: `words` are in order. A word is the first bits of the hash of a record's key, then its time behind `base`
    in `bits` bits. `rows` has the place of its record.
    """

    __slots__ = ("bits", "rows", "words")

    def __init__(self, records: JoinRecords, index: Index | None = None) -> None:
        """Records whose times an index takes, with the index if it is known."""
        super().__init__(records)
        index = index or index_of(records)
        assert index is not None
        self.base, self.bits, self.words, self.rows = index

    def find(self, sought: Sought) -> tuple[Array, Array]:
        """Possible partners: the place of each that is sought and the place here of a record whose key has an equal hash,
        and whose time is one of its times."""
        base, low, high = self.base, sought.low, sought.high
        if self.last < sought.least or base > sought.most:
            return _NONE, _NONE
        top = min(base + (1 << self.bits) - 1, MAX_TIME)
        if sought.least < base:
            low, high = np.maximum(low, base), np.maximum(high, base - 1)
        if sought.most >= top:
            low, high = np.minimum(low, top), np.minimum(high, top - 1)
        head = sought.heads(self.bits) - base
        which, at = _expand(self.words, np.searchsorted(self.words, head + low), head + high)
        rows = self.rows[at]
        same = self.records.hashes[rows] == sought.hashes[which]
        return (which, rows) if same.all() else (which[same], rows[same])

    def _some(self, there: Array) -> JoinSegment:
        records = self.records.some(np.flatnonzero(there))
        base, chosen = int(records.times.min()), there[self.rows]
        places = np.cumsum(there) - 1
        words = self.words[chosen] - (base - self.base)
        return JoinSegment(records, (base, self.bits, words, places[self.rows[chosen]]))

    def takes(self, other: KeptSegment) -> bool:
        return max(self.last, other.last) - min(self.base, other.base) < (1 << _TIME_BITS[-1]) - 1

    def _with(self, other: JoinSegment) -> JoinSegment:
        base, last = min(self.base, other.base), max(self.last, other.last)
        bits = _time_bits(last - base)
        records = JoinRecords.together(self.records, other.records)
        if not self.bits == other.bits == bits:
            return JoinSegment(records)
        words = np.concatenate([self.words + (self.base - base), other.words + (other.base - base)])
        order = np.argsort(words, kind="stable")  # fast, as these are two runs
        rows = np.concatenate([self.rows, other.rows + len(self)])
        return JoinSegment(records, (base, bits, words[order], rows[order]))


class VersionSegment(KeptSegment):
    """A segment with an index by key, then by time, then by the order in which records came.

    Invariant T28: `hashes` are in order, and of one hash `times`, and of one time `seqs`. `rows` has the places of the
    records.
    """

    __slots__ = ("_expired", "_hashes", "_rows", "_seqs", "_times")

    def __init__(self, records: JoinRecords, reached: int = MIN_TIME) -> None:
        super().__init__(records, reached)
        self._rows: Array | None = None
        self._expired = 0
        """Number of records, in the order of time, that do not count any more."""

    def expire(self, time: int) -> Array:
        """Counts the records up to a time, which event time has passed, as too old; returns the places of those that were
        not."""
        if self._by_time is None or self.base > time or self._expired == len(self):
            return _NONE
        begin, self._expired = self._expired, int(np.searchsorted(self._in_order, time, "right"))
        return self._by_time[begin : self._expired]

    def index(self) -> tuple[Array, Array, Array, Array]:
        """The index: hashes, times, numbers, places."""
        if self._rows is None:
            records = self.records
            order: Array = np.argsort(records.times, kind="stable")  # the records are in the order of their numbers
            rough = np.argsort((records.hashes[order] >> np.uint64(48)).astype(np.uint16), kind="stable")  # by radix
            order = order[rough]
            self._rows = order = order[np.argsort(records.hashes[order], kind="stable")]
            self._hashes, self._times, self._seqs = (
                array[order] for array in (records.hashes, records.times, records.seqs)
            )
        return self._hashes, self._times, self._seqs, self._rows

    def newest(self, hashes: Array, times: Array, seqs: Array) -> Array:
        """For each (hash, time, number) the place of the newest record with this hash that is before the time, or of this
        time with a smaller number; -1 if there is none. It is fast if the hashes are in order."""
        known, at_times, at_seqs, rows = self.index()
        found = np.full(len(hashes), -1, np.int64)
        begin = np.searchsorted(known, hashes)
        which = np.flatnonzero(begin < len(known))
        which = which[known[begin[which]] == hashes[which]]
        hashes, times, seqs, begin = hashes[which], times[which], seqs[which], begin[which]
        low, high = begin.copy(), begin + 1
        several = np.flatnonzero(known[np.minimum(high, len(known) - 1)] == hashes)
        high[several] = np.searchsorted(known, hashes[several], "right")
        open_ = np.arange(len(which))
        while len(open_):  # binary searches, all at once
            middle = (low[open_] + high[open_]) >> 1
            time, limit = at_times[middle], times[open_]
            before = (time < limit) | ((time == limit) & (at_seqs[middle] < seqs[open_]))
            low[open_] = np.where(before, middle + 1, low[open_])
            high[open_] = np.where(before, high[open_], middle)
            open_ = open_[low[open_] < high[open_]]
        there = np.flatnonzero(low > begin)
        found[which[there]] = rows[low[there] - 1]
        return found


def index_of(records: JoinRecords) -> Index | None:
    """The index of records; None if their times differ by more than one takes."""
    base, last = int(records.times.min()), int(records.times.max())
    if last - base >= (1 << _TIME_BITS[-1]) - 1:
        return None
    bits = _time_bits(last - base)
    words = _heads(records.hashes, bits) + (records.times - base)
    rough = np.argsort((words >> 46).astype(np.uint16), kind="stable")  # by radix; what is left is nearly in order
    words = words[rough]
    order = np.argsort(words, kind="stable")
    return base, bits, words[order], rough[order]


def _time_bits(span: int) -> int:
    """Number of bits for times that differ by up to so much. The last time of all bits is not used."""
    return next((bits for bits in _TIME_BITS if span < (1 << bits) - 1), _TIME_BITS[-1])


def _heads(hashes: Array, bits: int) -> Array:
    """The parts of words that are for the key."""
    found: Array = (hashes >> np.uint64(1 + bits)).view(np.int64) << bits
    return found


def _expand(words: Array, first: Array, until: Array) -> tuple[Array, Array]:
    """All places from `first` on whose words are up to `until`, by the place of the request."""
    count = len(words)
    which = np.flatnonzero(first < count)
    which = which[words[first[which]] <= until[which]]
    at = first[which]
    more = np.flatnonzero(at + 1 < count)
    if not len(which) or not (words[at[more] + 1] <= until[which[more]]).any():
        return which, at
    counts = np.searchsorted(words, until[which], "right") - at
    places = np.repeat(at - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    return np.repeat(which, counts), places


def segments_of(records: JoinRecords, index: Index | None) -> list[KeptSegment]:
    """Records as segments with an index by key and time: one with their index, or, where there is none, several."""
    if index is not None:
        return [JoinSegment(records, index)]
    low, bits = int(records.times.min()), _TIME_BITS[-1]
    part = (records.times.view(np.uint64) - np.int64(low).view(np.uint64)) >> np.uint64(bits - 1)
    return [JoinSegment(records.some(np.flatnonzero(part == one))) for one in np.unique(part)]


class Side:
    """All records that a join keeps of one input."""

    def __init__(self) -> None:
        self.segments: list[KeptSegment] = []
        self.waiting = 0
        """Number of records that have still to come out."""

    @property
    def kept(self) -> int:
        """Number of records that are kept."""
        return self.waiting + sum(one.alive for one in self.segments)

    def add(self, segments: Iterable[KeptSegment]) -> None:
        """Adds segments, and merges the last ones while one is not larger than the next."""
        for one in segments:
            self.segments.append(one)
            while len(self.segments) > 1 and self._merge_last():
                pass

    def _merge_last(self) -> bool:
        one, other = self.segments[-2:]
        if len(one) > len(other) or len(one) + len(other) > LARGEST or one.waiting or other.waiting:
            return False
        if not one.takes(other):
            return False
        made = one.merge(other)
        self.segments[-2:] = [] if made is None else [made]
        return made is not None

    def tidy(self) -> None:
        """Drops segments that are over, and makes those anew of which little is left."""
        left = [one.shrink() if one.sparse else one for one in self.segments if not one.over]
        self.segments = [one for one in left if one is not None]
