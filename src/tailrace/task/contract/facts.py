"""Facts: what a step of a task finds out that does not follow from what came before it (`task.journal.history`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Facts:
    """What a step finds out that does not follow from what came before it: which channel is read and how far, whether
    something has come back to a loop; and, apart from these, how many bytes it was that it sent. They are kept as numbers
    while a slice lives, and given back when it is done again.

    Invariant Y1: who does a step again asks for exactly the facts that were kept for it, in that order.
    """

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.given: deque[int] | None = None
        """While a step is done again: its facts that nobody has asked for yet."""

    def taken(self) -> list[int]:
        """What was kept since this was asked last."""
        kept, self.kept = self.kept, []
        return kept

    def give(self, facts: Iterable[int]) -> None:
        """These are the facts of the step that is done again now."""
        self.given = deque(facts)

    def over(self) -> None:
        """From now on steps find out for themselves."""
        self.given = None

    @property
    def again(self) -> bool:
        """Whether a step is done again."""
        return self.given is not None

    def of(self, found: int) -> int:
        """A fact: as it is, or as it was when the step was done first."""
        if self.given is not None:
            return self.given.popleft()
        self.kept.append(int(found))
        return found

    def as_kept(self, found: int) -> int:
        """The same where nothing depends on it but where frames end: without one it is as it is."""
        return self.of(found) if self.given is None or self.given else found
