"""Checkpoints of many new keys: one operator's state, in memory and on disk, without a job around it. Seconds of CPU."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tailrace.elements.cuts import CutRequest
from tailrace.state.layers import LayeredBackend
from tailrace.state.memory import MemoryBackend
from tailrace.storage.disk_backend import DiskBackend


@dataclass(frozen=True)
class Stop:
    """A key of a class."""

    line: str
    number: int


KEYS: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i,
    "text": lambda i: f"key {i:08d}",
    "tuple": lambda i: (i, "a"),
    "dataclass": lambda i: Stop("a", i),
}
BATCH = 4096


@dataclass(frozen=True)
class NewKeysSpec:
    key: str = "int"
    keys: int = 400_000  # that are new in each checkpoint
    checkpoints: int = 3

    @classmethod
    def of(cls, options: dict[str, str]) -> NewKeysSpec:
        kinds = {"key": str, "keys": int, "checkpoints": int}
        return replace(cls(), **{name: kinds[name](value) for name, value in options.items()})


def run(spec: NewKeysSpec) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        memory = _measure(MemoryBackend(), spec)
        disk = _measure(DiskBackend(f"{folder}/db"), spec)
    return {"memory": memory, "disk": disk, "ratio": round(sum(map(sum, disk)) / sum(map(sum, memory)), 2)}


def _measure(backend: LayeredBackend, spec: NewKeysSpec) -> list[tuple[float, float]]:
    """For each checkpoint: (reading and writing the keys, taking the checkpoint)."""
    table, key = backend.table("state"), KEYS[spec.key]
    found = []
    for number in range(1, spec.checkpoints + 1):
        begun = time.process_time()
        for start in range((number - 1) * spec.keys, number * spec.keys, BATCH):
            for i in range(start, min(start + BATCH, number * spec.keys)):
                name = key(i)
                if table.get(name) is None:
                    table[name] = (i, 1.0)
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
