"""The replay of a slice task by task, for tasks that meet in their channels only.

A history is one order of all that a slice did. Most of this order need not be kept, since what a task makes of its input
does not depend on other tasks. So each task replays its own part of the history, as far as its input has arrived.
Consecutive steps that read channels are replayed as one: a worker with little latency takes small steps, and most of
their cost does not depend on the number of records. The records of each channel are equal to the first ones and in their
order; the frames may differ, so channels are compared by counts of records (`task.journal.digests`).

Watermarks go where frames end, so they are elsewhere on the channels as well. What a task has read of event time is in its
history, and a replay takes it from there (Y14). A watermark of which nothing has come but later event time is read together
with the records around it: first all these records, then the watermark. It goes on later than it did, which is always safe.

Steps are replayed in one order, or one by one, where a difference would show:

- in a job with loops that is more than passing records on (`needs_no_coordinator`): waves count what is in channels at one
  moment of the worker, rounds and commands of the coordinator are for several tasks at once, and which feedback is merged
  depends on when it is read;
- with records in flight at the restored cut, for as long as they are read;
- for an operator that may see which records it is given together, or event time by itself;
- for steps in which user code has requested the clock, event time, the shared random generators, or an answer of the world.
  Readings of the clocks and random bytes of its process are such an answer only where several operators may read them;
- for steps in which a timer has fired, and where a channel is idle, or becomes so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from tailrace.api.restore.kinds import takes_many
from tailrace.elements.batches import Batch, join
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import InternalError
from tailrace.graph import operators
from tailrace.protocol.message_codec import NestCommand
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.journal.clock_readings import are_all_of_a_reader, may_be_merged
from tailrace.task.journal.divergence import as_before
from tailrace.task.journal.history import Cut, Did, Entry, Flushed, Heard
from tailrace.task.journal.merged_reads import Pieces, totals
from tailrace.task.journal.outside_answers import Gave
from tailrace.task.journal.replayable_feedback import feedback_of
from tailrace.task.journal.replayable_gate import A_BARRIER, A_MARKER, A_TIME, FEEDBACK, Unread, gate_of, is_time
from tailrace.task.journal.replayable_outbox import outbox_of
from tailrace.task.subtask.machine import FEEDBACK_READS, READS, WITHOUT_WAVES, Task
from tailrace.task.subtask.order import NOTHING

RECORD_BY_RECORD = (
    operators.Map, operators.Filter, operators.FlatMap, operators.Process, operators.KeyedProcess, operators.CoProcess,
    operators.BroadcastProcess, operators.Aggregate, operators.Reduce, operators.Sink, operators.Head, operators.Tail,
    operators.EnterLoop, operators.LeaveLoop,
)  # fmt: skip
"""Operators whose output does not depend on how their input is divided into portions, nor on event time by itself; of keyed
functions those without `process_many`."""
IN_ORDER = operators.Map, operators.Filter, operators.FlatMap, operators.Process, operators.KeyedProcess
"""Operators that call user code for one record after the other."""
PORTION = 2048
"""Records that one task replays, about, before the next task has its turn."""
_LEAST = 16
"""Least number of records that a step counts for in a turn, if it is replayed by itself."""


def needs_no_coordinator(slice: ReplayableSlice, history: Iterable[Entry]) -> bool:
    """True for a job with loops, restored from a checkpoint, in whose history tasks have nothing in common but the records
    in their channels and in queues of feedback. There are no markers but barriers: no event time, no waves, no ends. Event
    time that a task makes may be in its channels though no other task has read of it yet."""
    loops = [node.operator.loop for node in slice.plan.graph.nodes if isinstance(node.operator, operators.Head)]
    if any(loop.rounds is not None or loop.combine_merge is not None for loop in loops):
        return False
    leaves = [task.loop.leave for task in slice.tasks if task.loop.leave is not None]
    if (
        any(task.chain.generators for task in slice.tasks)
        or any(leave.idle for leave in leaves)
        or not all(time in (MIN_TIME, MAX_TIME) for task in slice.tasks for time in task.chain.arrived)
    ):
        return False
    return all(map(passes_records_on, history))


def passes_records_on(entry: Entry) -> bool:
    """True for what a task of a loop may do again by itself: it reads records, seals, or cuts while no wave is under way."""
    match entry:
        case Heard():
            return not isinstance(entry.message, NestCommand)
        case Cut():
            return not entry.waves
        case Flushed():
            return True
    if entry.line in FEEDBACK_READS:
        return entry.facts[0] == 0
    return entry.line == NOTHING or (entry.line in WITHOUT_WAVES and A_MARKER not in entry.facts[1::2])


class NeedsOneOrder(Exception):
    """An error of a hot standby whose tasks each replay their own part of a loop: from here on they may not."""


class Lanes:
    """The parts of a history that are left to replay, by task, the most upstream one first.

    Invariant Y10: each task does its own part in order, and reads the same records of the same channels, behind each
    other, as when it was done first.
    """

    def __init__(
        self,
        slice: ReplayableSlice,
        history: Iterable[Entry],
        before: Container[int],
        has_come: Callable[[Entry], bool],
        do: Callable[[Entry, Task], None],
    ) -> None:
        """`before`: vertices whose entries are skipped up to their next cut. `has_come`: whether the input of an entry
        has arrived. `do`: replays an entry for a task."""
        self._slice = slice
        self._lanes = {task.vertex.id: Lane(slice, task, before, has_come, do) for task in reversed(slice.tasks)}
        self.add(history)

    def add(self, history: Iterable[Entry]) -> None:
        """Adds entries behind those that are left."""
        for entry in history:
            if isinstance(entry, Heard):
                for lane in self:
                    lane.entries.append(entry)
            elif not isinstance(entry, Flushed):  # turns seal what was gathered
                self._lanes[entry.vertex].entries.append(entry)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __bool__(self) -> bool:
        return any(lane.entries for lane in self)

    def is_left(self, task: Task) -> bool:
        """True while a task has entries left."""
        return bool(self._lanes[task.vertex.id].entries)

    def has_come_back(self, task: Task, count: int) -> bool:
        """True if so many records are in the queue of feedback of a head, or will never be."""
        assert task.loop.head is not None
        tails = self._slice.tails_of(task)
        return task.loop.head.queue.records >= count or not any(map(self.is_left, tails))

    @property
    def left(self) -> list[Entry]:
        """Entries that are still to be replayed."""
        return [entry for lane in self for entry in lane.entries]

    def go_on(self) -> bool:
        """Gives each task a turn. True if any has replayed something."""
        moved = [lane.turn() for lane in self]
        if not self:
            for lane in self:
                lane.flush()
        return any(moved)


class Lane:
    """The part of a history that is left to one task."""

    def __init__(
        self,
        slice: ReplayableSlice,
        task: Task,
        before: Container[int],
        has_come: Callable[[Entry], bool],
        do: Callable[[Entry, Task], None],
    ) -> None:
        self.entries: deque[Entry] = deque()
        self._slice, self._task, self._before = slice, task, before
        self._has_come, self._do = has_come, do
        replayed = slice.recorder.again
        assert replayed is not None
        self._answers = replayed
        source = task.chain.source
        larger = all(_takes_any_portions(one.node.operator) for one in task.chain.operators if one is not source)
        self._larger = larger and source is None
        """True if several steps that read channels may be replayed as one."""
        here = [one.node.operator for one in task.chain.operators]
        readers = [one for one in here if not isinstance(one, operators.Sink)]
        self._alone = len(readers) == 1 and isinstance(readers[0], IN_ORDER)
        """True if so may steps in which user code reads clocks: one operator takes record by record, so it reads them in
        one order."""
        self._source = source if larger and source is not None and source.source.form == "rows" else None
        """The source of the task, if the records of its reads may go on together."""
        head = task.loop.head
        self._head = None if head is None or head.loop.separate else head
        """The head of a loop in the task, if its feedback may be read together with its input."""
        self._readers = {slice.slot, *slice.together}
        """Slots whose tasks wait for what the task sends. What it sends to others goes when the replay is over, so it is
        gathered in large frames."""

    def turn(self) -> bool:
        """Replays about a portion. True if it has replayed anything."""
        task, left = self._task, PORTION
        while self.entries and left > 0:
            with as_before(task, self.entries[0]):
                done = self._several(left) or self._reads(left) or self._one()
            if not done:
                break
            left -= done
        with as_before(task, "what it sends"):
            outbox_of(task).flush_to(self._readers)
        self._slice.route(task)
        return left < PORTION

    def flush(self) -> None:
        """Seals all that the task has gathered."""
        with as_before(self._task, "what it sends"):
            self._task.flush()
        self._slice.route(self._task)

    def _several(self, most: int) -> int:
        """Replays several steps as one. Returns for about how many records they count; 0 if the next entry is no such
        step, or its input has not arrived."""
        task = self._task
        if not self._larger or not task.work.may_take_merged or task.vertex.id in self._before:
            return 0
        run, gate = self._run(most), gate_of(task)
        if not run:
            return 0
        self._answers.give([answer for entry, _ in run for answer in entry.answers])
        last, pieces = run[-1][0], [one for _, read in run for one in read.records]
        marks = [one for _, read in run for one in read.time]
        task.work.begin(last.now)
        task.wake()
        batches, grants = gate.merge(pieces, self._feedback(pieces)) if pieces else ([], [])
        task.work.take_merged(batches, grants)
        if marks or task.chain.generators:
            gate.mark_times(marks)
            task.work.advance_merged(last.budget)
        self._check_answers()
        return len(run) + sum(pieces[1::2])

    def _run(self, most: int) -> list[tuple[Did, _Read]]:
        """The next steps that are replayed as one, which are taken off, each with what it has read: about `most` records,
        or up to the last watermark. What is read behind a watermark may set a timer for the time before it, which is not
        due before the next one."""
        entries, run, records, end = self.entries, list[tuple[Did, _Read]](), 0, 0
        unread: dict[int, Unread] = {}
        while entries and records < most:
            entry = entries[0]
            read = self._read_by(entry)
            if read is None or not (
                self._is_later_time(read.time) if read.time else self._are_here(read.records, unread)
            ):
                break
            assert isinstance(entry, Did)
            entries.popleft()
            run.append((entry, read))
            records += 1 + sum(read.records[1::2])
            end = len(run) if read.time else end
        for entry, _ in reversed(run[end:] if end else ()):
            entries.appendleft(entry)
        return run[:end] if end else run

    def _read_by(self, entry: Entry) -> _Read | None:
        """What a step has read, if it may be replayed with others; else None."""
        if not isinstance(entry, Did) or entry.by_itself:
            return None
        if entry.answers and not (self._alone and may_be_merged(entry.answers)):
            return None
        if entry.line in READS:
            return _read_by(entry.facts)
        if self._head is None or entry.line not in FEEDBACK_READS or self._task.gate.all_idle:
            return None
        wave, count = entry.facts[:2]
        return None if wave else _Read((FEEDBACK, count) if count else ())

    def _feedback(self, pieces: Pieces) -> list[Batch]:
        """The records of pieces that had come back to the head of a loop."""
        count = totals(pieces).get(FEEDBACK, 0)
        if not count:
            return []
        assert self._head is not None
        return self._head.as_input(feedback_of(self._head).take_records(count))

    def _is_later_time(self, time: Sequence[int]) -> bool:
        """True if a marker of event time is a watermark, and no channel is idle: then it does not matter which of several
        watermarks, or of records on other channels, is read first."""
        return time[1] >= A_TIME and not gate_of(self._task).any_idle

    def _check_answers(self) -> None:
        """Raises `InternalError` if user code has read more or less than the first time."""
        if difference := self._answers.difference:
            raise InternalError(f"Y1: {self._task.id}: {difference}", self._task.work.story)

    def _are_here(self, read: Sequence[int], unread: dict[int, Unread]) -> bool:
        """True if the input of a step has arrived. `unread`: the records behind the steps before, by channel number."""
        for at in range(0, len(read), 2):
            number = read[at]
            found = unread.get(number)
            if found is None:
                found = unread[number] = self._unread(number)
            if not found.take(read[at + 1]):
                return False
        return True

    def _unread(self, number: int) -> Unread:
        if number != FEEDBACK:
            return gate_of(self._task).unread(number)
        assert self._head is not None
        return Unread(iter((self._head.queue.records,)))

    def _reads(self, most: int) -> int:
        """Replays several steps of a source. Each has its own clock, by which a reader may make its records; behind the
        source the records go on together. Returns for how many records they count; 0 if the next entry is no such step."""
        source, task = self._source, self._task
        if source is None or task.vertex.id in self._before:
            return 0
        given, out, records = list[Batch](), source.out, 0
        source.out = given.append
        try:
            while self.entries and records < most and _is_a_read(self.entries[0]) and not source.opened_splits:
                records += self._one()
        finally:
            source.out = out
        if not task.chain.generators:
            given = join(given)
        for batch in given:
            out(batch)
        if given and task.chain.generators:
            task.work.advance_merged(1)
        self._check_answers()
        return records

    def _one(self) -> int:
        """Replays the next entry by itself. Returns for how many records it counts; 0 if its input has not arrived."""
        entry = self.entries[0]
        if not self._has_come(entry):
            return 0
        self._do(self.entries.popleft(), self._task)
        return max(_LEAST, self._task.work.last_count)


def _takes_any_portions(operator: operators.Operator) -> bool:
    """True for an operator that makes the same of its records in whatever portions they come, and of watermarks wherever
    they are between these."""
    if isinstance(operator, operators.AssignTimestamps):
        return not operator.by_the_clock
    in_order = getattr(operator, "in_order", False)  # whether a record is late depends on the watermark before it
    together = isinstance(operator, operators.KeyedProcess) and takes_many(operator.fn)
    return isinstance(operator, RECORD_BY_RECORD) and not (in_order or together)


def _is_a_read(entry: Entry) -> bool:
    """True if the only answers of the world in a step are of a reader: that it gave records, or that it had none and
    until when."""
    if not isinstance(entry, Did) or entry.by_itself or not entry.answers:
        return False
    first, *others = entry.answers
    return isinstance(first, Gave) and first.count >= 0 and (first.count == 0 or are_all_of_a_reader(others))


class _Read(NamedTuple):
    """What a step has read: records, or event time."""

    records: Sequence[int]
    """The number of a channel and a count of records, number, count, and so on."""
    time: Sequence[int] = ()
    """The number of a channel and the fact of a marker of event time."""


def _read_by(facts: Sequence[int]) -> _Read | None:
    """What a step has read, by the facts of its history entry, without barriers. None for other markers."""
    if len(facts) == 2 and facts[1] > 0:
        return _Read((), facts) if is_time(facts[1]) else _Read(facts)
    read: list[int] = []
    for at in range(0, len(facts), 2):
        number, count = facts[at], facts[at + 1]
        if count > 0 or is_time(count):
            read += number, count
        elif count != A_BARRIER:
            return None
    times = [is_time(fact) for fact in read[1::2]]
    return (_Read((), read) if len(times) == 1 else None) if any(times) else _Read(read)
