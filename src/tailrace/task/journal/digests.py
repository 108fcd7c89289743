"""Digests by which two executions of one channel are compared. A digest covers the number of records, their event times and
key groups, and the markers between them. It does not cover the ends of frames, nor values: these have a hash of their own
(`elements.valuedigests`).
"""

from __future__ import annotations

import struct
from zlib import crc32

from tailrace.elements.frame_codec import Element, Frame
from tailrace.elements.markers import Marker
from tailrace.elements.timestamps import NO_TIME

_MANY = 4_096
_NO_TIMES = memoryview(struct.pack("<q", NO_TIME) * _MANY)
"""Event times of `_MANY` records without one, each as `NO_TIME`."""
_WHOLE = struct.Struct("<QIII")
_TIME, _GROUP = 8, 2
"""Number of bytes of an event time and of a key group in a frame."""


class Digest:
    """A rolling hash over the elements of a channel. Two executions with equal elements have an equal `value`. If times,
    keys, markers or their order differ, the chance of an equal `value` is one in four billion."""

    __slots__ = ("_groups", "_markers", "_times", "count", "records")

    def __init__(self) -> None:
        self.count = 0
        """Number of records and markers: a place on the channel, wherever frames end."""
        self.records = 0
        """Number of records."""
        self._times = self._groups = self._markers = 0

    def add(self, element: Element, most: int | None = None) -> None:
        """Adds the next element, of a frame at most `most` records. A batch that stayed within its worker is only counted:
        no other worker has it."""
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
        """The hash of event times after `count` records without them. Such records come without times, or each with
        `NO_TIME` if they were in a file with other records; both must hash alike."""
        value = self._times
        if count <= _MANY:
            return crc32(_NO_TIMES[: count * _TIME], value)
        for at in range(0, count, _MANY):
            value = crc32(_NO_TIMES[: 8 * min(_MANY, count - at)], value)
        return value

    @property
    def value(self) -> int:
        """The hash of all elements so far."""
        return crc32(_WHOLE.pack(self.records, self._times, self._groups, self._markers))
