"""What was in flight at the restored cut comes back: its place, its order, and its event time; and the next cut does not
lose it."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId, encode_batch, encode_marker
from tailrace.elements.keygroups import key_group, owner
from tailrace.elements.markers import EndOfInput, IdleChannel, Marker, Watermark
from tailrace.elements.timestamps import MIN_TIME
from tailrace.errors import IncompatibleState
from tailrace.graph.operators import Forward
from tailrace.state.format import LogKind
from tailrace.state.manifest import Manifest
from tailrace.state.parts import LogOf
from tailrace.task.channels.services import Services
from tailrace.task.channels.spilling import NOWHERE
from tailrace.task.contract.events import Flush
from tailrace.task.operators.sink import SinkTask
from tailrace.task.operators.windows.aggregates import WindowTask
from tailrace.task.subtask.machine import Task
from tailrace.task.subtask.returning import Returned
from tailrace.task.subtask.snapshot import read_meta
from tests.task.inflight.test_overtaking import Fleet, Overtaken, Same, UntilItsCut
from tests.task.subtask.test_machine_cuts import summed
from tests.task.worker.test_restore import Disk


class Job:
    """Lives of one job, one after the other, each from a checkpoint of the one before; `got` is what its sink got before the
    cut of each."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.disk = Disk()
        self.got: list[Any] = []
        self.manifest: Manifest | None = None
        self.incarnation = 0

    def live(self, build: Callable[..., Any], parallelism: int, turns: int, *, copy: bool = False, **how: Any) -> Fleet:
        self.incarnation += 1
        fleet = Fleet(build, parallelism, self.disk, seed=self.seed, **how)
        fleet.spec = replace(fleet.spec, copy_records=copy)
        fleet.number = 0 if self.manifest is None else self.manifest.checkpoint
        fleet.deploy(self.manifest, incarnation=self.incarnation, own=False)
        for task in (task for worker in fleet.workers for task in worker.tasks()):
            for operator in task.chain.operators:
                if isinstance(operator, SinkTask):
                    UntilItsCut(operator, self.got)
        return fleet.turns(turns)

    def cut(self, fleet: Fleet) -> None:
        self.manifest = fleet.taken()


def to_the_end(fleet: Fleet) -> None:
    """With what was gathered going at once, as it does once it is 5 ms old: here the clock stands still."""
    flushed = [True]
    while fleet.turn() or any(flushed):
        flushed = [bool(worker.handle(Flush())) for worker in fleet.workers]
        fleet.carry()


# Where it goes.


def changed(record: dict[str, int]) -> dict[str, int]:
    record["times"] += 1
    return record


def changing(env: tr.Environment, sink: tr.Sink) -> None:
    made = env.from_source(tr.sources.Sequence(0, 60), uid="numbers").map(lambda x: {"x": x, "times": 0}, uid="made")
    made.rebalance().map(changed, uid="changed").map(lambda r: (r["x"], r["times"]), uid="told").sink_to(
        sink, uid="out"
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_record_that_its_reader_may_change_is_logged_as_it_was(seed: int) -> None:
    """With `copy_records=True` a function may change what it is given. The log held the very batch that the function then
    got, and was written when the function had changed it: the next life changed it once more."""
    job = Job(seed)
    job.cut(job.live(changing, 2, 40, copy=True))
    to_the_end(job.live(changing, 2, 0, copy=True))
    assert Counter(job.got) == Counter((x, 1) for x in range(60))


def alternating(env: tr.Environment, sink: tr.Sink) -> None:
    """At a parallelism of 3 there are channels everywhere, at one of 2 everything is one chain, and functions are fused."""
    numbers = env.from_source(tr.sources.Sequence(0, 40), uid="numbers", parallelism=2)
    timed = numbers.assign_timestamps(float, uid="times")
    once = timed.map(lambda x: x, uid="one", parallelism=2)
    once.map(lambda x: x, uid="two", parallelism=env.parallelism).sink_to(sink, uid="out", parallelism=1)


@pytest.mark.parametrize("seed", range(4))
def test_event_time_on_its_way_to_a_function_that_is_fused_now_is_no_loss(seed: int) -> None:
    """No record was in flight to it, so nothing refuses the start. It was a KeyError."""
    for turns in (20, 60, 100, 200, 400):
        job = Job(seed)
        job.cut(job.live(alternating, 3, turns))
        if "two" not in (job.manifest.in_flight if job.manifest else {}):
            to_the_end(job.live(alternating, 2, 0))
            assert Counter(job.got) == Counter(range(40))


def with_second_input(second: bool) -> Callable[[tr.Environment, tr.Sink], None]:
    def build(env: tr.Environment, sink: tr.Sink) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers", parallelism=1)
        once = numbers.key_by(lambda x: x % 5).process(Same(), uid="once")
        if second:
            once = once.union(env.from_source(tr.sources.Sequence(0, 0), uid="other"))
        once.map(lambda x: x, uid="again").sink_to(sink, uid="out")

    return build


@pytest.mark.parametrize("seed", range(6))
def test_of_operators_that_are_chained_now_the_later_one_reads_first(seed: int) -> None:
    """Without the second input both are one chain. What was in flight to the second operator had passed the first one
    earlier than what was in flight to that: they were read by turns, and keys lost their order."""
    job = Job(seed)
    job.cut(job.live(with_second_input(True), 2, 60 + seed))
    to_the_end(job.live(with_second_input(False), 2, 0))
    by_key = defaultdict(list)
    for value in job.got:
        by_key[value % 5].append(value)
    assert by_key == {key: list(range(key, 120, 5)) for key in range(5)}


def chained_or_not(together: bool) -> Callable[[tr.Environment, tr.Sink], None]:
    """One whose second operator is in the chain of the source, or is not."""

    def build(env: tr.Environment, sink: tr.Sink) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers", parallelism=2)
        if not together:
            numbers = numbers.union(env.from_source(tr.sources.Sequence(0, 0), uid="other"))
        numbers.map(lambda x: x, uid="one", parallelism=2).rebalance().map(lambda x: x, uid="two").sink_to(
            sink, uid="out"
        )

    return build


@pytest.mark.parametrize("seed", range(6))
def test_an_aligned_cut_of_a_source_waits_until_what_came_back_to_its_chain_is_read(seed: int) -> None:
    """A source cuts at `Trigger`. An aligned cut records nothing that is in flight, and would have lost it."""
    job = Job(seed)
    job.cut(job.live(chained_or_not(False), 2, 60))
    assert job.manifest is not None and job.manifest.in_flight.get("one")
    job.cut(job.live(chained_or_not(True), 2, 0, overtakes=False))
    assert not job.manifest.in_flight
    to_the_end(job.live(chained_or_not(True), 2, 0, overtakes=False))
    assert Counter(job.got) == Counter(range(120))


# Event time.


class Both(tr.CoProcessFunction):
    """Passes a key's numbers on, from outside and from inside."""

    def process1(self, value: int, ctx: Any) -> Any:
        yield value

    def process2(self, value: int, ctx: Any) -> Any:
        yield value


def fed_back_by_key(env: tr.Environment, sink: tr.Sink) -> None:
    def body(both: tr.ConnectedStreams) -> Any:
        done = both.key_by(lambda x: x % 6, lambda x: x % 6).process(Both(), uid="both")
        return done.filter(lambda x: x < 0), done

    numbers = env.from_source(tr.sources.Sequence(0, 10), uid="numbers")
    numbers.iterate_with_feedback(body, uid="loop").sink_to(sink, uid="out")


@pytest.mark.parametrize("parallelisms", [(3, 2), (2, 3), (2, 2)], ids=str)
def test_what_was_in_flight_inside_a_loop_goes_where_the_state_of_its_key_is(parallelisms: tuple[int, int]) -> None:
    """A loop's head that has its records by key only forwards them to the function with the state: a channel by number.
    What was in flight there was dealt out by number as well, and at another parallelism came to subtasks that had no
    state of its keys: the job went on with empty state for them, without an error."""
    before, now = parallelisms
    env = tr.Environment(parallelism=now)
    fed_back_by_key(env, tr.sinks.Callback(print))
    plan = env._plan(env._pending())
    [vertex] = [one for one in plan.vertices if any(plan.graph.node(node).uid == "both" for node in one.nodes)]
    edges = plan.edges_into(vertex.id)
    assert {type(edge.partitioning) for edge in edges} == {Forward}, "else this is no such loop"
    groups = plan.graph.max_parallelism
    came: list[tuple[int, int]] = []
    for subtask in range(now):
        task = Task(plan, vertex, subtask, 0, Services(random.Random, max_parallelism=groups, overtaking=True), 1 << 20)
        returned = Returned(plan, task, 0)
        for edge, value in itertools.product(edges, range(30)):
            old = owner(key_group(value % 6, groups), before, groups)
            name = plan.name_of(ChannelId(edge.id, 0, 0))._replace(source_subtask=old, target_subtask=old)
            data = encode_batch(NOWHERE, 0, 0, 0, Rows([value]))
            returned.add(LogOf(name, before, 1, memoryview(data), kind=LogKind.SENT))
        fronts = returned.front(True, itertools.count().__next__).values()
        frames = [element for channels in fronts for channel in channels for element, _ in channel.queue]
        held = [record for frame in frames for record in frame.batch().values]  # type: ignore[union-attr]
        came += [(subtask, record) for record in held]
    assert Counter(came) == Counter(
        (owner(key_group(value % 6, groups), now, groups), value) for value in range(30) for _ in edges
    )


class Waits(tr.Source):
    """(key, time), and then it has nothing more to read, but does not end."""

    def splits(self, parallelism: int) -> list[int]:
        return [0]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return WaitsReader(position or 0)


class WaitsReader(tr.Reader):
    def __init__(self, at: int) -> None:
        self.at = at

    def read(self, limit: int, now: float) -> Any:
        made = [(i % 7, float(i)) for i in range(self.at, min(80, self.at + limit))]
        self.at += len(made)
        return made

    @property
    def position(self) -> int:
        return self.at


def waiting(env: tr.Environment, sink: tr.Sink) -> None:
    events = env.from_source(Waits(), uid="events", parallelism=1).rebalance()
    timed = events.assign_timestamps(lambda e: e[1], uid="times", parallelism=1)
    windows = timed.key_by(lambda e: e[0]).window(tr.Tumbling(10)).aggregate(n=tr.Count(), uid="windows")
    windows.map(lambda r: (r[0], int(r[1])), uid="told").sink_to(sink, uid="out")


@pytest.mark.parametrize("rescale", [(2, 2), (2, 1), (1, 3)], ids=str)
def test_event_time_is_sent_again_though_the_input_has_nothing_more(rescale: tuple[int, int]) -> None:
    """The watermark was in flight, and its sender would not have sent it once more before its next record: windows did
    not fire until then."""
    for seed in range(12):
        job = Job(seed)
        job.cut(job.live(waiting, rescale[0], 15 + 20 * seed, window=1))
        to_the_end(job.live(waiting, rescale[1], 0, window=1))
        assert sorted(job.got) == sorted({(i % 7, i // 10 * 10) for i in range(70)}), f"seed {seed}"


class Two(tr.Source):
    """Two splits of (split, time), of which the second one gives nothing at first."""

    def splits(self, parallelism: int) -> list[int]:
        return [0, 1]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return TwoReader(split, *(position or (0, 0)))


class TwoReader(tr.Reader):
    def __init__(self, split: int, at: int, requested: int) -> None:
        self.split, self.at, self.asked = split, at, requested

    def read(self, limit: int, now: float) -> Any:
        self.asked += 1
        if self.split == 1 and self.asked < 300:
            return [None]
        made = [(self.split, float(i)) for i in range(self.at, min(80, self.at + limit))]
        self.at += len(made)
        return made or None

    @property
    def position(self) -> tuple[int, int]:
        return self.at, self.asked


def rescaled(env: tr.Environment, sink: tr.Sink) -> None:
    events = env.from_source(Two(), uid="events").filter(lambda e: e is not None, uid="heard")
    once = events.assign_timestamps(lambda e: e[1], uid="times").rescale().map(lambda e: e, uid="once")
    windows = once.key_by(lambda e: e[0]).window(tr.Tumbling(10)).aggregate(n=tr.Count(), uid="windows")
    late = windows.side_output("late").map(lambda e: ("late", *e), uid="marked")
    windows.map(lambda r: (r[0], int(r[1]), r[3]), uid="told").union(late).sink_to(sink, uid="out", parallelism=1)


def test_at_another_parallelism_event_time_stands_still_until_all_of_it_is_read() -> None:
    """One old subtask was far in event time, and had records in flight; the other one had received nothing, and so
    wrote no log. Put together, the first one's event time counted alone, and what the second split gave was late."""
    in_flight = 0
    for seed in range(12):
        job = Job(seed)
        job.cut(job.live(rescaled, 2, 30 + seed))
        in_flight += sum(job.manifest.in_flight.values()) if job.manifest else 0
        to_the_end(job.live(rescaled, 1, 0))
        assert [one for one in job.got if one[0] == "late"] == [], f"seed {seed}"
    assert in_flight


def stamped_behind(env: tr.Environment, sink: tr.Sink) -> None:
    """One reader, in order; timestamps are assigned behind an exchange: nothing is late at any parallelism."""
    numbers = env.from_source(tr.sources.Sequence(0, 150), uid="numbers", parallelism=1).rebalance()
    windows = (
        numbers.assign_timestamps(float, uid="times")
        .key_by(lambda x: x % 7)
        .window(tr.Tumbling(10))
        .aggregate(n=tr.Count(), uid="windows")
    )
    late = windows.side_output("late").map(lambda x: ("late", x), uid="marked")
    windows.map(lambda r: (r[0], int(r[1]), r[3]), uid="told").union(late).sink_to(sink, uid="out", parallelism=1)


@pytest.mark.parametrize("lives", [(2, 2), (2, 1), (3, 1), (1, 2), (2, 1, 1), (3, 1, 1), (3, 2, 2)], ids=str)
def test_records_that_were_in_flight_to_several_do_not_make_each_other_late(lives: tuple[int, ...]) -> None:
    """Where timestamps are assigned behind an exchange, one subtask that follows several reads what was in flight to each of
    them. Each is in order for itself, but not all are as far: the largest timestamp of one made those of another late. So it
    is in the life after that, too, where not all of it was read."""
    for seed in range(8):
        job = Job(seed)
        for parallelism in lives[:-1]:
            fleet = job.live(stamped_behind, parallelism, 0)
            for _ in range(60 + 5 * seed if job.incarnation == 1 else 2 + seed):
                fleet.turn()
                for worker in fleet.workers:
                    worker.handle(Flush())
                fleet.carry()
            job.cut(fleet)
        to_the_end(job.live(stamped_behind, lives[-1], 0))
        assert [one for one in job.got if one[0] == "late"] == [], f"seed {seed}"
        assert sum(one[2] for one in job.got) == 150, f"seed {seed}"


class Restored(Overtaken):
    """Subtask 0 of 2, with two channels, and logs of them that come back."""

    def __init__(self, build: Callable[[tr.Environment, tr.Sink], None] = summed) -> None:
        super().__init__(build)
        self.returned = Returned(self.plan(), self.task, 0)

    def plan(self) -> Any:
        inflight = self.task.checkpoints.inflight
        assert inflight is not None
        return inflight._plan

    def was(
        self, channel: int, kind: LogKind, *held: Any, port: int = 0, age: int = 0, source: str | None = None
    ) -> Restored:
        """What a log of one of the channels held."""
        name = self.plan().name_of(self.channels[channel])._replace(port=port)
        if source is not None:
            name = name._replace(source=source)
        for one in held:
            marker = isinstance(one, Marker)
            data = encode_marker(NOWHERE, 0, 0, 0, one) if marker else encode_batch(NOWHERE, 0, 0, 0, in_group(one))
            self.returned.add(LogOf(name, 2, 0 if marker else 1, memoryview(data), kind=kind, age=age))
        return self

    def back(self) -> Restored:
        ages = self.returned.front(True, itertools.count().__next__)
        self.task.put_in_front([ages[age] for age in sorted(ages, reverse=True)])
        return self

    def event_time(self) -> int:
        self.run()
        return self.task.gate.watermark


def in_group(value: Any) -> Batch:
    """A record as it is on a keyed channel, with the key group of its key."""
    return Rows([value], groups=np.array([key_group(0, 128)]))


def test_markers_come_back_in_their_places() -> None:
    task = Restored().was(0, LogKind.RECEIVED, Watermark(10), Watermark(70)).was(1, LogKind.RECEIVED, Watermark(30))
    assert task.back().event_time() == 30
    idle = Restored().was(0, LogKind.RECEIVED, Watermark(10), Watermark(70)).was(1, LogKind.RECEIVED, IdleChannel())
    assert idle.back().event_time() == 70
    ended = Restored().was(0, LogKind.RECEIVED, Watermark(10), Watermark(70)).was(1, LogKind.RECEIVED, EndOfInput())
    assert ended.back().event_time() == 70


class Reminded(tr.KeyedProcessFunction):
    """Says each number, and once more, below zero, when event time has come to it."""

    def process(self, value: int, ctx: Any) -> Any:
        ctx.set_timer(event_time=float(value))
        yield value

    def on_timer(self, timestamp: float, ctx: Any) -> Any:
        yield -round(timestamp)


def reminded(env: tr.Environment, sink: tr.Sink) -> None:
    env.from_source(tr.sources.Sequence(0, 10)).key_by(lambda x: 0).process(Reminded()).sink_to(sink)


def test_event_time_behind_what_came_back_twice_is_there_before_what_came_back_once() -> None:
    """A job fails before it has read all that had come back, and event time had come to it on channels that it had not read
    yet. With the last of the older records it is the turn of these channels: event time was theirs from then on, and nothing
    fired until the next marker. So a timer fired behind records that it should be in front of, and late ones were not late.
    """
    task = Restored(reminded).was(0, LogKind.RETURNED, Watermark(0), 5, age=1)
    for channel in (0, 1):
        task.was(channel, LogKind.RECEIVED, Watermark(0), Watermark(50_000_000))
    task.was(0, LogKind.SENT, 80).back()
    task.run()
    assert task.out == [5, -5, 80]


def test_event_time_of_an_input_that_is_gone_is_no_reason_to_refuse_a_start() -> None:
    """Each log begins with where its channel stood. Where a record was in flight there, the start is refused."""
    gone = {"port": 1, "source": "gone"}
    task = Restored().was(0, LogKind.RECEIVED, Watermark(10)).was(1, LogKind.RECEIVED, Watermark(30), **gone)
    assert not task.returned.as_they_were, "so event time is that of today's channels, said anew"
    with pytest.raises(IncompatibleState, match=r"in flight to input 1 of .*which it does not have any more"):
        Restored().was(1, LogKind.RECEIVED, Watermark(30), 7, **gone)


def test_records_in_flight_go_to_the_input_that_their_source_feeds_now() -> None:
    """The source of these records fed another input then."""
    task = Restored().was(1, LogKind.RECEIVED, Watermark(30), 7, port=1).back()
    assert not task.returned.as_they_were, "what it said of event time was said of another input"
    task.run()
    assert 7 in task.out


def test_a_reader_that_had_heard_of_nobody_hears_of_the_others_first() -> None:
    """What one sender's barrier overtook ends with a watermark; the reader has reported nothing of its other channels."""
    assert Restored().was(0, LogKind.SENT, Watermark(70)).back().event_time() == MIN_TIME


def test_the_next_cut_says_where_channels_stood() -> None:
    """Each log begins with the event time that its channel had brought, with its idleness, or with its end."""
    task = Overtaken(summed)
    task.mark(0, Watermark(50)).mark(1, Watermark(40)).mark(1, IdleChannel())
    task.run()
    task.arrive(0, 1).arrive(1, 2).cut(0).cut(1)
    task.step(budget=1)
    task.encode()
    held = task.in_flight()
    assert held["RECEIVED", 0, 0] == [Watermark(50), 1]
    assert held["RECEIVED", 1, 0] == [Watermark(40), IdleChannel(), 2]


def test_a_cut_while_it_is_read_says_which_old_channels_had_ended() -> None:
    task = Restored().was(0, LogKind.RECEIVED, EndOfInput()).was(1, LogKind.RECEIVED, Watermark(20), 5)
    task.back()
    task.cut(0).cut(1)
    task.step()  # event time goes on
    task.step()  # the cut
    assert task.task.gate.front, "nothing was read yet"
    task.encode()
    held = task.in_flight()
    assert held["RETURNED", 0, 0] == [EndOfInput()]
    assert held["RETURNED", 1, 0] == [Watermark(20), 5]


def windowed(env: tr.Environment, sink: tr.Sink) -> None:
    events = env.from_source(tr.sources.Sequence(0, 10)).assign_timestamps(float)
    events.key_by(lambda x: x).window(tr.Tumbling(10)).aggregate(n=tr.Count()).sink_to(sink)


def test_how_far_key_groups_had_been_goes_into_every_checkpoint_until_event_time_is_there() -> None:
    """Old subtasks that stood apart were put together. A second cut before event time has come that far must know it, too:
    else a window would fire once more for a late record."""
    task = Overtaken(windowed)
    windows = next(op for op in task.task.chain.operators if isinstance(op, WindowTask))
    windows.restore_floors([(0, 64, 100), (64, 128, 30)])
    for number, reached, floors in [(1, 10, [(0, 64, 100), (64, 128, 30)]), (2, 50, [(0, 64, 100)]), (3, 100, [])]:
        for channel in (0, 1):
            task.mark(channel, Watermark(reached)).barrier(channel, number)
        task.run(encode=True)
        assert task.taken.checkpoint == number
        meta = next(part.meta for op, part in task.taken.operators if op is windows)
        assert read_meta(meta).floors == floors


def test_a_sender_that_leaves_a_cut_out_gives_up_its_log() -> None:
    """The sender was notified that checkpoint 1 is aborted before it could cut. Its barrier of 2 may be here before the
    reader is notified, and before the reader cuts for 2: it was taken for the barrier of a log that was never begun."""
    for abort_first in (False, True):
        task = Overtaken(summed)
        task.task.trigger(CutRequest(1, overtakes_after=0))
        task.arrive(0, 1)
        task.run(encode=True)
        inflight = task.task.checkpoints.inflight
        assert inflight is not None and inflight.recording == 2
        task.cut(0, 2)
        assert inflight.recording == 1
        if abort_first:
            task.task.abort(1)
        task.task.trigger(CutRequest(2, overtakes_after=0))
        task.run(encode=True)
        task.cut(1, 2)
        assert task.taken.checkpoint == 2
        task.in_flight(2)


# Lives that are short.


def behind(env: tr.Environment, sink: tr.Sink) -> None:
    """Two exchanges behind a source that always has more."""
    once = env.from_source(tr.sources.Sequence(0, 1 << 20), uid="numbers").rebalance().map(lambda x: x, uid="once")
    once.rebalance().map(lambda x: x, uid="twice").sink_to(sink, uid="out")


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few records fill a frame that it goes while the source has more."""
    monkeypatch.setattr("tailrace.task.channels.outbox.FRAME_RECORDS", {"rows": 3, "columns": 3})


@pytest.mark.parametrize("seed", range(4))
def test_what_is_in_flight_does_not_grow_with_each_life_that_is_over_before_it_was_read(
    seed: int, small_frames: None
) -> None:
    """A sender waits until what was in flight is read (F3). Else each life would add what its channels hold, checkpoints
    would become ever larger, and with a cap none would be complete any more."""
    job, sizes = Job(seed), []
    for _ in range(30):
        fleet = job.live(behind, 2, 30)
        job.cut(fleet)
        assert job.manifest is not None
        sizes.append(sum(job.manifest.in_flight.values()))
    assert max(sizes[15:]) <= 2 * max(sizes[:4])


def test_nothing_is_sent_to_a_task_before_it_has_read_what_was_in_flight_to_it(small_frames: None) -> None:
    """Then it announces that, also where nothing comes back to it: what is in flight was to other subtasks."""
    job = Job(1)
    job.cut(job.live(behind, 2, 60))
    fleet = job.live(behind, 3, 0)
    sent: set[tuple[int, int]] = set()
    for _ in range(600):
        fleet.turn()
        for task in (task for worker in fleet.workers for task in worker.tasks()):
            channels = task.gate.channels.values()
            if task.gate.front:
                assert not any(one.flow.granted or one.flow.arrived for one in channels), f"{task.id} is still reading"
            elif any(one.flow.arrived for one in channels):
                sent.add((task.id.vertex, task.id.subtask))
    assert len(sent) == 6, "afterwards everybody is sent something"
