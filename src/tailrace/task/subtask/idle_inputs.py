"""Silence in one subtask: which inputs of event time have been empty for so long that the others go on without them."""

from __future__ import annotations

from tailrace.task.channels.gate import Gate
from tailrace.task.operators.loops import HeadTask
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.subtask.chain import Chain


class EmptyInputs:
    """Watch for empty inputs, for the operators of a chain that assign timestamps. Directly behind a source the inputs
    are its splits, each when it was read and was empty. Elsewhere it is the input of the task, when nothing is left to do
    but to wait."""

    def __init__(self, chain: Chain, gate: Gate, head: HeadTask | None) -> None:
        self._listening = [generator for generator in chain.generators if generator.listens]
        self._source, self._chain = chain.source, chain
        self._gate = gate
        self._head = head
        self.of_input = bool(self._listening) and self._source is None
        """True if it is the input of the task that falls silent."""

    def next_due(self) -> int | None:
        """The earliest time (int64 microseconds) at which a split of the source will have been silent for long enough, if
        it stays so, or at which event time goes on by the clock."""
        if not self._listening:
            return None
        due = (time for op in self._listening for time in (op.next_silence(), op.next_move()) if time is not None)
        return min(due, default=None)

    def splits_fall_silent(self, now: int) -> bool:
        """Passes on which splits were found empty. True if one that is empty now has been so for long enough."""
        assert self._source is not None
        if not self._listening:
            self._source.empty_splits.clear()
            return False
        found, self._source.empty_splits = self._source.empty_splits, []
        for generator in self._listening:
            for split in [*found, *self._former_of(generator)]:
                generator.found_empty(split, now)
        due = self.next_due()
        if due is None or due > now:
            return False
        known = self._source.known_empty(now).union(found)
        fell = [
            generator.fall_silent(known.union(self._former_of(generator)), now) | generator.move_by_the_clock(now)
            for generator in self._listening
        ]
        return any(fell)

    def _former_of(self, generator: TimestampsTask) -> list[int]:
        """Splits that have ended and hold event time: there is nothing in them until others follow."""
        return generator.former() if self._source is not None and self._source.follows else []

    def look(self, now: int) -> int | None:
        """The time (int64 microseconds) at which the input is to be looked at next, while the task waits for it; None if
        never."""
        if not self.of_input or self._gate.front or self._chain.waits_for_calls:
            return None
        return min((time for op in self._listening if (time := op.look(now)) is not None), default=None)

    def input_is_due(self, now: int) -> bool:
        """True if the input is empty, and has been so for long enough."""
        gate, head = self._gate, self._head
        if (
            gate.has_input
            or self._chain.waits_for_calls
            or not any(op.input_is_silent(now) or op.is_to_move(now) for op in self._listening)
        ):
            return False
        return not gate.ended if head is None else not (head.over or head.queue.ready)

    def input_falls_silent(self, now: int) -> None:
        """Marks the input as silent: it has been empty for long enough."""
        for generator in self._listening:
            generator.input_falls_silent(now)
