"""Facts of a call of user code that has failed, on their way from the operator to its worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.elements.batches import Batch
from tailrace.elements.timestamps import MIN_TIME, NO_TIME

NOTHING: Any = object()
"""A stand-in for a record or a key that is not known."""
RESULT = "result"
"""The kind of a call that gives the result of a window: no record is to blame if it fails."""


@dataclass(eq=False)
class FailedCall:
    """A call that has failed. An error of user code carries it within its worker; it is not pickled with the error."""

    record: Any = NOTHING
    operator: Any = None
    """The operator at run time; None where the call was made for another one, as that of a key is."""
    key: Any = NOTHING
    time: int = NO_TIME
    watermark: int = MIN_TIME
    timer: int | None = None
    """The time of the timer that fired, on the clock `domain`; None for another call."""
    domain: str = "event"
    input_port: int = 0
    batch: Batch | None = None
    """The batch that the operator was given, where that is known."""
    what: str = "record"
    """The kind of the call: "record", "timer", "open" or "finish"; another name for one that is not made again."""
