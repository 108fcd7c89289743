"""The failures for which a worker was replaced though it lived: each is the first of its way."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.coordinator.job.failures import Cause
from tailrace.protocol.deployment import FailureKind


@dataclass
class _FirstFailure:
    """A failure for which a worker was replaced."""

    cause: Cause
    triggered: int
    """The newest checkpoint that was triggered before the last failure of its way."""
    left: int = 1
    """The number of newer checkpoints that have to be complete until it is forgotten. After a restart these are two: the job
    goes back by up to one interval, and the first one may be complete before it comes to the same place again."""


class FirstFailures:
    """The first failures of a job, as long as no checkpoint from behind them is complete.

    Invariant Y15: a worker that lives is replaced for a failure only if none was, for a failure of the same way, since a
    checkpoint was complete that was triggered behind that; after a restart for it, since two were. A further failure of that
    way has the first one as its cause.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[FailureKind, str | None, str], _FirstFailure] = {}
        """The first failure of each way."""

    def add(self, cause: Cause, triggered: int) -> None:
        """Adds the failure of a worker that is replaced now. `triggered`: the newest checkpoint that was ever triggered."""
        self._first[cause.way] = _FirstFailure(cause, triggered)

    def first(self, cause: Cause) -> Cause | None:
        """The first failure of the same way; None where there was none."""
        found = self._first.get(cause.way)
        return None if found is None else found.cause

    def repeat(self, cause: Cause, triggered: int) -> None:
        """Notes one more failure of a way, for which all workers start again."""
        found = self._first.get(cause.way)
        if found is not None:
            found.triggered, found.left = triggered, 2

    def complete(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete. It may be one behind which failures are forgotten: the job has gone on."""
        for found in self._first.values():
            found.left -= checkpoint > found.triggered
        self._first = {way: found for way, found in self._first.items() if found.left}
