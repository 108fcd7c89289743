"""The course of checkpoints that are complete, under way, or have failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.protocol.snapshot import Ack


@dataclass(frozen=True)
class FailedCheckpoint:
    """A checkpoint that will never be complete."""

    id: int
    reason: str
    timestamp: int
    """The time at which that was decided, in microseconds since 1970."""
    failure: bool = True
    """False where it was given up for another reason than a failure of its own: a worker was lost, or a newer checkpoint is
    complete."""


@dataclass(frozen=True)
class PendingStats:
    """A checkpoint that is under way."""

    id: int
    age: int
    """Microseconds since its trigger."""
    phase: str
    """The least advanced phase of the workers that it waits for: `PHASES`."""
    slots: tuple[int, ...] = ()
    """The workers that it waits for; none where its manifest is on its way."""


@dataclass(frozen=True)
class Waits:
    """A place that is out of reach, for which the job waits."""

    place: str
    reason: str
    tries: int
    age: int
    """Microseconds since the first try that failed."""


@dataclass(frozen=True)
class CheckpointStats:
    """The figures of a complete checkpoint. Times are int64 microseconds, of the slowest part."""

    id: int
    path: str
    timestamp: int
    duration: int
    size: int
    trigger: int
    """The rest of the duration without the other three: travelling, waiting for a turn, commit."""
    alignment: int
    freeze: int
    write: int
    """Time for encoding and writing."""
    full_size: int
    """The size with the files of earlier checkpoints that it refers to."""
    final: bool = False
    inflight: int = 0
    """Bytes of records on their way around loops, and of records that barriers have overtaken."""
    inflight_by: dict[str, int] = field(default_factory=dict)
    """Bytes of overtaken records, by the uid of the operator that was to receive them."""
    referred: int = 0
    """Bytes of `inflight` that an earlier checkpoint has written, and this one only refers to."""
    policy: str = "aligned"
    """The policy under which it has ended: "unaligned" where a barrier has overtaken records, or a subtask has cut before
    all of its barriers were read."""


@dataclass(frozen=True)
class SavepointStats:
    """The figures of a complete savepoint. Times are int64 microseconds."""

    id: int
    """The number of its checkpoint."""
    path: str
    timestamp: int
    duration: int
    """Time from the trigger of its checkpoint until the copy was there."""
    size: int
    inflight: int = 0
    inflight_by: dict[str, int] = field(default_factory=dict)
    policy: str = "aligned"
    """The policy under which its checkpoint has ended."""


def policy_of(acks: list[Ack]) -> str:
    """The policy under which a checkpoint has ended."""
    early = any(s.overtook for ack in acks for s in ack.subtasks)
    return "unaligned" if early or any(ack.overtaken for ack in acks) else "aligned"


def parts_of(acks: list[Ack], duration: int) -> tuple[int, int, int]:
    """(freeze, alignment, write) of a checkpoint: the longest freeze of all subtasks, and the other two of the subtask that
    took longest in all. Each is measured by another clock; together they are at most the duration."""
    freeze = max((s.freeze_micros for ack in acks for s in ack.subtasks), default=0)
    slowest = max(
        (
            (s.alignment_micros + max(s.encode_micros, s.freeze_micros) + ack.write_micros, s, ack.write_micros)
            for ack in acks
            for s in ack.subtasks
        ),
        key=lambda one: one[0],
        default=None,
    )
    alignment = write = 0
    if slowest is not None:
        _, subtask, writing = slowest
        alignment, write = subtask.alignment_micros, max(0, subtask.encode_micros - subtask.freeze_micros) + writing
    freeze = min(freeze, duration)
    alignment = min(alignment, duration - freeze)
    return freeze, alignment, min(write, duration - freeze - alignment)


@dataclass(frozen=True)
class Books:
    """The figures of a job's checkpoints."""

    past: Sequence[CheckpointStats] = ()
    completed: int = 0
    aborted: int = 0
    pending: Sequence[PendingStats] = ()
    in_a_row: int = 0
    """The number of failures since the newest complete checkpoint."""
    failed: Sequence[FailedCheckpoint] = ()
    """The last ones that will never be complete, the newest last."""
    waits: Sequence[Waits] = ()

    @property
    def last_failure(self) -> FailedCheckpoint | None:
        """The last checkpoint that has failed."""
        return next((one for one in reversed(self.failed) if one.failure), None)
