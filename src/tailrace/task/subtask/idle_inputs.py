"""Silence in one subtask: which inputs of event time have had nothing for so long that the others go on without them."""

from __future__ import annotations

from tailrace.task.channels.gate import Gate
from tailrace.task.subtask.chain import Chain
from tailrace.task.subtask.looping import TaskLoop


class EmptyInputs:
    """What the operators of a chain that assign timestamps are told of empty inputs. Directly behind a source these are its
    splits, each when it was read and had nothing; else the input of the task, when nothing is left to do but to wait."""

    def __init__(self, chain: Chain, gate: Gate, loop: TaskLoop | None) -> None:
        self._listening = [generator for generator in chain.generators if generator.listens]
        self._source = chain.source
        self._gate = gate
        self._loop = loop
        self.of_input = bool(self._listening) and self._source is None
        """Whether it is the input of the task that falls silent."""

    def next_due(self) -> int | None:
        """When a split of the source will have been silent for long enough, if it is so until then (int64 microseconds)."""
        return min((time for op in self._listening if (time := op.next_silence()) is not None), default=None)

    def splits_fall_silent(self, now: int) -> bool:
        """Tells which splits were found empty. True where one that is empty now has been so for long enough."""
        assert self._source is not None
        found, self._source.empty_splits = self._source.empty_splits, []
        for generator in self._listening:
            for split in found:
                generator.found_empty(split, now)
        due = self.next_due()
        if due is None or due > now:
            return False
        known = self._source.known_empty(now).union(found)
        fell = [generator.fall_silent(known, now) for generator in self._listening]
        return any(fell)

    def look(self, now: int) -> int | None:
        """The task waits for input: when the input is to be looked at next (int64 microseconds)."""
        if not self.of_input or self._gate.front:
            return None
        return min((time for op in self._listening if (time := op.look(now)) is not None), default=None)

    def input_is_due(self, now: int) -> bool:
        """Whether the input is empty, and has been so for long enough."""
        gate, head = self._gate, None if self._loop is None else self._loop.head
        if gate.has_input or not any(op.input_is_silent(now) for op in self._listening):
            return False
        return not gate.ended if head is None else not (head.over or head.queue.ready)

    def input_falls_silent(self, now: int) -> None:
        """The input has been empty for long enough."""
        for generator in self._listening:
            generator.input_falls_silent(now)
