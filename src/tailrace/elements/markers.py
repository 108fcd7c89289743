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
class SpanRound:
    """The place of a round among the rounds of a span of event time."""

    first: int
    """The number of the first round of the span."""
    time: int
    """The last microsecond of the span."""
    closes: bool = False
    """True if the span is over: in this round nothing is emitted, and functions lose their state."""

    def number_of(self, round: int) -> int | None:
        """The number of a round within its span; None for the one that closes it."""
        return None if self.closes else round - self.first


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The end of round `round` of a loop in rounds on this channel: later records are of the next round."""

    round: int
    span: SpanRound | None = None
    """Where rounds go by spans of event time: the place of the round; None for round 0, which comes before all spans."""


TIMES = (Watermark, IdleChannel)
"""Markers that carry event time."""
COUNTED = (Watermark, IdleChannel, Rest, RoundEnd)
"""Markers that make their receiver work: a loop nest counts them, beside records."""

Marker = Watermark | IdleChannel | EndOfInput | Barrier | WaveMark | Rest | RoundEnd
