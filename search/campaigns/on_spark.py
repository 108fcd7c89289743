"""Golden programs on real Spark, each with one drawn way of running and one drawn loss: the pairs that the simulator runs by
the thousand, with processes, sockets and files.

    python -m search.campaigns.on_spark --seeds 0:10 --on standalone

Prints a line for each run, and at the end what all of them have had: runs of each kind, losses, restarts, replaced workers,
changes of size. The exit code is 1 where a run gave another result than the program has, or did not end.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import logging
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

import tailrace as tr
from search.campaigns.spark_draws import LOSSES, SparkRun, draw
from search.campaigns.spark_places import CONF, PLACES, SparkOutcome, spark_at
from search.programs.golden import PROGRAMS
from search.seeds import report, run_seeds, seeds_of
from tailrace.api.connectors import NOTHING_YET
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.workers.rescaling import ElasticSizes
from tests import buckets

EXECUTORS, CORES = 3, 2
MASTER = f"local-cluster[{EXECUTORS},{CORES},1024]"
"""Three executors with two task slots each, each a process with processes of its own."""
SECONDS = 4.0
"""The time in which a program would read its input at its rate."""
BEGINNING, SLOWER = 0.4, 12
"""The share of the input that is read at this rate. The rest comes at a rate so many times slower until losses have come,
so that these come before the end, however busy the machine is."""
LEASE = 3.0
"""The seconds after which a frozen worker counts as lost, so that a run does not wait ten."""
PATIENCE = 120.0
"""The seconds within which a run ends, whatever happens to it."""
LEAST, MOST = 1, 3
"""The bounds of the size of an elastic job."""
WAIT = 1.5
"""The seconds that it waits for task slots before it goes on with fewer workers."""


STANDBYS = {
    "no standby": None,
    "started": tr.StandbyConfig(replicas=0),
    "ready": tr.StandbyConfig(),
    "two at once": tr.StandbyConfig(depth=2),
    "hot": tr.StandbyConfig(mode="hot"),
}


# A run.


class RaisedOnce(Exception):
    """The error of a user's function that is told to raise."""


@dataclass(frozen=True)
class Raising:
    """A function that raises once, as soon as there is a file, and passes its records on else. Pickled by value."""

    flag: str

    def __call__(self, record: Any) -> str:
        try:
            os.remove(self.flag)
        except FileNotFoundError:
            return base64.b64encode(pickle.dumps(record)).decode()
        raise RaisedOnce(f"as {self.flag} demands")


class LastingSequence(tr.sources.Sequence):
    """Numbers, of which the later ones take their time until there is a file."""

    over = ""
    """The path of the file."""

    def reader(self, split: Any, position: Any = None) -> tr.Reader:
        numbers = super().reader(split, position)
        if self.end is None or self.rate is None:
            return numbers
        later = self.start + BEGINNING * (self.end - self.start)
        return _LastingReader(numbers, self.over, later, SLOWER * split[1] / self.rate)


class _LastingReader(tr.Reader):
    def __init__(self, numbers: Any, over: str, later: float, pause: float) -> None:
        self.numbers, self.over, self.later, self.pause = numbers, over, later, pause
        self.due = 0.0

    def read(self, limit: int, now: float) -> Any:
        if self.numbers.at < self.later:
            return self.numbers.read(limit, now)
        if os.path.exists(self.over):
            self.numbers.pace.rate = None
            return self.numbers.read(limit, now)
        if now < self.due:
            return NOTHING_YET
        self.due = now + self.pause
        return self.numbers.read(1, now)

    def next_at(self, now: float) -> float:
        later = self.numbers.at >= self.later
        return min(now + 0.1, self.due) if later else float(self.numbers.next_at(now))

    @property
    def position(self) -> Any:
        return self.numbers.position


class OtherTasks:
    """The tasks of another party, in a Spark job each: they run where there are free slots, and wait for others."""

    def __init__(self, spark: Any, over: Path) -> None:
        """`over`: the file behind which they end."""
        self._context, self._over = spark.sparkContext, over
        self._threads: list[threading.Thread] = []
        self._ends: threading.Timer | None = None

    def take(self, count: int, seconds: float) -> None:
        """Starts so many tasks, which last so many seconds."""
        from pyspark import InheritableThread

        self._ends = threading.Timer(seconds, self._over.touch)
        self._threads = [InheritableThread(target=self._run) for _ in range(max(0, count))]
        for thread in (*self._threads, self._ends):
            thread.start()

    def wait(self) -> None:
        """Until they have ended."""
        for thread in self._threads:
            thread.join(PATIENCE)

    def close(self) -> None:
        """Ends them."""
        if self._ends is not None:
            self._ends.cancel()
            self._over.touch()
            self.wait()

    def _run(self) -> None:
        path = str(self._over)

        def task(_: int) -> None:
            import os
            import time

            while not os.path.exists(path):
                time.sleep(0.02)

        with contextlib.suppress(Exception):  # its executor is killed, and Spark may give it up
            self._context.parallelize([0], 1).foreach(task)


class _Sizes(logging.Handler):
    """Counts the changes of size that jobs report."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if "moves from %d to %d workers" in record.msg and isinstance(record.args, tuple):
            _, before, after, *_ = record.args
            self.counts["grew" if int(str(after)) > int(str(before)) else "shrank"] += 1
        elif "in place of" in record.msg:
            self.counts["decisions by the load"] += 1


class _Life:
    """A run under way."""

    def __init__(self, spark: Any, s3: str, run: SparkRun, folder: Path) -> None:
        self.spark, self.run, self.folder = spark, run, folder
        self.checkpoints = {"files": str(folder), "S3": f"s3://{buckets.new_bucket(s3)}"}[run.place]
        self.options = {"files": {}, "S3": buckets.options(s3)}[run.place]
        self.rng = random.Random(f"tailrace life on spark {run.seed}")
        self.program = PROGRAMS[run.program]
        self._over = folder / "over"
        """The file behind which the input ends without delay."""
        self.counts: Counter[str] = Counter()
        self.stopped: list[str] = []
        self.happened: list[str] = []
        self.job = self._start(run.parallelism, None)

    def wrong(self) -> str:
        """Runs the program to its end. Returns what is wrong; empty where nothing is."""
        user = threading.Thread(target=self._use, daemon=True)
        others = OtherTasks(self.spark, self.folder / "others")
        with contextlib.closing(others):
            for turn, loss in enumerate(self.run.losses):
                self._wait_a_while()
                if turn == 0 and self.run.then != "nothing":
                    user.start()
                if turn == 0 and self.run.size == "elastic":
                    others.take(self._free() + self.rng.choice([1, 2, 3]), self.rng.uniform(2 * WAIT, 4 * WAIT))
                if turn == len(self.run.losses) - 1 and self.rng.random() < (0.6 if self.run.kind == "rounds" else 0.2):
                    self._over.touch()  # this loss comes behind the input, or at its end
                if self.rng.random() < 0.5:
                    time.sleep(self.rng.uniform(0.0, 0.5))
                if self.job.is_active:
                    self._lose(loss)
            if self.run.then != "nothing" and user.is_alive():
                user.join(PATIENCE)
            if self.run.size != "fixed":
                others.wait()
                _until(lambda: not self.job.is_active or (self._is_running() and self._workers() == MOST), 3 * WAIT)
            self._over.touch()
            wrong = self._wrong_in_the_end()
        return wrong

    def _wrong_in_the_end(self) -> str:
        if not self.job.await_termination(PATIENCE):
            self.job.cancel()
            return f"it did not end: {self._story()}"
        self._count()
        if self.stopped:
            self.job = self._start(5 - self.run.parallelism, self.stopped[0])
            if not self.job.await_termination(PATIENCE):
                self.job.cancel()
                return f"it did not end behind its stop: {self._story()}"
            self._count()
        found = Counter(pickle.loads(base64.b64decode(line)) for line in self._lines())
        expected = self.program.expected(self.n)
        if found == expected:
            return ""
        many, few = found - expected, expected - found
        return f"{many.total()} too many: {list(many)[:3]}, {few.total()} missing: {list(few)[:3]}; {self._story()}"

    @property
    def n(self) -> int:
        """The number of input records."""
        return self.program.n * 3

    def _start(self, parallelism: int, origin: str | None) -> Any:
        run = self.run
        mode = "unaligned-max-inflight" if run.policy == "capped" else run.policy
        persist = "continuous" if run.policy == "continuous" else "ad-hoc"
        checkpoint = tr.CheckpointConfig(
            f"{self.checkpoints}/checkpoints",
            storage_options=self.options,
            interval=0.25,
            mode="unaligned" if run.policy == "continuous" else mode,
            persist_inflight=persist,
            max_inflight_bytes=2_000 if run.policy == "capped" else 64 << 20,
        )
        scale = tr.Autoscale(target_busy=self.rng.choice([0.005, 0.05]), lag=30, cooldown=0.4)
        env = tr.Environment(
            self.spark,
            parallelism=parallelism if run.size == "fixed" else tr.Elastic(LEAST, MOST, wait=WAIT),
            autoscale=scale if run.size == "autoscaled" else None,
            checkpoint=checkpoint,
            restart=tr.FixedDelay(attempts=20, delay=0.05),
            state_backend=run.state,
            standby=STANDBYS[run.standby],
        )
        lasting = type("Lasting", (LastingSequence,), {"over": str(self._over)})
        with mock.patch.object(tr.sources, "Sequence", lasting):
            stream = self.program.build(env, self.n, self.n / SECONDS)
        rows: Any = stream if stream.form == "rows" else stream.to_rows()
        lines = rows.map(Raising(str(self.folder / "raise")), uid="raising")
        lines.sink_to(tr.sinks.TextFiles(str(self.folder / "out")), uid="out")
        return env.execute("chance", from_checkpoint=origin)

    def _wait_a_while(self) -> None:
        """Waits for one to three more checkpoints of a running job, or for its end."""
        aim = len(self.job.checkpoints) + self.rng.randint(1, 3)
        _until(lambda: not self.job.is_active or (len(self.job.checkpoints) >= aim and self._is_running()), 30.0)

    def _is_running(self) -> bool:
        return str(self.job.status) == "RUNNING"

    def _use(self) -> None:
        """Does what the user does. A refusal is as good as a success: the job goes on."""
        try:
            if self.run.then == "a stop":
                stopped = self.job.stop()  # None where it has finished before
                self.stopped += [] if stopped is None else [stopped.path]
            elif self.run.then == "another size":
                for size in (5 - self.run.parallelism, self.run.parallelism):
                    self.job.rescale(size, timeout=PATIENCE)
            else:
                self.job.savepoint(f"{self.checkpoints}/savepoint")
            self.happened.append(f"{self.run.then} came to its end")
        except tr.TailraceError as error:
            self.happened.append(f"{self.run.then} was refused: {str(error)[:200]}")

    def _free(self) -> int:
        """The task slots that the job leaves free, about."""
        standby, workers = STANDBYS[self.run.standby], self._workers()
        return EXECUTORS * CORES - workers - (0 if standby is None else standby.processes(workers, CORES))

    def _workers(self) -> int:
        return sum(not one.change for one in self.job.slices)

    def _count(self) -> None:
        self.counts["restarts"] += self.job.restarts
        self.counts["replaced workers"] += sum(one.replaced for one in self.job.slices)

    def _story(self) -> str:
        error = self.job.exception()
        return f"{self.job.status}, {error}; {list(self.job._runner.machine.course.story)[-30:]}"

    def _lines(self) -> Iterator[str]:
        for path in sorted((self.folder / "out").glob("[!._]*")):
            yield from path.read_text().splitlines()

    # Losses.

    def _lose(self, loss: str) -> None:
        pids = [one.hello.pid for one in self.job._runner.machine.roster.slots if one.hello is not None]
        if not pids:
            return
        self.happened.append(loss)
        victim = self.rng.choice(pids)
        if loss == "worker":
            _signal(victim, signal.SIGKILL)
        elif loss == "two workers":
            for pid in self.rng.sample(pids, min(2, len(pids))):
                _signal(pid, signal.SIGKILL)
                time.sleep(self.rng.choice([0.0, 0.05, 0.5]))
        elif loss == "executor":
            _signal(_executor_of(victim).pid, signal.SIGKILL)
        elif loss == "exception":
            (self.folder / "raise").touch()
        elif loss == "frozen worker":
            _signal(victim, signal.SIGSTOP)
            threading.Timer(LEASE * self.rng.choice([0.3, 2.0]), _signal, [victim, signal.SIGCONT]).start()
        else:
            self._move()

    def _move(self) -> None:
        """Decommissions an executor on which the job runs, as an administrator does who takes its machine away."""
        from tailrace.spark.cluster.decommissions import running_on

        context, jvm = self.spark.sparkContext._jsc.sc(), self.spark.sparkContext._jvm
        stages = context.statusTracker().getActiveStageIds()
        executors = sorted({executor for stage in stages for executor in running_on(context, stage)})
        if executors:
            info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("by chance", jvm.scala.Option.empty())
            context.schedulerBackend().decommissionExecutor(self.rng.choice(executors), info, False, False)


def _executor_of(pid: int) -> psutil.Process:
    """The JVM that has started a worker's process; the process itself where the driver has."""
    process = psutil.Process(pid)
    found = [one for one in process.parents() if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]
    return found[0] if found else process


def _signal(pid: int, which: signal.Signals) -> None:
    try:
        os.kill(pid, which)
    except ProcessLookupError:
        return  # it has gone by itself


def _until(what: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


# All of them.


ON_EACH = {"spark.executor.cores": str(CORES), "spark.cores.max": str(EXECUTORS * CORES)}
"""Settings by which a standalone cluster starts as many executors as a `local-cluster` has."""


def session(**more: str) -> Any:
    """A Spark session with the executors of `TAILRACE_MASTER`. `more`: further settings."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(os.environ.get("TAILRACE_MASTER", MASTER)).appName("chance")
    for name, value in (CONF | more).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def look(spark: Any, s3: str, seed: int) -> SparkOutcome:
    """Runs one seed. Prints a line."""
    run, sizes = draw(seed), _Sizes()
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
    assert _until(lambda: executors().size() >= EXECUTORS + 1, 60.0), "the executors that were lost have no successors"
    began = time.monotonic()
    logging.getLogger("tailrace").addHandler(sizes)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "out").mkdir()
        life = _Life(spark, s3, run, Path(folder))
        try:
            wrong = life.wrong()
        except tr.TailraceError as error:
            wrong = f"{type(error).__name__}: {error}"
    logging.getLogger("tailrace").removeHandler(sizes)
    counts = life.counts + sizes.counts
    text = (
        f"{'WRONG' if wrong else 'right'} {time.monotonic() - began:.0f} s, {dict(counts)} | {run.text} | "
        f"{'; '.join(life.happened)}{' | ' + wrong if wrong else ''}"
    )
    print(text, flush=True)
    losses = Counter(f"lost: {one}" for one in life.happened if one in LOSSES)
    return SparkOutcome(text, [wrong] if wrong else [], counts + losses + Counter([f"runs of {run.kind}"]))


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.campaigns.on_spark", description=__doc__)
    parser.add_argument(
        "--seeds",
        default="0:10",
        help="FIRST:LAST, LAST excluded, a single seed, or several of both: 3,7:9 (default: 0:10)",
    )
    parser.add_argument("--on", choices=PLACES[:2], default=PLACES[0], help="where Spark is (default: a local-cluster)")
    parser.add_argument("--seconds", type=float, help="begin no other seed after this many seconds")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster ends with it
    seeds = [seed for part in options.seeds.split(",") for seed in seeds_of(part)]
    short = mock.patch(
        "tailrace.runtime.driver.machine_settings.Limits",
        lambda **given: replace(Limits(**given), lease=int(LEASE * 1e6), calm=500_000),
    )
    soon = mock.patch(
        "tailrace.runtime.driver.machine_settings.ElasticSizes", partial(ElasticSizes, settle=100_000, pause=100_000)
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else a cluster takes the Python of its machines
    begun = time.monotonic()
    with short, soon, buckets.serving() as s3, spark_at(options.on, "2g"):
        spark = session(**ON_EACH)
        found = run_seeds(seeds, lambda seed: look(spark, s3, seed), stop=False, seconds=options.seconds)
        spark.stop()
    return report(*found, begun)


if __name__ == "__main__":
    sys.exit(main())
