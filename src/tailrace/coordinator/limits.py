"""How long the coordinator of a job waits for others, and what it says when that was too long."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.coordinator.failures import Cause
from tailrace.protocol.deployment import FailureKind


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

    def slots_late(self, here: int, wanted: int) -> Cause:
        """Not all slots are filled."""
        what = (
            f"the job needs {wanted} task slots, {here} came within {self.slots // 1_000_000} s; give Spark more free "
            f"cores, or lower the parallelism"
        )
        return Cause(what, FailureKind.SLOTS)

    def store_silent(self) -> Cause:
        """The storage of checkpoints does not answer."""
        return Cause(f"the storage of checkpoints has not answered for {self.store / 1e6:.0f} s", FailureKind.SILENT)
