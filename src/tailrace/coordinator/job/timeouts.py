"""The time limits of a job's coordinator, and the failures that follow when they are over."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.coordinator.job.failures import Cause
from tailrace.protocol.deployment import FailureKind


@dataclass(frozen=True)
class Limits:
    """Limits on how long the coordinator waits for workers, Spark and storage (int64 microseconds)."""

    slots: int = 60_000_000
    """The wait for all slots to fill."""
    notice: int = 0
    """The additional wait at a restart. Spark may give a worker's task to an executor that hangs, or whose machine is gone,
    until it takes the executor for lost; the slot is filled after that."""
    lease: int = 10_000_000
    """The wait for a sign of life of a worker that holds a slot."""
    leave: int = 3_000_000
    """The wait for workers to leave by themselves, before their Spark tasks are cancelled."""
    finish: int = 30_000_000
    """The wait for workers to leave a job that has finished: users' `close` may take its time."""
    patience: int = 600_000_000
    """The wait for the storage of checkpoints, or the place of a writer of a sink, to be in reach again, and for an answer
    of the storage."""
    publish: int = 600_000_000
    """The wait for prepared output to become visible, through all tries, and for an answer of the sink that publishes it."""
    retry: int = 500_000
    """The pause from the first try that fails to the next one; each pause after that is twice as long."""
    retry_most: int = 10_000_000
    """The longest pause between two tries."""
    claim: int = 2_000_000
    """The time behind a claim or a commit after which the coordinator of a job that waits looks whether another start has
    taken the job over; each pause after that is twice as long."""
    claim_most: int = 15_000_000
    """The longest pause between two such looks."""
    calm_after: int = 60_000_000
    """The time behind a try without a reported failure, after which the next failure counts as one of another outage."""
    severed: int = 2_000_000
    """The wait for the loss of a worker to be noticed, after another worker has reported that its link to it closed."""
    move: int = 10_000_000
    """The wait for a checkpoint, and for a standby to hold it, before a worker moves whose machine is about to go. Machines
    that go leave little time: 30 s on Kubernetes."""
    calm: int = 5_000_000
    """The time for a job to catch up when a standby has taken a slot, before another one is started. A process that starts
    and reads state would have its share of the same cores."""
    gone: int = 9_000_000
    """The wait for cancelled Spark tasks to be gone, before the job ends without them."""

    def filled_within(self, *, again: bool) -> int:
        """The time in which all slots have to fill, `again` at a restart."""
        return self.slots + self.notice if again else self.slots

    def checked_within(self, checks: int, *, runs: bool) -> int:
        """The pause before the next look at the job's claim, behind so many in a row. It is a part of `slots`: another start
        that has taken the job over waits that long for the slots of this one. Where the job `runs`, commits come, which
        are looks as well."""
        return self.slots * 3 // 4 if runs else min(self.claim << min(checks, 32), self.claim_most, self.slots // 4)

    def slots_late(self, here: int, required: int, *, again: bool = False) -> Cause:
        """The failure of a job whose slots were not filled in time."""
        seconds = self.filled_within(again=again) // 1_000_000
        what = (
            f"the job needs {required} task slots, and Spark gave it {here} within {seconds} s; give Spark more free cores, "
            f"lower the parallelism, or raise slot_timeout"
        )
        return Cause(what, FailureKind.SLOTS)
