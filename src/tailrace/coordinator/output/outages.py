"""Places that the job needs and that are out of reach: since when, why, and when they are tried again.

A failure because the storage of checkpoints or the place of a sink cannot be reached is no failure of the job. The
coordinator tries again after pauses that grow, whatever the restart strategy is, until a try succeeds or the job's
patience is over.
"""

from __future__ import annotations

from tailrace.coordinator.actions import InReach, OutOfReach
from tailrace.coordinator.decisions import Decisions
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.timeouts import Limits
from tailrace.protocol.deployment import FailureKind

STORAGE = "the storage of checkpoints"
SINKS = "the place of a sink"


class Outage:
    """The outage of one place. The place is in reach as long as `since` is None.

    Invariant J7: while a place is out of reach, it is tried again after at most `retry_most`, and the job fails at the
    first try that fails `patience` after the first one that did.
    """

    def __init__(
        self, place: str, limits: Limits, patience: int | None = None, setting: str = "storage_patience"
    ) -> None:
        """`patience`: the time for which it is tried again, where each success is reported; None: `Limits.patience`.
        `setting`: its name for users."""
        self.place = place
        self.since: int | None = None
        """The time of the first failed try that no success has followed."""
        self.reason = ""
        """The reason why the last try failed."""
        self.tries = 0
        """The number of tries that have failed since then."""
        self.due_at: int | None = None
        """The time of the next try."""
        self._limits = limits
        self._patience = limits.patience if patience is None else patience
        self._setting = setting
        self._calms = patience is None
        """True if a long time without a reported failure counts as a success."""

    def note_failure(self, reason: str, now: int) -> Decisions:
        """Notes that a try has failed."""
        if self.since is None or self._is_calm(now):
            self.since, self.tries = now, 0
        self.tries += 1
        self.reason = reason
        if now - self.since >= self._patience:
            return [self.given_up()]
        pause = min(self._limits.retry_most, self._limits.retry << min(self.tries - 1, 32))
        self.due_at = now + pause
        since = now - self.since
        return [OutOfReach(self.place, reason, self.tries, since, pause, self._patience, self._setting)]

    def over(self, now: int) -> Decisions:
        """Notes that a try has succeeded."""
        since, self.since, self.due_at, self.tries, self.reason = self.since, None, None, 0, ""
        return [] if since is None else [InReach(self.place, now - since)]

    def calm(self, now: int) -> Decisions:
        """Ends the outage if no failed try was reported for long: the job goes on, so the place is in reach."""
        return self.over(now) if self._is_calm(now) else []

    def _is_calm(self, now: int) -> bool:
        return self._calms and self.due_at is not None and now - self.due_at >= self._limits.calm_after

    def silent_at(self, sent_at: int | None) -> int | None:
        """The time at which patience is over with a request that was sent at `sent_at` and has no answer."""
        if sent_at is None:
            return None
        return (sent_at if self.since is None else min(sent_at, self.since)) + self._patience

    def given_up(self) -> Cause:
        """The failure of a job whose patience is over."""
        seconds = f"{self._patience / 1e6:g} s ({self._setting})"
        what = (
            f"has been out of reach for {seconds}: {self.reason}" if self.reason else f"has not answered for {seconds}"
        )
        return Cause(
            f"{self.place} {what}; once it is back, start the job again from its newest checkpoint", FailureKind.SILENT
        )
