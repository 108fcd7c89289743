"""Settings for tests that replace those of production in a worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Settings that tests and the searches choose: sizes, so that little input shows effects that need much otherwise (None:
    as in production), and checks."""

    window: int | None = None
    """Bytes of each channel's window; else it follows from the worker's memory (`task.slice.machine`)."""
    chunk: int | None = None
    """Bytes after which a part of a state file is handed to the storage; else `task.worker.checkpoints.CHUNK`."""
    inline: int | None = None
    """Bytes of a transaction of a sink that go into the manifest, at most; else `task.worker.checkpoints.INLINE_BYTES`."""
    history: int | None = None
    """Bytes that the history of each worker may take; else the user's setting."""
    copied: int | None = None
    """Bytes, in memory, of the histories of other workers that each worker and the coordinator know; else the user's
    setting."""
    kept: int | None = None
    """Bytes, in memory, of what each worker has sent and keeps; else the user's setting."""
    pace: int | None = None
    """Microseconds, at least, from one answer of a hot standby to the next; else the user's setting."""
    watches_state: bool = False
    """True if changes in place of objects that several entries of state hold are searched for, as in debug runs."""
