"""Places of records in flight in the files of checkpoints, so that a later checkpoint refers to them.

While records wait, one checkpoint after the other finds them in flight, and several that overlap find the same ones. They
are written with the first of these checkpoints. The others name its file, the frame in it, and the records in the frame.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from tailrace.elements.frame_codec import ChannelId

Indexes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Span:
    """Some records of a frame in the file of a checkpoint: those from `start` to `stop` that are of these key groups, if
    any are given."""

    file: str
    offset: int
    length: int
    checksum: int
    """Checksum of the whole frame."""
    start: int
    stop: int
    count: int
    groups: tuple[int, int] | None = None
    size: int = 1
    """Approximate size of the records, in bytes of the frame."""


@dataclass(frozen=True, slots=True)
class _Entry:
    first: int
    """Number, on its channel, of the first record of the span."""
    span: Span
    positions: Indexes | None
    """Positions of the records in the frame; None: one behind the other, from `span.start` on."""

    @property
    def last(self) -> int:
        return self.first + self.span.count

    def part(self, first: int, last: int) -> Span:
        """Span of the records with the numbers [first, last), which this span has."""
        skipped, count = first - self.first, last - first
        if count == self.span.count:
            return self.span
        if self.positions is None:
            start = self.span.start + skipped
            stop = start + count
        else:
            start, stop = int(self.positions[skipped]), int(self.positions[skipped + count - 1]) + 1
        size = max(1, self.span.size * count // self.span.count)
        return replace(self.span, start=start, stop=stop, count=count, size=size)


_FIRST = attrgetter("first")


class WrittenRecords:
    """Records in flight in the channels of one worker that are in files. Records go by their numbers on the channel
    (`seq`), which sender and reader share.

    Invariant X3: `files` holds files that are durable and that the newest complete checkpoint needs, as far as the worker
    knows, or that a checkpoint which may still be complete has written. A log refers to no other file but `writing`,
    which the log itself is in.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.writing = ""
        """File that logs are written into now: it may have records already that had waited before its cut."""
        self._entries: dict[ChannelId, list[_Entry]] = {}
        """Entries of each channel, in order of their first records."""
        self._longest: dict[ChannelId, int] = {}
        """Largest number of records of an entry of each channel: an entry that has a record begins at most so far before
        it."""

    def wrote(self, channel: ChannelId, first: int, span: Span, positions: Indexes | None = None) -> None:
        """Takes note that records of a channel, from number `first` on, are in a file."""
        entries = self._entries.setdefault(channel, [])
        entry = _Entry(first, span, positions)
        start, stop = bisect_left(entries, first, key=_FIRST), bisect_left(entries, entry.last, key=_FIRST)
        entries[start:stop] = [entry, *(one for one in entries[start:stop] if one.last > entry.last)]
        self._longest[channel] = max(span.count, self._longest.get(channel, 0))

    def find(self, channel: ChannelId, first: int, count: int) -> list[Span]:
        """Spans of these records, in order; empty if some of them are in no file that a log may refer to."""
        found: list[Span] = []
        at, end = first, first + count
        while at < end:
            entry = max(self._with(channel, at), key=lambda one: one.last, default=None)
            if entry is None:
                return []
            stop = min(end, entry.last)
            found.append(entry.part(at, stop))
            at = stop
        return found

    def _with(self, channel: ChannelId, number: int) -> Iterator[_Entry]:
        """Entries that have a record, in files that a log may refer to."""
        entries = self._entries.get(channel, [])
        start = bisect_right(entries, number - self._longest.get(channel, 0), key=_FIRST)
        for entry in entries[start : bisect_right(entries, number, key=_FIRST)]:
            if entry.last > number and (entry.span.file in self.files or entry.span.file == self.writing):
                yield entry

    def forget(self, channel: ChannelId, before: int) -> None:
        """Forgets records with lower numbers, which are not in flight any more."""
        entries = self._entries.get(channel)
        if entries:
            entries[:] = [one for one in entries if one.last > before]

    def keep(self, files: Iterable[str]) -> None:
        """Sets the files that a log may refer to."""
        self.files.clear()
        self.files.update(files)
