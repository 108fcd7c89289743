"""The attempts of a job: how many there were, and how far the one that begins has come."""

from __future__ import annotations

from tailrace.coordinator.job.failures import Cause


class Attempts:
    """The bookkeeping of one job; what follows from it is for the coordinator to do.

    An attempt begins when slots are to be filled, perhaps after a pause; then everybody is deployed; then what the restored
    checkpoint had prepared is published; then all start.
    """

    def __init__(self) -> None:
        self.restarts = 0
        """How many times the job was restarted."""
        self.last_failure: Cause | None = None
        """Why it was restarted last."""
        self.deployed = False
        """Whether the plan of this attempt was sent to the workers."""
        self.publishing = False
        """Whether all have deployed, and what the restored checkpoint had prepared is being published before the start."""
        self.resume_at: int | None = None
        """Not deployed before this time."""
        self._began_at = 0

    def begin(self, now: int) -> None:
        """The slots are to be filled for the first time."""
        self._began_at = now

    def anew(self, cause: Cause, now: int, pause: int) -> None:
        """The job is restarted after a pause."""
        self.restarts += 1
        self.last_failure = cause
        self._began_at = now + pause
        self.resume_at = self._began_at if pause else None
        self.deployed = self.publishing = False

    def claimed(self, now: int) -> None:
        """The job has an incarnation, however long the storage has taken: only now the slots are waited for."""
        self._began_at = max(self._began_at, now)

    def paused(self, now: int) -> bool:
        """Whether the pause before a restart lasts."""
        return self.resume_at is not None and now < self.resume_at

    def slots_late_at(self, limit: int) -> int | None:
        """When the slots have taken too long to fill; None once everybody is deployed."""
        return None if self.deployed else self._began_at + limit
