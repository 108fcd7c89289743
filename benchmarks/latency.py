"""How long a record takes through a keyed count: from the moment at which it was to be emitted, whether the source could do
that then or not, to the sink. At several rates, without what comes while the job warms up."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tailrace as tr

from . import tracing
from .workload import KEYS

RATES = (1_000, 10_000, 50_000, 200_000)
PLACES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}

Record = tuple[int, float]
"""(its key, when it is due)."""
Counted = tuple[int, int, float]
"""(key, how many records of this key there were, when this one was due)."""


@dataclass(frozen=True)
class LatencySpec:
    system: str = "tailrace"
    rate: int = 50_000  # records a second, over all workers
    seconds: float = 60.0
    warm: float = 10.0  # seconds before these, which do not count
    parallelism: int = 2
    interval: float = 0.0  # seconds between checkpoints; 0: none
    standbys: int = -1  # processes that stand by; 0: none, but what is kept for replacements is; -1: not even that
    exchanges: int = 1  # by key, one behind the other: behind the count, records only go on
    event_time: str = "no"  # "yes": records have timestamps, and watermarks go with them
    beside: float = 0.0  # how much of a core another process uses meanwhile
    trace: bool = False  # what each thread did while the slowest records were under way

    def __post_init__(self) -> None:
        if KEYS % self.parallelism:
            raise SystemExit(f"latency: {KEYS} keys do not belong to {self.parallelism} readers; take 1, 2, 4, 5 or 8")

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> LatencySpec:
        kinds = {"rate": int, "seconds": float, "warm": float, "interval": float, "standbys": int}
        kinds |= {"exchanges": int, "event_time": str, "beside": float}
        return cls(**{**{name: kinds[name](value) for name, value in options.items() if name in kinds}, **more})

    @property
    def records(self) -> int:
        return round(self.rate * (self.warm + self.seconds))


class Schedule:
    """Of the records `index`, `index + step`, ...: which of them are due. Record `n` has the key `n % KEYS`, so that all
    records of a key are of one reader, in order; and is due `n / rate` seconds after the reader's first look."""

    def __init__(self, spec: LatencySpec, index: int) -> None:
        self.at, self.step, self.records, self.rate = index, spec.parallelism, spec.records, spec.rate
        self.begun = 0.0

    def take(self, limit: int, now: float) -> list[Record] | None:
        """At most so many of those that are due; None behind the last one."""
        if self.at >= self.records:
            return None
        self.begun = self.begun or now
        at, step, begun, rate = self.at, self.step, self.begun, self.rate
        due = min(int((now - begun) * rate) + 1, self.records)
        numbers = range(at, min(due, at + limit * step), step)
        self.at += len(numbers) * step
        return [(number % KEYS, begun + number / rate) for number in numbers]

    @property
    def next_at(self) -> float:
        return self.begun + self.at / self.rate


class Seen:
    """What came to one sink. Nothing is computed while the clock runs."""

    def __init__(self) -> None:
        self.keys, self.counts, self.due = array("q"), array("q"), array("d")
        self.came, self.sizes = array("d"), array("q")
        self.begun = self.used = 0.0

    def take(self, batch: Sequence[Counted]) -> None:
        if not self.came:
            self.begun, self.used = time.perf_counter(), time.process_time()
        self.came.append(time.time())
        self.sizes.append(len(batch))
        for key, count, due in batch:
            self.keys.append(key)
            self.counts.append(count)
            self.due.append(due)

    def save(self, folder: str, index: int) -> None:
        number = np.array(self.keys) + (np.array(self.counts) - 1) * KEYS
        cores = (time.process_time() - self.used) / (time.perf_counter() - self.begun)
        due, sizes = np.array(self.due), np.array(self.sizes)
        latency = np.repeat(np.array(self.came), sizes) - due
        np.savez(Path(folder, f"seen-{index}"), number=number, latency=latency, due=due, sizes=sizes, cores=cores)


class Paced(tr.Source):
    def __init__(self, spec: LatencySpec) -> None:
        self.spec = spec

    def splits(self, parallelism: int) -> Sequence[int]:
        return range(parallelism)

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return PacedReader(Schedule(self.spec, split), split if self.spec.trace else None)


class PacedReader(tr.Reader):
    def __init__(self, schedule: Schedule, traced: int | None) -> None:
        self.schedule, self.traced = schedule, traced  # the split, where it is traced

    def read(self, limit: int, now: float) -> Any:
        found = self.schedule.take(limit, now)
        if self.traced is not None and found:
            tracing.PIECES.begin()
            tracing.PIECES.read(self.traced, self.schedule.at)
        return found

    def next_at(self, now: float) -> float:
        return self.schedule.next_at

    @property
    def position(self) -> int:
        return self.schedule.at


class Stopwatch(tr.Sink):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        return StopwatchWriter(self.folder, ctx.subtask)


class StopwatchWriter(tr.SinkWriter):
    def __init__(self, folder: str, subtask: int) -> None:
        self.folder, self.subtask, self.seen = folder, subtask, Seen()

    def write(self, batch: list[Counted]) -> None:
        self.seen.take(batch)

    def close(self) -> None:
        self.seen.save(self.folder, self.subtask)
        tracing.PIECES.save(self.folder, self.subtask)


def key_of(record: Record) -> int:
    return record[0]


def due_of(record: Record) -> float:
    return record[1]


def recovery(spec: LatencySpec, folder: str) -> dict[str, Any]:
    """What is to be there for a loss that does not come."""
    every = tr.CheckpointConfig(f"{folder}/checkpoints", interval=spec.interval) if spec.interval else None
    standby = None if spec.standbys < 0 else tr.StandbyConfig(spec.standbys)
    return {"checkpoint": every, "standby": standby}


BURN = """
import sys, time
share, slice = float(sys.argv[1]), 0.01
while True:
    begun = time.perf_counter()
    while time.perf_counter() - begun < share * slice:
        pass
    time.sleep((1 - share) * slice)
"""
"""A neighbour: in each hundredth of a second it uses a core for its share, and sleeps for the rest."""


@contextlib.contextmanager
def neighbour(share: float) -> Iterator[subprocess.Popen[bytes] | None]:
    """Runs another process that uses so much of a core (0: none)."""
    if not 0 <= share <= 1:
        raise SystemExit(f"latency: beside={share} is no share of a core; take 0 to 1")
    process = subprocess.Popen([sys.executable, "-c", BURN, str(share)]) if share else None
    try:
        yield process
    finally:
        if process is not None:
            process.kill()
            process.wait()


def run(spec: LatencySpec) -> dict[str, Any]:
    watching = tracing.witness if spec.trace else contextlib.nullcontext
    with tempfile.TemporaryDirectory(prefix="latency-") as folder, neighbour(spec.beside):
        if spec.system == "bytewax":
            from .peers import bytewax_latency

            bytewax_latency.run(spec, folder)
        else:
            env = tr.Environment(parallelism=spec.parallelism, progress=False, **recovery(spec, folder))
            paced = env.from_source(Paced(spec))
            if spec.event_time == "yes":
                paced = paced.assign_timestamps(due_of, 0.1)
            counted = paced.key_by(key_of).aggregate(count=tr.Count(), due=tr.Max(due_of))
            for _ in range(spec.exchanges - 1):
                counted = counted.key_by(key_of).map(tuple)
            counted.sink_to(Stopwatch(folder))
            with watching(folder):
                env.execute("latency").await_termination()
        seen = [np.load(path) for path in sorted(Path(folder).glob("seen-*.npz"))]
        traced = {"trace": tracing.load(folder, seen, spec.rate * spec.warm).lines()} if spec.trace else {}
        return {**figures(spec, seen), **traced}


def figures(spec: LatencySpec, seen: Sequence[Any]) -> dict[str, Any]:
    """Raises unless every record was counted once, in its place."""
    number = np.concatenate([one["number"] for one in seen])
    latency = np.concatenate([one["latency"] for one in seen])
    if not np.array_equal(np.sort(number), np.arange(spec.records)):
        raise AssertionError(
            f"{len(number)} counts, {len(np.unique(number))} of them different, of {spec.records} records"
        )
    latency = np.sort(latency[number >= spec.rate * spec.warm])
    at = {name: latency[min(len(latency) - 1, int(place * len(latency)))] for name, place in PLACES.items()}
    sizes = np.concatenate([one["sizes"] for one in seen])
    return {
        "latency_ms": {name: round(1000 * float(found), 3) for name, found in at.items()},
        "measured": len(latency),
        "records_per_batch": round(float(sizes.mean()), 1),
        "cores": [round(float(one["cores"]), 3) for one in seen],
        "verified": True,
    }


if __name__ == "__main__":  # a run in this very process: python -m benchmarks.latency rate=50000 seconds=10
    from benchmarks import latency

    print(json.dumps(latency.run(latency.LatencySpec.of(dict(one.split("=", 1) for one in sys.argv[1:])))))
