"""Why a task does nothing, as a value. Progress reports tell it, and `metrics()` shows the same words (`waits_for`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why nothing happens."""

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
    FINISHED = "finished"


UNTIL_A_TIMER = frozenset({Reason.NO_INPUT, Reason.ALIGNING, Reason.LOOPING, Reason.QUIET})
"""What a task that waits for these does next may be a timer of the clock. Where it waits for anything else, timers wait with
it."""


UNTIL_TOLD = frozenset(
    {Reason.NO_INPUT, Reason.NO_CREDIT, Reason.ALIGNING, Reason.LOOPING, Reason.HELD, Reason.FINISHED}
)
"""A task that waits for one of these has nothing to do before it is told something, or before a timer of the clock."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do. `wake_at` (int64 microseconds) is when the clock alone gives something to do, if it ever does."""

    reason: Reason
    wake_at: int | None = None
