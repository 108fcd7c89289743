"""The replay of a slice task by task, for tasks that meet in their channels only.

A history is one order of all that a slice did. Most of this order need not be kept, since what a task makes of its input
does not depend on other tasks. So each task replays its own part of the history, as far as its input has arrived.
Consecutive steps that read channels are replayed as one: a worker with little latency takes small steps, and most of
their cost does not depend on the number of records. The records of each channel are equal to the first ones and in their
order; the frames may differ, so channels are compared by counts of records (`task.journal.digests`).

Steps are replayed in one order, or one by one, where a difference would show:

- in a job with loops, whose waves count frames, and share queues and commands among tasks;
- where event time is assigned, or was when the restored checkpoint was taken: a watermark goes where frames end;
- with records in flight at the restored cut, for as long as they are read;
- for an operator that may see which records it is given together;
- for steps in which user code has requested the clock, the shared random generators, or an answer of the world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from tailrace.elements.batches import Batch, join
from tailrace.errors import InternalError
from tailrace.graph import operators
from tailrace.graph.plan import Plan
from tailrace.task.failover.recorded_slice import RecordedSlice
from tailrace.task.journal.divergence import as_before
from tailrace.task.journal.history import Did, Entry, Flushed, Heard
from tailrace.task.journal.recorded_answers import Gave
from tailrace.task.journal.recorded_gate import A_BARRIER, gate_of
from tailrace.task.journal.recorded_readings import GivenReadings, are_all_of_a_reader
from tailrace.task.subtask.machine import READS, Task

RECORD_BY_RECORD = (
    operators.Map, operators.Filter, operators.FlatMap, operators.Process, operators.KeyedProcess, operators.CoProcess,
    operators.Aggregate, operators.Reduce, operators.Sink,
)  # fmt: skip
"""Operators whose output does not depend on how their input is divided into portions."""
PORTION = 2048
"""Records that one task replays, about, before the next task has its turn."""
_LEAST = 16
"""Least number of records that a step counts for in a turn, if it is replayed by itself."""


def meets_in_channels(plan: Plan) -> bool:
    """True for a job whose tasks have nothing in common but the contents of their channels, wherever frames end there."""
    return not plan.nests and not any(
        isinstance(node.operator, operators.AssignTimestamps) for node in plan.graph.nodes
    )


class Lanes:
    """The parts of a history that are left to replay, by task, the most upstream one first.

    Invariant Y10: each task does its own part in order, and reads the same records of the same channels, behind each
    other, as when it was done first.
    """

    def __init__(
        self,
        slice: RecordedSlice,
        history: Iterable[Entry],
        before: Container[int],
        has_come: Callable[[Entry], bool],
        do: Callable[[Entry, Task], None],
    ) -> None:
        """`before`: vertices whose entries are skipped up to their next cut. `has_come`: whether the input of an entry
        has arrived. `do`: replays an entry for a task."""
        self._lanes = {task.vertex.id: Lane(slice, task, before, has_come, do) for task in reversed(slice.tasks)}
        for entry in history:
            if isinstance(entry, Heard):
                for lane in self:
                    lane.entries.append(entry)
            elif not isinstance(entry, Flushed):  # each turn ends with a flush of what was gathered
                self._lanes[entry.vertex].entries.append(entry)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __bool__(self) -> bool:
        return any(lane.entries for lane in self)

    def is_left(self, task: Task) -> bool:
        """True while a task has entries left."""
        return bool(self._lanes[task.vertex.id].entries)

    @property
    def left(self) -> list[Entry]:
        """Entries that are still to be replayed."""
        return [entry for lane in self for entry in lane.entries]

    def go_on(self) -> bool:
        """Gives each task a turn. True if any has replayed something."""
        moved = [lane.turn() for lane in self]
        return any(moved)


class Lane:
    """The part of a history that is left to one task."""

    def __init__(
        self,
        slice: RecordedSlice,
        task: Task,
        before: Container[int],
        has_come: Callable[[Entry], bool],
        do: Callable[[Entry, Task], None],
    ) -> None:
        self.entries: deque[Entry] = deque()
        self._slice, self._task, self._before = slice, task, before
        self._has_come, self._do = has_come, do
        readings = slice.services.outside.readings
        self._given = readings if isinstance(readings, GivenReadings) else None
        source = task.chain.source
        behind = [one for one in task.chain.operators if one is not source]
        larger = all(isinstance(one.node.operator, RECORD_BY_RECORD) for one in behind)
        self._larger = larger and source is None
        """True if several steps that read channels may be replayed as one."""
        self._source = source if larger and source is not None and source.source.form == "rows" else None
        """The source of the task, if the records of its reads may go on together."""

    def turn(self) -> bool:
        """Replays about a portion. True if it has replayed anything."""
        task, left = self._task, PORTION
        while self.entries and left > 0:
            with as_before(task, self.entries[0]):
                done = self._several(left) or self._reads(left) or self._one()
                lacked = self._given.lacked if self._given is not None else ""
                if lacked:
                    raise InternalError(lacked, task.work.story)
            if not done:
                break
            left -= done
        if task.outbox.oldest is not None:
            with as_before(task, "what it sends"):
                self._check()
                task.flush()
        self._slice.route(task)
        return left < PORTION

    def _several(self, most: int) -> int:
        """Replays several steps as one. Returns for about how many records they count; 0 if the next entry is no such
        step, or its input has not arrived."""
        task = self._task
        if not self._larger or not task.work.may_take_merged or task.vertex.id in self._before:
            return 0
        pieces, now = list[int](), 0
        here: dict[int, int] = {}
        entries, records = self.entries, 0
        while entries and records < most:
            entry = entries[0]
            if not isinstance(entry, Did) or entry.line not in READS or entry.by_itself or entry.answers:
                break
            read = _records_read(entry.facts)
            if read is None or not self._are_here(read, here):
                break
            entries.popleft()
            pieces += read
            records += 1 + (read[1] if len(read) == 2 else sum(read[1::2]))
            now = entry.now
        if records:
            task.work.begin(now, seeded=False)
            task.wake()
            batches, grants = gate_of(task).merge(pieces)
            task.work.take_merged(batches, grants)
        return records

    def _are_here(self, read: Sequence[int], here: dict[int, int]) -> bool:
        """True if the input of a step has arrived. `here`: for each channel number, the records that are unread behind
        the steps before."""
        for at in range(0, len(read), 2):
            number, count = read[at], read[at + 1]
            if number not in here:
                here[number] = gate_of(self._task).records_here(number, PORTION)
            here[number] -= count
            if here[number] < 0:
                return False
        return True

    def _reads(self, most: int) -> int:
        """Replays several steps of a source. Each has its own clock, by which a reader may make its records; behind the
        source the records go on together. Returns for how many records they count; 0 if the next entry is no such step."""
        source = self._source
        if source is None or self._task.vertex.id in self._before:
            return 0
        given, out, records = list[Batch](), source.out, 0
        source.out = given.append
        try:
            while self.entries and records < most and _is_a_read(self.entries[0]):
                records += self._one()
        finally:
            source.out = out
        for batch in join(given):
            out(batch)
        return records

    def _one(self) -> int:
        """Replays the next entry by itself. Returns for how many records it counts; 0 if its input has not arrived."""
        entry = self.entries[0]
        if not self._has_come(entry):
            return 0
        self._do(self.entries.popleft(), self._task)
        return max(_LEAST, self._task.work.last_count)

    def _check(self) -> None:
        for channel in self._task.outbox.channels.values():
            if channel.watermark_due > channel.watermark_sent or channel.idle_due or channel.awake_due:
                raise InternalError(f"Y10: {self._task.id} has event time to tell of on channel {channel.id}", ())


def _is_a_read(entry: Entry) -> bool:
    """True if the only answers of the world in a step are of a reader: that it gave records, or that it had none and
    until when."""
    if not isinstance(entry, Did) or entry.by_itself or not entry.answers:
        return False
    first, *others = entry.answers
    return isinstance(first, Gave) and (first.count == 0 or are_all_of_a_reader(others))


def _records_read(facts: Sequence[int]) -> Sequence[int] | None:
    """The channel numbers and record counts that a step has read, by the facts of its history entry, without barriers:
    number, count, number, count, and so on. None if it has read a marker."""
    if len(facts) == 2 and facts[1] > 0:
        return facts
    read: list[int] = []
    for at in range(0, len(facts), 2):
        number, count = facts[at], facts[at + 1]
        if count > 0:
            read += number, count
        elif count != A_BARRIER:
            return None
    return read
