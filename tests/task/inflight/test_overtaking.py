"""Unaligned checkpoints of one task, and of all workers of a job: barriers go past what waits, what they pass belongs to the
checkpoint, and it comes back in front of anything new, once, in order, at whatever parallelism."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.coordinator.durability.manifest_entries import in_flight
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.elements.frame_codec import decode
from tailrace.elements.markers import Barrier, EndOfInput, Watermark
from tailrace.protocol.deployment import Welcome
from tailrace.protocol.snapshot import Complete, Trigger
from tailrace.state.manifest import Manifest
from tailrace.task.contract.actions import ReadPlaced, ToPeer
from tailrace.task.contract.events import CoordinatorSaid, Encode, Flush, FrameArrived, Step
from tailrace.task.contract.tuning import Tuning
from tailrace.task.operators.sink import SinkTask
from tailrace.task.subtask.idleness import Reason
from tailrace.task.worker.machine import Worker
from tests.task.subtask.test_machine_cuts import One, passed_on, state, summed
from tests.task.worker.test_restore import Counted, Crew, Disk

AT_ONCE = CutRequest(1, overtakes_after=0)


class Overtaken(One):
    """A task whose barriers may overtake, and the records in flight by its snapshot."""

    def __init__(self, build: Callable[[tr.Environment, tr.Sink], Any], vertex: int = 1, **settings: Any) -> None:
        super().__init__(build, vertex, overtaking=True, **settings)

    def cut(self, channel: int, number: int = 1, **how: Any) -> Overtaken:
        how.setdefault("overtakes_after", 0)
        self.mark(channel, Barrier(CutRequest(number, **how)))
        return self

    def in_flight(self, number: int = 1) -> dict[tuple[str, int, int], list[Any]]:
        """By (kind, source subtask, target subtask): what the logs of a checkpoint hold, in order."""
        found = {}
        for log, recording in self.taken.recordings:
            assert recording.complete(number), f"{log.channel} is still recorded"
            frames, done = recording.encode(number, 1 << 30)
            assert done
            entries: list[Any] = []
            for frame in frames:
                decoded = frame.data and _read(frame)
                entries += decoded
            if entries:
                found[log.kind.name, log.channel.source_subtask, log.channel.target_subtask] = entries
        return found


def _read(frame: Any) -> list[Any]:
    decoded = decode(frame.data)
    return decoded.batch().to_rows().values if decoded.count else [decoded.marker()]


def records(entries: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
    """Without the markers."""
    found = {key: [one for one in held if not isinstance(one, Watermark)] for key, held in entries.items()}
    return {key: held for key, held in found.items() if held}


def flat(entries: dict[Any, list[Any]]) -> list[Any]:
    return [one for held in entries.values() for one in held]


# One task: its inputs.


def test_a_barrier_goes_past_what_waits_and_what_it_passes_belongs_to_the_checkpoint() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1, 2)
    task.step()
    task.arrive(0, 3).arrive(1, 4).cut(0).arrive(0, 100)
    assert task.step(budget=1) is None
    assert task.task.checkpoints.snapshot is not None, "the cut is made before 3 and 4 are read"
    task.arrive(1, 5).cut(1).arrive(1, 200)
    task.encode()
    assert state(task.taken) == {0: 3}
    assert records(task.in_flight()) == {("RECEIVED", 0, 0): [3], ("RECEIVED", 1, 0): [4, 5]}
    task.run()
    assert task.out[-1] == 3 + 3 + 4 + 5 + 300, "and the job goes on with all of it"


def test_the_rest_of_a_batch_that_is_half_read_is_in_flight() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1, 2, 3, 4)
    task.step(budget=3)
    task.cut(0).cut(1)
    task.step(budget=1)
    task.encode()
    assert state(task.taken) == {0: 6}
    assert records(task.in_flight()) == {("RECEIVED", 0, 0): [4]}


def test_the_coordinators_word_is_enough() -> None:
    """No barrier has come: all that comes before one does is recorded."""
    task = Overtaken(summed)
    task.arrive(0, 1)
    task.task.trigger(AT_ONCE)
    task.run()
    task.encode()
    assert state(task.taken) in ({0: 1}, {}), "behind a step of work, or before it"
    task.arrive(0, 2).cut(0).arrive(0, 3).cut(1)
    held = records(task.in_flight()).get(("RECEIVED", 0, 0), [])
    assert held in ([2], [1, 2])


def test_the_end_of_a_channel_counts_as_its_barrier() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1).cut(0)
    task.run()
    task.arrive(1, 2).mark(1, EndOfInput())
    task.encode()
    assert records(task.in_flight())["RECEIVED", 1, 0] == [2, EndOfInput()]


def test_a_checkpoint_that_is_given_up_keeps_nothing() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1).arrive(1, 2).cut(0)
    task.step(budget=1)
    task.task.abort(1)
    inflight = task.task.checkpoints.inflight
    assert inflight is not None and not inflight.recording and not inflight._shelf.memory
    task.arrive(1, 3).cut(1)
    task.run()
    assert not any(channel.blocked for channel in task.task.gate.channels.values())


def test_several_checkpoints_at_once_have_a_log_each() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1).arrive(1, 10).cut(0, 1).arrive(0, 2).cut(0, 2)
    task.step(budget=1)
    task.encode()
    first = task.taken
    task.step(budget=1)  # work between two cuts
    task.step(budget=1)
    task.encode()
    second = task.taken
    assert (first.checkpoint, second.checkpoint) == (1, 2)
    task.cut(1, 1).arrive(1, 20).cut(1, 2)
    logs = {}
    for snapshot in (first, second):
        task.taken = snapshot
        held = records(task.in_flight(snapshot.checkpoint))
        logs[snapshot.checkpoint] = (state(snapshot).get(0, 0), sorted(flat(held)))
    for number, (total, held) in logs.items():
        everything = {1: [1, 10], 2: [1, 2, 10, 20]}[number]
        assert total + sum(held) == sum(everything), "state and log together are what was sent before the barriers"


def test_a_cut_with_a_timeout_begins_aligned_and_goes_on_unaligned() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1).cut(0, overtakes_after=50).arrive(1, 2)
    idle = task.run()
    assert task.task.checkpoints.snapshot is None and idle.reason is Reason.ALIGNING
    assert idle.wake_at == task.now + 50, "the clock alone will bring it on"
    task.now += 50
    task.step()
    task.encode()
    task.arrive(1, 3).cut(1)
    assert state(task.taken) == {0: 3}
    assert records(task.in_flight()) == {("RECEIVED", 1, 0): [3]}


def test_a_cut_whose_barriers_all_come_in_time_is_an_aligned_one() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1).cut(0, overtakes_after=50).arrive(1, 2).cut(1, overtakes_after=50)
    task.run()
    task.encode()
    assert state(task.taken) == {0: 3} and records(task.in_flight()) == {}


def test_more_than_the_cap_is_not_overtaken_and_the_rest_is_waited_for() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1).arrive(0, 2).cut(0, most_inflight=1).arrive(1, 3)
    task.step(budget=1)
    assert task.task.checkpoints.snapshot is None, "nobody knows yet how much is on its way on the other channel"
    task.cut(1, most_inflight=1)
    task.run()
    task.encode()
    held = records(task.in_flight())
    assert sum(map(len, held.values())) <= 1
    assert state(task.taken).get(0, 0) + sum(flat(held)) == 6


def test_a_savepoint_or_a_last_checkpoint_is_always_aligned() -> None:
    task = Overtaken(summed)
    task.arrive(0, 1).mark(0, Barrier(CutRequest(1, CutKind.SAVEPOINT))).arrive(1, 2)
    idle = task.run()
    assert idle.reason is Reason.ALIGNING and task.task.checkpoints.snapshot is None


def with_broadcast(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 10))
    numbers.broadcast().map(lambda x: x).sink_to(sink)


def test_a_broadcast_channel_is_never_overtaken() -> None:
    task = Overtaken(with_broadcast)
    task.arrive(0, 1).cut(0).arrive(1, 2)
    assert task.run().reason is Reason.ALIGNING and task.task.checkpoints.snapshot is None
    task.cut(1)
    task.run()
    assert task.task.checkpoints.snapshot is not None


def before_a_broadcast(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 10))
    numbers.shuffle().map(lambda x: x).broadcast().map(lambda x: x).sink_to(sink)


def test_a_task_whose_records_come_to_one_that_waits_cuts_behind_its_senders() -> None:
    """A5: the word of the coordinator is not enough, nor the barrier of one of two senders; they need not be read. An end
    counts as a barrier."""
    for last in (Barrier(AT_ONCE), EndOfInput()):
        task = Overtaken(before_a_broadcast)
        task.task.trigger(AT_ONCE)
        task.arrive(0, 1, 2).cut(0).arrive(1, *range(100))
        task.step(budget=1)
        assert task.task.checkpoints.snapshot is None
        task.mark(1, last)
        task.step(budget=1)
        task.encode()
        assert records(task.in_flight())["RECEIVED", 1, 0], "they are overtaken all the same"


# One task: its outputs.


def crowded() -> Overtaken:
    """A task whose channels have no credit for all that it has emitted."""
    task = Overtaken(passed_on, window=64)
    task.arrive(0, *range(100))
    task.run()
    task.task.flush()
    assert task.task.outbox.blocked == 2
    return task


def give_credit(task: Overtaken) -> None:
    for target in task.task.outbox.channels:
        task.task.grant(target, 1 << 20)


def told(sent: list[tuple[int, Any]]) -> list[Any]:
    """The records among what was sent."""
    return [one for _, values in sent if isinstance(values, list) for one in values]


def test_a_barrier_goes_past_what_waits_for_credit() -> None:
    task = crowded()
    went = told(task.sent())
    task.arrive(0, *range(100, 130)).cut(0).cut(1)
    task.run()
    task.encode()
    assert [marker for _, marker in task.sent()] == 2 * [Barrier(AT_ONCE)]
    held = records(task.in_flight())
    waits = [one for key, values in held.items() if key[0] == "SENT" for one in values]
    assert held["RECEIVED", 0, 0] == list(range(100, 130))
    assert waits and sorted(went + waits) == list(range(100))
    give_credit(task)
    assert sorted(told(task.sent())) == sorted(waits), "it goes on behind the barrier"


def in_line() -> Overtaken:
    """One that has made an aligned cut, and its barriers wait behind records."""
    task = Overtaken(passed_on, window=64)
    task.arrive(0, *range(100)).cut(0, overtakes_after=70).cut(1, overtakes_after=70)
    task.run()
    task.encode()
    assert task.taken is not None and task.task.outbox.blocked == 2
    return task


def test_a_barrier_that_waits_in_line_goes_past_when_its_time_has_come() -> None:
    task = in_line()
    went = told(task.sent())
    idle = task.step()
    assert idle is not None and idle.wake_at == task.now + 70, "the task is to be asked then"
    task.now += 70
    task.step()
    assert [marker.checkpoint for _, marker in task.sent()] == [1, 1]
    held = records(task.in_flight())
    assert sorted(went + flat(held)) == list(range(100)) and {key[0] for key in held} == {"SENT"}


def test_a_barrier_that_leaves_in_line_has_overtaken_nothing() -> None:
    task = in_line()
    give_credit(task)
    assert records(task.in_flight()) == {}
    task.now += 70
    task.step()


def test_a_barrier_does_not_overtake_an_earlier_one() -> None:
    """The earlier one is of a checkpoint that stays aligned: what is in front of it goes in line."""
    task = Overtaken(passed_on, window=64)
    task.arrive(0, *range(100)).barrier(0, 1).barrier(1, 1)
    task.run()
    task.encode()
    task.cut(0, 2).cut(1, 2)
    task.run()
    task.encode()
    assert task.taken.checkpoint == 2 and records(task.in_flight(2)) == {}
    task.sent()
    give_credit(task)
    barriers = [(target, one.checkpoint) for target, one in task.sent() if isinstance(one, Barrier)]
    assert sorted(barriers) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    for target in (0, 1):
        assert [number for to, number in barriers if to == target] == [1, 2]


# All workers of a job.


class Fleet(Crew):
    """Workers whose frames and words of the coordinator take their time, each link in order; channels are narrow, so that
    records wait everywhere."""

    def __init__(
        self,
        build: Callable[..., Any],
        parallelism: int,
        disk: Disk | None = None,
        *,
        seed: int = 0,
        window: int | None = 150,
        overtakes: bool = True,
        ahead: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(build, parallelism, disk, **settings)
        self.chance = random.Random(seed)
        self.overtakes = overtakes
        self.spec = replace(self.spec, overtaking=overtakes, ahead=ahead)
        load, backend = self.workers[0]._standing.load, self.workers[0]._backend_factory
        tuning = Tuning(window=window)
        self.workers = [
            Worker(slot, lambda data: replace(load(data), overtaking=overtakes), random.Random, backend, tuning=tuning)
            for slot in range(self.spec.plan.slots)
        ]
        self.links: dict[tuple[int, int], deque[bytes]] = {}
        self.reads: list[tuple[Worker, ReadPlaced]] = []
        """Requests to the storage, which takes its time."""
        self.words: list[deque[Any]] = [deque() for _ in self.workers]
        for worker in self.workers:
            worker.handle(CoordinatorSaid(Welcome(1)))

    def do(self, worker: Worker, action: Any) -> None:
        if isinstance(action, ToPeer):
            self.links.setdefault((worker.slot, action.slot), deque()).append(action.data)
        elif isinstance(action, ReadPlaced):
            self.reads.append((worker, action))
        else:
            super().do(worker, action)

    def turn(self) -> bool:
        """Something happens somewhere; False where nothing can."""
        chances: list[Callable[[], Any]] = [lambda at=at: self._deliver(at) for at, link in self.links.items() if link]
        chances += [lambda to=to: self._say(to) for to, words in enumerate(self.words) if words]
        chances += [lambda: self._read(self.reads.pop(0))] if self.reads else []
        busy = [worker for worker in self.workers if worker.stepping]
        self.chance.shuffle(busy)
        if chances and self.chance.random() < 0.5:
            self.chance.choice(chances)()
            return True
        if any(self._work(worker) for worker in busy):
            return True
        if chances:
            self.chance.choice(chances)()
        return bool(chances)

    def _deliver(self, link: tuple[int, int]) -> None:
        self.workers[link[1]].handle(FrameArrived(self.links[link].popleft(), link[0]))
        self.carry()

    def _read(self, requested: tuple[Worker, ReadPlaced]) -> None:
        super().do(*requested)
        self.carry()

    def _say(self, slot: int) -> None:
        self.workers[slot].handle(CoordinatorSaid(self.words[slot].popleft()))
        self.carry()

    def _work(self, worker: Worker) -> bool:
        if worker.encoding and self.chance.random() < 0.5:
            worker.handle(Encode(0, self.chance.choice([1, 5, 1000])))
            self.carry()
            return True
        tasks = list(worker.tasks())
        self.chance.shuffle(tasks)
        for task in tasks:
            if worker.handle(Step(task.id.vertex, 0, self.chance.choice([1, 2, 5]))) is None:
                task.check()
                self.carry()
                return True
        flushed = (worker.encoding and not worker.handle(Encode(0, 1000))) or worker.handle(Flush())
        self.carry()
        return bool(flushed)

    def turns(self, count: int) -> Fleet:
        for _ in range(count):
            if not self.turn():
                break
        return self

    def to_the_end(self) -> Fleet:
        for _ in range(100_000):
            if not self.turn():
                return self
        raise AssertionError("it does not end")

    def say(self, message: Any) -> None:
        for words in self.words:
            words.append(message)

    def taken(self, confirm: bool = True, **how: Any) -> Manifest:
        """A checkpoint, once it is complete."""
        self.number += 1
        cut = CutRequest(self.number, overtakes_after=0 if self.overtakes else -1, **how)
        self.say(Trigger(cut))
        for _ in range(100_000):
            if len(self.acks.get(self.number, [])) == len(self.workers):
                break
            assert self.turn(), f"checkpoint {self.number} does not come to its end"
        manifest = self.manifest(self.number)
        if confirm:
            self.say(Complete(self.number))
        return manifest

    def manifest(self, number: int) -> Manifest:
        return msgspec.structs.replace(super().manifest(number), in_flight=in_flight(self.acks[number]))


def by_key(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers")
    numbers.key_by(lambda x: x % 11).process(Counted(), uid="counted").sink_to(sink, uid="out")


class Placed(tr.KeyedProcessFunction):
    """Says (key, place, value): the places of a key's records in the order in which they come."""

    seen = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Any:
        self.seen.value += 1
        yield ("place", ctx.key, self.seen.value, value)


def in_order(env: tr.Environment, sink: tr.Sink) -> None:
    """One reader, and two exchanges by the same key: a key's records stay in order."""
    numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers", parallelism=1)
    once = numbers.key_by(lambda x: x % 11).process(Same(), uid="same")
    once.key_by(lambda x: x % 11).process(Placed(), uid="placed").sink_to(sink, uid="out")


class Same(tr.KeyedProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> Any:
        yield value


def exchanged(how: str) -> Callable[[tr.Environment, tr.Sink], None]:
    def build(env: tr.Environment, sink: tr.Sink) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers")
        numbers = getattr(numbers, how)().map(lambda x: x, uid="one")
        getattr(numbers, how)().map(lambda x: x, uid="two").sink_to(sink, uid="out")

    return build


def by_function(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers")
    numbers.partition_by(lambda x: x // 3).map(lambda x: x, uid="one").sink_to(sink, uid="out")


def with_narrow_places(env: tr.Environment, sink: tr.Sink) -> None:
    """Operators with a parallelism of their own: whether an edge is chained depends on that of the job."""
    numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers", parallelism=2).map(lambda x: x, uid="zero")
    once = numbers.map(lambda x: x, uid="one", parallelism=env.parallelism)
    once.map(lambda x: x, uid="two").rebalance().map(lambda x: x, uid="three").sink_to(sink, uid="out", parallelism=1)


def fused(env: tr.Environment, sink: tr.Sink) -> None:
    """What was overtaken on its way to the first of several functions that are one operator."""
    numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers").rebalance()
    numbers.map(lambda x: x, uid="one").filter(lambda x: True, uid="two").map(lambda x: x, uid="three").sink_to(
        sink, uid="out", parallelism=1
    )


def together(env: tr.Environment, sink: tr.Sink) -> None:
    """A union, two inputs, and a side output."""
    left = env.from_source(tr.sources.Sequence(0, 60), uid="left")
    right = env.from_source(tr.sources.Sequence(60, 120), uid="right")
    both = left.rebalance().map(lambda x: x, uid="l").union(right.rebalance().map(lambda x: x, uid="r"))
    split = both.rebalance().process(Sides(), uid="sides")
    odd = split.side_output("odd")
    split.union(odd).rebalance().map(lambda x: x, uid="again").sink_to(sink, uid="out")


def around(env: tr.Environment, sink: tr.Sink) -> None:
    """Each record goes around a loop by its key, as often as its number is, and leaves it once."""

    def body(stream: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        once = stream.key_by(lambda r: r[0] % 11).process(Same(), uid="same").rebalance().map(less, uid="less")
        return once.filter(lambda r: r[1] > 0, uid="again"), once.filter(lambda r: r[1] <= 0, uid="over")

    numbers = env.from_source(tr.sources.Sequence(0, 120), uid="numbers").map(lambda x: (x, x % 4), uid="laps")
    numbers.iterate(body, uid="loop").rebalance().map(lambda r: r[0], uid="out of it").sink_to(sink, uid="out")


def less(record: tuple[int, int]) -> tuple[int, int]:
    return record[0], record[1] - 1


def nested(env: tr.Environment, sink: tr.Sink) -> None:
    """A loop in a loop, with exchanges on the way in, around and out."""

    def inner(stream: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        once = stream.rebalance().map(less, uid="less inside")
        return once.filter(lambda r: r[1] % 3 != 0, uid="again inside"), once.filter(lambda r: r[1] % 3 == 0, uid="on")

    def outer(stream: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        once = stream.key_by(lambda r: r[0] % 7).process(Same(), uid="same").iterate(inner, uid="inner").rebalance()
        return once.filter(lambda r: r[1] > 0, uid="again"), once.filter(lambda r: r[1] <= 0, uid="over")

    numbers = env.from_source(tr.sources.Sequence(0, 60), uid="numbers").map(lambda x: (x, x % 8), uid="laps")
    numbers.iterate(outer, uid="outer").map(lambda r: r[0], uid="out of it").sink_to(sink, uid="out")


class Sides(tr.ProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> Any:
        if value % 2:
            ctx.emit("odd", value)
        else:
            yield value


def broadcast(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 40), uid="numbers").rebalance().map(lambda x: x, uid="first")
    numbers.broadcast().map(lambda x: x, uid="one").rebalance().map(lambda x: x, uid="two").sink_to(sink, uid="out")


ALL = Counter(range(120))
PROGRAMS = {
    "by key": (by_key, Counter((key, i) for key in range(11) for i in range(1, len(range(key, 120, 11)) + 1))),
    "in order": (
        in_order,
        Counter(("place", v % 11, v // 11 + 1, v) for v in range(120)),
    ),
    "rebalance": (exchanged("rebalance"), ALL),
    "rescale": (exchanged("rescale"), ALL),
    "shuffle": (exchanged("shuffle"), ALL),
    "by function": (by_function, ALL),
    "fused": (fused, ALL),
    "narrow": (with_narrow_places, ALL),
    "together": (together, ALL),
    "around": (around, ALL),
    "nested": (nested, Counter(range(60))),
}


class UntilItsCut:
    """What a sink gets before it cuts: that is what would be published."""

    def __init__(self, sink: SinkTask, got: list[Any]) -> None:
        self._writer, self._snapshot, self._got, self._over = sink.writer, sink.snapshot, got, False
        sink.writer = self  # type: ignore[assignment]
        sink.snapshot = self.snapshot  # type: ignore[method-assign]

    def write(self, values: Any) -> None:
        if not self._over:
            self._got.extend(values)

    def snapshot(self, checkpoint: int) -> bytes | None:
        self._over = True
        return self._snapshot(checkpoint)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class Lives:
    """A job that is cut, goes on from there, is cut again before what was in flight is read, and so on: what its sinks had
    got before each cut, and in the end everything."""

    def __init__(self, build: Callable[..., Any], seed: int) -> None:
        self.build = build
        self.chance = random.Random(f"lives {seed}")
        self.disk = Disk()
        self.got: list[Any] = []
        self.in_flight = 0

    def live(self, parallelisms: list[int], **how: Any) -> Lives:
        manifest = None
        for incarnation, parallelism in enumerate(parallelisms, start=1):
            fleet = Fleet(self.build, parallelism, self.disk, seed=self.chance.randrange(1 << 30), **how)
            fleet.number = 0 if manifest is None else manifest.checkpoint
            fleet.deploy(manifest, incarnation=incarnation, own=False)
            for worker in fleet.workers:
                for task in worker.tasks():
                    for operator in task.chain.operators:
                        if isinstance(operator, SinkTask):
                            UntilItsCut(operator, self.got)
            fleet.turns(self.chance.choice([0, 5, 30, 150]))
            if incarnation == len(parallelisms):
                fleet.to_the_end()
                return self
            manifest = fleet.taken()
            self.in_flight += sum(manifest.in_flight.values())
        return self


RESCALES = [[2, 2], [2, 3], [3, 2], [1, 3], [3, 1], [2, 3, 2], [3, 2, 3, 1, 2], [2, 2, 2, 2]]


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_what_was_overtaken_comes_once_at_whatever_parallelism_however_often_the_job_is_cut(name: str) -> None:
    build, expected = PROGRAMS[name]
    in_flight = 0
    for seed in range(24):
        lives = Lives(build, seed).live(RESCALES[seed % len(RESCALES)])
        assert Counter(lives.got) == expected, f"{name}, seed {seed}"
        in_flight += lives.in_flight
    assert in_flight > 5_000, "there really was something in flight"


def test_copies_of_a_broadcast_come_to_every_subtask_once() -> None:
    for seed, (before, after) in enumerate([(2, 2), (2, 2), (3, 3), (2, 2)]):
        lives = Lives(broadcast, seed).live([before, after])
        assert Counter(lives.got) == Counter(dict.fromkeys(range(40), before))


def test_a_job_goes_on_with_aligned_checkpoints_from_an_unaligned_one_and_the_other_way_round() -> None:
    """An aligned cut does not record what was in flight at the cut before: it waits until that is read."""
    for seed in range(12):
        lives = Lives(by_key, seed)
        manifest = None
        for incarnation, (parallelism, overtakes) in enumerate([(2, True), (3, False), (2, True), (2, False)], start=1):
            fleet = Fleet(by_key, parallelism, lives.disk, seed=seed, overtakes=overtakes)
            fleet.number = 0 if manifest is None else manifest.checkpoint
            fleet.deploy(manifest, incarnation=incarnation, own=False)
            sinks = [
                op for w in fleet.workers for t in w.tasks() for op in t.chain.operators if isinstance(op, SinkTask)
            ]
            for sink in sinks:
                UntilItsCut(sink, lives.got)
            fleet.turns(30)
            if incarnation < 4:
                manifest = fleet.taken()
                assert overtakes or not manifest.in_flight
            else:
                fleet.to_the_end()
        assert Counter(lives.got) == PROGRAMS["by key"][1]


# Event time.


def timed(env: tr.Environment, sink: tr.Sink) -> None:
    """A window by key; what is late goes to the sink as well, marked so."""
    events = env.from_source(Stamped(), uid="events", parallelism=1).assign_timestamps(lambda e: e[1], uid="times")
    windows = events.key_by(lambda e: e[0]).window(tr.Tumbling(10)).aggregate(n=tr.Count(), uid="windows")
    late = windows.side_output("late").map(lambda e: ("late", *e), uid="marked")
    windows.map(lambda r: (r[0], int(r[1]), r[3]), uid="told").union(late).sink_to(sink, uid="out")


class Stamped(tr.Source):
    """(key, time): in time but for one in ten, which is 25 seconds late."""

    def splits(self, parallelism: int) -> list[int]:
        return [0]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return StampedReader(position or 0)


class StampedReader(tr.Reader):
    def __init__(self, at: int) -> None:
        self.at = at

    def read(self, limit: int, now: float) -> Any:
        made = [(i % 7, float(i - 25 if i % 10 == 9 else i)) for i in range(self.at, min(150, self.at + limit))]
        self.at += len(made)
        return made or None

    @property
    def position(self) -> int:
        return self.at


@pytest.mark.parametrize("rescales", [[2, 2], [2, 2, 2], [2, 3], [3, 2, 1], [1, 3, 2], [3, 1, 3]], ids=str)
def test_no_window_fires_twice_and_no_record_that_came_in_time_is_late(rescales: list[int]) -> None:
    """Subtasks that were found at different event times are put together, or parted: what one of them had fired does not
    open anew for a record that was late there."""
    in_flight = late = 0
    for seed in range(40):
        lives = Lives(timed, seed).live(rescales)
        in_flight += lives.in_flight
        fired = Counter((key, start) for key, start, *_ in lives.got if key != "late")
        assert set(fired.values()) == {1}, f"seed {seed}: {fired.most_common(3)}"
        came = [time for key, *event in lives.got if key == "late" for time in event[1:]]
        late += len(came)
        assert all(int(time + 25) % 10 == 9 for time in came), f"seed {seed}"
        assert sum(n for key, _, n in lives.got if key != "late") + len(came) == 150
    assert in_flight > 5_000
    assert late or len(set(rescales)) > 1, (
        "at another parallelism event time stands still meanwhile: hardly any is late"
    )
