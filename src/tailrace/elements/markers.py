"""Markers: they travel between the records of a channel, in order with them."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.elements.cuts import CutRequest


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record of this channel comes after this with a timestamp at or below `time` (int64 microseconds)."""

    time: int


@dataclass(frozen=True, slots=True)
class IdleChannel:
    """This channel is idle and must not hold the watermark back. Ends with the next record or watermark."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing comes on this channel any more. Implies the maximum watermark."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """The barrier of a checkpoint: records before it on this channel belong to the checkpoint, those after it do not."""

    cut: CutRequest

    @property
    def checkpoint(self) -> int:
        """The number of the checkpoint."""
        return self.cut.number


@dataclass(frozen=True, slots=True)
class WaveMark:
    """Wave `wave` of the channel's loop nest: a cut that stores nothing, and only reports what is in the channels."""

    wave: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Rest `number` of the loop nest: operators call their functions' `finish` and pass this on behind the output of
    those."""

    number: int


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """Round `round` of a loop in rounds is over on this channel: what comes after it is of the next one."""

    round: int


COUNTED = (Watermark, IdleChannel, Rest, RoundEnd)
"""Markers that make their reader work: they count among the frames of a loop nest."""

Marker = Watermark | IdleChannel | EndOfInput | Barrier | WaveMark | Rest | RoundEnd
