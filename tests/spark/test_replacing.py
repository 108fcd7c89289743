"""Lost workers that are replaced while the others go on, on real Spark: nobody else starts anew, and the output is as if
nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import time as seconds
from typing import Any

import numpy as np
import psutil
import pytest

import tailrace as tr
from tailrace.coordinator.job.timeouts import Limits
from tests.spark.test_recovery import AT_ONCE, paced, running, story
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark
__all__ = ["paced"]


def test_a_lost_worker_is_replaced_while_the_others_go_on(jobs: Any, paced: Any, tmp_path: Path) -> None:
    records = 12_000
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.3, retain="never")
    standby = tr.StandbyConfig(replicas=0, spill=tr.Spill(memory_bytes=0))
    env = jobs.env(parallelism=3, checkpoint=settings, restart=AT_ONCE, standby=standby)
    paced.flow(env, tmp_path, records, 3000)
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "paced")
        takeovers = job._runner.machine.takeovers
        for replaced, slot in enumerate([1, 0]):
            complete = len(job.checkpoints)
            assert waited(lambda complete=complete: len(job.checkpoints) > complete and running(job))
            before = jobs.workers(job)
            os.kill(before[slot], signal.SIGKILL)
            assert waited(lambda replaced=replaced: takeovers.count > replaced, 20), story(job)
            after = jobs.workers(job)
            assert {one for one in before if before[one] != after[one]} == {slot}
    assert job.await_termination(150)
    assert job.restarts == 0, story(job)
    assert paced.wrong(tmp_path, records) == "", story(job)


def test_standbys_take_the_slots_of_lost_workers_though_one_of_them_is_lost_as_well(
    jobs: Any, paced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tailrace.runtime.driver.machine_settings.Limits", lambda **message: replace(Limits(**message), calm=200_000)
    )
    records = 12_000
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.3, retain="never")
    standby = tr.StandbyConfig(replicas=2, spill=tr.Spill(memory_bytes=0, dir="checkpoint"))
    env = jobs.env(parallelism=2, checkpoint=settings, restart=AT_ONCE, standby=standby)
    paced.flow(env, tmp_path, records, 3000)
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "paced")
        machine = job._runner.machine
        standbys = machine.roster.standbys.all

        def ready() -> dict[int, int]:
            return {one.hello.pid: one.index for one in list(standbys) if one.ready and one.hello is not None}

        assert waited(lambda: len(ready()) == 2 and len(job.checkpoints) > 0, 30), story(job)
        first = ready()
        lost, *_ = first
        os.kill(jobs.workers(job)[1], signal.SIGKILL)
        os.kill(lost, signal.SIGKILL)
        assert waited(lambda: machine.takeovers.count == 1, 20), story(job)
        assert jobs.workers(job)[1] in first.keys() - {lost}, "the other standby has taken the slot"
        shown(job, jobs.workers(job))
        complete = len(job.checkpoints)
        assert waited(lambda: len(ready()) == 2 and len(job.checkpoints) > complete, 30), story(job)
        assert not ready().keys() & first.keys(), "others stand by now"
        os.kill(jobs.workers(job)[0], signal.SIGKILL)
        assert waited(lambda: machine.takeovers.count == 2, 20), story(job)
    assert job.await_termination(150)
    assert job.restarts == 0, story(job)
    assert paced.wrong(tmp_path, records) == "", story(job)


class Totals(tr.KeyedProcessFunction):
    total = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Iterator[str]:
        self.total.value += value + 1
        yield f"{value} {self.total.value}"


def around(numbers: tr.DataStream) -> tr.DataStream:
    """The numbers behind a loop, through which each of them goes twice."""

    def body(laps: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        exchanged = laps.key_by(lambda one: sum(one) % 5).map(lambda one: one)
        return exchanged.filter(lambda one: one[1] == 0).map(lambda one: (one[0], 1)), exchanged.filter(
            lambda one: one[1]
        )

    return numbers.map(lambda number: (number, 0)).iterate(body).map(lambda one: one[0])


@pytest.mark.parametrize("behind", [lambda numbers: numbers, around], ids=["plain", "behind a loop"])
def test_a_hot_standby_goes_on_where_a_lost_worker_was(jobs: Any, tmp_path: Path, behind: Any) -> None:
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.5, retain="never")
    env = jobs.env(parallelism=2, checkpoint=settings, restart=AT_ONCE, standby=tr.StandbyConfig(mode="hot"))
    numbers = behind(env.from_source(tr.sources.Sequence(0, None, rate=1000))).key_by(lambda n: n % 7)
    numbers.process(Totals()).key_by(len).map(lambda line: line).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")))
    job = jobs.start(env, "hot")
    machine = job._runner.machine

    def followed(slot: int) -> int:
        return next((one.pid for one in job.slices[slot].standbys if one.hot), 0)

    assert waited(lambda: bool(followed(0) and followed(1)), 60), story(job)
    complete = len(job.checkpoints)
    assert waited(lambda: len(job.checkpoints) > complete + 1, 30), story(job)
    standing_by = followed(1)
    os.kill(jobs.workers(job)[1], signal.SIGKILL)
    assert waited(lambda: machine.takeovers.count == 1, 60), story(job)
    assert jobs.workers(job)[1] == standing_by
    last = job.slices[1].last_failover
    assert last is not None and last.hot, last
    complete = len(job.checkpoints)
    assert waited(lambda: len(job.checkpoints) > complete, 60), story(job)
    job.stop()
    assert job.restarts == 0, story(job)
    lines = [line for file in (tmp_path / "out").rglob("part*") for line in file.read_text().splitlines()]
    pairs = [(int(number), int(total)) for number, total in map(str.split, lines)]
    assert len({number for number, _ in pairs}) == len(pairs) > 1000
    for key in range(7):
        before = 0
        for total, number in sorted((total, number) for number, total in pairs if number % 7 == key):
            assert total - before == number + 1, (number, before, total)
            before = total


@pytest.mark.parametrize(
    "apart", [0.0, 0.05, 1.0], ids=["at once", "while the first is replaced", "one after the other"]
)
def test_the_loss_of_two_workers_is_covered_with_a_depth_of_two(
    jobs: Any, paced: Any, tmp_path: Path, apart: float
) -> None:
    """The patterns of the evaluation of Clonos: concurrent and staggered. All workers exchange records with all others, so
    those that are lost are neighbours."""
    records = 12_000
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.3, retain="never")
    standby = tr.StandbyConfig(replicas=0, depth=2)
    env = jobs.env(parallelism=3, checkpoint=settings, restart=AT_ONCE, standby=standby)
    paced.flow(env, tmp_path, records, 3000)
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "paced")
        takeovers = job._runner.machine.takeovers
        assert waited(lambda: len(job.checkpoints) > 1 and running(job))
        before = jobs.workers(job)
        os.kill(before[1], signal.SIGKILL)
        until = time.monotonic() + apart
        assert waited(lambda: time.monotonic() >= until)
        os.kill(before[2], signal.SIGKILL)
        assert waited(lambda: takeovers.count >= 2, 30), story(job)
        assert jobs.workers(job)[0] == before[0], "the survivor goes on"
    assert job.await_termination(150)
    assert job.restarts == 0, story(job)
    assert paced.wrong(tmp_path, records) == "", story(job)


class RaisesOnce:
    """Raises at one number, when it comes for the first time in any worker."""

    def __init__(self, number: int, mark: Path) -> None:
        self.number, self.mark = number, mark

    def __call__(self, number: int) -> tuple[int, int]:
        if number == self.number and not self.mark.exists():
            self.mark.touch()
            raise TimeoutError("the service did not answer")
        return number % 7, number


def test_a_worker_whose_function_raises_and_one_that_freezes_are_replaced_while_the_others_go_on(
    jobs: Any, paced: Any, tmp_path: Path
) -> None:
    records = 12_000
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.3, retain="never")
    env = jobs.env(parallelism=2, checkpoint=settings, restart=tr.NoRestart(), standby=tr.StandbyConfig(replicas=0))
    numbers = env.from_source(paced.Kept(records, 2_000, str(tmp_path / "open")))
    pairs = numbers.map(RaisesOnce(2_001, tmp_path / "raised"), name="asks").key_by(lambda pair: pair[0])
    out = pairs.map(lambda pair: pair[1]).sink_to(tr.sinks.Collect())
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "fails")
        machine = job._runner.machine
        assert waited(lambda: machine.takeovers.count == 1, 30), story(job)
        assert "TimeoutError: the service did not answer" in story(job) and running(job)
        complete, before = len(job.checkpoints), jobs.workers(job)
        assert waited(lambda: len(job.checkpoints) > complete), story(job)
        machine.limits = replace(machine.limits, lease=2_000_000)
        os.kill(before[1], signal.SIGSTOP)
        assert waited(lambda: machine.takeovers.count == 2, 30), story(job)
        if psutil.pid_exists(before[1]):  # Spark may have ended it
            os.kill(before[1], signal.SIGCONT)
        assert jobs.workers(job)[0] == before[0] and jobs.workers(job)[1] != before[1]
    assert job.await_termination(150)
    assert job.restarts == 0, story(job)
    assert sorted(out.result()) == list(range(records))


def marked(number: int) -> tuple[int, Any]:
    """A number with what a function may read of clocks and random bytes."""
    fresh = random.Random().random(), float(np.random.default_rng().random())
    return number, (uuid.uuid4().hex, seconds(), time.monotonic_ns(), datetime.now(), os.urandom(8), *fresh)


class Keeps(tr.KeyedProcessFunction):
    newest = tr.ValueState(object)

    def process(self, record: Any, ctx: Any) -> Iterator[Any]:
        self.newest.value = record
        yield record


def test_two_readers_of_clocks_and_random_bytes_agree(jobs: Any, paced: Any, tmp_path: Path) -> None:
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.3, retain="never")
    standby = tr.StandbyConfig(replicas=0)
    env = jobs.env(parallelism=3, checkpoint=settings, restart=AT_ONCE, standby=standby)
    both = env.from_source(paced.Kept(6_000, 1_500, str(tmp_path / "open"))).map(marked, name="marked")
    one = both.key_by(lambda r: r[0] % 11).process(Keeps(), uid="one").sink_to(tr.sinks.Collect())
    other = both.key_by(lambda r: r[0] % 13).process(Keeps(), uid="other").sink_to(tr.sinks.Collect())
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "marked")
        assert waited(lambda: len(job.checkpoints) > 1 and running(job))
        os.kill(jobs.workers(job)[1], signal.SIGKILL)
    assert job.await_termination(100)
    assert job._runner.machine.takeovers.count == 1 and job.restarts == 0, story(job)
    found = dict(one.result())
    assert found == dict(other.result()) and len(found) == 6_000


def test_texts_hash_in_one_way_in_all_workers(jobs: Any) -> None:
    """So sets have one order in a worker and in the one that takes its place."""
    env = jobs.env(parallelism=3)
    hashes = env.from_collection(range(30)).map(lambda n: (os.getpid(), hash("a text"), list({"a", "b", "c", "d"})))
    found = hashes.sink_to(tr.sinks.Collect())
    assert jobs.start(env, "hashes").await_termination(60)
    assert len({pid for pid, *_ in found.result()}) == 3
    assert len({(one, tuple(order)) for _, one, order in found.result()}) == 1


def shown(job: Any, workers: Any) -> None:
    """`job.slices` after worker 1 was replaced."""
    survivor, other = job.slices
    assert [survivor.pid, other.pid] == [workers[0], workers[1]]
    assert (survivor.attempt, survivor.replaced, survivor.last_failover) == (0, 0, None)
    assert (other.attempt, other.replaced, other.being_replaced, other.not_replaced) == (1, 1, False, "")
    took = other.last_failover
    assert took is not None and 0 < took.restore_ms <= took.total_ms < 20_000 and abs(took.timestamp - time.time()) < 60
    parts = took.process_ms + took.survivors_ms + took.restore_ms + took.replay_ms
    assert min(took.process_ms, took.replay_ms) > 0 and parts == pytest.approx(took.total_ms)
