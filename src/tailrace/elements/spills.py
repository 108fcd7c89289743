"""The contract of storage for bytes that have no room in memory."""

from __future__ import annotations

from typing import Any, Protocol


class FrameSpill(Protocol):
    """Storage for frames that have no room in memory: synchronous, one per queue of feedback, one for what a worker keeps
    (`task.journal.sent_log`), and one for the histories of other workers (`elements.entrylog`). Only the spill that returned
    a reference knows what it is."""

    def append(self, data: bytes) -> Any:
        """Stores `data`; returns the reference by which it is read."""

    def read(self, ref: Any) -> bytes:
        """Data that was stored under `ref`."""

    def release(self, ref: Any) -> None:
        """Releases the data of `ref`."""

    def close(self) -> None:
        """Releases all data."""
