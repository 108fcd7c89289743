"""A job whose right output is known at any moment, how it is started and watched, and what its processes take."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil

import tailrace as tr

from . import Setting

KEYS = 320
"""A multiple of every parallelism here: all numbers of a key come from one split, in order."""
AT_ONCE = tr.FixedDelay(attempts=1_000_000, delay=0.0)


class Wrong(AssertionError):
    """Something is not as it must be."""


def session(setting: Setting, slots: int, **conf: str) -> Any:
    """A session with so many task slots, on the cluster or on this machine."""
    from tailrace.spark.cluster.session import active_or_local

    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"} | {
        name.replace("_", "."): value for name, value in conf.items()
    }
    if setting.master is None:
        return active_or_local(slots, conf=conf)
    on_cluster = {"spark.executor.memory": "512m", "spark.cores.max": str(slots)}
    each = {"spark.executor.cores": str((slots + 1) // 2)}  # so that there are two executors
    return active_or_local(slots, setting.master, on_cluster | each | conf)


class Sums(tr.KeyedProcessFunction):
    """(key, how many so far, their sum)."""

    state = tr.ValueState(object, default=(0, 0))

    def process(self, value: int, ctx: tr.Context) -> Iterator[tuple[int, int, int]]:
        count, total = self.state.value
        self.state.value = (count + 1, total + value)
        yield ctx.key, count + 1, total + value


def key_of(number: int) -> int:
    return number % KEYS


class Run:
    """A job that counts and sums whole numbers by key, with checkpoints, and whoever looks after it."""

    def __init__(
        self,
        setting: Setting,
        spark: Any,
        *,
        rate: float | None = 2000.0,
        parallelism: int = 2,
        interval: float = 0.5,
        at_once: int = 1,
        slow: float = 0.0,
        between: Callable[[Any], Any] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = tempfile.mkdtemp(dir=setting.folder)
        self.spark = spark
        self.parallelism = parallelism
        checkpoint = tr.CheckpointConfig(f"{self.folder}/checkpoints", interval=interval, max_concurrent=at_once)
        settings = {"restart": AT_ONCE, "checkpoint": checkpoint} | settings
        self.env = tr.Environment(spark, parallelism=parallelism, progress=False, **settings)
        numbers = self.env.from_source(tr.sources.Sequence(0, None, rate=rate))
        if between is not None:
            numbers = numbers.map(between)
        sums = numbers.key_by(key_of).process(Sums())
        if slow:
            sums = sums.map(Slow(slow))
        self.sink = sums.sink_to(tr.sinks.Collect())
        self.job = self.env.execute(setting.scenario)

    # Looking on.

    def pid(self, slot: int) -> int:
        hello = self.job._runner.machine.roster.slots[slot].hello
        if hello is None:
            raise Wrong(f"worker {slot} is not there")
        return int(hello.pid)

    def pids(self) -> dict[int, int]:
        """The process of each worker that is there."""
        slots = self.job._runner.machine.roster.slots
        return {slot.index: slot.hello.pid for slot in slots if slot.hello is not None}

    @property
    def running(self) -> bool:
        return str(self.job.status) == "RUNNING"

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = 180.0) -> float:
        """Until the condition holds: how many seconds that took."""
        begun = time.monotonic()
        while not condition():
            if not self.job.is_active:
                self.job.await_termination()
                raise Wrong(f"{what}: the job has ended")
            if time.monotonic() - begun > seconds:
                raise Wrong(f"{what}: not within {seconds:.0f} s; {self.story()}")
            time.sleep(0.005)
        return time.monotonic() - begun

    def story(self) -> str:
        return f"{self.job.status}, {self.job.restarts} restarts: {list(self.job._runner.machine._story)[-12:]}"

    def await_checkpoint(self) -> None:
        """Runs, and a checkpoint was taken from here on."""
        since = time.time()
        self.wait("a checkpoint", lambda: self.running and any(c.timestamp > since for c in self.job.checkpoints[-3:]))

    def await_restart(self, restarts: int, seconds: float = 180.0) -> float:
        """Until the job runs after more than so many restarts."""
        what = f"restart {restarts + 1}"
        return self.wait(what, lambda: self.job.restarts > restarts and self.running, seconds)

    def rows(self) -> int:
        progress = self.job.last_progress
        return 0 if progress is None else int(progress["tailrace"]["totalOutputRows"])

    # The end.

    def finish(self) -> dict[str, Any]:
        """Takes a last checkpoint, ends the job, and looks at all output that is visible."""
        self.wait("the end", lambda: self.running)
        self.job.checkpoint(timeout=300)
        restarts = self.job.restarts
        self.job.cancel()
        if not self.job.await_termination(120):
            raise Wrong(f"does not end: {self.story()}")
        found = self.sink.result()
        return {"records": len(found), "restarts": restarts, "wrong": wrong(found)}


class Slow:
    """Takes its time for each record."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, record: Any) -> Any:
        time.sleep(self.seconds)
        return record


def wrong(found: Iterable[tuple[int, int, int]]) -> str:
    """What is not as it must be in the output of a `Run`: each key has its first n counts, each once, with their sums."""
    by_key: dict[int, list[tuple[int, int]]] = {}
    for key, count, total in found:
        by_key.setdefault(key, []).append((count, total))
    if len(by_key) < KEYS:
        return f"only {len(by_key)} of {KEYS} keys"
    for key, those in by_key.items():
        those.sort()
        for at, (count, total) in enumerate(those):
            n = at + 1
            if (count, total) != (n, n * key + KEYS * n * (n - 1) // 2):
                return f"key {key}: ({count}, {total}) in place {n}"
    return ""


# Processes.


def jvm() -> psutil.Process:
    """The driver's."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    return psutil.Process(gateway.proc.pid)


def executors(spark: Any) -> list[psutil.Process]:
    """Of this program, on a cluster of this machine."""
    mine = spark.sparkContext.applicationId
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and mine in words:
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def executor_of(pid: int) -> psutil.Process:
    """Whose worker this process is."""
    for process in psutil.Process(pid).parents():
        if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
            return process
    raise Wrong(f"process {pid} is of no executor")


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            os.kill(process.pid, number)


class Watched:
    """The memory of processes while something happens, in MB, by name."""

    def __init__(self, processes: Callable[[], dict[str, int]], every: float = 0.5) -> None:
        self._processes, self._every = processes, every
        self.seen: dict[str, list[float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(self._every):
            for name, pid in self._processes().items():
                with contextlib.suppress(psutil.Error):
                    self.seen.setdefault(name, []).append(psutil.Process(pid).memory_info().rss / (1 << 20))

    def figures(self) -> dict[str, Any]:
        """Of each process: the most; and the medians of the second quarter of the time and of the last one."""
        figures_ = {}
        for name, seen in self.seen.items():
            quarter = max(1, len(seen) // 4)
            early, late = seen[quarter : 2 * quarter] or seen, seen[-quarter:]
            figures_[name] = {"most": max(seen), "early": statistics.median(early), "late": statistics.median(late)}
        return {name: {kind: round(mb) for kind, mb in one.items()} for name, one in figures_.items()}
