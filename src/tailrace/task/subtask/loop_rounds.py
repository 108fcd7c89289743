"""The rounds of one task's loop nest: the end of each, which operators see in portions, and its marker behind what they
emit then. See `docs/protocols/termination.md`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tailrace.elements.markers import RoundEnd, SpanRound
from tailrace.protocol.termination import Gathering
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.outbox import Outbox
from tailrace.task.contract.cut_state import CutState
from tailrace.task.subtask.chain import Chain
from tailrace.task.subtask.loop_place import Inner, LoopPlace


@dataclass(eq=False)
class RoundsCutState(CutState):
    """State of a task's rounds at a cut that no checkpoint holds."""

    numbers: Gathering[Inner]
    ending: int | None = None
    """The round whose end is in progress. Nothing else is done meanwhile, and no cut falls there."""
    next: int = 0
    """The number of the next round, within its span where rounds go by spans of event time."""
    span: SpanRound | None = None
    """The place of the round whose end is in progress, or was the last one."""
    _left: deque[int] = field(default_factory=deque)
    """The operators that have not seen it end, as indices of the chain."""


class LoopRounds(RoundsCutState):
    """The part of a task in the rounds of its nest. A loop part that no head feeds has round 0 only, which ends with what
    has entered the loop."""

    def __init__(self, place: LoopPlace, gate: Gate, chain: Chain, outbox: Outbox) -> None:
        super().__init__(Gathering(place.channels, -1))
        self._place, self._gate, self._chain, self._outbox = place, gate, chain, outbox
        for operator in chain.operators if place.in_rounds else ():
            operator.enter_rounds()

    def marker(self, channel: Inner, marker: RoundEnd) -> None:
        """Takes the end of a round on a channel."""
        if self.numbers.marker(channel, marker.round):
            self.end(marker.round, marker.span)

    def end(self, number: int, span: SpanRound | None = None) -> None:
        """Begins to end a round of which every record was worked off here. `go_on` does the rest."""
        self.ending, self.span = number, span
        if self._place.tail is not None:
            self._place.tail.queue.round_ended(number)
        self._left = deque(range(len(self._chain.operators)) if self.numbers.due(number) else ())
        for operator in self._chain.operators:
            operator.round_ends(number, span)

    def go_on(self, limit: int) -> None:
        """Does one portion of ending a round: operators in order, and then the marker behind what they emit."""
        assert self.ending is not None
        number, span = self.ending, self.span
        within = number if not self._place.by_spans else None if span is None else span.number_of(number)
        if self._left:
            operator = self._chain.operators[self._left[0]]
            if operator.end_span(limit) if within is None else operator.end_round(within, limit):
                self._left.popleft()
            return
        self.ending = None
        if number == self.numbers.done:
            self.next = 0 if within is None else within + 1
        for operator in self._chain.operators:
            operator.at_round(self.next)
        self._outbox.mark(RoundEnd(number, span))
        if self._place.head is not None:
            self._place.head.reported_round = number

    @property
    def due(self) -> bool:
        """True if the head has emitted all of a round, or all that has entered the loop was worked off, and the end of the
        round is to be marked; after a restore once more."""
        head = self._place.head
        if not self._place.in_rounds or self.ending is not None:
            return False
        if head is None:
            return self._gate.ended and self.numbers.done < 0
        if head.reported:
            return False
        if self._place.by_spans:
            return not head.ready
        return head.round_over or (self._gate.ended and not head.queue.ready)

    def end_current(self) -> None:
        """Begins the end of a round that is `due`."""
        head = self._place.head
        if head is not None:
            head.round_over = True
        self.end(0 if head is None else head.round, None if head is None else head.span)

    @property
    def under_way(self) -> bool:
        """True if the end of a round is still to be marked here, or has come on some channels and not on others."""
        head = self._place.head
        return (head is not None and self._place.in_rounds and not head.reported) or self.numbers.begun

    @property
    def newest(self) -> int:
        """The newest round that has ended here, in this attempt; -1 before."""
        if self._place.head is not None:
            return self._place.head.reported_round
        gathered = -1 if self.numbers.gathered is None else self.numbers.gathered
        return gathered if self.ending is None else self.ending - 1
