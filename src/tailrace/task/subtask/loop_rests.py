"""The rests of one task's loop nest: each is a number that all operators of the nest work off when nothing is left in it.
See `docs/protocols/termination.md`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tailrace.elements.markers import Rest
from tailrace.protocol.termination import Gathering
from tailrace.task.channels.outbox import Outbox
from tailrace.task.contract.cut_state import CutState
from tailrace.task.subtask.chain import Chain
from tailrace.task.subtask.loop_place import Inner, LoopPlace


@dataclass(eq=False)
class RestsCutState(CutState):
    """State of a task's rests at a cut that no checkpoint holds."""

    numbers: Gathering[Inner]
    _current: int | None = None
    """The number of rest that has come here and was not passed on yet."""
    _left: deque[int] = field(default_factory=deque)
    """The operators that have not worked it off, as indices of the chain."""


class LoopRests(RestsCutState):
    """The part of a task in the rests of its nest: functions may emit, and the marker of rest goes behind that."""

    def __init__(self, place: LoopPlace, chain: Chain, outbox: Outbox) -> None:
        super().__init__(Gathering(place.channels))
        self._head, self._chain, self._outbox = place.head, chain, outbox

    def begin(self, number: int) -> None:
        """Begins a rest that has come on all channels."""
        self._current = number
        operators = enumerate(self._chain.operators)
        self._left = deque(i for i, op in operators if number > op.rests and not op.finished)
        if number > self.numbers.done and self._head is not None:
            self._head.fed = False
        if self.due:
            self.go_on()

    @property
    def due(self) -> bool:
        """True if a number of rest is to be worked off. Timers of the clock, which the operators before may have set at
        their rest, are awaited first, as at the end of any input."""
        return self._current is not None and not self._awaits_timers

    @property
    def _awaits_timers(self) -> bool:
        return bool(self._left) and self._chain.operators[self._left[0]].awaits_timers()

    def go_on(self) -> None:
        """Lets operators emit at rest, in order; behind that, passes the number on."""
        while self._left and not self._awaits_timers:
            operator = self._chain.operators[self._left.popleft()]
            operator.rests = self._current or 0
            operator.at_rest()
        if not self._left and self._current is not None:
            number, self._current = self._current, None
            self.numbers.due(number)
            self._outbox.mark(Rest(number))
