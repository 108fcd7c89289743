"""The incarnation that the job holds, and the claim of a new one from the storage of checkpoints, which fences earlier
drivers."""

from __future__ import annotations

from tailrace.coordinator.job.timeouts import Limits


class IncarnationClaims:
    """The bookkeeping of one job's claims; the coordinator sends the requests to the storage.

    Invariant J4: `incarnation` grows with every attempt that is deployed, and an attempt restores the newest manifest that
    could be committed before it.

    Invariant J8: the job looks at its claim before a part of `slots` has passed since the storage has answered a claim, a
    commit or such a look, whatever the job waits for. Without that, a coordinator that another start has overtaken would
    keep workers for which that start waits.
    """

    def __init__(self, incarnation: int, limits: Limits) -> None:
        self.incarnation = incarnation
        self.deployed = incarnation
        """The incarnation under which the attempt that runs was deployed. A successor commits under a newer one."""
        self.under_way = False
        """True while the job waits for a new incarnation: nothing is deployed meanwhile."""
        self.due_at: int | None = None
        """The time at which a request is to go to the storage, where none has gone yet."""
        self.sent_at: int | None = None
        """The time of the request to the storage, where it has not answered yet."""
        self._used = False
        """True if anything was deployed under the incarnation that the job holds."""
        self._limits = limits
        self._checks = 0
        """The number of looks at the claim since the last claim or commit."""
        self._answered_at: int | None = None
        """The time of the storage's last answer, from which the pause before the next look counts. None while a look is
        under way, and before the job begins."""

    def confirm(self, now: int) -> None:
        """Notes that the job holds its incarnation now: a claim or a commit has succeeded."""
        self._answered_at, self._checks = now, 0

    def check_at(self, *, runs: bool) -> int | None:
        """The time of the next look at the claim. None while one is under way, or a new incarnation is awaited. `runs`: the
        job runs and takes checkpoints, and waits for nothing."""
        if self._answered_at is None or self.under_way:
            return None
        return self._answered_at + self._limits.checked_within(self._checks, runs=runs)

    def check(self) -> None:
        """Begins a look at the claim."""
        self._answered_at, self._checks = None, self._checks + 1

    def note_check(self, now: int) -> None:
        """Notes the end of a look at the claim, with news or without."""
        if self._answered_at is None:
            self._answered_at = now

    def note_deployment(self) -> None:
        """Notes that something may now be committed under this incarnation."""
        self._used, self.deployed = True, self.incarnation

    def count_on(self) -> None:
        """Counts the incarnation of a restart, for a job that takes no checkpoints: no other party counts it."""
        self.incarnation += int(self._used)
        self._used = False

    def schedule(self, at: int) -> None:
        """Schedules the request of a new incarnation at `at`, for a restart of a job that takes checkpoints. Does nothing
        where the job waits for one, or has deployed nothing under the one it holds."""
        if self._used and not self.under_way:
            self.under_way, self.due_at = True, at

    def take_due(self, now: int) -> bool:
        """True if a request is to go to the storage now; it counts as sent then."""
        if self.due_at is None or now < self.due_at:
            return False
        self.due_at, self.sent_at = None, now
        return True

    def repeat(self, at: int) -> None:
        """Schedules another request at `at`: the storage could not be reached."""
        self.under_way, self.sent_at, self.due_at = True, None, at

    def note_answer(self) -> None:
        """Notes that the storage has answered, with an incarnation or an error."""
        self.under_way, self.sent_at = False, None

    def note_incarnation(self, incarnation: int) -> None:
        """Notes the job's new incarnation: no process can commit under an older one any more."""
        self.incarnation, self._used = incarnation, False

    def go_on(self, incarnation: int) -> None:
        """Notes the incarnation of a successor: the attempt goes on, and the successor commits under this one."""
        self.incarnation, self._used = incarnation, True
