"""Sizes that a worker goes by, where they are not those of production."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """What tests and the searches choose, so that little input shows what takes much otherwise. None: as in production."""

    window: int | None = None
    """Bytes of each channel's window; else it follows from the worker's memory (`task.slice.machine`)."""
    chunk: int | None = None
    """Bytes after which a part of a state file is handed to the storage; else `task.worker.checkpoints.CHUNK`."""
    inline: int | None = None
    """Bytes of a transaction of a sink that go into the manifest, at most; else `task.worker.checkpoints.INLINE_BYTES`."""
    history: int | None = None
    """Bytes that the histories of all workers may take; else what the user says."""
    kept: int | None = None
    """Bytes, in memory, of what each worker has sent and keeps; else what the user says."""
