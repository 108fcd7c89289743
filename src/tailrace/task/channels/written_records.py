"""Where records in flight lie in the files of checkpoints, so that a later checkpoint refers to them.

While records wait, one checkpoint after the other finds them in flight, and several that overlap find the same ones. They
are written with the first of them. The others name that file, the frame in it, and which of its records they mean.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from tailrace.elements.frames import ChannelId

Indexes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Span:
    """Some records of a frame in the file of a checkpoint: those of `start` to `stop` that are of these key groups."""

    file: str
    offset: int
    length: int
    checksum: int
    """Of the whole frame."""
    start: int
    stop: int
    count: int
    groups: tuple[int, int] | None = None
    size: int = 1
    """About how many bytes of the frame they are."""


@dataclass(frozen=True, slots=True)
class _Entry:
    first: int
    """The number, on its channel, of the first record of the span."""
    span: Span
    positions: Indexes | None
    """Where the records are in the frame; None: one behind the other, from `span.start` on."""

    @property
    def last(self) -> int:
        return self.first + self.span.count

    def part(self, first: int, last: int) -> Span:
        """The records of these numbers [first, last), which the span has."""
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
    """What one worker knows of its channels. Records go by their numbers on the channel (`seq`), which sender and reader
    share.

    Invariant X3: `files` holds files that are durable and that the newest complete checkpoint needs, as far as the worker
    knows, or that a checkpoint which may still be complete has written. No log refers to another one but `writing`, which it
    is in itself.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.writing = ""
        """The file that logs are written into now: it may have records already that had waited before its cut."""
        self._entries: dict[ChannelId, list[_Entry]] = {}
        """By their first records."""
        self._longest: dict[ChannelId, int] = {}
        """How many records an entry of a channel has at most: so far back one may begin that has a record."""

    def wrote(self, channel: ChannelId, first: int, span: Span, positions: Indexes | None = None) -> None:
        """Records of a channel, from number `first` on, are in a file."""
        entries = self._entries.setdefault(channel, [])
        entry = _Entry(first, span, positions)
        start, stop = bisect_left(entries, first, key=_FIRST), bisect_left(entries, entry.last, key=_FIRST)
        entries[start:stop] = [entry, *(one for one in entries[start:stop] if one.last > entry.last)]
        self._longest[channel] = max(span.count, self._longest.get(channel, 0))

    def find(self, channel: ChannelId, first: int, count: int) -> list[Span]:
        """Where these records are, in order; empty where some of them are in no file that may be referred to."""
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
        """The entries that have a record, in files that may be referred to."""
        entries = self._entries.get(channel, [])
        start = bisect_right(entries, number - self._longest.get(channel, 0), key=_FIRST)
        for entry in entries[start : bisect_right(entries, number, key=_FIRST)]:
            if entry.last > number and (entry.span.file in self.files or entry.span.file == self.writing):
                yield entry

    def forget(self, channel: ChannelId, before: int) -> None:
        """Records with lower numbers are not in flight any more."""
        entries = self._entries.get(channel)
        if entries:
            entries[:] = [one for one in entries if one.last > before]

    def keep(self, files: Iterable[str]) -> None:
        """Only these files may be referred to."""
        self.files.clear()
        self.files.update(files)
