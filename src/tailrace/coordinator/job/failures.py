"""Why a job fails, and what follows from it: one table of kinds, and one pure function of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tailrace.errors import CheckpointCorrupt, CheckpointsRemoved, Fenced, JobFailed
from tailrace.protocol.deployment import FailureKind


@dataclass(frozen=True)
class Cause:
    """Why a job failed, or was restarted."""

    message: str
    kind: FailureKind = FailureKind.INTERNAL
    operator: str | None = None
    subtask: int | None = None
    record: str | None = None
    slot: int | None = None
    """The slot whose worker was lost, where that was the cause."""

    def described(self, more: str) -> Cause:
        """The same cause with a text that says more."""
        return replace(self, message=f"{self.message}; {more}")

    def as_error(self, job: str) -> JobFailed:
        """What those who wait for the job are told."""
        return JobFailed(
            f"job {job!r} failed: {self.message}",
            job=job,
            operator=self.operator,
            subtask=self.subtask,
            record=self.record,
        )


class Reaction(Enum):
    """What the coordinator does about a failure."""

    RESTART = "a restart"
    """The job starts again from its newest checkpoint, where its restart strategy allows it; else it fails."""
    MOVE = "a restart that does not count"
    """The same, whatever the restart strategy says: nothing has failed."""
    WAIT = "a restart that does not count, after pauses that grow"
    """The same until `storage_patience` is over; then the job fails: a place that it needs is out of reach."""
    FAIL = "the job fails"
    """No restart would mend it."""


REACTIONS: dict[FailureKind, Reaction] = {
    FailureKind.USER: Reaction.RESTART,
    FailureKind.PROGRAM: Reaction.FAIL,
    FailureKind.WORKER: Reaction.RESTART,
    FailureKind.MOVED: Reaction.MOVE,
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
"""What follows from a failure of each kind. The table in `docs/protocols/recovery.md` is tested against this one."""

HALF_PUBLISHED = "all, some or none of the job's output may be visible"


def reaction(cause: Cause, checkpointing: bool, finishing: bool) -> tuple[Reaction, Cause]:
    """What follows from a failure, and the cause with what the user must know of it.

    A job without checkpoints that is publishing cannot start again: nobody can tell which output is visible, and a run from
    the beginning would write all of it once more. Before that it can, but all of its work is lost: so its restart strategy
    is asked, whatever has failed.
    """
    found = REACTIONS[cause.kind]
    if checkpointing:
        return found, cause
    if finishing:
        return Reaction.FAIL, cause.described(HALF_PUBLISHED)
    return Reaction.RESTART if found is Reaction.WAIT else found, cause


def storage_failure(error: Exception) -> FailureKind:
    """The kind of a failure by what the storage of checkpoints raised."""
    if isinstance(error, Fenced):
        return FailureKind.FENCED
    return FailureKind.STATE if isinstance(error, CheckpointCorrupt | CheckpointsRemoved) else FailureKind.STORE
