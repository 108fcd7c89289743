"""What was in flight at the restored cut stays in its file until it is nearly due: of each channel memory holds as much as
one of today may hold, and checkpoints refer to the rest without reading it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.protocol.deployment import Failed
from tailrace.protocol.snapshot import Trigger
from tailrace.state.manifest import Manifest
from tailrace.storage.reading import load_index
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.lazy_records import Parked
from tailrace.task.contract.actions import ReadPlaced, ToCoordinator
from tailrace.task.contract.events import PlacedUnreadable
from tailrace.task.operators.sink import SinkTask
from tailrace.task.worker.machine import Worker
from tests.task.channels.test_written_records import ByCut
from tests.task.inflight.test_overtaking import Fleet
from tests.task.worker.test_restore import Disk

MANY = 600
WIDE = 20_000
"""Bytes that a channel of the first job may hold, and so has in flight."""
NARROW = 300
"""Bytes that a channel of a job that goes on may hold."""


class Slow(tr.KeyedProcessFunction):
    """Counts the records of a key, so that one that is lost, or comes twice, or out of order, shows."""

    count = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        yield (ctx.key, self.count.value, value)


def by_key(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, MANY), uid="numbers", parallelism=1)
    numbers.key_by(lambda x: x % 11).process(Slow(), uid="slow").sink_to(sink, uid="out")


def shuffled(env: tr.Environment, sink: tr.Sink) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, MANY), uid="numbers", parallelism=1)
    numbers.shuffle().map(lambda x: x, uid="slow").sink_to(sink, uid="out")


EXPECTED = {
    by_key: Counter((x % 11, x // 11 + 1, x) for x in range(MANY)),
    shuffled: Counter(range(MANY)),
}


class Life:
    """One run of the job, and what its sinks get."""

    def __init__(
        self, build: Any, seed: int, parallelism: int, window: int, disk: Disk, manifest: Manifest | None = None
    ) -> None:
        self.fleet = Fleet(build, parallelism, disk, seed=seed, window=window)
        self.fleet.number = 0 if manifest is None else manifest.checkpoint
        incarnation = 1 if manifest is None else manifest.incarnation + 1
        self.fleet.deploy(manifest, incarnation=incarnation)
        tasks = [task for worker in self.fleet.workers for task in worker.tasks()]
        self.gates = [task.gate for task in tasks]
        operators = [operator for task in tasks for operator in task.chain.operators]
        self._sinks = [ByCut(operator) for operator in operators if isinstance(operator, SinkTask)]

    def got(self, manifest: Manifest | None = None) -> Counter[Any]:
        """Until the cut of a checkpoint, or until now."""
        stops = (None if manifest is None else sink.before[manifest.checkpoint] for sink in self._sinks)
        return Counter(one for sink, stop in zip(self._sinks, stops, strict=True) for one in sink.got[:stop])


def fill(build: Any, seed: int, disk: Disk) -> tuple[Manifest, Counter[Any]]:
    """A job that is left with most of its records in flight."""
    life = Life(build, seed, 2, WIDE, disk)
    for _ in range(5_000):  # whoever reads is slower than the source
        for worker in life.fleet.workers:
            for task in worker.tasks():
                if task.chain.source is not None:
                    while task.step(0, 50) is None:
                        task.flush()  # so that no frame is large
            life.fleet.carry()
        if not any(life.fleet.links.values()):
            break
        for link in [at for at, waiting in life.fleet.links.items() if waiting]:
            life.fleet._deliver(link)
    manifest = life.fleet.taken()
    return manifest, life.got(manifest)


def parked_and_here(gates: list[Gate]) -> tuple[int, int]:
    """Bytes of what comes back that are in their files only, and the most that one channel has in memory."""
    channels = [channel for gate in gates for channels in gate.front for channel in channels]
    away = sum(one.size for channel in channels for one, _ in channel.queue if _is_away(one))
    return away, max((_here(channel) for channel in channels), default=0)


def _is_away(element: Any) -> bool:
    return isinstance(element, Parked) and element.element is None


def _here(channel: InputChannel) -> int:
    return sum(getattr(one, "size", 0) for one, _ in channel.queue if not _is_away(one))


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("build", EXPECTED, ids=["by key", "shuffle"])
def test_memory_holds_a_bounded_part_of_what_comes_back_and_all_of_it_is_read_in_order(
    build: Any, parallelism: int
) -> None:
    disk = Disk()
    manifest, got = fill(build, 1, disk)
    life = Life(build, 2, parallelism, NARROW, disk, manifest)
    away, here = parked_and_here(life.gates)
    assert away > 1_000 and here < 4 * NARROW
    most = here
    while life.fleet.turn():
        most = max(most, parked_and_here(life.gates)[1])
    assert most < 4 * NARROW
    assert parked_and_here(life.gates) == (0, 0)
    assert got + life.got() == EXPECTED[build]


@pytest.mark.parametrize("parallelisms", [[2, 2, 2], [3, 1, 2], [1, 3, 2]])
@pytest.mark.parametrize("build", EXPECTED, ids=["by key", "shuffle"])
def test_checkpoints_are_complete_while_it_is_read_and_refer_to_what_is_in_files_only(
    build: Any, parallelisms: list[int]
) -> None:
    for seed in range(4):
        disk = Disk()
        manifest, got = fill(build, seed, disk)
        for number, parallelism in enumerate(parallelisms):
            life = Life(build, 10 * seed + number, parallelism, NARROW, disk, manifest)
            life.fleet.turns([2, 40, 90][(seed + number) % 3])
            away, _ = parked_and_here(life.gates)
            manifest = life.fleet.taken()
            referred = sum(ack.referred for ack in life.fleet.acks[manifest.checkpoint])
            assert referred >= away * 0.9, "nothing of that is written again"
            got += life.got(manifest)
            named = {*(file.name for file in manifest.files), *manifest.older}
            disk.files = {name: data for name, data in disk.files.items() if name in named}
        last = Life(build, 77, 2, NARROW, disk, manifest)
        last.fleet.to_the_end()
        assert got + last.got() == EXPECTED[build], f"seed {seed}"


def test_a_savepoint_waits_until_what_is_in_files_only_was_read_because_it_refers_to_no_other_file() -> None:
    disk = Disk()
    manifest, got = fill(shuffled, 1, disk)
    life = Life(shuffled, 2, 2, NARROW, disk, manifest)
    assert parked_and_here(life.gates)[0] > 1_000
    life.fleet.overtakes = False  # savepoints are aligned
    saved = life.fleet.taken(kind=CutKind.SAVEPOINT)
    assert all(not load_index(disk, file.name).files for file in saved.files)
    got += life.got(saved)
    again = Life(shuffled, 3, 2, NARROW, disk, saved)
    again.fleet.to_the_end()
    assert got + again.got() == EXPECTED[shuffled]


def test_records_that_cannot_be_read_any_more_fail_the_job_and_are_not_left_out() -> None:
    disk = Disk()
    manifest, _ = fill(shuffled, 1, disk)
    life = Life(shuffled, 2, 2, NARROW, disk, manifest)
    while not life.fleet.reads:
        assert life.fleet.turn()
    worker, requested = life.fleet.reads.pop(0)
    assert isinstance(requested, ReadPlaced) and requested.what == "records in flight at the restored checkpoint"
    worker.handle(PlacedUnreadable(requested.number, "the file is gone", True))
    [message] = [one.message for one in worker.actions if isinstance(one, ToCoordinator)]
    assert isinstance(message, Failed) and "the file is gone" in message.message


@pytest.mark.parametrize("build", EXPECTED, ids=["by key", "shuffle"])
def test_a_checkpoint_whose_file_is_slow_refers_to_what_was_read_since(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one cuts before the first is encoded, and has no need any more of what the first refers to. Its cut had made
    the worker forget where that is."""
    disk = Disk()
    manifest, got = fill(build, 1, disk)
    life = Life(build, 2, 2, NARROW, disk, manifest)
    before, _ = parked_and_here(life.gates)
    with monkeypatch.context() as slow:
        slow.setattr(Worker, "encoding", property(lambda worker: False))
        for number in (manifest.checkpoint + 1, manifest.checkpoint + 2):
            life.fleet.say(Trigger(CutRequest(number, overtakes_after=0)))
            life.fleet.turns(60)
    after, _ = parked_and_here(life.gates)
    assert 0 < after < before
    for number in (manifest.checkpoint + 1, manifest.checkpoint + 2):
        while len(life.fleet.acks.get(number, [])) < 2:
            assert life.fleet.turn()
        taken = life.fleet.manifest(number)
        again = Life(build, 3, 2, NARROW, disk, taken)
        again.fleet.to_the_end()
        assert got + life.got(taken) + again.got() == EXPECTED[build]
