"""The end of a job: its outcome is decided, and all that is awaited is that the workers leave."""

from __future__ import annotations

from tailrace.coordinator.job.timeouts import Limits


class Shutdown:
    """How long the job waits for its workers.

    Invariant J3: in a final state every slot's Spark jobs have ended, or the limit `gone` has passed.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.since: int | None = None
        """When the workers were told to leave; None before that."""
        self.killed = False
        """Whether the Spark jobs of those that were still there were cancelled."""
        self._patience = limits.leave

    def begin(self, now: int, well: bool) -> bool:
        """The workers are to leave, at a good end (`well`) or another. False where they have been told to before."""
        if self.since is not None:
            return False
        self.since = now
        self._patience = self._limits.finish if well else self._limits.leave
        return True

    @property
    def kill_at(self) -> int | None:
        """When the Spark jobs of those that are still there are cancelled."""
        return None if self.since is None or self.killed else self.since + self._patience

    @property
    def over_at(self) -> int | None:
        """When the job ends without those that are still there."""
        return None if self.since is None or not self.killed else self.since + self._patience + self._limits.gone
