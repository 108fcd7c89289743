"""What bookkeepers decide: actions, words for workers, and that something has failed. `course` carries it out."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.coordinator.actions import Action
from tailrace.coordinator.job.failures import Cause
from tailrace.protocol.wire import AnyMessage


@dataclass(frozen=True)
class Tell:
    """A message to the worker of a slot, or to all of them (None). Where none is there, nobody is told."""

    message: AnyMessage
    slot: int | None = None


@dataclass(frozen=True)
class StopFailed:
    """The checkpoint of a stop was aborted, and tasks are told so: the job can go on."""

    reason: str


Decision = Action | Tell | Cause | StopFailed
"""A cause: that has failed, and the course of the job says what follows from it."""
Decisions = list[Decision]


def each(said: list[tuple[int, AnyMessage]]) -> Decisions:
    """Words for workers, by their slots."""
    return [Tell(message, slot) for slot, message in said]
