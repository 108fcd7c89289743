"""The decisions of bookkeepers: actions, messages for workers, and failures. `course` carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.coordinator.actions import Action
from tailrace.coordinator.job.failures import Cause
from tailrace.protocol.message_codec import ToWorker


@dataclass(frozen=True)
class Tell:
    """A message to the worker of a slot, or to all workers (None). It is dropped where no worker is there."""

    message: ToWorker
    slot: int | None = None


@dataclass(frozen=True)
class StopFailed:
    """A failure of a stop: its checkpoint was aborted, and the tasks were informed of it. The job can go on."""

    reason: str


@dataclass(frozen=True)
class RescaleCut:
    """The outcome of the checkpoint behind which a job changes its size: complete, or the reason why it was aborted."""

    reason: str = ""


@dataclass(frozen=True)
class NotJoined:
    """The loss of a worker that was to join for another size of the job."""

    reason: str


Decision = Action | Tell | Cause | StopFailed | RescaleCut | NotJoined
"""A decision of a bookkeeper. A `Cause` is a failure; the course of the job decides what follows from it."""
Decisions = list[Decision]


def each(messages: Sequence[tuple[int, ToWorker]]) -> Decisions:
    """The decisions that send these messages to workers, by their slots."""
    return [Tell(message, slot) for slot, message in messages]
