"""Records in flight at the restored cut that stay in their file until they are nearly due.

A job that fails while it is behind would else hold all that was in flight in memory before its first step: at a smaller
parallelism many times what its channels may hold. So each restored channel has as much in memory as a channel of today
may hold, and the rest is loaded while that is worked off. The restore has found out which subtask gets which records. The
count of what a subtask gets is known, so that any later checkpoint can refer to it in its file without reading it (X3).
"""

from __future__ import annotations

import numpy as np

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import Frame, decode
from tailrace.errors import CheckpointCorrupt, InternalError, ProtocolViolation
from tailrace.state.format import Placed
from tailrace.task.channels.written_records import Indexes, Span


class Parked:
    """Some records of a frame of the restored checkpoint: those at `positions`, or from `span.start` to `span.stop`.

    Invariant G4: what is read of a restored channel was there when its turn came: a channel whose next records are not in
    memory has no turn, and nothing behind them goes past them.
    """

    __slots__ = ("_positions", "count", "element", "requested", "span")

    def __init__(self, span: Span, positions: Indexes | None, count: int) -> None:
        self.span = span
        self._positions = positions
        self.count = count
        self.requested = False
        """True if the records are being loaded."""
        self.element: Frame | Batch | None = None
        """Records, once they are loaded."""

    @property
    def size(self) -> int:
        """Approximate size of the records, in bytes."""
        return self.span.size

    @property
    def place(self) -> Placed:
        """Part of a file to be read."""
        return Placed(self.span.file, self.span.offset, self.span.length, self.span.checksum)

    def load(self, data: bytes) -> None:
        """Takes the bytes of the frame. Raises `CheckpointCorrupt` if they cannot be read any more."""
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
