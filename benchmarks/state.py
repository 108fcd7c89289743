"""Keyed state of a given size, of which one key in a hundred changes each second: loaded, then driven as fast as it goes,
then at the pace of one record per changed key. Measured at the sink, with checkpoints or without."""

from __future__ import annotations

import json
import pickle
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import tailrace as tr

from .ours import middle_and_most, notes

CHANGING = 100
"""One key in so many changes each second."""
SETTLE = 2.0
"""Seconds at the beginning of a phase that do not count."""


@dataclass(frozen=True)
class StateSpec:
    state: str = "memory"  # memory | disk
    keys: int = 1_000_000
    bytes: int = 1000  # of each value
    seconds: float = 15.0  # of each phase
    interval: float = 0.0  # 0: no checkpoints
    parallelism: int = 2
    max_concurrent: int = 1

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> StateSpec:
        kinds = {"state": str, "keys": int, "bytes": int, "seconds": float, "interval": float, "max_concurrent": int}
        return cls(**{**{name: kinds[name](value) for name, value in options.items() if name in kinds}, **more})


class Changes(tr.Source):
    """(key, time): first every key once, with the time 0. When the file `go` says so, keys of the hundredth of this second
    as fast as they are taken; then each of them once."""

    def __init__(self, spec: StateSpec, folder: str) -> None:
        self.spec, self.folder = spec, folder

    def splits(self, parallelism: int) -> Sequence[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)]

    def reader(self, split: tuple[int, int], position: Any = None) -> tr.Reader:
        return ChangesReader(self.spec, self.folder, *split)


class ChangesReader(tr.Reader):
    def __init__(self, spec: StateSpec, folder: str, index: int, count: int) -> None:
        self.folder, self.index, self.count = Path(folder), index, count
        self.keys, self.seconds = spec.keys, spec.seconds
        self.loaded = index  # the next key to load
        self.go: float | None = None
        self.at = 0  # records of this phase
        self.pacing = False
        self.hot = max(count, spec.keys // CHANGING)  # keys that change in a second
        self.rate = self.hot / count

    def read(self, limit: int, now: float) -> Any:
        if self.loaded < self.keys:
            stop = min(self.loaded + limit * self.count, self.keys)
            batch = [(key, 0.0) for key in range(self.loaded, stop, self.count)]
            self.loaded += len(batch) * self.count
            return batch
        if self.go is None:
            (self.folder / f"loaded-{self.index}").touch()
            with_go = self.folder / "go"
            if not with_go.exists():
                return []
            self.go = float(with_go.read_text())
        since = time.time() - self.go
        if since < 0:
            return []
        first = int(since) % CHANGING * self.hot
        hot, step, keys = self.hot // self.count * self.count, self.count, self.keys
        if since < self.seconds:
            stamp, at = time.time(), self.index + self.at * step
            self.at += limit
            return [((first + i % hot) % keys, stamp) for i in range(at, at + limit * step, step)]
        start = self.go + self.seconds
        since -= self.seconds
        if since > self.seconds:
            return None
        if not self.pacing:
            self.pacing, self.at = True, 0
        due = min(limit, int(since * self.rate) + 1 - self.at)
        found = range(self.at, self.at + due)
        self.at += max(0, due)
        return [((first + (self.index + i * step) % hot) % keys, start + i / self.rate) for i in found]

    def next_at(self, now: float) -> float:
        return now + 0.001 if self.go is not None else now + 0.02

    @property
    def position(self) -> int:
        return self.at


class Put(tr.KeyedProcessFunction):
    """Keeps a value of the given size for each key, another one with each record."""

    value = tr.ValueState(object, default=None)

    def __init__(self, size: int) -> None:
        self.filling = bytes(range(256)) * (size // 256 + 1)
        self.size = size - 8

    def process(self, record: tuple[int, float], ctx: tr.Context) -> Iterator[tuple[int, float]]:
        old = self.value.value
        count = 1 if old is None else int.from_bytes(old[:8], "little") + 1
        at = record[0] % 256
        self.value.value = count.to_bytes(8, "little") + self.filling[at : at + self.size]
        if record[1]:
            yield record


class Stopwatch(tr.Sink):
    """What came when, and how long it took; a file for each subtask at the end."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        return StopwatchWriter(Path(self.folder, f"seen-{ctx.subtask}"))


class StopwatchWriter(tr.SinkWriter):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[int] = Counter()  # by tenths of a second
        self.waits: list[tuple[float, float]] = []

    def write(self, batch: list[tuple[int, float]]) -> None:
        now = time.time()
        self.counts[int(now * 10)] += len(batch)
        self.waits += [(now, now - stamp) for stamp in {stamp for _, stamp in batch}]  # those of a reading have one

    def close(self) -> None:
        self.path.write_bytes(pickle.dumps((dict(self.counts), self.waits)))


def run(spec: StateSpec) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        return _run(spec, folder)


def _run(spec: StateSpec, folder: str) -> dict[str, Any]:
    checkpoint = None
    if spec.interval:
        checkpoint = tr.CheckpointConfig(
            f"{folder}/checkpoints", interval=spec.interval, max_concurrent=spec.max_concurrent
        )
    env = tr.Environment(
        parallelism=spec.parallelism, progress=False, checkpoint=checkpoint, state_backend=spec.state, memory="256m"
    )
    changes = env.from_source(Changes(spec, folder))
    changes.key_by(itemgetter(0)).process(Put(spec.bytes)).sink_to(Stopwatch(folder))
    job = env.execute("state")
    started = time.time()
    _wait(job, lambda: len(list(Path(folder).glob("loaded-*"))) == spec.parallelism)
    loaded = time.time()
    time.sleep(2.0)  # what was read last is still on its way
    _wait(job, lambda: checkpoint is None or _taken_since(job, loaded + 2.0) > 1)
    go = time.time() + 0.2
    Path(folder, "go.new").write_text(repr(go))
    Path(folder, "go.new").rename(Path(folder, "go"))
    job.await_termination(600)
    return _figures(spec, folder, job, go, loaded - started)


def _wait(job: Any, condition: Any) -> None:
    while not condition():
        if not job.is_active:
            job.await_termination()
            raise SystemExit("the job ended early")
        time.sleep(0.05)


def _taken_since(job: Any, when: float) -> int:
    return sum(one.timestamp > when for one in job.checkpoints)


def _figures(spec: StateSpec, folder: str, job: Any, go: float, load: float) -> dict[str, Any]:
    counts: Counter[int] = Counter()
    waits: list[tuple[float, float]] = []
    for path in Path(folder).glob("seen-*"):
        mine, times = pickle.loads(path.read_bytes())
        counts.update(mine)
        waits += times
    busy = range(int((go + SETTLE) * 10) + 1, int((go + spec.seconds) * 10))
    windows = [counts[i] for i in busy]
    paced = go + spec.seconds
    latency = sorted(wait for at, wait in waits if paced + SETTLE <= at < paced + spec.seconds)
    writing = _while_writing(job.checkpoints, waits, paced)
    mean = statistics.mean(windows)
    out: dict[str, Any] = {
        "load_seconds": round(load, 1),
        "records_per_second": round(mean * 10),
        "lowest_100ms": round(min(windows) / mean, 3),
        "fifth_lowest_100ms": round(sorted(windows)[min(4, len(windows) - 1)] / mean, 3),
        "paced_per_second": round(len(latency) / max(0.1, spec.seconds - SETTLE)),
        "latency_ms": percentiles(latency),
    }
    if spec.interval:
        phases = (("saturated", go, paced), ("paced", paced, paced + spec.seconds))
        for name, begin, end in phases:
            out[name] = notes([one for one in job.checkpoints if begin <= one.timestamp < end])
            out[name]["write_ms"] = middle_and_most(
                [1000 * one.details["write"] for one in job.checkpoints if begin <= one.timestamp < end] or [0]
            )
        out["latency_while_writing_ms"] = percentiles(writing)
    return out


def _while_writing(checkpoints: Sequence[Any], waits: list[tuple[float, float]], paced: float) -> list[float]:
    """Latencies of records that arrived while a checkpoint was under way."""
    spans = [(one.timestamp, one.timestamp + one.duration) for one in checkpoints if one.timestamp > paced + SETTLE]
    return sorted(wait for at, wait in waits if any(begin <= at <= end for begin, end in spans)) if spans else []


def percentiles(found: list[float]) -> dict[str, float]:
    if not found:
        return {}
    places = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {name: round(1000 * found[min(len(found) - 1, int(at * len(found)))], 1) for name, at in places.items()}


if __name__ == "__main__":  # a run in this very process: python -m benchmarks.state keys=10000 seconds=3 interval=1
    from benchmarks import state

    print(json.dumps(state.run(state.StateSpec.of(dict(one.split("=", 1) for one in sys.argv[1:])))))
