"""Facts: what a step of a task depends on besides what came before it (`task.journal.history`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tailrace.graph.plan import Plan


def meets_in_channels(plan: Plan) -> bool:
    """True for a job whose tasks have nothing in common but the records in their channels, wherever frames end there. It
    has no loops, whose waves count what is in all channels at one moment. Event time that a task reads is in its facts."""
    return not plan.nests


class Facts:
    """Recorder of facts, on which a step depends besides what came before it: which channel is read and how far, and
    whether something has come back to a loop; and, in a separate object, the bytes of the frames that it sent. Facts are
    recorded as numbers while a slice lives, and given back during a replay.

    Invariant Y1: a replayed step requests exactly the facts that were kept for it, in that order.
    """

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.given: deque[int] | None = None
        """During a replay: the facts of the step that were not requested yet; else None."""

    def take(self) -> list[int]:
        """The facts recorded since the last call."""
        kept, self.kept = self.kept, []
        return kept

    def give(self, facts: Iterable[int]) -> None:
        """Sets the facts of the step that is replayed next."""
        self.given = deque(facts)

    def over(self) -> None:
        """Ends the replay: later steps record facts."""
        self.given = None

    @property
    def again(self) -> bool:
        """True while a step is replayed."""
        return self.given is not None

    def of(self, found: int) -> int:
        """Live: records and returns `found`. In a replay: returns the recorded value."""
        if self.given is not None:
            return self.given.popleft()
        self.kept.append(int(found))
        return found

    def as_kept(self, found: int) -> int:
        """Like `of`, but falls back to `found` in a replay if nothing is left of the recorded facts. Only frame
        boundaries may depend on it."""
        return self.of(found) if self.given is None or self.given else found
