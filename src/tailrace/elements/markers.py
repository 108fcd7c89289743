"""What travels between the records of a channel, in order with them."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.elements.cuts import CutRequest


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record of this channel comes after this with a timestamp at or below `time` (int64 microseconds)."""

    time: int


@dataclass(frozen=True, slots=True)
class IdleChannel:
    """This channel has nothing to say for now and must not hold the watermark back. Ends with the next record or
    watermark."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing comes on this channel any more. Implies the maximum watermark."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """The cut of a checkpoint: what came before it on this channel belongs to it, what comes after does not."""

    cut: CutRequest

    @property
    def checkpoint(self) -> int:
        """The number of the checkpoint."""
        return self.cut.number


@dataclass(frozen=True, slots=True)
class WaveMark:
    """Wave `wave` of the loop nest that the channel belongs to: a cut that persists nothing, and only asks what there is on
    its two sides."""

    wave: int


@dataclass(frozen=True, slots=True)
class Rest:
    """The loop nest has come to rest for the `number`-th time: operators call their functions' `finish` and pass this on
    behind what those emit."""

    number: int


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """Round `round` of a loop in rounds is over on this channel: what comes after it is of the next one."""

    round: int


COUNTED = (Watermark, IdleChannel, Rest, RoundEnd)
"""Markers that make their reader work: they count among the frames of a loop nest."""

Marker = Watermark | IdleChannel | EndOfInput | Barrier | WaveMark | Rest | RoundEnd
