"""Checkpoints of all workers of a job, and their return into as many or other workers; all in memory, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.cuts import CutRequest
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.protocol.deployment import Deploy, Deployed, Failed, OperatorEvent, Peer, Published, Start, Welcome
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.snapshot import Abort, Ack, Complete, Trigger
from tailrace.state.manifest import Manifest, OperatorRecord, Prepared, StateFile, decode_manifest, encode_manifest
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.parts import ChainsOf, MetaOf
from tailrace.storage.reading import read_placed, read_state
from tailrace.task.contract.actions import (
    ClosePeers,
    ConnectPeers,
    DropState,
    ReadPlaced,
    ReadState,
    ToCoordinator,
    ToPeer,
    WriteState,
)
from tailrace.task.contract.events import (
    CoordinatorSaid,
    Encode,
    Flush,
    FrameArrived,
    PeersConnected,
    PlacedRead,
    StatePartRead,
    StateRead,
    StateUnreadable,
    StateWritten,
    Step,
)
from tailrace.task.contract.functions import with_own_functions
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.operators.sources.source import SourceTask
from tailrace.task.subtask.snapshot import OperatorMeta, _encoder
from tailrace.task.worker.machine import Worker
from tailrace.task.worker.restore import Restorer


class Disk:
    """Files in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def size(self, name: str) -> int:
        return len(self.files[name])

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        return self.files[name][offset : offset + length]


class Crew:
    """All workers of a job, and what a coordinator and sockets would do for them."""

    def __init__(self, build: Callable[..., Any], parallelism: int, disk: Disk | None = None, **settings: Any) -> None:
        self.out: list[Any] = []
        env = tr.Environment(parallelism=parallelism, max_parallelism=16)
        build(env, tr.sinks.Callback(self.out.append), **settings)
        plan = env._plan(env._pending())
        self.spec = JobSpec("job", 1, plan, env.memory, "run", checkpointing=True)
        self.disk = disk if disk is not None else Disk()

        def backend(spec: JobSpec, uid: str, subtask: int) -> MemoryBackend:
            return MemoryBackend(uid=uid, subtask=subtask, max_parallelism=16)

        def load(data: bytes) -> JobSpec:
            return replace(self.spec, plan=with_own_functions(plan, keep_first=False))

        self.workers = [Worker(slot, load, random.Random, backend) for slot in range(parallelism)]
        self.acks: dict[int, list[Ack]] = {}
        self.said: list[tuple[int, Any]] = []
        self.writing: dict[str, bytes] = {}
        self.number = 0
        for worker in self.workers:
            worker.handle(CoordinatorSaid(Welcome(1)))

    def deploy(self, manifest: Manifest | None = None, incarnation: int = 1, own: bool = True) -> Crew:
        data = b"" if manifest is None else encode_manifest(manifest)
        self.incarnation = incarnation
        peers = [Peer(i, "h", i, 1) for i in range(len(self.workers))]
        for worker in self.workers:
            worker.handle(CoordinatorSaid(Deploy(b"", peers, incarnation, incarnation - 1, data, "", own)))
        self.carry()
        for worker in self.workers:
            worker.handle(CoordinatorSaid(Start()))
        self.carry()
        return self

    def carry(self) -> None:
        """Carries out the actions of the workers, until there are no more."""
        while any(worker.actions for worker in self.workers):
            for worker in self.workers:
                actions, worker.actions = worker.actions, []
                for action in actions:
                    self.do(worker, action)

    def do(self, worker: Worker, action: Any) -> None:
        if isinstance(action, ToPeer):
            self.workers[action.slot].handle(FrameArrived(action.data, worker.slot))
        elif isinstance(action, ConnectPeers):
            worker.handle(PeersConnected())
        elif isinstance(action, WriteState):
            self.writing[action.name] = self.writing.get(action.name, b"") + b"".join(action.data)
            if action.last:
                self.disk.files[action.name] = self.writing.pop(action.name)
                worker.handle(StateWritten(action.checkpoint, 0))
        elif isinstance(action, DropState):
            self.writing.pop(action.name, None)
            self.disk.files.pop(action.name, None)
        elif isinstance(action, ReadState):
            for part in read_state(
                self.disk, decode_manifest(action.manifest, "it"), action.required, held=action.held
            ):
                worker.handle(StatePartRead(action.number, part))
            worker.handle(StateRead(action.number))
        elif isinstance(action, ReadPlaced):
            worker.handle(PlacedRead(action.number, [read_placed(self.disk, one) for one in action.required]))
        elif isinstance(action, ToCoordinator) and isinstance(action.message, OperatorEvent):
            self.workers[action.message.target].handle(CoordinatorSaid(action.message))
        elif isinstance(action, ToCoordinator) and isinstance(action.message, Ack):
            self.acks.setdefault(action.message.checkpoint, []).append(action.message)
        elif isinstance(action, ToCoordinator):
            assert not isinstance(action.message, Failed), action.message.message
            self.said.append((worker.slot, action.message))
        else:
            assert isinstance(action, ClosePeers)

    def run(self, most: int = 10_000) -> None:
        """Steps everybody, at most so many times, until nobody has anything to do."""
        chance = random.Random(most)
        idle = 0
        while most and idle < 20:
            most -= 1
            worker = chance.choice(self.workers)
            worked = False
            if worker.stepping:
                for task in worker.tasks():
                    worked = worker.handle(Step(task.id.vertex, 0, 3)) is None or worked
                if worker.encoding:
                    worker.handle(Encode(0, 1000))
                    worked = True
                worked = worked or worker.handle(Flush())
            self.carry()
            idle = 0 if worked else idle + 1

    def checkpoint(self) -> Manifest:
        """A whole checkpoint, committed and confirmed."""
        self.number += 1
        for worker in self.workers:
            worker.handle(CoordinatorSaid(Trigger(CutRequest(self.number))))
        while len(self.acks.get(self.number, [])) < len(self.workers):
            self.run(20)
        manifest = self.manifest(self.number)
        for worker in self.workers:
            worker.handle(CoordinatorSaid(Complete(self.number)))
        self.carry()
        return manifest

    def manifest(self, number: int) -> Manifest:
        acks = self.acks[number]
        metas: dict[str, list[Any]] = {}
        for ack in acks:
            for subtask in ack.subtasks:
                for operator in subtask.operators:
                    metas.setdefault(operator.uid, []).append((subtask.subtask, operator))
        records = []
        for uid, those in metas.items():
            those.sort(key=lambda pair: pair[0])
            first = those[0][1]
            ends = [operator.finished for _, operator in those]
            records.append(OperatorRecord(uid, first.name, first.parallelism, ends, first.tables))
        files = [StateFile(i, ack.file, ack.size) for i, ack in enumerate(acks)]
        older = sorted({name for ack in acks for name in ack.older})
        prepared = [Prepared(one.uid, one.data) for ack in acks for one in ack.prepared]
        return Manifest("job", "run", self.incarnation, number, 0, 16, len(acks), files, older, records, prepared)

    def reset(self, attempt: int) -> None:
        for worker in self.workers:
            worker.handle(CoordinatorSaid(Reset(attempt)))
        self.carry()
        assert [m for _, m in self.said if isinstance(m, WasReset)][-1] == WasReset(attempt)


class Counted(tr.KeyedProcessFunction):
    """Counts the records of each key and emits (key, count)."""

    seen = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Any:
        self.seen.value += 1
        yield (ctx.key, self.seen.value)


def counted(env: tr.Environment, sink: tr.Sink, count: int = 300) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, count), uid="numbers")
    numbers.key_by(lambda x: x % 7).process(Counted(), uid="counted").sink_to(sink, uid="out")


def totals(out: list[Any]) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for key, count in out:
        found[key] = max(found.get(key, 0), count)
    return found


EXPECTED = {key: len(range(key, 300, 7)) for key in range(7)}


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2), (2, 1), (2, 3), (3, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("steps", [0, 15, 60])
def test_a_job_goes_on_where_its_checkpoint_was_taken_with_as_many_workers_or_others(
    before: int, after: int, steps: int
) -> None:
    old = Crew(counted, before).deploy()
    old.run(steps)
    manifest = old.checkpoint()
    old.run(30)  # all of this did not happen
    new = Crew(counted, after, old.disk).deploy(manifest, incarnation=2, own=False)
    new.run()
    assert totals(new.out) == EXPECTED
    # Each count is emitted once by the two together: none is lost, and none is counted twice.
    cut = dict.fromkeys(range(7), 0)
    for key, count in new.out:
        cut[key] = min(cut[key] or count, count)
    for key in range(7):
        assert sorted(count for k, count in new.out if k == key) == list(range(cut[key], EXPECTED[key] + 1))
        assert {count for k, count in old.out if k == key} >= set(range(1, cut[key]))


def test_a_chain_of_checkpoints_and_restarts_in_the_same_processes() -> None:
    crew = Crew(counted, 2).deploy()
    for attempt in range(1, 6):
        crew.run(20)
        manifest = crew.checkpoint()
        crew.run(10)
        crew.reset(attempt)
        crew.acks.clear()
        crew.deploy(manifest, incarnation=attempt + 1)
    crew.run()
    assert totals(crew.out) == EXPECTED


def test_a_checkpoint_of_a_job_whose_workers_have_finished_restores_as_finished() -> None:
    old = Crew(counted, 2).deploy()
    old.run()
    assert totals(old.out) == EXPECTED
    manifest = old.checkpoint()
    assert all(all(record.finished) for record in manifest.operators)
    for parallelism in (2, 3, 1):
        new = Crew(counted, parallelism, old.disk).deploy(manifest, incarnation=2, own=False)
        new.run()
        assert new.out == []
        assert all(worker.slice is not None and worker.slice.finished for worker in new.workers)


class Unequal(tr.Source):
    """Two splits, of which one ends long before the other."""

    def splits(self, parallelism: int) -> list[range]:
        return [range(5), range(5, 90)]

    def reader(self, split: range, position: Any = None) -> tr.Reader:
        return Counting(split if position is None else range(position, split.stop))


class Counting(tr.Reader):
    def __init__(self, left: range) -> None:
        self.left = left

    def read(self, limit: int, now: float) -> Any:
        if not self.left:
            return None
        found, self.left = self.left[:1], self.left[1:]
        return list(found)

    @property
    def position(self) -> int:
        return self.left.start


class Gathered(tr.ProcessFunction):
    """Says at the end what it has seen."""

    seen = tr.OperatorState(list, default=[])

    def process(self, value: Any, ctx: tr.Context) -> Any:
        self.seen.value.append(value)

    def finish(self, ctx: tr.Context) -> Any:
        yield from self.seen.value


def gathered(env: tr.Environment, sink: tr.Sink) -> None:
    env.from_source(Unequal(), uid="numbers").process(Gathered(), uid="gathered").sink_to(sink, uid="out")


def fed_anew(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(Unequal(), uid="numbers").union(env.from_collection([100, 101], uid="more"))
    numbers.process(Gathered(), uid="gathered").sink_to(sink, uid="out")


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_what_a_finished_subtask_held_is_reported_once_however_many_go_on(parallelism: int) -> None:
    """Of two subtasks one has finished at the cut: its last words are out, and what it held is nobody's any more."""
    old = Crew(gathered, 2).deploy()
    while not old.out:
        old.run(10)
    manifest = old.checkpoint()
    [record] = [one for one in manifest.operators if one.uid == "gathered"]
    assert sorted(record.finished) == [False, True]
    action = list(old.out)
    new = Crew(gathered, parallelism, old.disk).deploy(manifest, incarnation=2, own=False)
    new.run()
    assert sorted(action + new.out) == list(range(90))


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_all_held_that_had_finished_is_there_when_they_are_fed_anew(parallelism: int) -> None:
    old = Crew(gathered, 2).deploy()
    old.run()
    assert sorted(old.out) == list(range(90))
    over = old.checkpoint()
    # By way of a start that only finishes, at yet another parallelism.
    between = Crew(gathered, 3, old.disk).deploy(over, incarnation=2, own=False)
    between.run()
    assert between.out == []
    between.number = 1
    new = Crew(fed_anew, parallelism, old.disk).deploy(between.checkpoint(), incarnation=3, own=False)
    new.run()
    assert sorted(new.out) == [*range(90), 100, 101]


def test_an_aborted_checkpoint_leaves_no_file_and_its_changes_go_with_the_next() -> None:
    crew = Crew(counted, 2).deploy()
    crew.run(20)
    for worker in crew.workers:
        worker.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    crew.run(3)
    for worker in crew.workers:
        worker.handle(CoordinatorSaid(Abort(1)))
    crew.carry()
    crew.run(5)
    assert crew.disk.files == {} and crew.writing == {}
    crew.number = 1
    manifest = crew.checkpoint()
    crew.disk.files = {name: data for name, data in crew.disk.files.items() if name in {f.name for f in manifest.files}}
    new = Crew(counted, 2, crew.disk).deploy(manifest, 2)
    new.run()
    assert totals(new.out) == EXPECTED


def test_what_is_written_under_way_when_the_job_starts_anew_is_dropped() -> None:
    crew = Crew(counted, 2).deploy()
    crew.run(10)
    for worker in crew.workers:
        worker.handle(CoordinatorSaid(Trigger(CutRequest(1))))
    crew.carry()
    crew.run(2)
    crew.reset(1)
    assert crew.writing == {}
    crew.acks.clear()
    crew.deploy(None, incarnation=2)
    crew.run()
    assert totals(crew.out) == EXPECTED


def test_everybody_says_deployed_once_what_it_needs_is_there() -> None:
    old = Crew(counted, 2).deploy()
    manifest = old.checkpoint()
    new = Crew(counted, 2, old.disk)
    worker = new.workers[0]
    worker.handle(CoordinatorSaid(Deploy(b"", [], 2, 1, encode_manifest(manifest), "", True)))
    [read] = worker.actions
    assert isinstance(read, ReadState) and set(read.required) == {"numbers", "counted", "out"}
    assert read.required["counted"] == (0, 8), "half of the key groups are its own"
    worker.actions.clear()
    worker.handle(StateRead(read.number + 1))
    assert worker.actions == [], "the answer to another question"
    new.do(worker, read)
    assert any(isinstance(action, ConnectPeers) for action in worker.actions)
    worker.handle(PeersConnected())
    assert worker.actions[-1] == ToCoordinator(Deployed())


@pytest.mark.parametrize(("fatal", "kind"), [(True, "state"), (False, "store")])
def test_state_that_cannot_be_read_is_reported(fatal: bool, kind: str) -> None:
    old = Crew(counted, 1).deploy()
    manifest = old.checkpoint()
    worker = Crew(counted, 1, old.disk).workers[0]
    worker.handle(CoordinatorSaid(Deploy(b"", [], 2, 1, encode_manifest(manifest), "", True)))
    [read] = worker.actions
    worker.actions.clear()
    worker.handle(StateUnreadable(read.number, "it is damaged", fatal))
    [action] = worker.actions
    assert action == ToCoordinator(Failed(kind, "it is damaged"))
    worker.handle(StatePartRead(read.number, None))  # type: ignore[arg-type]
    worker.handle(StateRead(read.number))
    assert worker.actions == [action]


def test_a_damaged_manifest_is_a_fault_of_the_state() -> None:
    worker = Crew(counted, 1).workers[0]
    worker.handle(CoordinatorSaid(Deploy(b"", [], 2, 1, b"nonsense", "", True)))
    [action] = worker.actions
    assert isinstance(action, ToCoordinator) and action.message.kind == "state"  # type: ignore[union-attr]


# What the restorer decides.


def restorer(manifest: Manifest, parallelism: int, build: Callable[..., Any] = counted, own: bool = True) -> Restorer:
    crew = Crew(build, parallelism).deploy()
    worker = crew.workers[0]
    assert worker.slice is not None
    return Restorer(worker.slice.plan, worker.slice.tasks, manifest, own)


def manifest_of(**finished: list[bool]) -> Manifest:
    records = [OperatorRecord(uid, uid, len(ends), ends) for uid, ends in finished.items()]
    return Manifest("job", "run", 1, 1, 0, 16, 1, [], [], records)


def over(found: Restorer) -> dict[str, bool]:
    return {uid: operator.finished for uid, operator in found._operators.items()}


@pytest.mark.parametrize(
    ("ends", "parallelism", "here"),
    [([True], 1, True), ([False], 1, False), ([True, False], 2, True), ([False, True], 2, False)]
    + [([True, False], 1, False), ([True, True], 1, True), ([True], 2, True), ([True, True, False], 2, False)],
)
def test_an_operator_has_finished_where_its_old_subtask_had_or_all_of_them(
    ends: list[bool], parallelism: int, here: bool
) -> None:
    found = restorer(manifest_of(numbers=ends, counted=ends, out=ends), parallelism)
    found.finish()
    behind = here and all(ends)  # of an exchange: all subtasks of the source feed each of these
    assert over(found) == {"numbers": here, "counted": behind, "out": behind}


def test_a_subtask_that_had_finished_alone_goes_on_where_others_feed_it_now() -> None:
    """The subtask ran in one chain with one of the source that had no split. The source has another parallelism now, so its
    only subtask sends to both. Event time that had come to its end there would hold back all that is behind it for ever."""

    def chained(env: tr.Environment, sink: tr.Sink) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 3), uid="numbers", parallelism=1)
        numbers.map(lambda x: x, uid="one", parallelism=2).sink_to(sink, uid="out")

    ends = [True, False]
    found = restorer(manifest_of(numbers=ends, one=ends, out=ends), 2, chained)
    found.part(MetaOf("one", 0, 2, True, _encoder.encode(OperatorMeta(MAX_TIME))))
    found.finish()
    assert over(found) == {"numbers": False, "one": False, "out": False}
    [task] = [task for task in found.tasks if task.chain.operators[0].ctx.uid == "one"]
    assert task.chain.reached[0] == task.chain.arrived[0] == MIN_TIME


def test_what_something_new_feeds_has_not_finished_whatever_it_was() -> None:
    def two(env: tr.Environment, sink: tr.Sink) -> None:
        one = env.from_source(tr.sources.Sequence(0, 3), uid="numbers").map(lambda x: x, uid="one")
        other = env.from_source(tr.sources.Sequence(0, 3), uid="new").map(lambda x: x, uid="other")
        one.union(other).key_by(lambda x: x % 7).process(Counted(), uid="counted").sink_to(sink, uid="out")

    everything = {uid: [True] for uid in ("numbers", "one", "counted", "out")}
    found = restorer(manifest_of(**everything), 1, two)
    found.finish()
    assert over(found) == {
        "numbers": True, "one": True, "new": False, "other": False, "counted": False, "out": False,
    }  # fmt: skip


def meta(subtask: int, parallelism: int, reached: int) -> MetaOf:
    return MetaOf("counted", subtask, parallelism, False, _encoder.encode(OperatorMeta(reached)))


def test_event_time_comes_back_as_it_was_or_as_the_lowest_of_all() -> None:
    def reached(parallelism: int, *metas: MetaOf) -> int:
        found = restorer(manifest_of(numbers=[False], counted=[False], out=[False]), parallelism)
        for part in metas:
            found.part(part)
        found.finish()
        [task] = [task for task in found.tasks if task.chain.operators[0].ctx.uid == "counted"]
        assert task.chain.arrived[0] == task.chain.reached[0] == task.chain.operators[0].ctx.watermark_time
        assert task.gate.watermark >= task.chain.arrived[0]
        return task.chain.reached[0]

    assert reached(2, meta(0, 2, 70), meta(1, 2, 50)) == 70
    assert reached(1, meta(0, 2, 70), meta(1, 2, 50)) == 50
    assert reached(3, meta(1, 2, 70), meta(0, 2, 50)) == 50


@pytest.mark.parametrize("own", [True, False])
def test_files_are_built_on_only_where_they_are_our_own(own: bool) -> None:
    found = restorer(manifest_of(numbers=[False], counted=[False], out=[False]), 1, own=own)
    found.part(ChainsOf("counted", {3: ("one", "two")}))
    assert found._operators["counted"].chains.confirmed == ({3: ("one", "two")} if own else {})


def test_what_was_read_of_a_source_is_not_read_again_though_it_was_not_confirmed() -> None:
    crew = Crew(counted, 2).deploy()
    crew.run(10)
    manifest = crew.checkpoint()
    new = Crew(counted, 2, crew.disk).deploy(manifest, 2)
    [positions] = [
        [op for task in worker.tasks() for op in task.chain.operators if isinstance(op, SourceTask)]
        for worker in new.workers[:1]
    ]
    assert len(positions) == 1
    new.run()
    assert totals(new.out) == EXPECTED
    assert Published not in {type(m) for _, m in new.said}
