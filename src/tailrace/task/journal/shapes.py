"""Shape of records in flight on their channel: how many were in each frame, and which markers were between them.

A checkpoint may hold the records in other frames, and has no markers of waves: for a job that starts again neither
counts. A worker that takes the place of another one, while the others go on, needs both as they were: frames and markers
are counted, and what waves report of a loop follows from the counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tailrace.elements.batches import Batch, concat
from tailrace.elements.frame_codec import Element, Frame
from tailrace.elements.markers import Marker, Rest, WaveMark
from tailrace.errors import CheckpointCorrupt
from tailrace.task.channels.inputs import count_of
from tailrace.task.channels.lazy_records import Parked

A_MARKER = 0
"""Number in a shape for the next marker that the log has. A number above it is a number of records; one below it is a
marker that no log has."""


def shape_of(element: Element | Parked) -> int:
    """Number in a shape for one element."""
    if isinstance(element, WaveMark):
        return -1 - 2 * element.wave
    if isinstance(element, Rest):
        return -2 - 2 * element.number
    return count_of(element)


def in_shape(shape: Sequence[int], pieces: Iterable[Frame | Marker], what: str) -> list[Element]:
    """Elements as they were on the channel, of the pieces that a log has of them. Markers that come before them are left
    out: they give the event time of the channel. Raises `CheckpointCorrupt` if the pieces have not got the elements."""
    left = deque(pieces)
    count = sum(isinstance(piece, Marker) for piece in left) - sum(one == A_MARKER for one in shape)
    for _ in range(count):
        if not isinstance(left.popleft(), Marker):
            raise _not_there(what)
    rest, found = list[Batch](), list[Element]()
    for one in shape:
        if one < A_MARKER:
            number = -1 - one
            found.append(Rest(number // 2) if number % 2 else WaveMark(number // 2))
        elif one == A_MARKER:
            if rest or not left or not isinstance(left[0], Marker):
                raise _not_there(what)
            found.append(left.popleft())
        elif not rest and left and isinstance(left[0], Frame) and left[0].count == one:
            found.append(left.popleft())
        else:
            found.append(_gather(one, rest, left, what))
    if rest or left:
        raise _not_there(what)
    return found


def _gather(count: int, rest: list[Batch], left: deque[Frame | Marker], what: str) -> Batch:
    """The next `count` records: of the piece that was begun (`rest`), if any, and of the pieces behind it. What is left
    of the last piece goes into `rest`."""
    parts = list[Batch]()
    while count:
        if not rest:
            piece = left.popleft() if left else None
            if not isinstance(piece, Frame):
                raise _not_there(what)
            rest.append(piece.batch())
        batch = rest.pop()
        if len(batch) > count:
            rest.append(batch.slice(count, len(batch)))
            batch = batch.slice(0, count)
        count -= len(batch)
        parts.append(batch)
    return parts[0] if len(parts) == 1 else concat(parts)


def _not_there(what: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(f"what was in flight on {what} has another shape than its log says")
