"""Markers, which are sent between the records of a channel, in order with them."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.elements.cuts import CutRequest


@dataclass(frozen=True, slots=True)
class Watermark:
    """A watermark: no later record of this channel has a timestamp at or below `time` (int64 microseconds)."""

    time: int


@dataclass(frozen=True, slots=True)
class IdleChannel:
    """The marker of an idle channel, which must not hold the watermark back. It is idle until its next record or
    watermark."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """The last element of a channel. Implies the maximum watermark."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """The barrier of a checkpoint: records before it on this channel belong to the checkpoint, later records do not."""

    cut: CutRequest

    @property
    def checkpoint(self) -> int:
        """The number of the checkpoint."""
        return self.cut.number


@dataclass(frozen=True, slots=True)
class WaveMark:
    """The mark of wave `wave` of the channel's loop nest: a cut that stores nothing, and only reports what is in the
    channels."""

    wave: int


@dataclass(frozen=True, slots=True)
class Rest:
    """The marker of rest `number` of the loop nest: operators call their functions' `finish`, and pass the marker on after
    its output."""

    number: int


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The end of round `round` of a loop in rounds on this channel: later records are of the next round."""

    round: int


TIMES = (Watermark, IdleChannel)
"""Markers that carry event time."""
COUNTED = (Watermark, IdleChannel, Rest, RoundEnd)
"""Markers that make their receiver work: they count among the frames of a loop nest."""

Marker = Watermark | IdleChannel | EndOfInput | Barrier | WaveMark | Rest | RoundEnd
