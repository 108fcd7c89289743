"""Faults on real Spark: workers, executors and drivers are killed, and the output is as if nothing had happened."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import cloudpickle

import tailrace as tr
from tailrace.storage.store import Store
from tests.environ import plain_environ
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark

PACED = Path(__file__).with_name("paced.py")
AT_ONCE = tr.FixedDelay(attempts=1000, delay=0.0)


@pytest.fixture(scope="module")
def paced() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("paced", PACED)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paced"] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules["paced"]


def running(job: Any) -> bool:
    return str(job.status) == "RUNNING"


def story(job: Any) -> str:
    return f"restarts {job.restarts}: {list(job._runner.machine.course.story)}"


# Workers.


def kill_at_random(jobs: Any, job: Any, kills: int, seed: int) -> list[str]:
    """Kills workers of a job, at moments and in an order that the seed decides: some while it recovers from the kill
    before. What the job was doing at each."""
    chance = random.Random(seed)
    states = []
    for _ in range(kills):
        restarts = job.restarts
        if chance.random() < 0.75:  # else whatever it is doing
            waited(lambda: running(job) or not job.is_active)
        until = time.monotonic() + chance.uniform(0, 0.4)
        waited(lambda until=until: time.monotonic() >= until)
        if not job.is_active:
            break
        workers = sorted(jobs.workers(job).items())
        if not workers:
            continue
        states.append(str(job.status))
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers)[1], signal.SIGKILL)
        waited(lambda restarts=restarts: job.restarts > restarts or not job.is_active, 2.0)
    return states


@pytest.mark.parametrize(("seed", "backend"), [(1, "memory"), (2, "disk")])
def test_workers_killed_at_random_leave_the_output_as_it_was(
    jobs: Any, paced: Any, tmp_path: Path, seed: int, backend: str
) -> None:
    records = 14_000
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.15, max_concurrent=2, retain="never")
    env = jobs.env(checkpoint=settings, restart=AT_ONCE, state_backend=backend)
    paced.flow(env, tmp_path, records, 4000)
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "paced")
        killed = kill_at_random(jobs, job, 8, seed)
    assert job.await_termination(150)
    assert len(killed) >= 6 and job.restarts >= 4, (killed, story(job))
    assert paced.wrong(tmp_path, records) == "", story(job)
    assert not list((tmp_path / "checkpoints").rglob("*.state"))


def test_no_worker_is_started_anew_that_was_not_lost(jobs: Any, paced: Any, tmp_path: Path) -> None:
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.1)
    env = jobs.env(parallelism=3, checkpoint=settings, restart=AT_ONCE)
    paced.flow(env, tmp_path, 6000, 3000)
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "paced")
        assert waited(lambda: job.checkpoints)
        before = jobs.workers(job)
        os.kill(before[1], signal.SIGKILL)
        assert waited(lambda: job.restarts == 1 and running(job))
        after = jobs.workers(job)
    assert {slot for slot in before if before[slot] != after[slot]} == {1}
    assert job.await_termination(150)
    assert paced.wrong(tmp_path, 6000) == ""


def test_both_workers_at_once(jobs: Any, paced: Any, tmp_path: Path) -> None:
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.1)
    env = jobs.env(checkpoint=settings, restart=AT_ONCE)
    paced.flow(env, tmp_path, 6000, 3000)
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "paced")
        assert waited(lambda: len(job.checkpoints) >= 3)
        for pid in jobs.workers(job).values():
            os.kill(pid, signal.SIGKILL)
        assert waited(lambda: job.restarts >= 1 and running(job)), story(job)
    assert job.await_termination(150)
    assert paced.wrong(tmp_path, 6000) == "", story(job)


def test_without_checkpoints_a_restart_begins_anew(jobs: Any, paced: Any, tmp_path: Path) -> None:
    env = jobs.env(restart=AT_ONCE)
    paced.flow(env, tmp_path, 3000, 3000)
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "paced")
        assert waited(lambda: any(path.stat().st_size for path in (tmp_path / "counts").glob(".*")))
        os.kill(jobs.workers(job)[0], signal.SIGKILL)
        assert waited(lambda: job.restarts == 1)
    assert job.await_termination(150)
    assert paced.wrong(tmp_path, 3000) == "", story(job)


def test_a_stopped_worker_is_replaced_when_its_lease_ends(jobs: Any, paced: Any, tmp_path: Path) -> None:
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.1)
    env = jobs.env(checkpoint=settings, restart=AT_ONCE)
    paced.flow(env, tmp_path, 6000, 3000)
    with paced.kept_open(tmp_path):
        job = jobs.start(env, "paced")
        assert waited(lambda: job.checkpoints)
        job._runner.machine.limits = replace(job._runner.machine.limits, lease=2_000_000)
        os.kill(jobs.workers(job)[1], signal.SIGSTOP)
        assert waited(lambda: job.restarts == 1 and running(job)), story(job)
    assert job.await_termination(150)
    assert paced.wrong(tmp_path, 6000) == "", story(job)


# User code.


class FailsOnce(tr.KeyedProcessFunction):
    """Counts; the first attempt raises in the middle."""

    count = tr.ValueState(int, default=0)

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, ctx: Any) -> None:
        self.attempt = ctx.attempt
        if self.where == "open" and self.attempt == 0:
            raise ValueError("boom in open")

    def process(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        if self.where == "process" and self.attempt == 0 and value >= 1500:
            raise ValueError(f"boom {value}")
        self.count.value += 1
        yield (ctx.key, self.count.value)


def counts(out: Path) -> list[str]:
    return sorted(line for path in out.glob("[!._]*") for line in path.read_text().splitlines())


def all_counts(records: int, keys: int = 10) -> list[str]:
    return sorted(str((key, n + 1)) for key in range(keys) for n in range(len(range(key, records, keys))))


@pytest.mark.parametrize("where", ["open", "process"])
def test_user_code_that_raises_once_costs_a_restart(
    jobs: Any, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = jobs.env(checkpoint=tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.1), restart=AT_ONCE)
    numbers = env.from_source(tr.sources.Sequence(0, 3000, rate=3000))
    numbers.key_by(lambda x: x % 10).process(FailsOnce(where), name="fails once").sink_to(
        tr.sinks.TextFiles(str(jobs.out))
    )
    job = jobs.start(env, running=False)
    assert job.await_termination(150)
    assert job.restarts == 1
    [restart] = [line for line in caplog.messages if "restart" in line]
    assert "fails once" in restart and "boom" in restart
    assert counts(jobs.out) == all_counts(3000)


@pytest.mark.parametrize(
    ("strategy", "restarts"),
    [(tr.NoRestart(), 0), (tr.FixedDelay(attempts=2, delay=0.0), 2), (tr.FailureRate(failures=1, delay=0.0), 1)],
    ids=repr,
)
def test_the_strategy_says_how_often(jobs: Any, tmp_path: Path, strategy: Any, restarts: int) -> None:
    def boom(x: int) -> int:
        if x == 300:
            raise ValueError("boom again")
        return x

    env = jobs.env(checkpoint=tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.1), restart=strategy)
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=3000))
    numbers.map(boom, name="the map").sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env, running=False)
    with pytest.raises(tr.JobFailed, match="boom again") as caught:
        job.await_termination(150)
    assert (caught.value.operator, caught.value.record) == ("the map", "300")
    assert job.restarts == restarts
    assert str(job.status) == "FAILED"
    assert jobs.spark_is_idle()


class Blocks(tr.MapFunction):
    """In its first attempt it does not come back from one record."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, ctx: Any) -> None:
        self.first = ctx.attempt == 0

    def map(self, value: int) -> int:
        if self.first and value == 1001:
            Path(self.folder, "blocked").write_text(str(os.getpid()))
            threading.Event().wait()
        return value


def test_a_process_whose_user_code_does_not_come_back_is_replaced(jobs: Any, tmp_path: Path) -> None:
    env = jobs.env(checkpoint=tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.1), restart=AT_ONCE)
    numbers = env.from_source(tr.sources.Sequence(0, 3000, rate=3000)).map(Blocks(str(tmp_path)))
    numbers.key_by(lambda x: x % 10).process(FailsOnce("")).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    assert waited((tmp_path / "blocked").exists)
    assert waited(lambda: (tmp_path / "blocked").read_text())
    blocked = int((tmp_path / "blocked").read_text())
    workers = jobs.workers(job)
    (other,) = [pid for pid in workers.values() if pid != blocked]
    os.kill(other, signal.SIGKILL)
    assert job.await_termination(150), story(job)
    assert blocked not in jobs.workers(job).values() and not psutil.pid_exists(blocked)
    assert counts(jobs.out) == all_counts(3000)


# The driver, and executors: in processes of their own.


@dataclass
class Seen:
    """The last known status of a job of the other process."""

    status: str = ""
    checkpoints: int = 0
    restarts: int = 0
    workers: tuple[int, ...] = ()


class Program:
    """Paced jobs in another process, each in its folder."""

    def __init__(self, folder: Path, master: str, **message: str) -> None:
        for name in message:
            (folder / name).mkdir(exist_ok=True)
        options = [f"{folder / name}:{one}" for name, one in message.items()]
        self.jobs = {name: Seen() for name in message}
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(PACED), master, *options],
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=plain_environ(),
            start_new_session=True,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if len(words) == 5 and words[0] in self.jobs:
                pids = () if words[4] == "-" else tuple(map(int, words[4].split(",")))
                self.jobs[words[0]] = Seen(words[1], int(words[2]), int(words[3]), pids)

    def told(self) -> str:
        self.log.seek(0)
        return f"{self.jobs}\n{self.log.read()[-5000:]}"

    def family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill_the_driver(self) -> None:
        """Without it all others end by themselves."""
        family = self.family()
        self.process.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(family, 20)
        assert not alive, alive

    def end(self) -> None:
        for one in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.log.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    started: list[Program] = []

    def start(master: str, **message: str) -> Program:
        started.append(Program(tmp_path, master, **message))
        return started[-1]

    yield start
    for one in started:
        one.end()


def go_on(jobs: Any, paced: Any, folder: Path, parallelism: int, records: int) -> None:
    """The job that was killed, in this process, from its checkpoint."""
    settings = tr.CheckpointConfig(str(folder / "checkpoints"), interval=0.2)
    env = jobs.env(parallelism=parallelism, checkpoint=settings)
    paced.flow(env, folder, records, None)
    job = env.execute("paced", from_checkpoint="latest")
    jobs.started.append(job)
    assert job.await_termination(200)


@pytest.mark.timeout(900)  # five jobs of two programs
def test_a_killed_driver(jobs: Any, paced: Any, tmp_path: Path, program: Any) -> None:
    """One job is killed between checkpoints, one at the very point between manifest and publication, one when that was
    done and not yet reported, one when its input had ended and nothing was published yet, and one that is being
    stopped, when its last checkpoint was complete. Each goes on in another process at another parallelism, and the
    files of both are exactly the output."""
    records, some, few = 60_000, 10_000, 2_000
    places = {name: tmp_path / name for name in ("between", "before", "after", "ended", "stopped")}
    for folder in places.values():
        folder.mkdir()
    for name in ("ended", "stopped"):
        (places[name] / "hold").touch()
    # For minutes: on a busy machine all of this must have happened before the input ends. What goes on has no pace.
    paces = {name: f"{records}:300:0.2:{'after' if name == 'after' else 'before'}" for name in places}
    paces |= {"ended": f"{few}:0:1000:before", "stopped": f"{some}:100:1000:before"}
    lost = program("local[10]", **paces)
    both = [lost.jobs[name] for name in ("before", "after")]
    assert waited(lambda: lost.jobs["stopped"].status == "RUNNING", 300), lost.told()  # five jobs start at once
    (places["stopped"] / "stop").touch()

    def visible_after(checkpoints: int, *names: str) -> bool:
        """True if the jobs have had so many checkpoints, and something of each is visible: what a checkpoint had is
        published behind it, and the first ones may have had nothing."""
        return all(lost.jobs[name].checkpoints >= checkpoints and paced.lines(places[name]) for name in names)

    assert waited(lambda: visible_after(2, "before", "after"), 300), (both, lost.told())
    (places["before"] / "hold").touch()
    (places["after"] / "hold").touch()
    for name in ("before", "after", "ended", "stopped"):
        assert waited((places[name] / "hold.reached").exists, 300), (name, lost.told())
    assert waited(lambda: visible_after(4, "between"), 300), lost.told()
    lost.kill_the_driver()

    visible = {name: len(paced.lines(folder)) for name, folder in places.items()}
    assert all(0 < visible[name] < 2 * records for name in ("between", "before", "after")), visible
    assert visible["ended"] == visible["stopped"] == 0
    complete = Store(str(places["stopped"] / "checkpoints"), "paced").latest()
    assert complete is not None and complete[1].stopped
    for folder in places.values():
        (folder / "hold").unlink(missing_ok=True)
    for parallelism, (name, folder) in zip((1, 3, 1, 3, 1), places.items(), strict=True):
        many = {"ended": few, "stopped": some}.get(name, records)
        go_on(jobs, paced, folder, parallelism, many)
        assert paced.wrong(folder, many) == "", name


@pytest.mark.timeout(600)  # a cluster with a JVM for each executor
def test_killed_executors(paced: Any, tmp_path: Path, program: Any) -> None:
    """On a cluster, two executors' JVMs and then a worker's process."""
    records, folder = 12_000, tmp_path / "job"
    folder.mkdir()
    with paced.kept_open(folder):
        run = program("local-cluster[2,1,1024]", job=f"{records}:2500:0.2:before")
        assert waited(lambda: run.jobs["job"].checkpoints >= 2), run.told()
        chance = random.Random(5)
        for i in range(3):
            before = run.jobs["job"]
            victim = psutil.Process(chance.choice(before.workers))
            if i < 2:
                (victim,) = [p for p in victim.parents() if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline())]
            victim.kill()

            def recovered(before: Seen = before) -> bool:
                now = run.jobs["job"]
                return (
                    now.restarts > before.restarts and now.status == "RUNNING" and now.checkpoints > before.checkpoints
                )

            assert waited(recovered), run.told()
    assert run.process.wait(200) == 0, run.told()
    assert run.jobs["job"].status == "FINISHED"
    assert paced.wrong(folder, records) == ""
