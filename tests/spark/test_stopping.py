"""Stops on real Spark: at any moment, gone on from at any parallelism, with loops, drained, stuck, and cancelled."""

from __future__ import annotations

import ast
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.coordinator.job.lifecycle import JobStatus
from tests.spark.test_checkpoints import counting, expected, lines
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark
END = 4_000


def test_a_job_that_is_stopped_again_and_again_has_each_result_once(jobs: Any) -> None:
    """At moments of chance, each time at another parallelism: nothing is read again, and nothing visible again."""
    chance, found = random.Random(7), None
    for parallelism in (2, 1, 2):
        env = counting(jobs, jobs.out, END, 500.0, parallelism=parallelism, interval=chance.choice([None, 0.05]))
        job = env.execute("job", from_checkpoint=None if found is None else found.path)
        assert waited(lambda job=job: job.last_progress and job.last_progress["tailrace"]["totalInputRows"] > 20)
        time.sleep(chance.random() / 5)
        found = job.stop(timeout=60)
        assert job.status is JobStatus.FINISHED and job.restarts == 0
        assert isinstance(found, tr.Checkpoint) and Path(found.path).is_file()
        assert job.stop() == found, "asked again it says the same"
        before = lines(jobs.out)
        assert len(before) == len(set(before)) and set(before) < set(expected(END))
    env = counting(jobs, jobs.out, END, parallelism=2)
    assert env.execute("job", from_checkpoint="latest").await_termination(60)
    assert lines(jobs.out) == expected(END)


def looping(jobs: Any, end: int | None, rate: float | None, parallelism: int) -> tr.Environment:
    """Each number goes around until it is below ten: those that have left, with how often they went."""
    config = tr.CheckpointConfig(jobs.folder / "checkpoints", interval=None)
    env = jobs.env(parallelism=parallelism, checkpoint=config)
    numbers = env.from_source(tr.sources.Sequence(0, end, rate=rate), uid="numbers").map(lambda n: (n, n, 0))

    def body(stream: Any) -> tuple[Any, Any]:
        laps = stream.key_by(lambda one: one[0] % 7).process(Lap(), uid="lap")
        return laps.filter(lambda one: one[1] >= 10), laps.filter(lambda one: one[1] < 10)

    numbers.iterate(body).sink_to(tr.sinks.TextFiles(str(jobs.out)), uid="out")
    return env


class Lap(tr.KeyedProcessFunction):
    def process(self, value: Any, ctx: Any) -> Any:
        yield (value[0], value[1] // 2, value[2] + 1)


def test_a_loop_is_stopped_in_the_middle_and_goes_on_exactly(jobs: Any) -> None:
    job = looping(jobs, 6_000, 3_000.0, 2).execute("loop")
    assert waited(lambda: job.last_progress and job.last_progress["tailrace"]["totalInputRows"] > 20)
    stopped = job.stop(timeout=60)
    assert job.status is JobStatus.FINISHED and 0 < len(lines(jobs.out)) < 6_000
    assert looping(jobs, 6_000, None, 1).execute("loop", from_checkpoint=stopped).await_termination(120)

    def laps(n: int) -> tuple[int, int, int]:
        at, count = n // 2, 1
        while at >= 10:
            at, count = at // 2, count + 1
        return n, at, count

    assert lines(jobs.out) == sorted(str(laps(n)) for n in range(6_000))


class Late(tr.KeyedProcessFunction):
    """Says how many there were of a key, in the end, and when a timer fires that lies far ahead."""

    n = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.n.value += 1
        ctx.set_timer(event_time=10_000_000.0)

    def on_timer(self, timestamp: Any, ctx: Any) -> Any:
        yield (ctx.key, self.n.value)


def late(jobs: Any, **settings: Any) -> tr.Environment:
    env = jobs.env(parallelism=2, **settings)
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=300.0), uid="numbers")
    timed = numbers.assign_timestamps(lambda n: float(n), uid="timed")
    timed.key_by(lambda n: n % 3).process(Late(), uid="late").sink_to(tr.sinks.TextFiles(str(jobs.out)), uid="out")
    return env


def in_flow(job: Any) -> bool:
    return waited(lambda: job.last_progress and job.last_progress["tailrace"]["totalInputRows"] > 20)


def test_a_suspended_job_fires_no_timer_early_and_a_drained_one_fires_all(jobs: Any) -> None:
    config = tr.CheckpointConfig(jobs.folder / "checkpoints", interval=None)
    job = late(jobs, checkpoint=config).execute("late")
    assert in_flow(job)
    stopped = job.stop(timeout=60)
    assert lines(jobs.out) == []
    job = late(jobs, checkpoint=config).execute("late", from_checkpoint=stopped.path)
    assert in_flow(job)
    assert job.stop(drain=True, timeout=60).id > stopped.id
    counts = [ast.literal_eval(line) for line in lines(jobs.out)]
    assert [key for key, _ in counts] == [0, 1, 2] and sum(n for _, n in counts) > 40


@pytest.mark.parametrize("retain", [None, "never"])
def test_where_nothing_is_retained_all_that_was_read_is_visible(jobs: Any, retain: str | None) -> None:
    folder = jobs.folder / "checkpoints"
    settings = {} if retain is None else {"checkpoint": tr.CheckpointConfig(folder, retain=retain)}
    job = late(jobs, **settings).execute("late")
    assert in_flow(job)
    assert job.stop(timeout=60) is None
    assert job.status is JobStatus.FINISHED and len(lines(jobs.out)) == 3
    assert not list(folder.rglob("*.state"))


def test_a_stop_with_a_savepoint_and_a_stop_of_another_kind(jobs: Any) -> None:
    job = counting(jobs, jobs.out, END, 1_500.0).execute("job")
    assert in_flow(job)
    saved = job.stop(savepoint=jobs.folder / "backup", timeout=60)
    assert isinstance(saved, tr.Savepoint) and saved.path == str(jobs.folder / "backup")
    with pytest.raises(tr.CheckpointError, match="has ended"):
        job.stop(drain=True)
    env = counting(jobs, jobs.out, END)
    assert env.execute("job", from_checkpoint=saved).await_termination(60)
    assert lines(jobs.out) == expected(END)


class Stuck(tr.KeyedProcessFunction):
    """Sleeps for longer than anybody waits, once it has seen some records."""

    def process(self, value: int, ctx: Any) -> Any:
        if value == 60:
            time.sleep(600)
        yield value


def test_a_stop_that_is_stuck_in_user_code_is_refused_another_aim_and_cancelled(jobs: Any) -> None:
    job = counting(jobs, jobs.out, None, 300.0, fn=Stuck()).execute("job")
    assert waited(lambda: job.last_progress and job.last_progress["tailrace"]["totalInputRows"] > 61)
    message: list[BaseException] = []

    def stop() -> None:
        try:
            job.stop(timeout=120)
        except BaseException as error:
            message.append(error)

    thread = threading.Thread(target=stop)
    thread.start()
    assert waited(lambda: job.status is JobStatus.STOPPING)
    with pytest.raises(tr.CheckpointError, match="is being stopped already, by a stop, and not by a stop that drains"):
        job.stop(drain=True, timeout=60)
    job.cancel()
    assert job.await_termination(60) and job.status is JobStatus.CANCELLED
    thread.join(60)
    assert "no stop of job 'job': the job is CANCELLING" in str(message[0])


def test_a_driver_that_is_gone_behind_the_stop_leaves_what_the_next_start_needs(jobs: Any) -> None:
    """The checkpoint of the stop is the newest: a start from there publishes what is not visible, and goes on."""
    job = counting(jobs, jobs.out, END, 1_500.0).execute("job")
    assert in_flow(job)
    stopped = job.stop(timeout=60)
    for mark in (jobs.folder / "checkpoints").rglob("*.published"):
        mark.unlink()  # as if the driver had died before it could write that down
    env = counting(jobs, jobs.out, END)
    assert env.execute("job", from_checkpoint=stopped.path).await_termination(60)
    assert lines(jobs.out) == expected(END)
