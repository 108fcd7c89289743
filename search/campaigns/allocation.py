"""A job whose size follows its load, on a Spark with dynamic allocation: lines come at a rate that changes, Spark starts
executors for workers that wait and takes idle ones away, and executors and workers are killed meanwhile. Each line is to be
in the output once, with its number among the lines of its key.

    python -m search.campaigns.allocation --seeds 0:4 --kills 6

It starts a standalone cluster. Prints a line for each seed, and at the end what all of them have had: changes of size,
executors that came and went, kills, lines, and how many are lost or twice. The exit code is 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

import tailrace as tr
from search.campaigns.spark_places import CONF, SparkOutcome, spark_at
from search.seeds import report, run_seeds, seeds_of

MOST = 4
"""The most workers of the job, and the most executors: the cluster has memory for so many."""
KEYS, LOGS = 16, 8
WORK = 0.004
"""Seconds that a line takes: a worker is busy with 250 lines in a second."""
PADDING = "." * 4_000
"""The rest of each line: so that few lines fill a channel, and the job gets through them soon when it changes its size."""
RATES = (20, 150, 400)
"""Lines in a second."""
PATIENCE = 240.0
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.maxExecutors": str(MOST),
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}


class Wrong(Exception):
    """Something is not as it must be."""


class Numbered(tr.KeyedProcessFunction):
    """Each line with its number among those of its key. A line takes its time."""

    count = tr.ValueState(int, default=0)

    def process(self, line: str, ctx: tr.Context) -> Iterator[str]:
        time.sleep(WORK)
        self.count.value += 1
        yield f"{ctx.key} {self.count.value} {_number(line)}"


class Lines(threading.Thread):
    """Writes lines into logs, at a rate that can be changed, until it is closed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.rate, self.count = 0, 0
        self._over = threading.Event()
        folder.mkdir()
        self._logs = [(folder / f"{number}.log").open("a") for number in range(LOGS)]

    def run(self) -> None:
        due = 0.0
        while not self._over.wait(0.05):
            due += self.rate * 0.05
            while due >= 1:
                self._logs[self.count % LOGS].write(f"{self.count} {PADDING}\n")
                self.count, due = self.count + 1, due - 1
            for log in self._logs:
                log.flush()

    def close(self) -> None:
        """Ends the lines."""
        self._over.set()
        if self.is_alive():
            self.join()
        for log in self._logs:
            log.close()


class Watch(threading.Thread):
    """Counts what becomes of the sizes of a job, and of Spark's executors, until it is closed."""

    def __init__(self, spark: Any, job: Any, shown: bool) -> None:
        super().__init__(daemon=True)
        self._shown, self._show_at = shown, 0.0
        self.counts: Counter[str] = Counter()
        self.sizes: list[int] = []
        self._executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
        self._job, self._over = job, threading.Event()

    def run(self) -> None:
        before: set[str] | None = None
        while not self._over.wait(0.1):
            size = len([one for one in self._job.slices if not one.change])
            if str(self._job.status) == "RUNNING" and size and self.sizes[-1:] != [size]:
                if self.sizes:
                    self.counts["grew" if size > self.sizes[-1] else "shrank"] += 1
                self.sizes.append(size)
            now = set(str(self._executors().keys().mkString(" ")).split())
            if before is not None:
                self.counts["executors that came"] += len(now - before)
                self.counts["executors that went"] += len(before - now)
            before = now
            if self._shown and time.monotonic() > self._show_at:
                self._show_at = time.monotonic() + 5
                print("   ", self._job.status, self.sizes, self._job.metrics()["size"], len(now), flush=True)

    def close(self) -> None:
        """Ends the watch."""
        self._over.set()
        self.join()


def _until(what: str, job: Any, condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if not job.is_active:
            raise Wrong(f"{what}: the job has ended as {job.status}: {job.exception()}")
        if time.monotonic() > end:
            raise Wrong(f"{what}: not within {PATIENCE:.0f} s: {job.status}, {job.metrics()['size']}")
        time.sleep(0.1)


def _kill(job: Any, rng: random.Random) -> str:
    """Kills an executor, or a worker. Returns what it was; empty where there is none."""
    workers = [one.pid for one in job.slices if one.pid]
    if not workers:
        return ""
    pid, what = rng.choice(workers), "worker"
    if rng.random() < 0.6:
        parents = []
        with contextlib.suppress(psutil.Error):
            parents = [
                one
                for one in psutil.Process(pid).parents()
                if any("CoarseGrainedExecutorBackend" in word for word in one.cmdline())
            ]
        if parents:
            pid, what = parents[0].pid, "executor"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return what
    return ""


def published(folder: Path) -> list[str]:
    """The lines that are visible."""
    return [line for path in sorted(folder.glob("[!._]*")) for line in path.read_text().splitlines()]


def _start(spark: Any, folder: Path, rng: random.Random) -> Any:
    settings = tr.CheckpointConfig(
        str(folder / "checkpoints"), interval=0.5, mode=rng.choice(["aligned", "unaligned"]), alignment_timeout="auto"
    )
    env = tr.Environment(
        spark,
        parallelism=tr.Elastic(1, MOST, wait=30),
        autoscale=tr.Autoscale(target_busy=0.7, lag=4, cooldown=2),
        checkpoint=settings,
        restart=tr.FixedDelay(1_000, 0.1),
        state_backend=rng.choice(["memory", "disk"]),
        slot_timeout=120,
        progress=False,
    )
    lines = env.from_source(tr.sources.TextFiles(str(folder / "logs"), follow=True), uid="lines")
    numbered = lines.key_by(_key).process(Numbered(), uid="numbered")
    numbered.sink_to(tr.sinks.TextFiles(str(folder / "out")), uid="out")
    return env.execute("allocated")


def _number(line: str) -> int:
    return int(line.partition(" ")[0])


def _key(line: str) -> int:
    return _number(line) % KEYS


def _check(counts: Counter[str], found: list[str], offered: int) -> None:
    rows = [tuple(map(int, line.split())) for line in found]
    numbers = Counter(number for _, _, number in rows)
    counts["lines"] += offered
    counts["lines lost"] += len(set(range(offered)) - set(numbers))
    counts["lines twice"] += sum(count - 1 for count in numbers.values())
    if set(numbers) != set(range(offered)) or numbers.total() != offered:
        raise Wrong(f"of {offered} lines {len(numbers)} are there, {numbers.total()} times")
    expected = sorted((key, at + 1) for key in range(KEYS) for at in range(len(range(key, offered, KEYS))))
    if sorted((key, at) for key, at, _ in rows) != expected or any(number % KEYS != key for key, _, number in rows):
        raise Wrong("lines have other keys, or other numbers among those of their key")


def look(spark: Any, seed: int, kills: int, shown: bool) -> SparkOutcome:
    """Runs one seed. Prints a line."""
    rng, began, wrong = random.Random(f"tailrace allocation {seed}"), time.monotonic(), ""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-allocation-"))
    lines = Lines(folder / "logs")
    job = _start(spark, folder, rng)
    watch = Watch(spark, job, shown)
    watch.start()
    lines.start()
    counts = watch.counts
    try:
        _until("a start", job, lambda: str(job.status) == "RUNNING")
        left = kills
        while left or not (counts["grew"] and counts["shrank"]):
            lines.rate = rng.choice([rate for rate in RATES if rate != lines.rate])
            until = time.monotonic() + rng.uniform(8, 25)
            while time.monotonic() < until:
                time.sleep(rng.uniform(0.5, 8))
                killed = _kill(job, rng) if left and job.is_active and rng.random() < 0.5 else ""
                if killed:
                    left -= 1
                    counts[f"kills of a {killed}"] += 1
            if time.monotonic() - began > 4 * PATIENCE:
                raise Wrong(f"it does not grow and shrink: {watch.sizes}")
            _until("a running job", job, lambda: str(job.status) == "RUNNING")
        lines.close()
        _until("all lines", job, lambda: len(published(folder / "out")) >= lines.count)
        job.stop(timeout=PATIENCE)
        _check(counts, published(folder / "out"), lines.count)
    except (Wrong, tr.TailraceError) as error:
        wrong = str(error)
    finally:
        lines.close()
        restarts = job.restarts
        if job.is_active:
            job.cancel()
        job.await_termination(PATIENCE)
        watch.close()
    counts["restarts"] += restarts
    verdict, took = "WRONG" if wrong else "right", time.monotonic() - began
    text = f"{verdict} {took:.0f} s, seed {seed}, sizes {watch.sizes}, {dict(counts)}"
    print(f"{text} | {wrong} | {folder}" if wrong else text, flush=True)
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return SparkOutcome(text, [wrong] if wrong else [], counts)


def session() -> Any:
    """A Spark session of the cluster, with dynamic allocation."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(os.environ["TAILRACE_MASTER"]).appName("allocation")
    for name, value in (CONF | DYNAMIC).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.campaigns.allocation", description=__doc__)
    parser.add_argument("--seeds", default="0", help="FIRST:LAST, LAST excluded, or a single seed (default: 0)")
    parser.add_argument("--kills", type=int, default=6, help="kills in each seed (default: 6)")
    parser.add_argument("--watch", action="store_true", help="print the size of the job each five seconds")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster ends with it
    begun = time.monotonic()
    with spark_at("standalone"):
        spark = session()
        found = run_seeds(
            seeds_of(options.seeds), lambda seed: look(spark, seed, options.kills, options.watch), stop=False
        )
        spark.stop()
    return report(*found, begun)


if __name__ == "__main__":
    sys.exit(main())
