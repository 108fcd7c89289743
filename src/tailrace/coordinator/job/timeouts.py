"""How long the coordinator of a job waits for others, and what it says when that was too long."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.coordinator.job.failures import Cause
from tailrace.protocol.deployment import FailureKind


@dataclass(frozen=True)
class Limits:
    """How long the coordinator waits for others (int64 microseconds)."""

    slots: int = 60_000_000
    """For all slots to fill."""
    notice: int = 0
    """How much longer at a restart: an executor that hangs, or whose machine is gone, may be given a worker's task until
    Spark takes it for lost, and its place is filled after that."""
    lease: int = 10_000_000
    """For a sign of life of a worker that holds a slot."""
    leave: int = 3_000_000
    """For workers to leave by themselves, before their Spark tasks are cancelled."""
    finish: int = 30_000_000
    """The same for a job that has finished: users' `close` may take its time."""
    patience: int = 600_000_000
    """For the storage of checkpoints, or the place of a sink, to be in reach again, and for an answer of the storage."""
    retry: int = 500_000
    """From the first try that fails to the next one; each pause after that is twice as long."""
    retry_most: int = 10_000_000
    """The longest such pause."""
    calm_after: int = 60_000_000
    """Behind a try that nobody has said to have failed, for the next failure to be one of another outage."""
    severed: int = 2_000_000
    """For the loss of a worker to be noticed, of whose link another worker has said that it closed."""
    calm: int = 5_000_000
    """For a job to catch up when a standby has taken a slot, before another one is started: a process that starts, and reads
    state, would have its share of the same cores."""
    gone: int = 9_000_000
    """For cancelled Spark tasks to be gone, before the job ends without them."""

    def filled_within(self, *, again: bool) -> int:
        """How long all slots may take to fill, `again` at a restart."""
        return self.slots + self.notice if again else self.slots

    def slots_late(self, here: int, wanted: int, *, again: bool = False) -> Cause:
        """Not all slots are filled."""
        seconds = self.filled_within(again=again) // 1_000_000
        what = (
            f"the job needs {wanted} task slots, and Spark gave it {here} within {seconds} s; give Spark more free cores, "
            f"lower the parallelism, or raise slot_timeout"
        )
        return Cause(what, FailureKind.SLOTS)
