"""Places that the job needs and that are out of reach: since when, why, and when they are tried again.

A failure because the storage of checkpoints or the place of a sink cannot be reached is no failure of the job. The
coordinator tries again after pauses that grow, whatever the restart strategy is, until a try succeeds or the job's
patience is over.
"""

from __future__ import annotations

from tailrace.coordinator.actions import InReach, OutOfReach
from tailrace.coordinator.decisions import Decisions
from tailrace.coordinator.durability.checkpoints import Aborted
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

    def __init__(self, place: str, limits: Limits) -> None:
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

    def note_failure(self, reason: str, now: int) -> Decisions:
        """Notes that a try has failed."""
        if self.since is None or self._is_calm(now):
            self.since, self.tries = now, 0
        self.tries += 1
        self.reason = reason
        if now - self.since >= self._limits.patience:
            return [self.given_up()]
        pause = min(self._limits.retry_most, self._limits.retry << min(self.tries - 1, 32))
        self.due_at = now + pause
        return [OutOfReach(self.place, reason, self.tries, now - self.since, pause, self._limits.patience)]

    def over(self, now: int) -> Decisions:
        """Notes that a try has succeeded."""
        since, self.since, self.due_at, self.tries, self.reason = self.since, None, None, 0, ""
        return [] if since is None else [InReach(self.place, now - since)]

    def calm(self, now: int) -> Decisions:
        """Ends the outage if no failed try was reported for long: the job goes on, so the place is in reach."""
        return self.over(now) if self._is_calm(now) else []

    def _is_calm(self, now: int) -> bool:
        return self.due_at is not None and now - self.due_at >= self._limits.calm_after

    def silent_at(self, sent_at: int | None) -> int | None:
        """The time at which patience is over with a request that was sent at `sent_at` and has no answer."""
        if sent_at is None:
            return None
        return (sent_at if self.since is None else min(sent_at, self.since)) + self._limits.patience

    def given_up(self) -> Cause:
        """The failure of a job whose patience is over."""
        seconds = f"{self._limits.patience / 1e6:g} s (storage_patience)"
        what = (
            f"has been out of reach for {seconds}: {self.reason}" if self.reason else f"has not answered for {seconds}"
        )
        return Cause(
            f"{self.place} {what}; once it is back, start the job again from its newest checkpoint", FailureKind.SILENT
        )


def what_follows(aborted: Aborted, counts: bool, left: int) -> str:
    """The sentence on what comes after a checkpoint that has failed."""
    if aborted.too_many:
        return "that is more than tolerated_failures: the job fails, or starts again"
    if aborted.hold:
        return "the stop has come to nothing, and the job goes on"
    if not counts:
        return "the job goes on, and the next one is taken when the storage is tried again"
    if aborted.final:
        return "the job cannot end without it: it is taken once more"
    return f"the job goes on, and the next one is taken as ever; {left} more may fail in a row (tolerated_failures)"
