"""Checkpoints of many new keys: one operator's state, in memory and on disk, without a job around it. Seconds of CPU.
And the seconds until a job that first loads so many keys has its first output."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tailrace as tr
from tailrace.elements.cuts import CutRequest
from tailrace.state.layers import LayeredBackend
from tailrace.state.memory_backend import MemoryBackend
from tailrace.storage.disk_backend import DiskBackend


@dataclass(frozen=True)
class Stop:
    """A key of a class."""

    line: str
    number: int


@dataclass
class Visit:
    """A value of a class."""

    number: int
    seconds: float


KEYS: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i,
    "text": lambda i: f"key {i:08d}",
    "tuple": lambda i: (i, "a"),
    "dataclass": lambda i: Stop("a", i),
}
VALUES: dict[str, Callable[[int], Any]] = {
    "tuple": lambda i: (i, 1.0),
    "dataclass": lambda i: Visit(i, 1.0),
}
BATCH = 4096


@dataclass(frozen=True)
class NewKeysSpec:
    key: str = "int"
    value: str = "tuple"
    keys: int = 400_000  # that are new in each checkpoint
    checkpoints: int = 3
    job: int = 0  # 1: a job, until its first output
    interval: float = 1.0  # of the checkpoints of that job
    parallelism: int = 2

    @classmethod
    def of(cls, options: dict[str, str]) -> NewKeysSpec:
        kinds = {"key": str, "value": str, "keys": int, "checkpoints": int, "job": int, "interval": float}
        return replace(cls(), **{name: kinds[name](value) for name, value in options.items()})


def run(spec: NewKeysSpec) -> dict[str, Any]:
    if spec.job:
        return _first_outputs(spec)
    with tempfile.TemporaryDirectory() as folder:
        memory = _measure(MemoryBackend(), spec)
        disk = _measure(DiskBackend(f"{folder}/db"), spec)
    return {"memory": memory, "disk": disk, "ratio": round(sum(map(sum, disk)) / sum(map(sum, memory)), 2)}


def _measure(backend: LayeredBackend, spec: NewKeysSpec) -> list[tuple[float, float]]:
    """For each checkpoint: (reading and writing the keys, taking the checkpoint)."""
    table, key, value = backend.table("state"), KEYS[spec.key], VALUES[spec.value]
    found = []
    for number in range(1, spec.checkpoints + 1):
        begun = time.process_time()
        for start in range((number - 1) * spec.keys, number * spec.keys, BATCH):
            for i in range(start, min(start + BATCH, number * spec.keys)):
                name = key(i)
                if table.get(name) is None:
                    table[name] = value(i)
            backend.relieve()
        written = time.process_time()
        backend.freeze(CutRequest(number))
        done = False
        while not done:
            _, done = backend.encode(512)
        backend.confirm(number)
        found.append((round(written - begun, 2), round(time.process_time() - written, 2)))
    assert backend.entries() == spec.keys * spec.checkpoints
    backend.close()
    return found


class Visits(tr.KeyedProcessFunction):
    """Keeps a value for each key. Emits a key when it comes once more."""

    value = tr.ValueState(object, default=None)

    def __init__(self, value: str) -> None:
        self.make = VALUES[value]

    def process(self, number: int, ctx: tr.Context) -> Iterator[int]:
        if self.value.value is not None:
            yield number
        self.value.value = self.make(number)


def _first_outputs(spec: NewKeysSpec) -> dict[str, Any]:
    """Seconds from `execute` to the first line of output that is visible: by state, in the second of two jobs in a row."""
    seconds = {}
    for state in ("memory", "disk"):
        with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
            _first_output(replace(spec, keys=1000), state, Path(folder, "warm"))
            seconds[state] = _first_output(spec, state, Path(folder, "job"))
    ratio = round(seconds["disk"] / seconds["memory"], 2)
    return {"first_output_seconds": {state: round(one, 2) for state, one in seconds.items()}, "ratio": ratio}


def _first_output(spec: NewKeysSpec, state: str, folder: Path) -> float:
    out, key = folder / "out", KEYS[spec.key]
    env = tr.Environment(
        parallelism=spec.parallelism,
        progress=False,
        checkpoint=tr.CheckpointConfig(folder / "checkpoints", interval=spec.interval),
        state_backend=state,
    )
    keys = spec.keys
    numbers = env.from_source(tr.sources.Sequence(0, 1 << 40)).map(lambda n: n % keys)
    numbers.key_by(key).process(Visits(spec.value)).map(str).sink_to(tr.sinks.TextFiles(str(out)))
    begun = time.perf_counter()
    job = env.execute("first")
    while not (out.exists() and any(out.glob("part-*"))):
        if not job.is_active:
            job.await_termination()
            raise SystemExit("the job ended early")
        time.sleep(0.02)
    seconds = time.perf_counter() - begun
    job.cancel()
    job.await_termination()
    return seconds
