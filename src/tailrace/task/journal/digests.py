"""Digests by which two executions of one channel are compared. A digest covers the number of records, their event times and
key groups, and the markers between them. It does not cover the bytes of records, since equal records may be pickled to
different bytes, nor the ends of frames. Records without key groups go to targets by their place in the stream. So the digest
also covers their values, as far as these are plain: a change of the order would not show otherwise.
"""

from __future__ import annotations

import marshal
import struct
from typing import Any
from zlib import crc32

from tailrace.elements.batches import Columns
from tailrace.elements.frames import Element, Frame
from tailrace.elements.markers import Marker
from tailrace.elements.timestamps import NO_TIME

_MANY = 4_096
_NO_TIMES = memoryview(struct.pack("<q", NO_TIME) * _MANY)
"""Event times of `_MANY` records without one, each as `NO_TIME`."""
_WHOLE = struct.Struct("<QIIII")
_TIME, _GROUP = 8, 2
"""Number of bytes of an event time and of a key group in a frame."""


_PLAIN_MARSHAL = 2
"""Version of `marshal` in which equal values have equal bytes. Later versions write an object that occurs twice once."""
_LIST_HEAD = 5
"""Number of bytes before the first item of a list."""


def content(frame: Frame, most: int | None = None) -> bytes:
    """The values of the records of a frame without key groups as bytes, one after the other, for at most `most` records.
    Empty for a frame with key groups."""
    if frame.groups or not frame.count:
        return b""
    try:
        batch = frame.batch()
    except Exception:
        return b""  # the reader of the frame reports this error
    if most is not None and most < len(batch):
        batch = batch.slice(0, most)
    values = list(zip(*batch.data.to_pydict().values(), strict=True)) if isinstance(batch, Columns) else batch.values
    try:
        return marshal.dumps(values, _PLAIN_MARSHAL)[_LIST_HEAD:]
    except ValueError:
        return b"".join(map(_bytes_of, values))


def _bytes_of(value: Any) -> bytes:
    """A value as bytes, as far as it is plain; the name of its class for anything else."""
    if isinstance(value, tuple):
        value = tuple(value)  # a row has the names of its columns or not, depending on the other records of its frame
    try:
        return marshal.dumps(value, _PLAIN_MARSHAL)
    except ValueError:
        pass
    if type(value) is tuple or type(value) is list:
        return b"(" + b"".join(map(_bytes_of, value)) + b")"
    if type(value) is dict:
        return b"{" + b"".join(map(_bytes_of, value.items())) + b"}"
    return type(value).__qualname__.encode()


class Digest:
    """A rolling hash over the elements of a channel. Two executions with equal elements have an equal `value`. If times,
    keys, markers or their order differ, the chance of an equal `value` is one in four billion."""

    __slots__ = ("_groups", "_held", "_markers", "_times", "count", "records")

    def __init__(self) -> None:
        self.count = 0
        """Number of records and markers: a place on the channel, wherever frames end."""
        self.records = 0
        """Number of records."""
        self._times = self._groups = self._markers = self._held = 0

    def add(self, element: Element, most: int | None = None, held: bytes | None = None) -> None:
        """Adds the next element, of a frame at most `most` records. A batch that stayed within its worker is only counted:
        no other worker has it. `held`: the `content` of a frame, if it is known."""
        if isinstance(element, Frame):
            records, times, groups = element.count, element.times, element.groups
            if most is not None and most < records:
                records, times, groups = most, times[: most * _TIME], groups[: most * _GROUP]
            self.records += records
            self.count += records
            self._times = crc32(times, self._times) if times else self._timeless(records)
            self._groups = crc32(groups, self._groups)
            self._held = crc32(content(element, most) if held is None else held, self._held)
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
        return crc32(_WHOLE.pack(self.records, self._times, self._groups, self._markers, self._held))
