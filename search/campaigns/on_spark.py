"""Golden programs on real Spark, each with one drawn way of running and one drawn loss: the pairs that the simulator runs by
the thousand, with processes, sockets and files.

    TAILRACE_MASTER='local-cluster[3,2,1024]' python -m search.campaigns.on_spark --seeds 0:10

Prints a line for each run. The exit code is 1 where a run gave another result than the program has, or did not end.
"""

from __future__ import annotations

import argparse
import base64
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
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

import tailrace as tr
from search.programs.golden import LOOPS, PROGRAMS, SILENT
from search.seeds import seeds_of
from tailrace.coordinator.job.timeouts import Limits
from tests import buckets

EXECUTORS = 3
MASTER = f"local-cluster[{EXECUTORS},2,1024]"
"""Three executors with two task slots each, each a process with processes of its own."""
SECONDS = 4.0
"""The time in which a program reads its input, so that checkpoints and losses come before its end."""
LEASE = 3.0
"""The seconds after which a frozen worker counts as lost, so that a run does not wait ten."""
PATIENCE = 120.0
"""The seconds within which a run ends, whatever happens to it."""

PLAIN = (
    "counted",
    "by_classes",
    "aggregated",
    "windowed",
    "in_columns",
    "in_event_time",
    "in_place",
    "joined",
    "in_splits",
)
NESTED = ("nested", "entered_inside")
ROUNDS = ("shared_out", "judged", "widened", "apart", "within_hours")
"""Programs with rounds."""
LOSSES = ("worker", "executor", "two workers", "move", "exception", "frozen worker")


@dataclass(frozen=True)
class SparkRun:
    """One run: a program, the way in which it runs, and what is lost meanwhile."""

    seed: int
    program: str
    parallelism: int
    policy: str
    """The mode of checkpoints, with `continuous` where records in flight are written all the time."""
    state: str
    place: str
    """The storage of checkpoints: "files" or "S3"."""
    standby: str
    """"no standby", "started" (a process is started when a worker is lost), "ready" or "two at once"."""
    then: str
    """What a user does meanwhile: "nothing", "a savepoint", "a stop" behind which the job starts again, or "another size",
    and back."""
    losses: tuple[str, ...]

    @property
    def ways(self) -> tuple[str, ...]:
        """The way of running, without the program."""
        return self.policy, self.state, self.place, self.standby, self.then

    @property
    def text(self) -> str:
        losses = ", then ".join(self.losses)
        return (
            f"seed {self.seed}: {self.program} x{self.parallelism}, {self.policy}, {self.state}, {self.place}, "
            f"{self.standby}, {self.then}; lost: {losses}"
        )


def draw(seed: int) -> SparkRun:
    """The run of a seed."""
    rng, sizes = random.Random(f"tailrace on spark {seed}"), random.Random(f"tailrace sizes on spark {seed}")
    kinds = (PLAIN, NESTED, ROUNDS, [name for name in LOOPS if name not in (*SILENT, *NESTED, *ROUNDS)])
    made = SparkRun(
        seed,
        rng.choice(rng.choice(kinds)),
        rng.choice([2, 2, 3]),
        rng.choice(["aligned", "unaligned", "capped", "continuous"]),
        rng.choice(["memory", "disk"]),
        rng.choice(["files", "files", "S3"]),
        rng.choice(["no standby", "started", "ready", "ready", "two at once"]),
        rng.choice([sizes.choice(["nothing", "another size"]), "nothing", "a savepoint", "a stop"]),
        tuple(rng.choice(LOSSES) for _ in range(rng.choice([1, 1, 2]))),
    )
    return made if PROGRAMS[made.program].replaced else replace(made, standby="no standby")


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


class _Life:
    """A run under way."""

    def __init__(self, spark: Any, s3: str, run: SparkRun, folder: Path) -> None:
        self.spark, self.run, self.folder = spark, run, folder
        self.checkpoints = {"files": str(folder), "S3": f"s3://{buckets.new_bucket(s3)}"}[run.place]
        self.options = {"files": {}, "S3": buckets.options(s3)}[run.place]
        self.rng = random.Random(f"tailrace life on spark {run.seed}")
        self.program = PROGRAMS[run.program]
        self.restarts = self.replaced = 0
        self.stopped: list[str] = []
        self.happened: list[str] = []
        self.job = self._start(run.parallelism, None)

    def wrong(self) -> str:
        """Runs the program to its end. Returns what is wrong; empty where nothing is."""
        user = threading.Thread(target=self._use, daemon=True)
        for turn, loss in enumerate(self.run.losses):
            self._wait_a_while()
            if turn == 0 and self.run.then != "nothing":
                user.start()
            if self.rng.random() < 0.5:
                time.sleep(self.rng.uniform(0.0, 0.5))
            if self.job.is_active:
                self._lose(loss)
        if self.run.then != "nothing" and user.is_alive():
            user.join(PATIENCE)
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
        standby = {
            "no standby": None,
            "started": tr.StandbyConfig(replicas=0),
            "ready": tr.StandbyConfig(),
            "two at once": tr.StandbyConfig(depth=2),
        }[run.standby]
        env = tr.Environment(
            self.spark,
            parallelism=parallelism,
            checkpoint=checkpoint,
            restart=tr.FixedDelay(attempts=20, delay=0.05),
            state_backend=run.state,
            standby=standby,
        )
        seconds = SECONDS * (2 if run.then == "another size" else 1)  # else the input ends before it has it
        stream = self.program.build(env, self.n, self.n / seconds)
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

    def _count(self) -> None:
        self.restarts += self.job.restarts
        self.replaced += sum(one.replaced for one in self.job.slices)

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


CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "FATAL",
    "spark.ui.showConsoleProgress": "false",
    "spark.decommission.enabled": "true",
    "spark.executor.memory": "768m",
    "spark.executor.maxNumFailures": "1000",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
}
"""Settings of a Spark whose executors are killed again and again."""


def session() -> Any:
    """A Spark session with the executors of `TAILRACE_MASTER`."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(os.environ.get("TAILRACE_MASTER", MASTER)).appName("chance")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def look(spark: Any, s3: str, seed: int) -> str:
    """Runs one seed. Returns what is wrong; empty where nothing is. Prints a line."""
    run = draw(seed)
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
    assert _until(lambda: executors().size() >= EXECUTORS + 1, 60.0), "the executors that were lost have no successors"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "out").mkdir()
        life = _Life(spark, s3, run, Path(folder))
        wrong = life.wrong()
    print(
        f"{'WRONG' if wrong else 'right'} {time.monotonic() - began:.0f} s, {life.restarts} restarts, "
        f"{life.replaced} replaced | {run.text} | {'; '.join(life.happened)}{' | ' + wrong if wrong else ''}",
        flush=True,
    )
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.campaigns.on_spark", description=__doc__)
    parser.add_argument("--seeds", default="0:10", help="FIRST:LAST, LAST excluded, or a single seed (default: 0:10)")
    options = parser.parse_args(arguments)
    short = mock.patch(
        "tailrace.runtime.driver.machine_settings.Limits",
        lambda **given: replace(Limits(**given), lease=int(LEASE * 1e6), calm=500_000),
    )
    with short, buckets.serving() as s3:
        spark = session()
        wrong = [seed for seed in seeds_of(options.seeds) if look(spark, s3, seed)]
    spark.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
