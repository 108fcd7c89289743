"""The reason why a task does nothing, as a value. Progress reports carry it, and `metrics()` shows it in these words
(`waits_for`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """The reason why a task does nothing."""

    NO_INPUT = "no input"
    NO_CREDIT = "no credit"
    ALIGNING = "aligning"
    """Some inputs have reached a cut and wait for the others."""
    ENCODING = "encoding"
    """A cut is due, and the snapshot before it is not encoded yet."""
    LOOPING = "looping"
    """The inputs of a loop's head have ended, and the loop has not: something may still come back."""
    HELD = "held"
    """The cut of a stop was made: nothing goes on, unless its checkpoint is aborted."""
    QUIET = "quiet"
    """The input has ended; a timer is awaited."""
    CALLS = "answers to calls"
    """As many asynchronous calls are under way as may be."""
    FINISHED = "finished"


UNTIL_A_TIMER = frozenset({Reason.NO_INPUT, Reason.ALIGNING, Reason.LOOPING, Reason.QUIET, Reason.CALLS})
"""Reasons with which a timer of the clock may be the next thing that the task does. With any other reason, timers wait,
too."""


UNTIL_TOLD = frozenset(
    {
        *(Reason.NO_INPUT, Reason.NO_CREDIT, Reason.ALIGNING, Reason.LOOPING),
        *(Reason.HELD, Reason.CALLS, Reason.FINISHED),
    }
)
"""Reasons with which the task has nothing to do before an event or a timer of the clock."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A step with nothing to do. `wake_at` (int64 microseconds) is the time at which the clock alone gives something to
    do; None if it never does."""

    reason: Reason
    wake_at: int | None = None
