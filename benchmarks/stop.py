"""How long a stop takes, from the command to FINISHED, and a savepoint, beside writing as many bytes to the same disk."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tailrace as tr

from .state import Put

PER_SECOND = 1_000
"""Records of each reader, once all keys are there."""
FAST = 1_000_000
"""Records of each reader of a job that is behind: more than it can do."""
CHUNK = 8 << 20


@dataclass(frozen=True)
class StopSpec:
    state: str = "memory"  # memory | disk
    keys: int = 100_000
    bytes: int = 1000  # of each value
    stops: int = 7  # each of a job that goes on from the one before
    interval: float = 1.0  # of checkpoints meanwhile; 0: none, so that each stop writes all that has changed
    savepoints: int = 3
    behind: int = 0  # bytes of each record that waits for a slow function while these are taken; 0: none waits
    parallelism: int = 2

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> StopSpec:
        found = {
            name: value if name == "state" else int(value) for name, value in options.items() if name != "interval"
        }
        every = {"interval": float(options["interval"])} if "interval" in options else {}
        return replace(cls(**more), **found, **every)


class Keys(tr.Source):
    """(key, time): first every key once, as fast as they are taken, then one after the other at a pace, for ever."""

    def __init__(self, keys: int, per_second: int = PER_SECOND) -> None:
        self.keys, self.per_second = keys, per_second

    def splits(self, parallelism: int) -> Sequence[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)]

    def reader(self, split: tuple[int, int], position: int | None = None) -> tr.Reader:
        return KeysReader(self, *split, position or 0)


class KeysReader(tr.Reader):
    def __init__(self, source: Keys, index: int, count: int, at: int) -> None:
        self.keys, self.per_second, self.index, self.count, self.at = source.keys, source.per_second, index, count, at
        self.paced: tuple[float, int] | None = None  # since when, and from which record on

    def read(self, limit: int, now: float) -> Any:
        own = len(range(self.index, self.keys, self.count))
        if self.at < own:
            limit = min(limit, own - self.at)
        else:
            since, first = self.paced = self.paced or (now, self.at)
            limit = min(limit, int((now - since) * self.per_second) - (self.at - first))
        found = range(self.at, self.at + max(0, limit))
        self.at += len(found)
        return [((self.index + i * self.count) % self.keys, now) for i in found]

    def next_at(self, now: float) -> float:
        return now + 0.001

    @property
    def position(self) -> int:
        return self.at


def run(spec: StopSpec) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        return _run(spec, Path(folder))


def _start(spec: StopSpec, folder: Path, path: str | None, interval: float | None, behind: int = 0) -> Any:
    config = tr.CheckpointConfig(folder / "checkpoints", interval=interval or None)
    env = tr.Environment(
        parallelism=spec.parallelism, progress=False, checkpoint=config, state_backend=spec.state, memory="1g"
    )
    keys = Keys(spec.keys, FAST if behind else PER_SECOND)
    keyed = env.from_source(keys, uid="keys").key_by(_key).process(Put(spec.bytes), uid="put")
    if behind:
        keyed = keyed.map(lambda record: (*record, os.urandom(behind)), uid="more").rebalance().map(_slowly, uid="slow")
    keyed.filter(_none, uid="none").sink_to(tr.sinks.TextFiles(str(folder / "out")), uid="out")
    return env.execute("stop", from_checkpoint=path)


def _key(record: tuple[int, float]) -> int:
    return record[0]


def _none(record: tuple[int, float]) -> bool:
    return False


def _slowly(record: Any) -> Any:
    time.sleep(0.001)
    return record


def _run(spec: StopSpec, folder: Path) -> dict[str, Any]:
    job = _start(spec, folder, None, spec.interval)
    _read(job, spec.keys)
    stops, written = [], []
    path = None
    for number in range(spec.stops):
        if number:
            job = _start(spec, folder, path, spec.interval)
            _read(job, PER_SECOND)
        time.sleep(2 * spec.interval + 0.3 * number)  # somewhere between two checkpoints
        begun = time.perf_counter()
        stopped = job.stop(timeout=300)
        stops.append(time.perf_counter() - begun)
        assert str(job.status) == "FINISHED"
        path = stopped.path
        written.append(stopped.bytes)
    return {
        "stop_ms": [round(1000 * one) for one in stops],
        "median_stop_ms": round(1000 * statistics.median(stops)),
        "written_bytes": round(statistics.median(written)),
        **(_savepoints(spec, folder, path) if spec.savepoints else {}),
    }


def _read(job: Any, records: int) -> None:
    """Waits until a job has read so many records."""
    while (job.last_progress or {}).get("tailrace", {}).get("totalInputRows", 0) < records:
        if not job.is_active:
            job.await_termination()
            raise SystemExit("the job ended early")
        time.sleep(0.02)


def _savepoints(spec: StopSpec, folder: Path, path: str | None) -> dict[str, Any]:
    """Savepoints of the job while it runs, and in turns as many bytes by one process, synced."""
    job = _start(spec, folder, path, None, spec.behind)
    _read(job, PER_SECOND)
    time.sleep(3.0 if spec.behind else 0.0)  # until channels are full
    taken, plain, size, waiting = [], [], 0, 0
    for number in range(spec.savepoints):
        begun = time.perf_counter()
        saved = job.savepoint(folder / f"saved-{number}", timeout=600, unaligned=spec.behind > 0)
        taken.append(time.perf_counter() - begun)
        size, waiting = saved.bytes, saved.inflight_bytes
        plain.append(_plainly(folder / "plain", size))
    job.cancel()
    job.await_termination()
    ratio = statistics.median(taken) / statistics.median(plain)
    return {
        "savepoint_bytes": size,
        "savepoint_inflight_bytes": waiting,
        "savepoint_seconds": round(statistics.median(taken), 3),
        "plain_seconds": round(statistics.median(plain), 3),
        "savepoint_ratio": round(ratio, 2),
    }


def _plainly(path: Path, size: int) -> float:
    data = os.urandom(CHUNK)
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for at in range(0, size, CHUNK):
            file.write(data[: min(CHUNK, size - at)])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begun
    path.unlink()
    return seconds
