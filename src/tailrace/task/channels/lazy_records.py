"""Records in flight at the restored cut that stay in their file until they are nearly due.

A job that fails while it is behind would else hold all that was in flight in memory before its first step: at a smaller
parallelism many times what its channels may hold. So of each channel that comes back as much is in memory as a channel of
today may hold, and the rest is read while that is worked off. Which records are whose was told when the checkpoint was
restored: what is here has its count, so that any later checkpoint can refer to it in its file without reading it (X3).
"""

from __future__ import annotations

import numpy as np

from tailrace.elements.batches import Batch
from tailrace.elements.frames import Frame, decode
from tailrace.errors import CheckpointCorrupt, InternalError, ProtocolViolation
from tailrace.state.format import Placed
from tailrace.task.channels.written_records import Indexes, Span


class Parked:
    """Some records of a frame of the restored checkpoint: those at `positions`, or from `span.start` to `span.stop`.

    Invariant G4: what is read of a channel that comes back was there when its turn came: a channel whose next records are
    not in memory has no turn, and nothing behind them goes past them.
    """

    __slots__ = ("_positions", "asked", "count", "element", "span")

    def __init__(self, span: Span, positions: Indexes | None, count: int) -> None:
        self.span = span
        self._positions = positions
        self.count = count
        self.asked = False
        """Whether it is being read."""
        self.element: Frame | Batch | None = None
        """The records, once they are there."""

    @property
    def size(self) -> int:
        """About how many bytes they are."""
        return self.span.size

    @property
    def place(self) -> Placed:
        """What is to be read of which file."""
        return Placed(self.span.file, self.span.offset, self.span.length, self.span.checksum)

    def load(self, data: bytes) -> None:
        """Takes the bytes of the frame. Raises `CheckpointCorrupt` where they are not what they were at the restore."""
        try:
            frame = decode(data)
            if frame.count == self.count:
                self.element = frame
                return
            batch: Batch = frame.batch()
        except ProtocolViolation as error:
            raise CheckpointCorrupt(f"{self.span.file} cannot be read any more: {error}") from error
        if self._positions is None:
            batch = batch.slice(self.span.start, self.span.stop)
        else:
            chosen = np.zeros(len(batch), np.int64)
            chosen[self._positions] = 1
            parts: dict[int, Batch] = dict(batch.partition(chosen, 2))
            batch = parts.get(1, batch.slice(0, 0))
        if len(batch) != self.count:
            raise InternalError(f"G4: {self.span} has {len(batch)} records where {self.count} are due", ())
        self.element = batch
