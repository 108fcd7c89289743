"""Running jobs on real Spark, and looking at what they leave behind."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import tailrace as tr
from tests.spark.cluster import Cluster, hiding
from tests.spark.waiting import waited

ROWS_PER_SECOND = 2000


def connections_of(pid: int) -> list[Any]:
    """The TCP sockets of a process; none where it is gone."""
    with contextlib.suppress(psutil.Error):
        return list(psutil.Process(pid).net_connections("tcp"))
    return []


def pythons() -> list[psutil.Process]:
    """The Python processes that Spark has started for this one: its daemon and what that has forked. A server that another
    test of the session has started is none."""
    return [p for p in psutil.Process().children(recursive=True) if "python" in p.name()]


@dataclass(frozen=True)
class Traces:
    """What this process holds that a job could leave behind."""

    threads: list[str]
    sockets: int
    listening: int
    fds: int

    @classmethod
    def now(cls) -> Traces:
        links = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
        threads = sorted(t.name for t in threading.enumerate() if t.name.startswith("tailrace"))
        listening = sum(c.status == psutil.CONN_LISTEN for c in connections_of(os.getpid()))
        return cls(threads, sum("socket" in link for link in links), listening, len(links))


class Jobs:
    """Starts jobs and looks after them: whatever a test does, its jobs are over when it is."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.started: list[Any] = []

    def env(self, parallelism: int = 2, **settings: Any) -> tr.Environment:
        return tr.Environment(self.spark, parallelism=parallelism, **settings)

    def start(self, env: tr.Environment, name: str = "job", *, running: bool = True) -> Any:
        job = env.execute(name)
        self.started.append(job)
        if running:
            assert waited(lambda: str(job.status) == "RUNNING" or not job.is_active), job.status
        return job

    def endless(self, fn: Callable[[Any], Any] = lambda x: x, parallelism: int = 2, **settings: Any) -> Any:
        """A running job that maps numbers, at a modest pace, into files, and does not end by itself."""
        env = self.env(parallelism, **settings)
        stream = env.from_source(tr.sources.Sequence(0, None, rate=ROWS_PER_SECOND)).map(fn, name="the map")
        stream.rebalance().map(lambda x: x).sink_to(tr.sinks.TextFiles(str(self.out)))
        return self.start(env, "endless")

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def files(self) -> list[str]:
        """All files of the sink's folder, hidden ones too."""
        return sorted(os.listdir(self.out)) if self.out.exists() else []

    def workers(self, job: Any) -> dict[int, int]:
        """The process of each worker that the job has."""
        return {slot.index: slot.hello.pid for slot in job._runner.machine.roster.slots if slot.hello is not None}

    def running_in_spark(self) -> list[int]:
        return list(self.spark.sparkContext.statusTracker().getActiveJobsIds())

    def spark_is_idle(self) -> bool:
        """Whether Spark runs nothing. Its reports lag behind what it does: events go through a queue."""
        return waited(lambda: not self.running_in_spark(), 30.0)

    def assert_nothing_left(self, before: Traces) -> None:
        """Nothing of any job is left in Spark, in this process or in Spark's Python processes."""
        assert self.spark_is_idle()
        assert waited(lambda: Traces.now().sockets <= before.sockets), (before, Traces.now())
        now = Traces.now()
        assert now.threads == before.threads
        assert now.listening == before.listening
        assert now.fds <= before.fds, (before, now)
        for process in pythons():
            with contextlib.suppress(psutil.NoSuchProcess):
                assert process.status() != psutil.STATUS_STOPPED
                # The daemon listens for Spark, and a pooled worker has its link to Spark: one socket each.
                assert len(connections_of(process.pid)) <= 1, process


def _kept(found: Jobs) -> Iterator[Jobs]:
    yield found
    for job in found.started:
        if job.is_active:
            job.cancel()
    for job in found.started:
        assert job._runner.monitor.ended.wait(120), f"{job} did not end"


@pytest.fixture(scope="session")
def warm(spark: Any) -> None:
    """A first job has run: what Spark keeps from then on (workers in its pool, a connection of py4j) is there."""
    tr.Environment(spark, parallelism=2).from_collection([1]).rebalance().map(lambda x: x).collect()


@pytest.fixture
def jobs(spark: Any, warm: None, tmp_path: Path) -> Iterator[Jobs]:
    yield from _kept(Jobs(spark, tmp_path))


@pytest.fixture
def traces() -> type[Traces]:
    return Traces


@pytest.fixture(scope="module")
def jobs_of_module(spark: Any, warm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """As `jobs`, for jobs that several tests of a file look at."""
    yield from _kept(Jobs(spark, tmp_path_factory.mktemp("jobs")))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster whose executors see nothing of the driver's. Started once for all tests of a process."""
    hide = hiding()
    if hide is None:
        pytest.skip("executors without the driver's files need `unshare -m`, as root or in a user namespace")
    found = Cluster(tmp_path_factory.mktemp("cluster"), hide)
    yield found
    found.close()


@contextlib.contextmanager
def settings(spark: Any, given: dict[str, str]) -> Iterator[None]:
    """Settings of a session, which has its own again behind the context."""
    before = {name: spark.conf.get(name) for name in given}
    try:
        for name, value in given.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
