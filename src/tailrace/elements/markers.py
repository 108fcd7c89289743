"""What travels between the records of a channel, in order with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record of this channel comes after this with a timestamp at or below `time` (int64 microseconds)."""

    time: int


@dataclass(frozen=True, slots=True)
class Idle:
    """This channel has nothing to say for now and must not hold the watermark back. Ends with the next record or
    watermark."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing comes on this channel any more. Implies the maximum watermark."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """The cut of checkpoint `checkpoint`: what came before it on this channel belongs to it, what comes after does not."""

    checkpoint: int


Marker = Watermark | Idle | EndOfInput | Barrier
