"""Jobs end, and nothing of them is left: in Spark, in this process, in the workers' processes, in folders."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr

pytestmark = pytest.mark.spark


def counted(jobs: Any, out: str) -> tr.Environment:
    env = jobs.env()
    stream = env.from_source(tr.sources.Sequence(0, 2000)).key_by(lambda x: x % 7).count()
    stream.sink_to(tr.sinks.TextFiles(out))
    return env


def test_ten_jobs_in_a_row_leave_nothing_and_grow_nothing(jobs: Any, traces: Any, tmp_path: Any) -> None:
    before, sizes = traces.now(), []
    for i in range(10):
        out = tmp_path / str(i)
        job = jobs.start(counted(jobs, str(out)), f"job {i}", running=False)
        assert job.await_termination(30)
        assert str(job.status) == "FINISHED"
        assert jobs.spark_is_idle()
        assert not [name for name in os.listdir(out) if name.startswith(".")]
        jobs.assert_nothing_left(before)
        sizes.append(traces.now())
    # What a test before this one left to the garbage collector may go meanwhile: fewer is no fault.
    for earlier, later in itertools.pairwise(sizes[1:]):
        assert later.sockets <= earlier.sockets and later.fds <= earlier.fds and later.listening == earlier.listening


@pytest.mark.parametrize("how", ["finished", "failed", "cancelled"])
def test_all_spark_tasks_are_over_when_the_status_says_so(jobs: Any, traces: Any, how: str) -> None:
    before = traces.now()

    def fn(x: int) -> int:
        if how == "failed" and x == 3000:
            raise ValueError("boom")
        return x

    env = jobs.env()
    source = tr.sources.Sequence(0, 4000 if how == "finished" else None, rate=4000)
    env.from_source(source).map(fn).rebalance().map(lambda x: x).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    if how == "cancelled":
        time.sleep(0.5)
        job.cancel()
    started = time.monotonic()
    while not job.status.final:
        assert time.monotonic() - started < 15
        time.sleep(0.001)
    assert jobs.spark_is_idle()
    assert str(job.status) == how.upper()
    assert [name for name in jobs.files() if name.startswith(".")] == []
    assert bool(jobs.files()) == (how == "finished")
    if how == "failed":
        with pytest.raises(tr.JobFailed, match="boom"):
            job.await_termination(5)
    else:
        assert job.await_termination(5)
        assert job.exception() is None
    assert not job.is_active
    jobs.assert_nothing_left(before)


def test_files_that_were_prepared_go_when_another_worker_fails(jobs: Any) -> None:
    # Worker 1 reads its few numbers and has prepared its file long before worker 0 fails.
    def fn(x: int) -> int:
        if x == 0:
            time.sleep(1.5)
            raise ValueError("boom")
        return x

    env = jobs.env()
    env.from_source(tr.sources.Sequence(0, 10)).map(fn).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    with pytest.raises(tr.JobFailed, match="boom"):
        jobs.start(env).await_termination(30)
    assert jobs.files() == []


@pytest.mark.parametrize("how", ["finished", "cancelled"])
def test_processes_that_user_code_has_forked_hold_no_connection(jobs: Any, tmp_path: Path, how: str) -> None:
    # A child has a copy of every socket of its parent, and lives on.
    class Forks(tr.MapFunction):
        def open(self, ctx: Any) -> None:
            pid = os.fork()
            if not pid:
                time.sleep(30)
                os._exit(0)
            (tmp_path / f"child{pid}").touch()

        def map(self, value: int) -> int:
            return value

    env = jobs.env()
    source = tr.sources.Sequence(0, 2000 if how == "finished" else None, rate=2000)
    env.from_source(source).map(Forks()).rebalance().map(lambda x: x).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    try:
        job = jobs.start(env)
        requested = time.monotonic()
        if how == "cancelled":
            job.cancel()
        assert job.await_termination(20)
        assert time.monotonic() - requested < 4
        assert str(job.status) == how.upper()
    finally:
        for child in tmp_path.glob("child*"):
            os.kill(int(child.name.removeprefix("child")), signal.SIGKILL)


def test_a_worker_that_cannot_reach_the_driver_says_so(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.runtime.driver.coordinator import JobRunner

    launch = JobRunner._launch

    def deaf(self: Any, slot: int) -> None:
        self._workers.listener.address = (self._workers.listener.address[0], 1)  # where nobody listens
        launch(self, slot)

    monkeypatch.setattr(JobRunner, "_launch", deaf)
    env = jobs.env()
    env.from_collection([1]).sink_to(tr.sinks.Print())
    with pytest.raises(tr.JobFailed, match=r"worker \d.*127\.0\.0\.1:1: nobody listens at this port"):
        jobs.start(env).await_termination(30)


def test_what_a_killed_worker_had_on_disk_is_removed_by_who_comes_next(jobs: Any) -> None:
    """State on disk has a folder of its own, and a worker that is killed cannot remove it."""
    program = "from tailrace.storage.scratch import Scratch; print(Scratch().path)\nimport os; os.abort()"
    done = subprocess.run([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True, check=False)
    left = Path(done.stdout.strip())
    assert done.returncode != 0
    env = jobs.env(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Collect())
    assert env.execute("next").await_termination(60)
    assert left.name.startswith("tailrace-scratch-") and not left.exists()
