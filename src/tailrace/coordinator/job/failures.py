"""The failures of a job, and what follows from each: one table of kinds, and one pure function of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tailrace.errors import CheckpointCorrupt, CheckpointsRemoved, Fenced, JobFailed
from tailrace.protocol.deployment import FailureKind


@dataclass(frozen=True)
class Cause:
    """The cause of a failure or a restart of a job."""

    message: str
    kind: FailureKind = FailureKind.INTERNAL
    operator: str | None = None
    subtask: int | None = None
    record: str | None = None
    slot: int | None = None
    """The slot whose worker was lost, where that was the cause."""
    error: str = ""
    """The class of the exception that user code raised, where that was the cause."""
    takes_policy: bool = False
    """True if the verb of the operator takes a policy for records that fail (`on_error`)."""
    alone: int | None = None
    """The slot of a worker that lives, where the failure is its own: the other workers can go on without it."""

    @property
    def worker(self) -> int | None:
        """The slot of the worker to be replaced, where the others can go on: it was lost, has to move, or has failed. None
        where no replacement of one worker helps."""
        if self.kind in (FailureKind.WORKER, FailureKind.MOVED):
            return self.slot
        return self.alone if self.kind in REPLACED_FIRST else None

    @property
    def way(self) -> tuple[FailureKind, str | None, str]:
        """The way in which something has failed: two failures of one way most likely have one reason."""
        return self.kind, self.operator, self.error

    def with_text(self, more: str) -> Cause:
        """A copy of the cause with a longer text."""
        return replace(self, message=f"{self.message}; {more}")

    def as_error(self, job: str) -> JobFailed:
        """The error for the parties that wait for the job."""
        return JobFailed(
            f"job {job!r} failed: {self.message}",
            job=job,
            operator=self.operator,
            subtask=self.subtask,
            record=self.record,
            taken_over=self.kind is FailureKind.FENCED,
        )


class FailedRecords:
    """The records for which user code has raised since the job began, and how often each has failed it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str | None, str, str], int] = {}
        self.operators: list[str] = []
        """The names of the operators whose user code has failed."""

    def advice(self, cause: Cause) -> str:
        """A sentence for the user: the record that has failed, how often, and what to do; empty where no record is known.
        Counts the failure."""
        if cause.kind is FailureKind.USER and cause.operator is not None and cause.operator not in self.operators:
            self.operators.append(cause.operator)
        if cause.record is None or cause.kind is not FailureKind.USER:
            return ""
        place = cause.operator, cause.record, cause.error
        count = self._counts[place] = self._counts.pop(place, 0) + 1
        if len(self._counts) > _RECORDS:
            del self._counts[next(iter(self._counts))]
        times = "once" if count == 1 else f"{count} times"
        verb = (
            f"of operator {cause.operator!r}" if cause.takes_policy else "of a map before it, which checks the records,"
        )
        return (
            f"record {cause.record} has failed {times} in operator {cause.operator!r}, and comes again after a restart; "
            f'on_error=tr.Aside("errors") {verb} would set it aside, and the job would go on'
        )


_RECORDS = 100
"""Number of failed records that are remembered."""


class Reaction(Enum):
    """The coordinator's reaction to a failure."""

    RESTART = "a restart"
    """The job starts again from its newest checkpoint, where its restart strategy allows it; else it fails."""
    MOVE = "a restart that does not count"
    """The job starts again from its newest checkpoint, whatever the restart strategy is: nothing has failed."""
    WAIT = "a restart that does not count, after pauses that grow"
    """The job starts again from its newest checkpoint until `storage_patience` is over; then it fails: a place that it
    needs is out of reach."""
    FAIL = "the job fails"
    """The job fails: no restart would mend it."""


REACTIONS: dict[FailureKind, Reaction] = {
    FailureKind.USER: Reaction.RESTART,
    FailureKind.PROGRAM: Reaction.FAIL,
    FailureKind.WORKER: Reaction.RESTART,
    FailureKind.MOVED: Reaction.MOVE,
    FailureKind.RESIZED: Reaction.MOVE,
    FailureKind.PEER: Reaction.RESTART,
    FailureKind.STORE: Reaction.WAIT,
    FailureKind.SINK: Reaction.WAIT,
    FailureKind.CHECKPOINT: Reaction.RESTART,
    FailureKind.IMPORT: Reaction.FAIL,
    FailureKind.SLOTS: Reaction.FAIL,
    FailureKind.STATE: Reaction.FAIL,
    FailureKind.FENCED: Reaction.FAIL,
    FailureKind.SILENT: Reaction.FAIL,
    FailureKind.INTERNAL: Reaction.FAIL,
}
"""The reaction to a failure of each kind. The table in `docs/protocols/recovery.md` is tested against this one."""

REPLACED_FIRST = frozenset({FailureKind.USER, FailureKind.SINK, FailureKind.PEER})
"""The kinds of failures of a worker that lives for which another worker takes its place first, in jobs with standbys: its
machine may be the reason, or something that has passed."""

HALF_PUBLISHED = "all, some or none of the job's output may be visible"


def reaction(cause: Cause, checkpointing: bool, finishing: bool) -> tuple[Reaction, Cause]:
    """The reaction to a failure, and the cause with what the user must know of it.

    A job without checkpoints that is publishing cannot start again: it is not known which output is visible, and a run from
    the beginning would write all of it once more. Before it publishes it can, but all of its work is lost. So its restart
    strategy decides, whatever has failed.
    """
    found = REACTIONS[cause.kind]
    if checkpointing:
        return found, cause
    if finishing:
        return Reaction.FAIL, cause.with_text(HALF_PUBLISHED)
    return Reaction.RESTART if found is Reaction.WAIT else found, cause


def storage_failure(error: Exception) -> FailureKind:
    """The kind of a failure, by the error that the storage of checkpoints raised."""
    if isinstance(error, Fenced):
        return FailureKind.FENCED
    return FailureKind.STATE if isinstance(error, CheckpointCorrupt | CheckpointsRemoved) else FailureKind.STORE
