"""What can be compared of two executions of one channel: not the bytes of its records, since a set may be pickled in any
order, nor how they lie in frames, but how many there were, their event times and key groups, and the markers between them.
"""

from __future__ import annotations

import struct
from zlib import crc32

from tailrace.elements.frames import Element, Frame
from tailrace.elements.markers import Marker
from tailrace.elements.timestamps import NO_TIME

_MANY = 4_096
_NO_TIMES = memoryview(struct.pack("<q", NO_TIME) * _MANY)
"""The times of so many records that have none, said one by one."""
_WHOLE = struct.Struct("<QIII")
_TIME, _GROUP = 8, 2
"""Bytes of an event time and of a key group in a frame."""


class Digest:
    """A rolling hash over what goes on a channel. Two executions that made the same have the same `value`; of those that
    made other times, keys, markers or another order of them, one in four billion has."""

    __slots__ = ("_groups", "_markers", "_times", "count", "records")

    def __init__(self) -> None:
        self.count = 0
        """How many records and markers: a place on the channel, wherever frames end."""
        self.records = 0
        """How many records of those."""
        self._times = self._groups = self._markers = 0

    def add(self, element: Element, most: int | None = None) -> None:
        """The next element; of a frame at most so many records. A batch that stayed within its worker is counted only:
        nobody else has it."""
        if isinstance(element, Frame):
            records, times, groups = element.count, element.times, element.groups
            if most is not None and most < records:
                records, times, groups = most, times[: most * _TIME], groups[: most * _GROUP]
            self.records += records
            self.count += records
            self._times = crc32(times, self._times) if times else self._timeless(records)
            self._groups = crc32(groups, self._groups)
        elif isinstance(element, Marker):
            self.count += 1
            self._markers = crc32(f"{self.records} {element}".encode(), self._markers)
        else:
            self.count += len(element)

    def _timeless(self, count: int) -> int:
        """Records without event times come with none, or, where they lay beside others in a file, each with `NO_TIME`."""
        value = self._times
        if count <= _MANY:
            return crc32(_NO_TIMES[: count * _TIME], value)
        for at in range(0, count, _MANY):
            value = crc32(_NO_TIMES[: 8 * min(_MANY, count - at)], value)
        return value

    @property
    def value(self) -> int:
        """Of all so far."""
        return crc32(_WHOLE.pack(self.records, self._times, self._groups, self._markers))
