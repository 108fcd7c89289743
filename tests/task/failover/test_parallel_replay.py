"""A worker that replays what another one did lets each task go through its own part of that, and takes steps that read
one after the other as one, where no difference shows: the records of each channel are the same, whatever frames they
lie in."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from time import monotonic
from time import time as seconds
from typing import Any

import msgspec
import numpy as np
import pytest
from pyspark import cloudpickle

import tailrace as tr
from search.watchers.shadows import differences_of_state, differences_of_the_rest
from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId, decode
from tailrace.elements.markers import IdleChannel, Watermark
from tailrace.graph.plan import Plan
from tailrace.protocol.termination import StartWave
from tailrace.runtime.worker.interception import with_stand_ins
from tailrace.runtime.worker.random_state import SharedGenerators
from tailrace.task.channels.inputs import count_of
from tailrace.task.channels.services import Services
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.failover.parallel_replay import NeedsOneOrder, needs_no_coordinator
from tailrace.task.failover.replay import Again
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.survivor import peer_replaced
from tailrace.task.journal import replayable_gate
from tailrace.task.journal.digests import Digest
from tailrace.task.journal.history import Cut, Did, Entry, Heard
from tailrace.task.journal.history import decode as decode_entry
from tailrace.task.journal.replayable_gate import A_MARKER, ReplayableGate, is_time
from tailrace.task.journal.replayable_outbox import outbox_of
from tailrace.task.journal.sent_log import Keeping
from tailrace.task.subtask.machine import READS
from tailrace.task.subtask.work import Work

RECORDS = 300
NOWHERE = tr.sinks.Callback(lambda record: None)


class Seen(tr.KeyedProcessFunction):
    """Counts the records of each key, and emits what `of` makes of that."""

    count = tr.ValueState(int, default=0)

    def __init__(self, of: Callable[[int, tr.Context], Any]) -> None:
        self.of = of
        self.calls = 0

    def process(self, record: int, ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 1
        yield record % 20, self.count.value, self.of(record, ctx)


def plan(of: Callable[[int, tr.Context], Any]) -> Plan:
    """A source in worker 0, whose records go to both workers, and to both once more by another key."""
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, RECORDS), parallelism=1)
    seen = numbers.key_by(lambda n: n % 20).process(Seen(of))
    seen.key_by(lambda record: record[1] % 5).reduce(lambda a, b: max(a, b, key=repr)).sink_to(NOWHERE)
    return env._plan(env._pending())


class Workers:
    """Two of them, driven by hand, one of which may be done again by a third."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.chance = random.Random(4)
        self.now = 0
        self.slices = [self.opened(0), self.opened(1)]

    def opened(self, slot: int) -> ReplayableSlice:
        services = Services(random.Random, shared=SharedGenerators(), debug=True)
        own = cloudpickle.loads(cloudpickle.dumps(self.plan))
        made = ReplayableSlice(own, slot, 0, services, 1 << 20, Keeping(MemorySpill, 0))
        made.open()
        return made

    def run(self) -> None:
        """In steps of a few records, each at a time of its own, until all is done."""
        while not all(slice.finished for slice in self.slices):
            self.round()

    def round(self) -> None:
        """A step of each task."""
        for slice in self.slices:
            for task in slice.tasks:
                self.now += 1
                slice.step(task, self.now, self.chance.randint(1, 4))
            slice.flush()
        self.deliver(*self.slices)
        self.deliver(*reversed(self.slices))

    def deliver(self, one: ReplayableSlice, other: ReplayableSlice) -> int:
        actions, one.actions = one.actions, []
        for action in actions:
            other.receive(decode(action.data), one.slot)
        return len(actions)

    def done_again(self) -> tuple[ReplayableSlice, Again]:
        """What worker 1 did, by another one."""
        lost, survivor = self.slices[1], self.slices[0]
        other = self.opened(1)
        again = Again(other, map(decode_entry, lost.history.entries), 0)
        peer_replaced(survivor, 1)
        while not again.go_on():
            moved = self.deliver(survivor, other) + self.deliver(other, survivor)
            assert again.moved or moved, f"it waits for {again.left[0]}"
        return other, again


def sent(slice: ReplayableSlice) -> dict[ChannelId, list[Any]]:
    """What has gone on each channel to the other worker."""
    found: dict[ChannelId, list[Any]] = {}
    for task in slice.tasks:
        logs = outbox_of(task).logs
        for ident in task.outbox.channels:
            frames = logs[ident].items() if ident in logs else []
            found[ident] = [
                value for item in frames for value in decode(task.outbox.frame(item)).batch().to_rows().values
            ]
    return found


def frames(slice: ReplayableSlice) -> int:
    return sum(len(log.items()) for task in slice.tasks for log in outbox_of(task).logs.values())


def steps(slice: ReplayableSlice) -> list[Did]:
    entries = map(decode_entry, slice.history.entries)
    return [entry for entry in entries if isinstance(entry, Did) and entry.facts]


def watch_merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each merged step has read, as it comes up."""
    taken: list[int] = []
    merge = ReplayableGate.merge

    def watched(gate: ReplayableGate, pieces: Any, *feedback: Any) -> Any:
        taken.append(len(pieces))
        return merge(gate, pieces, *feedback)

    monkeypatch.setattr(ReplayableGate, "merge", watched)
    return taken


def test_steps_that_read_one_after_the_other_are_done_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(plan(lambda record, ctx: record))
    workers.run()
    lost = workers.slices[1]
    taken = watch_merges(monkeypatch)
    other, _ = workers.done_again()
    assert sent(other) == sent(lost) and sum(map(len, sent(lost).values())) > 50
    assert len(taken) < len(steps(lost)) / 4, "few of them"
    assert frames(other) < frames(lost) / 3


@pytest.mark.parametrize(
    "of",
    [
        lambda record, ctx: ctx.now(),
        lambda record, ctx: random.random(),
        lambda record, ctx: ctx.random.random(),
        lambda record, ctx: ctx.call(random.Random(record).random),
        lambda record, ctx: ctx.now() if record % 11 == 0 else record,
    ],
    ids=["the clock", "random numbers of Python", "random numbers of ctx", "answers", "the clock now and then"],
)
def test_what_a_step_has_of_its_own_is_what_it_was(of: Callable[[int, tr.Context], Any]) -> None:
    workers = Workers(plan(of))
    workers.run()
    other, _ = workers.done_again()
    assert sent(other) == sent(workers.slices[1]), (
        "the same numbers, though many steps are done as one where they have none"
    )


class Together(tr.KeyedProcessFunction):
    """How many records it is given at once."""

    def process(self, record: int, ctx: tr.Context) -> Any:
        return self.process_many([record], ctx)

    def process_many(self, records: list[int], ctx: tr.Context) -> Any:
        yield ctx.key, len(records)


def test_a_function_that_sees_what_comes_together_is_given_that_again() -> None:
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, RECORDS), parallelism=1)
    counted = numbers.key_by(lambda n: n // 16).process(Together())
    counted.key_by(lambda pair: pair[0] + 1).reduce(max).sink_to(NOWHERE)
    workers = Workers(env._plan(env._pending()))
    workers.run()
    lost = workers.slices[1]
    assert len({count for pairs in sent(lost).values() for pair in pairs for count in pair[1:]}) > 1
    other, _ = workers.done_again()
    assert sent(other) == sent(lost)


def test_steps_that_read_clocks_and_random_bytes_are_done_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one operator reads them, it reads them in one order."""
    of = lambda record, ctx: (seconds(), uuid.uuid4().hex, uuid.uuid1().hex, monotonic()) * (record % 3)  # noqa: E731
    with with_stand_ins():
        workers = Workers(plan(of))
        workers.run()
        taken = watch_merges(monkeypatch)
        other, _ = workers.done_again()
    lost = workers.slices[1]
    assert sum(map(len, sent(lost).values())) > 50
    assert sent(other) == sent(lost)
    assert len(taken) < len(steps(lost)) / 4
    assert sum(bool(entry.answers) for entry in steps(lost)) > 50


def test_a_step_that_asks_for_the_clock_is_reported_from_others() -> None:
    workers = Workers(plan(lambda record, ctx: ctx.now() if record == 149 else record))
    workers.run()
    assert [entry.by_itself for entry in steps(workers.slices[1])].count(True) <= 1
    assert sum(entry.by_itself for slice in workers.slices for entry in steps(slice)) == 1


def test_a_look_at_a_source_that_has_nothing_is_in_no_history() -> None:
    workers = Looped(looped_plan())
    workers.run()
    before = [len(slice.history.entries) for slice in workers.slices]
    for _ in range(50):
        workers.round()
    assert [len(slice.history.entries) for slice in workers.slices] == before


def test_others_have_a_part_of_a_frame_that_was_made_again() -> None:
    """Workers count what they have of a channel in records; the frames that these lie in now end elsewhere."""
    workers = Workers(plan(lambda record, ctx: record))
    workers.run()
    lost = workers.slices[1]
    values = sent(lost)
    other, _ = workers.done_again()
    (task, ident) = next(
        (task, ident) for task in other.tasks for ident, log in outbox_of(task).logs.items() if log.items()
    )
    whole, outbox = len(values[ident]), outbox_of(task)
    for came in (1, whole // 2, whole - 1, whole):
        digest = outbox.made_again(ident, came)
        assert (digest.count, digest.records) == (came, came)
        assert digest.value == of_values(lost, ident, came), "as the other one counts them"
        task.outbox.sends.clear()
        outbox.receiver_replaced(ident, came)
        again = [decode(data).batch().to_rows().values for _, _, data, _ in task.outbox.sends if decode(data).count]
        assert [value for values in again for value in values] == values[ident][came:]
        assert sent(other)[ident] == values[ident], "all of it is kept"
        outbox.keeping.check([item for one in other.tasks for item in outbox_of(one).kept_items()])


def of_values(slice: ReplayableSlice, ident: ChannelId, count: int) -> int:
    """The digest of the first records of a channel, as they lay in the frames of who made them first."""
    digest = Digest()
    (outbox,) = [outbox_of(task) for task in slice.tasks if ident in task.outbox.channels]
    for item in outbox.logs[ident].items():
        digest.add(decode(outbox.frame(item)), count - digest.count)
    return digest.value


# Loops.


class Endless(tr.Source):
    """Gives numbers, and then nothing, without an end."""

    bounded = False

    def splits(self, parallelism: int) -> list[int]:
        return [0]

    def reader(self, split: int, position: int | None = None) -> tr.Reader:
        return Numbers(position or 0)


class Numbers(tr.Reader):
    def __init__(self, at: int) -> None:
        self.at = at

    def read(self, limit: int, now: float) -> list[int]:
        start, self.at = self.at, min(self.at + limit, RECORDS)
        return list(range(start, self.at))

    @property
    def position(self) -> int:
        return self.at

    def next_at(self, now: float) -> float:
        return now + 1e6


def lap(record: tuple[int, int]) -> tuple[int, int]:
    return record[0], record[1] + 1


def looped_plan(**options: Any) -> Plan:
    """A loop through which each record goes three times, with a count by key in it, and one behind."""

    def body(laps: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        counted = laps.key_by(lambda r: r[0] % 20).process(Laps())
        return counted.filter(lambda r: r[1] < 2).map(lap), counted.filter(lambda r: r[1] == 2)

    env = tr.Environment(parallelism=2)
    source = tr.sources.Sequence(0, RECORDS) if "rounds" in options else Endless()
    out = env.from_source(source, parallelism=1).map(lambda n: (n, 0)).iterate(body, parallelism=2, **options)
    out.key_by(lambda r: r[0] % 5).reduce(max).sink_to(NOWHERE)
    return env._plan(env._pending())


class Laps(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)

    def process(self, record: tuple[int, int], ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 1
        yield record[0], record[1], self.count.value


class Looped(Workers):
    def run(self) -> None:
        for _ in range(400):
            self.round()


def test_tasks_of_a_loop_replay_for_themselves_while_only_records_go_around() -> None:
    workers = Looped(looped_plan())
    workers.run()
    lost = workers.slices[1]
    other, again = workers.done_again()
    assert again.by_task and frames(other) < frames(lost) / 20, "what goes to others is gathered until all is replayed"
    assert sent(other) == sent(lost) and sum(map(len, sent(lost).values())) > 100
    for one, now in zip(lost.tasks, other.tasks, strict=True):
        assert not [*differences_of_state(one, now), *differences_of_the_rest(one, now, True)]


def test_a_turn_counts_no_more_records_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has arrived for later turns of a loop is not looked at in each of them."""
    workers = Looped(looped_plan())
    workers.run()
    looked_at: list[Any] = []

    def watched(element: Any) -> int:
        looked_at.append(element)
        return count_of(element)

    monkeypatch.setattr(replayable_gate, "count_of", watched)
    workers.done_again()
    assert 0 < len(looked_at) < len(steps(workers.slices[1]))


def test_a_replacement_has_the_counts_of_the_lost_worker_whatever_frames_it_makes() -> None:
    """The workers of a loop compare what they have sent each other; else it would never be at rest."""
    workers = Looped(looped_plan())
    workers.run()
    lost = workers.slices[1]
    other, _ = workers.done_again()
    for was, now in zip(lost.tasks, other.tasks, strict=True):
        sent = {ident: (channel.seq, channel.marks) for ident, channel in was.outbox.channels.items()}
        assert {ident: (channel.seq, channel.marks) for ident, channel in now.outbox.channels.items()} == sent
        came = {ident: (channel.position, channel.marks) for ident, channel in was.gate.channels.items()}
        assert {ident: (channel.position, channel.marks) for ident, channel in now.gate.channels.items()} == came
    assert frames(other) < frames(lost) / 3


def wave(entries: list[Entry], slice: ReplayableSlice) -> list[Entry]:
    return [*entries, Heard(StartWave(0, 1), 1)]


def marker(entries: list[Entry], slice: ReplayableSlice) -> list[Entry]:
    read = next(entry for entry in entries if isinstance(entry, Did) and entry.line in READS)
    return [*entries, msgspec.structs.replace(read, facts=[0, A_MARKER])]


def waits(entries: list[Entry], slice: ReplayableSlice) -> list[Entry]:
    return [*entries, Cut(0, CutRequest(1), 0, b"", 0, waves={0: 3})]


def idle_leave(entries: list[Entry], slice: ReplayableSlice) -> list[Entry]:
    next(task.loop.leave for task in slice.tasks if task.loop.leave is not None).idle = True
    return entries


@pytest.mark.parametrize("more", [wave, marker, waits, idle_leave])
def test_where_more_than_records_goes_around_a_loop_steps_keep_their_order(more: Any) -> None:
    workers = Looped(looped_plan())
    workers.run()
    lost = workers.slices[1]
    entries = list(map(decode_entry, lost.history.entries))
    assert needs_no_coordinator(lost, entries)
    assert not needs_no_coordinator(lost, more(entries, lost))


@pytest.mark.parametrize("more", [wave, marker, waits])
def test_a_loop_is_followed_task_by_task_only_while_records_are_passed_on(more: Any) -> None:
    workers = Looped(looped_plan())
    workers.run()
    lost = workers.slices[1]
    entries = list(map(decode_entry, lost.history.entries))
    news = more(entries, lost)[-1:]
    by_task = Again(workers.opened(1), entries, 0, follows=True)
    assert by_task.by_task and by_task.takes(entries) and not by_task.takes(news)
    with pytest.raises(NeedsOneOrder):
        by_task.add(news)
    in_order = Again(workers.opened(1), entries, 0, follows=True, in_order=True)
    assert not in_order.by_task and in_order.takes(news)
    in_order.add(news)
    assert [*in_order.left] == [*entries, *news]


@pytest.mark.parametrize(
    "options",
    [{"rounds": tr.Rounds(max=3)}, {"combine": tr.Combine(key=lambda r: r[0] % 3, merge=max)}],
    ids=["rounds", "combine"],
)
def test_steps_of_loops_in_rounds_or_with_merged_feedback_keep_their_order(options: dict[str, Any]) -> None:
    made = ReplayableSlice(looped_plan(**options), 0, 0, Services(random.Random), 1 << 20, Keeping(MemorySpill, 0))
    assert not needs_no_coordinator(made, [])


# Event time.


class Timed(tr.KeyedProcessFunction):
    """Sets the timers of a record, and emits what it sees, also in its timers."""

    count = tr.ValueState(int, default=0)

    def __init__(self, timers: Callable[[int], list[float]], sees: Callable[[int], bool]) -> None:
        self.timers, self.sees = timers, sees

    def process(self, record: Any, ctx: tr.Context) -> Iterator[Any]:
        number = record if isinstance(record, int) else record[0]
        self.count.value += 1
        for time in self.timers(number):
            ctx.set_timer(event_time=time)
        yield number, self.count.value, ctx.watermark if self.sees(number) else None

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 100
        yield ctx.key, self.count.value, timestamp


FUNCTIONS: dict[str, tuple[Callable[[int], list[float]], Callable[[int], bool]]] = {
    "nothing of event time": (lambda n: [], lambda n: False),
    "event time": (lambda n: [], lambda n: True),
    "event time now and then": (lambda n: [], lambda n: n % 37 == 0),
    "timers": (lambda n: [n + 3.0], lambda n: False),
    "few timers": (lambda n: [n + 5.0] if n % 41 == 0 else [], lambda n: False),
    "timers for the past": (lambda n: [n - 9.0] if n % 29 == 0 else [], lambda n: n % 53 == 0),
    "timers at the end": (lambda n: [5_000.0 + n], lambda n: False),
}


def timed_plan(what: str, inside: bool) -> Plan:
    """Two exchanges of records with timestamps, and a window. `inside`: timestamps are assigned anew behind the first."""
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, RECORDS), parallelism=1)
    numbers = numbers.assign_timestamps(lambda n: float(n - n % 7), 2.0)
    seen = numbers.key_by(lambda n: n % 20).process(Timed(*FUNCTIONS[what]))
    if inside:
        seen = seen.assign_timestamps(lambda record: float(record[0]), 30.0)
    again = seen.key_by(lambda record: record[0] % 5).process(Timed(*FUNCTIONS[what]))
    again.key_by(lambda record: record[0] % 3).window(tr.Tumbling(20.0)).count().sink_to(NOWHERE)
    again.key_by(lambda record: record[0] % 3).reduce(max).sink_to(NOWHERE)
    return env._plan(env._pending())


def timed_records(slice: ReplayableSlice) -> dict[ChannelId, list[Any]]:
    """The records that have gone on each channel to the other worker, with their times."""
    found: dict[ChannelId, list[Any]] = {}
    for task in slice.tasks:
        for ident, log in outbox_of(task).logs.items():
            batches = [decode(task.outbox.frame(item)).batch().to_rows() for item in log.items()]
            times = [None if batch.times is None else batch.times.tolist() for batch in batches]
            found[ident] = [
                one
                for batch, known in zip(batches, times, strict=True)
                for one in zip(batch.values, known or [None] * len(batch), strict=True)
            ]
    return found


@pytest.mark.parametrize("inside", [False, True], ids=["assigned once", "assigned anew"])
@pytest.mark.parametrize("what", FUNCTIONS)
def test_event_time_comes_where_it_came_though_watermarks_are_elsewhere(what: str, inside: bool) -> None:
    workers = Workers(timed_plan(what, inside))
    workers.run()
    lost = workers.slices[1]
    other, _ = workers.done_again()
    assert timed_records(other) == timed_records(lost) and sum(map(len, timed_records(lost).values())) > 50
    for one, again in zip(lost.tasks, other.tasks, strict=True):
        assert not list(differences_of_state(one, again))
        assert (one.chain.reached, one.chain.passed) == (again.chain.reached, again.chain.passed)
        for ident, channel in one.gate.channels.items():
            now = again.gate.channels[ident]
            assert (channel.watermark, channel.ended) == (now.watermark, now.ended)


def test_steps_are_done_as_one_across_watermarks_that_set_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(timed_plan("nothing of event time", False))
    workers.run()
    reads = [entry for entry in steps(workers.slices[1]) if not entry.by_itself]
    marks = sum(is_time(fact) for entry in reads for fact in entry.facts[1::2])
    calls: list[int] = []
    take_merged = Work.take_merged
    monkeypatch.setattr(Work, "take_merged", lambda work, *args: [calls.append(1), take_merged(work, *args)])
    workers.done_again()
    assert marks > 50 and len(calls) < marks / 2


def test_a_reader_that_is_replaced_hears_of_event_time_behind_all_that_was_sent() -> None:
    """That a channel was idle for a while it has in its history, or will never need to know."""
    workers = Workers(timed_plan("nothing of event time", False))
    survivor, task = workers.slices[0], workers.slices[0].by_vertex[0]
    outbox = outbox_of(task)
    (output,) = outbox.outputs
    (ident,) = [ident for ident in outbox.channels if ident.target == 1]
    survivor.actions.clear()
    outbox.watermark(output, 7)
    outbox.idle(output)
    outbox.emit(output, Rows([1, 2, 3], np.array([9, 9, 9], np.int64)))
    outbox.watermark(output, 8)
    outbox.flush()
    sends: dict[bool, list[Any]] = {}
    for idle in (False, True):
        if idle:
            outbox.idle(output)
        outbox.sends.clear()
        outbox.receiver_replaced(ident)
        outbox.announce_time(ident)
        sends[idle] = [decode(data) for channel, _, data, _ in outbox.sends if channel == ident]
    markers = {idle: [frame.marker() for frame in frames if not frame.count] for idle, frames in sends.items()}
    assert markers[False] == [Watermark(7), Watermark(8), Watermark(8)]
    assert markers[True] == [Watermark(7), Watermark(8), Watermark(8), Watermark(8), IdleChannel()]
    assert outbox.channels[ident].idle_sent
