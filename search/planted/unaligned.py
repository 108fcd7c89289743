"""Bugs to be planted in the records in flight that unaligned checkpoints hold, and in how these come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from search.campaigns.unaligned import rescaled_run
from search.planted.patches import RANDOM, STOPS, Bug, Patches, company, method
from search.scenarios import MS, Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.graph.operators import Hash
from tailrace.state.parts import LogOf
from tailrace.task.channels.channel_logs import LogFrame
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.outbox import Outbox
from tailrace.task.inflight.overtaken_records import InFlightRecording
from tailrace.task.subtask import returning
from tailrace.task.subtask.alignment import Alignment
from tailrace.task.subtask.returning import Piece, Returned
from tailrace.task.subtask.snapshot import TaskSnapshot
from tailrace.testing.faults import Fault

CAP = 300
"""Bytes that may be in flight at a cut, where there is a cap."""


# Scenarios that show the bugs sooner.


def _behind(made: Scenario) -> Scenario:
    """A scenario of a job that is behind in narrow channels, is cut at once and again and again, and is killed soon after
    commits."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, overtakes_after=0, keep=1)
    faults = [Fault(4 * number, "kill", number, after=f"commit {number} done") for number in range(2, 14)]
    return replace(
        made, parallelism=3, network="slow", rate=None, window=400, checkpoints=settings, faults=tuple(faults)
    )


def _crowd(made: Scenario) -> Scenario:
    """The scenario of `_behind`, where most waiting frames have no credit."""
    return replace(_behind(made), network="uneven", window=100)


def _half_read(made: Scenario) -> Scenario:
    """The scenario of `_behind`, where batches are larger than what a task reads in a step."""
    return replace(_behind(made), network="in small steps", window=1_000, n=240)


def _one_frame_at_once(made: Scenario) -> Scenario:
    """The scenario of `_behind`, where a channel holds one frame at most, so that restored records stay in their file
    until they are due."""
    return replace(_behind(made), window=1)


def _in_portions(made: Scenario) -> Scenario:
    """A scenario of a job that fires few timers in a step, cuts again and again, aligned, and is killed after commits."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, timeout=600_000_000, keep=1)
    faults = tuple(Fault(number, "kill", number, after=f"commit {number} done") for number in range(1, 10))
    return replace(made, parallelism=2, network="in small steps", rate=None, checkpoints=settings, faults=faults)


def _left_in_a_loop(run: Any) -> Any:
    """The run with a loop whose head has its records by key. It is left with some of them on their way, for another
    parallelism."""
    made = run.scenario
    settings = replace(
        made.checkpoints, interval=1 * MS, tolerated_failures=10_000, overtakes_after=0, timeout=600_000_000
    )
    return replace(run, scenario=replace(made, program="separate", n=120, window=1, checkpoints=settings))


def _cap(made: Scenario) -> Scenario:
    made = _crowd(made)
    assert made.checkpoints is not None
    return replace(made, checkpoints=replace(made.checkpoints, most_inflight=CAP))


# The bugs.


def _nothing_on_one_channel() -> Patches:
    """Bug: of the records that barriers overtake on the channels of a task, those on the first channel are not
    recorded."""

    def make(overtake: Any) -> Any:
        def forgetful(self: InFlightRecording, number: int) -> None:
            first, run = next(iter(self._in_line.get(number, {None: None}))), Outbox.overtaken_by

            def without(outbox: Outbox, channel: Any, checkpoint: int) -> Any:
                return [] if channel.id == first else run(outbox, channel, checkpoint)

            with mock.patch.object(Outbox, "overtaken_by", without):
                overtake(self, number)

        return forgetful

    return [method(InFlightRecording, "overtake_output", make)]


def _with_reading(change: Any) -> Patches:
    """Patches under which a cut sees the batch that is half read as `change` makes it."""

    def make(unread: Any) -> Any:
        def otherwise(self: InFlightRecording, recording: Any, log: Any, channel: InputChannel) -> bool:
            as_it_is = channel.reading, channel.taken
            change(channel)
            try:
                return bool(unread(self, recording, log, channel))
            finally:
                channel.reading, channel.taken = as_it_is

        return otherwise

    return [method(InFlightRecording, "_unread", make)]


def _half_read_forgotten() -> Patches:
    return _with_reading(lambda channel: setattr(channel, "reading", None))


def _half_read_twice() -> Patches:
    return _with_reading(lambda channel: setattr(channel, "taken", 0))


def _behind_new_data() -> Patches:
    """Bug: restored records are read after new ones."""
    kept: dict[int, Any] = {}

    def make_returned(returned: Any) -> Any:
        return lambda self, front: kept.update({id(self): (self, returned, front)})

    def make_take(take: Any) -> Any:
        def late(self: Gate, limit: int) -> Any:
            taken = take(self, limit)
            if id(self) in kept and taken.batch is not None and kept[id(self)][0] is self:
                _, returned, front = kept.pop(id(self))
                self._turn.clear()
                returned(self, front)
            return taken

        return late

    return [method(Gate, "put_in_front", make_returned), method(Gate, "take", make_take)]


def _read_late_behind_new_data() -> Patches:
    """Bug: the gate does not wait for restored records that are still in their file: it reads them once they are
    loaded."""
    aside: dict[int, InputChannel] = {}

    def make_next(next_front: Any) -> Any:
        def impatient(self: Gate) -> None:
            while self.front and not any(one.ready or one.drained for one in self.front[0]):
                aside.update((id(channel), channel) for channel in self.front.popleft())
            self.compare_anew()
            next_front(self)

        return impatient

    def make_loaded(loaded: Any) -> Any:
        def late(self: Gate, channel: InputChannel) -> None:
            if aside.pop(id(channel), None) is channel:
                self.front.appendleft([channel])
                self.compare_anew()
                self._turn.clear()
            loaded(self, channel)

        return late

    return [method(Gate, "_next_front", make_next), method(Gate, "note_loaded", make_loaded)]


def _time_forgotten_between_portions() -> Patches:
    """Bug: a cut takes for event time only how far timers have fired."""

    def make(freeze: Any) -> Any:
        return lambda self, operator, reached, arrived: freeze(self, operator, reached, reached)

    return [method(TaskSnapshot, "_freeze", make)]


def _inside_by_number() -> Patches:
    """Bug: records that were in flight from a loop's head go by the number of their subtask, whether that has their keys
    or not."""
    return [mock.patch.object(returning, "key_at", lambda operator, port: None)]


def _filtered_too_late() -> Patches:
    """Bug: at another parallelism every subtask that a record of a frame may be for takes all records of the frame."""

    def make(add: Any) -> Any:
        def whole(self: Returned, part: LogOf) -> None:
            way, _, _ = self._way(part.channel)
            if not part.count or not isinstance(way, Hash):
                return add(self, part)
            if self._concerns(way, part.channel.target_subtask, part.parallelism):
                halves = self._frames.setdefault((part.age, part.channel, part.turn), {})
                halves.setdefault(part.kind, []).append(Piece(part.count, LogFrame(0, part.count, bytes(part.data))))
            return None

        return whole

    return [method(Returned, "add", make)]


def _cap_that_drops() -> Patches:
    """Bug: a task cuts whatever waits, and records no more than the cap allows."""

    def make_struck(struck: Any) -> Any:
        def at_once(self: Alignment, now: int) -> bool:
            with mock.patch.object(InFlightRecording, "unread", lambda self, number: 0):
                return bool(struck(self, now))

        return at_once

    def make_write(write: Any) -> Any:
        def dropping(self: InFlightRecording, recording: Any, log: Any, item: Any, at: Any = None) -> None:
            if sum(one.size for one, _, _ in log.entries) + item.size <= CAP:
                write(self, recording, log, item, at)
            else:
                self._shelf.release(item)

        return dropping

    return [method(Alignment, "is_due", make_struck), method(InFlightRecording, "_write", make_write)]


OVERTAKING_BUGS = (
    Bug("what is overtaken on one channel is lost", "by_classes", _nothing_on_one_channel, _crowd),
    Bug("a batch that is half read is not in flight", "by_classes", _half_read_forgotten, _half_read),
    Bug("a batch that is half read is in flight as a whole", "by_classes", _half_read_twice, _half_read),
    Bug("what was in flight comes back behind new records", "in_event_time", _behind_new_data, _crowd),
    Bug(
        "what is read late comes back behind new records",
        "counted",
        company(_read_late_behind_new_data),
        _one_frame_at_once,
        8,
    ),
    Bug(
        "a cut between portions of timers forgets how far event time had come",
        "without_going_back",
        _time_forgotten_between_portions,
        _in_portions,
        seed=25,
    ),
    Bug(
        "what was in flight is not dealt out record by record",
        RANDOM,
        _filtered_too_late,
        seed=51,
        shape=rescaled_run,
    ),
    Bug("what was in flight inside a loop goes by number", STOPS, company(_inside_by_number), _left_in_a_loop, 44),
    Bug("more in flight than the cap allows is dropped", "by_classes", _cap_that_drops, _cap, 3),
)
