"""A job fails within seconds of its cause, with one error that names who erred and where; a wrong request is refused
before anything starts."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

import tailrace as tr
from tailrace.cli.main import app
from tailrace.coordinator.job.timeouts import Limits
from tailrace.errors import OWN_FOLDER

pytestmark = pytest.mark.spark


def failure(jobs: Any, job: Any, within: float = 8.0) -> tr.JobFailed:
    """The error of a job that fails now."""
    requested = time.monotonic()
    with pytest.raises(tr.JobFailed) as caught:
        job.await_termination(30)
    assert time.monotonic() - requested < within
    assert str(job.status) == "FAILED"
    assert jobs.spark_is_idle()
    assert jobs.files() == []
    assert str(job.exception()) == str(caught.value)
    return caught.value


# User code that raises.


def boom(x: Any) -> Any:
    if x == 700:
        raise ValueError(f"boom {x}")
    return x


class Fails(tr.KeyedProcessFunction):
    """Fails where the test sets it."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, ctx: Any) -> None:
        if self.where == "open":
            raise ValueError("boom in open")

    def process(self, value: Any, ctx: Any) -> Any:
        if self.where == "on_timer":
            ctx.set_timer(processing_time=ctx.now() + 0.1)
        elif self.where == "process":
            boom(value)
        return [value]

    def on_timer(self, timestamp: float, ctx: Any) -> None:
        raise ValueError("boom in on_timer")


class BadSink(tr.sinks.TextFiles):
    """Fails where the test sets it."""

    where = "write"

    def writer(self, ctx: Any) -> Any:
        writer = super().writer(ctx)
        if self.where == "writer":
            raise ValueError("boom in writer")
        if self.where == "write":
            return BadWriter(writer)
        return writer

    def publish(self, prepared: Any) -> None:
        raise ValueError("boom in publish")


class BadWriter(tr.SinkWriter):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def write(self, batch: Any) -> None:
        raise ValueError("boom in write")

    def close(self) -> None:
        self.inner.close()


@pytest.mark.paths
def test_map(jobs: Any) -> None:
    error = failure(jobs, jobs.endless(boom))
    assert (error.job, error.operator, error.record) == ("endless", "the map", "700")
    assert error.subtask in (0, 1)
    text = str(error)
    assert "ValueError: boom 700" in text
    assert f'File "{__file__}", line ' in text and "in boom" in text
    assert "raise ValueError" in text  # the line itself, from the user's file
    assert OWN_FOLDER not in text  # none of our frames


@pytest.mark.parametrize("where", ["open", "process", "on_timer"])
def test_process_function(jobs: Any, where: str) -> None:
    env = jobs.env()
    source = env.from_source(tr.sources.Sequence(0, None, rate=2000))
    keyed = source.key_by(lambda x: x % 5).process(Fails(where), name="the function")
    keyed.sink_to(tr.sinks.TextFiles(str(jobs.out)))
    error = failure(jobs, jobs.start(env))
    assert error.operator == "the function"
    assert "boom" in str(error) and f"in {where}" in str(error)
    assert error.record == ("700" if where == "process" else None)


@pytest.mark.parametrize("where", ["writer", "write", "publish"])
def test_sink(jobs: Any, where: str) -> None:
    sink = BadSink(str(jobs.out))
    sink.where = where
    env = jobs.env()
    env.from_source(tr.sources.Sequence(0, 3000)).sink_to(sink, name="the sink")
    error = failure(jobs, jobs.start(env))
    assert error.operator == "the sink"
    assert f"boom in {where}" in str(error)


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_would_end_a_process_ends_the_job(jobs: Any, error: BaseException) -> None:
    def fn(x: int) -> int:
        if x == 700:
            raise error
        return x

    job = jobs.endless(fn)
    found = failure(jobs, job)
    assert type(error).__name__ in str(found)
    assert found.operator is not None and "the map" in found.operator
    assert f'File "{__file__}", line ' in str(found)


def test_sys_exit_in_open_and_close(jobs: Any) -> None:
    class Leaves(tr.MapFunction):
        def __init__(self, where: str) -> None:
            self.where = where

        def open(self, ctx: Any) -> None:
            if self.where == "open":
                sys.exit("no licence")

        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            if self.where == "close":
                sys.exit("no licence")

    env = jobs.env()
    env.from_collection([1]).map(Leaves("open")).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    assert "no licence" in str(failure(jobs, jobs.start(env)))
    env = jobs.env()
    env.from_collection([1]).map(Leaves("close")).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    assert jobs.start(env).await_termination(150)  # by then the job had finished


# Processes that die.


def segfault(x: int) -> int:
    if x == 700:
        ctypes.string_at(0)
    return x


def leave(x: int) -> int:
    if x == 700:
        os._exit(3)
    return x


def test_segfault_tells_its_stack(jobs: Any, traces: Any) -> None:
    before = traces.now()
    text = str(failure(jobs, jobs.endless(segfault)))
    assert "worker " in text
    assert "Segmentation fault" in text
    assert "in segfault" in text
    assert "_beat" not in text and "pyspark" not in text
    jobs.assert_nothing_left(before)


def test_os_exit(jobs: Any) -> None:
    text = str(failure(jobs, jobs.endless(leave)))
    assert "worker " in text and "crashed" in text


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker(jobs: Any, traces: Any, victim: int) -> None:
    before = traces.now()
    job = jobs.endless()
    os.kill(jobs.workers(job)[victim], signal.SIGKILL)
    text = str(failure(jobs, job))
    assert f"worker {victim}" in text
    assert "killed" in text
    jobs.assert_nothing_left(before)


def test_a_frozen_worker_loses_its_lease(jobs: Any, traces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tailrace.runtime.driver.machine_settings.Limits", lambda **more: replace(Limits(**more), lease=2_500_000)
    )
    before = traces.now()
    job = jobs.endless()
    frozen = psutil.Process(jobs.workers(job)[1])
    frozen.suspend()
    error = failure(jobs, job, within=2.5 + 3 + 4 + 2)
    assert "worker 1 has given no sign of life for " in str(error)
    assert not frozen.is_running()
    jobs.assert_nothing_left(before)


def test_code_that_holds_the_interpreter_for_seconds_loses_nobody(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    def slow(x: int) -> int:
        if x % 1000 == 0:
            began = time.monotonic()
            size = 20
            while time.monotonic() - began < 3:  # each call takes twice as long as the one before
                re.match(r"(a+)+$", "a" * size + "b")
                size += 1
        return x

    monkeypatch.setattr(
        "tailrace.runtime.driver.machine_settings.Limits", lambda **more: replace(Limits(**more), lease=8_000_000)
    )
    env = jobs.env()
    stream = env.from_source(tr.sources.Sequence(0, 2000)).map(slow)
    stream.key_by(lambda x: x % 10).count().sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    assert job.await_termination(150)
    assert str(job.status) == "FINISHED"


def test_workers_that_open_at_very_different_speed(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever is ready connects to those who are not: that must not run into the time limits of a handshake.
    class Slow(tr.MapFunction):
        def open(self, ctx: Any) -> None:
            from tailrace.runtime.network import dialing

            dialing.DIAL_SECONDS = 1.0  # in this process of Spark's pool only
            time.sleep({0: 0, 1: 6, 2: 3}[ctx.subtask])

        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            from tailrace.runtime.network import dialing

            dialing.DIAL_SECONDS = 20.0

    env = jobs.env(3)
    env.from_source(tr.sources.Sequence(0, 300)).map(Slow()).rebalance().map(lambda x: x).sink_to(
        tr.sinks.TextFiles(str(jobs.out))
    )
    assert jobs.start(env).await_termination(150)


# Modules that are not there.


@pytest.fixture
def module(tmp_path: Path) -> Any:
    """A module of the user in a folder of its own."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "only_here_module.py").write_text("def twice(x):\n    return 2 * x\n")
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("only_here_module")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("only_here_module", None)


def test_local_modules_reach_the_workers(jobs: Any, module: Any) -> None:
    env = jobs.env()
    assert sorted(env.from_collection([1, 2, 3]).map(module.twice).collect()) == [2, 4, 6]


def test_a_module_that_is_missing_is_named_with_the_worker(jobs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    (folder / "gone_module.py").write_text("def twice(x):\n    return 2 * x\n")
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module("gone_module")
        (folder / "gone_module.py").unlink()
        env = jobs.env()
        env.from_collection([1, 2, 3]).map(module.twice).sink_to(tr.sinks.TextFiles(str(jobs.out)))
        text = str(failure(jobs, jobs.start(env)))
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("gone_module", None)
    assert "cannot import gone_module" in text
    assert "worker 0" in text or "worker 1" in text
    assert text.count("gone_module") <= 2  # one error


# Told before anything starts.


@pytest.fixture
def nothing_starts(jobs: Any, traces: Any) -> Any:
    before = traces.now()
    seen = jobs.spark.sparkContext.statusTracker().getJobIdsForGroup(None)
    yield
    assert jobs.spark.sparkContext.statusTracker().getJobIdsForGroup(None) == seen
    jobs.assert_nothing_left(before)


def test_too_few_slots(jobs: Any, nothing_starts: Any) -> None:
    env = jobs.env(5)
    env.from_collection([1]).sink_to(tr.sinks.Print())
    requested = time.monotonic()
    with pytest.raises(tr.GraphError, match=r"needs 5 task slots.*Spark has 4.*local\[4\].*local\[6\]"):
        env.execute("wide")
    assert time.monotonic() - requested < 2


def test_what_cannot_be_pickled_names_the_operator(jobs: Any, nothing_starts: Any) -> None:
    lock = threading.Lock()
    env = jobs.env()
    env.from_collection([1]).map(lambda x: (lock, x), name="locked").sink_to(tr.sinks.Print())
    with pytest.raises(tr.GraphError, match=r"'locked'.*cannot be pickled.*lock"):
        env.execute("unpicklable")


def test_a_collection_too_large_to_travel(jobs: Any, nothing_starts: Any) -> None:
    env = jobs.env()
    env.from_collection([os.urandom(1 << 20) for _ in range(70)]).sink_to(tr.sinks.Print())
    with pytest.raises(tr.GraphError, match=r"has 70.*MiB, and at most 63.* MiB .* 'from_collection'"):
        env.execute("large")


def test_a_second_job_while_the_first_holds_the_slots(jobs: Any) -> None:
    first = jobs.endless(parallelism=3)
    env = jobs.env(2)
    env.from_collection([1]).sink_to(tr.sinks.Print())
    with pytest.raises(tr.GraphError, match=r"needs 2 task slots.*has 4, 3 of them taken by running jobs"):
        env.execute("second")
    first.cancel()
    assert first.await_termination(150)
    assert jobs.start(env).await_termination(150)  # nothing had run, so nothing ran twice


def test_a_warning_when_no_slot_stays_free(jobs: Any, recwarn: pytest.WarningsRecorder) -> None:
    env = jobs.env(4)
    env.from_collection([1, 2, 3, 4]).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env, running=False)
    assert job.await_termination(150)
    (more,) = [w for w in recwarn if "task slots" in str(w.message)]
    assert "takes all 4 free task slots" in str(more.message)
    assert more.filename.endswith("conftest.py")  # where execute() was called


def test_two_jobs_started_at_once_cannot_take_the_same_slots(jobs: Any) -> None:
    errors: list[Exception] = []
    barrier = threading.Barrier(4)

    def start(i: int) -> None:
        env = jobs.env(2)
        env.from_source(tr.sources.Sequence(0, None, rate=100)).sink_to(tr.sinks.TextFiles(str(jobs.out / str(i))))
        barrier.wait()
        try:
            jobs.start(env, f"at once {i}", running=False)
        except tr.GraphError as error:
            errors.append(error)

    threads = [threading.Thread(target=start, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2, errors
    assert len(jobs.started) == 2


def test_speculation_is_refused(jobs: Any, nothing_starts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = jobs.spark.sparkContext.getConf().set("spark.speculation", "true")
    monkeypatch.setattr(jobs.spark.sparkContext, "_conf", conf)
    env = jobs.env()
    env.from_collection([1]).sink_to(tr.sinks.Print())
    with pytest.raises(tr.ConfigError, match=r"spark\.speculation must be off"):
        env.execute("speculative")


def test_an_error_as_large_as_its_data(jobs: Any) -> None:
    def fn(x: int) -> int:
        raise ValueError("x" * (100 << 20))

    error = failure(jobs, jobs.endless(fn))
    assert "ValueError: xxx" in str(error)
    assert error.operator == "the map"
    assert len(str(error)) < 100_000


def test_something_else_than_a_session(jobs: Any) -> None:
    with pytest.raises(tr.ConfigError, match=r"expected a SparkSession, got str 'local\[2\]'"):
        tr.Environment("local[2]", parallelism=1)


def test_slots_that_never_come(jobs: Any, tmp_path: Path) -> None:
    # Other queries of the session hold all slots: the job reports that after its patience, and its Spark jobs are withdrawn.
    stop = tmp_path / "stop"

    def hold(batches: Any) -> Any:
        while not stop.exists():
            time.sleep(0.05)
        yield from batches

    def query() -> None:
        with contextlib.suppress(Exception):
            jobs.spark.range(0, 4, 1, 4).mapInArrow(hold, "id long").collect()

    thread = threading.Thread(target=query)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while len(jobs.running_in_spark()) < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)
        env = jobs.env(2, slot_timeout=1.0)
        env.from_collection([1]).sink_to(tr.sinks.Print())
        job = jobs.start(env, running=False)
        with pytest.raises(tr.JobFailed, match=r"needs 2 task slots, and Spark gave it 0 within 1 s"):
            job.await_termination(10)
        time.sleep(0.5)
        assert len(jobs.running_in_spark()) == 1
    finally:
        stop.touch()
        thread.join()


class Refuses(tr.KeyedProcessFunction):
    """A function that adds, and refuses what is below zero."""

    total = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.total.value += value
        if value < 0:
            raise ValueError(f"{ctx.key} has {self.total.value}")
        yield self.total.value


def test_a_failed_call_is_kept_beside_the_checkpoints_and_made_again(spark: Any, tmp_path: Path) -> None:
    env = tr.Environment(
        spark,
        parallelism=2,
        checkpoint=tr.CheckpointConfig(dir=tmp_path, interval=0.1),
        restart=tr.FixedDelay(1, 0.1),
    )
    numbers = env.from_collection([1, 2, -7, 3])
    numbers.key_by(lambda n: "all").process(Refuses(), name="adds").sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match="the failed call is kept") as raised:
        env.execute("refuses").await_termination(60)
    path = str(raised.value).partition("tailrace debug ")[2].split()[0]
    assert Path(path).parent == tmp_path / "refuses" / "capsules"
    result = CliRunner().invoke(app, ["debug", "--run", path])
    assert result.exit_code == 0, result.output
    assert "the call failed as in the job: ValueError: all has " in result.output
    assert "note:" not in result.output
    CliRunner().invoke(app, ["prune", "--capsules", str(tmp_path)])
    assert not Path(path).exists()
