"""How long the coordinator of a job waits for others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How long the coordinator waits for others (int64 microseconds)."""

    slots: int = 60_000_000
    """For all slots to fill."""
    lease: int = 10_000_000
    """For a sign of life of a worker that holds a slot."""
    leave: int = 3_000_000
    """For workers to leave by themselves, before their Spark tasks are cancelled."""
    finish: int = 30_000_000
    """The same for a job that has finished: users' `close` may take its time."""
    store: int = 120_000_000
    """For the storage of checkpoints to answer a claim or a commit."""
    gone: int = 9_000_000
    """For cancelled Spark tasks to be gone, before the job ends without them."""
