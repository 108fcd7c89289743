"""Cancelling: at any moment, also while user code does not come back. The worker's process is really gone then."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import psutil
import pytest

import tailrace as tr

pytestmark = pytest.mark.spark

LONGEST = 8.0
"""Seconds from cancel to CANCELLED, whatever user code does."""


def sleeps(x: int) -> int:
    if x == 1000:
        time.sleep(60)
    return x


def holds_the_interpreter(x: int) -> int:
    if x == 1000:
        re.match(r"(a+)+$", "a" * 40 + "b")  # for hours, without a moment for any other thread
    return x


def test_at_full_speed(jobs: Any, traces: Any) -> None:
    before = traces.now()
    env = jobs.env()
    stream = env.from_source(tr.sources.Sequence(0, None)).key_by(lambda x: x % 1000).count()
    stream.sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    time.sleep(1.0)
    requested = time.monotonic()
    job.cancel()
    assert job.await_termination(LONGEST)
    assert time.monotonic() - requested < 3.0
    assert str(job.status) == "CANCELLED"
    assert jobs.files() == []
    jobs.assert_nothing_left(before)


@pytest.mark.parametrize("blocked", [sleeps, holds_the_interpreter])
def test_while_user_code_does_not_come_back(jobs: Any, traces: Any, blocked: Any) -> None:
    before = traces.now()
    job = jobs.endless(blocked)
    workers = [psutil.Process(pid) for pid in jobs.workers(job).values()]
    assert len(workers) == 2
    time.sleep(1.5)
    requested = time.monotonic()
    job.cancel()
    assert job.await_termination(LONGEST)
    assert time.monotonic() - requested < LONGEST
    assert str(job.status) == "CANCELLED"
    # The one that was blocked is dead. The other may live on in Spark's pool, without anything of ours.
    dead, _ = psutil.wait_procs(workers, timeout=0.1)
    assert dead or any(w.status() == psutil.STATUS_ZOMBIE for w in workers)
    assert jobs.files() == []
    jobs.assert_nothing_left(before)


def test_while_open_blocks(jobs: Any) -> None:
    class Slow(tr.MapFunction):
        def open(self, ctx: Any) -> None:
            time.sleep(60)

        def map(self, value: int) -> int:
            return value

    env = jobs.env()
    env.from_source(tr.sources.Sequence(0, 10)).map(Slow()).sink_to(tr.sinks.Print())
    job = jobs.start(env, running=False)
    deadline = time.monotonic() + 30
    while len(jobs.workers(job)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    job.cancel()
    assert job.await_termination(LONGEST)
    assert str(job.status) == "CANCELLED"


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_in_the_middle_of_the_start(jobs: Any, traces: Any, seconds: float) -> None:
    before = traces.now()
    env = jobs.env()
    env.from_source(tr.sources.Sequence(0, None, rate=1000)).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env, running=False)
    time.sleep(seconds)
    job.cancel()
    assert job.await_termination(LONGEST)
    assert str(job.status) == "CANCELLED"
    assert job.exception() is None
    jobs.assert_nothing_left(before)


def test_twice_from_other_threads_and_after_the_end(jobs: Any) -> None:
    job = jobs.endless()
    threads = [threading.Thread(target=job.cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.await_termination(LONGEST)
    job.cancel()
    job.cancel()
    assert str(job.status) == "CANCELLED"
    assert job.await_termination(0)

    env = jobs.env()
    env.from_collection([1, 2]).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    done = jobs.start(env, running=False)
    assert done.await_termination(30)
    done.cancel()
    assert str(done.status) == "FINISHED"
    assert done.exception() is None


def test_whoever_cancels_the_spark_jobs_cancels_the_job(jobs: Any) -> None:
    job = jobs.endless()
    jobs.spark.sparkContext.cancelAllJobs()  # as an interrupt does, in every program with a Spark session
    assert job.await_termination(LONGEST)
    assert str(job.status) == "CANCELLED"
