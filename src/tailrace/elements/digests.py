"""What can be compared of two executions of one channel: not the bytes of its records, since the same ones may be pickled
otherwise, nor how they lie in frames, but how many there were, their event times and key groups, and the markers between
them. Records without key groups go where their place in the stream says, so of those what they hold is compared as well, as
far as it is made of plain values: their order would not show else.
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
"""The times of so many records that have none, said one by one."""
_WHOLE = struct.Struct("<QIIII")
_TIME, _GROUP = 8, 2
"""Bytes of an event time and of a key group in a frame."""


_PLAIN_MARSHAL = 2
"""The version of `marshal` in which the bytes of a value follow from what it holds: later ones write what is one object
once."""
_LIST_HEAD = 5
"""Bytes before the first item of a list."""


def content(frame: Frame, most: int | None = None) -> bytes:
    """What the records of a frame without key groups hold, one behind the other; of at most so many."""
    if frame.groups or not frame.count:
        return b""
    try:
        batch = frame.batch()
    except Exception:
        return b""  # whoever reads it hears of that
    if most is not None and most < len(batch):
        batch = batch.slice(0, most)
    values = list(zip(*batch.data.to_pydict().values(), strict=True)) if isinstance(batch, Columns) else batch.values
    try:
        return marshal.dumps(values, _PLAIN_MARSHAL)[_LIST_HEAD:]
    except ValueError:
        return b"".join(map(_said, values))


def _said(value: Any) -> bytes:
    """What a value holds, as far as it is plain; of anything else its class."""
    if isinstance(value, tuple):
        value = tuple(value)  # whether a row says the names of its columns depends on the others in its frame
    try:
        return marshal.dumps(value, _PLAIN_MARSHAL)
    except ValueError:
        pass
    if type(value) is tuple or type(value) is list:
        return b"(" + b"".join(map(_said, value)) + b")"
    if type(value) is dict:
        return b"{" + b"".join(map(_said, value.items())) + b"}"
    return type(value).__qualname__.encode()


class Digest:
    """A rolling hash over what goes on a channel. Two executions that made the same have the same `value`; of those that
    made other times, keys, markers or another order of them, one in four billion has."""

    __slots__ = ("_groups", "_held", "_markers", "_times", "count", "records")

    def __init__(self) -> None:
        self.count = 0
        """How many records and markers: a place on the channel, wherever frames end."""
        self.records = 0
        """How many records of those."""
        self._times = self._groups = self._markers = self._held = 0

    def add(self, element: Element, most: int | None = None, held: bytes | None = None) -> None:
        """The next element; of a frame at most so many records. A batch that stayed within its worker is counted only:
        nobody else has it. `held`: what the records of a frame hold (`content`), where that is known."""
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
        return crc32(_WHOLE.pack(self.records, self._times, self._groups, self._markers, self._held))
