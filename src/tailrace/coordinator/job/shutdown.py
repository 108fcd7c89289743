"""The end of a job: its outcome is decided, and the job only waits for its workers to leave."""

from __future__ import annotations

from tailrace.coordinator.job.timeouts import Limits


class Shutdown:
    """The wait of a job for its workers to leave.

    Invariant J3: in a final state every slot's Spark jobs have ended, or the limit `gone` has passed.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.since: int | None = None
        """The time at which `Leave` was sent to the workers; None before that."""
        self.killed = False
        """True if the Spark jobs of workers that had not left were cancelled."""
        self._patience = limits.leave

    def begin(self, now: int, well: bool) -> bool:
        """Begins the wait, at a good end (`well`) or another. Returns False if it has begun before."""
        if self.since is not None:
            return False
        self.since = now
        self._patience = self._limits.finish if well else self._limits.leave
        return True

    @property
    def kill_at(self) -> int | None:
        """The time at which the Spark jobs of workers that have not left are cancelled."""
        return None if self.since is None or self.killed else self.since + self._patience

    @property
    def over_at(self) -> int | None:
        """The time at which the job ends without the workers that have not left."""
        return None if self.since is None or not self.killed else self.since + self._patience + self._limits.gone
