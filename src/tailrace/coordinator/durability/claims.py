"""Which incarnation the job holds, and when a new one is claimed from the storage of checkpoints."""

from __future__ import annotations


class IncarnationClaims:
    """The bookkeeping of one job; the coordinator asks the storage.

    Invariant J4: `incarnation` grows with every attempt that is deployed, and an attempt restores the newest manifest
    that could be committed before it.
    """

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.under_way = False
        """Whether the job waits for a new incarnation: nothing is deployed meanwhile."""
        self.due_at: int | None = None
        """When the storage is to be asked, where it has not been yet."""
        self.asked_at: int | None = None
        """When it was asked, where it has not answered yet."""
        self._used = False
        """Whether anything was deployed under the incarnation that the job holds."""

    def deployed(self) -> None:
        """Something may now be committed under this incarnation."""
        self._used = True

    def count_on(self) -> None:
        """A restart of a job that takes no checkpoints: nobody else counts its incarnations."""
        self.incarnation += int(self._used)
        self._used = False

    def want(self, at: int) -> None:
        """A restart of a job that takes checkpoints, which asks for a new incarnation at `at`; not where it waits for one or
        has deployed nothing under the one it holds."""
        if self._used and not self.under_way:
            self.under_way, self.due_at = True, at

    def ask(self, now: int) -> bool:
        """Whether the storage is to be asked now."""
        if self.due_at is None or now < self.due_at:
            return False
        self.due_at, self.asked_at = None, now
        return True

    def ask_again(self, at: int) -> None:
        """The storage could not be reached: it is asked once more at `at`."""
        self.under_way, self.asked_at, self.due_at = True, None, at

    def answered(self) -> None:
        """The storage has answered, with an incarnation or an error."""
        self.under_way, self.asked_at = False, None

    def taken(self, incarnation: int) -> None:
        """The incarnation is the job's, and nobody can commit under an older one any more."""
        self.incarnation, self._used = incarnation, False
