"""The attempts of a job: their number, and the phase of the one that begins."""

from __future__ import annotations

from tailrace.coordinator.job.failures import FailedRecords


class Attempts:
    """The bookkeeping of one job's attempts; the coordinator carries out what follows from it.

    An attempt begins when slots are to be filled, perhaps after a pause. Then all workers are deployed. Then the output
    that the restored checkpoint had prepared is published. Then all workers start.
    """

    def __init__(self) -> None:
        self.restarts = 0
        """The number of restarts of the job, those included with which it changed its size."""
        self.deployed = False
        """True if the plan of this attempt was sent to the workers."""
        self.publishing = False
        """True while the output that the restored checkpoint had prepared is being published, after all have deployed and
        before the start."""
        self.resume_at: int | None = None
        """The time before which this attempt is not deployed."""
        self.failed_records = FailedRecords()
        self._began_at = 0

    def begin(self, now: int) -> None:
        """Begins the first attempt: the slots are to be filled."""
        self._began_at = now

    def anew(self, now: int, pause: int) -> None:
        """Begins another attempt, after a pause."""
        self.restarts += 1
        self._began_at = now + pause
        self.resume_at = self._began_at if pause else None
        self.deployed = self.publishing = False

    def claim_done(self, now: int) -> None:
        """Counts the wait for slots from now at the earliest: the job has an incarnation, however long the storage has
        taken."""
        self._began_at = max(self._began_at, now)

    def is_paused(self, now: int) -> bool:
        """True during the pause before a restart."""
        return self.resume_at is not None and now < self.resume_at

    def slots_late_at(self, limit: int) -> int | None:
        """The time at which the slots have taken too long to fill; None once all workers are deployed."""
        return None if self.deployed else self._began_at + limit
