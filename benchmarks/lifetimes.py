"""The memory of a time to live: bytes for each key of a state with one and without, in the backend in memory, behind a
checkpoint. `python -m benchmarks.lifetimes --keys 1000000`: JSON lines."""

from __future__ import annotations

import argparse
import gc
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.graph.graph import Node
from tailrace.graph.operators import KeyedProcess
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.subtask.chain import RUNTIME

BATCH = 4_096
STEP = 1_000
"""Microseconds between two batches."""
KEYS: dict[str, Callable[[int], Any]] = {"int": lambda i: i, "text": lambda i: f"user-{i}"}
VALUES: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i + 1_000,
    "float": lambda i: i * 1.5,
    "text": lambda i: f"value of {i}",
    "tuple": lambda i: (i, i * 1.5, "x"),
}
LIVES = {"none": None, "processing": tr.Ttl(3_600), "event": tr.Ttl(3_600, clock="event")}


def function(ttl: tr.Ttl | None) -> Any:
    class Keeps(tr.KeyedProcessFunction):
        kept = tr.ValueState(object, ttl=ttl)

        def process(self, record: Any, ctx: Any) -> None:
            self.kept.value = record[1]

    return Keeps()


def bytes_per_key(keys: int, key: str, value: str, ttl: tr.Ttl | None, apart: int = 0) -> float:
    """Bytes of memory for each key, all of which are written once. `apart`: microseconds between two records of a batch."""
    gc.collect()
    tracemalloc.start()
    services = Services(random.Random, make_backend=lambda uid, subtask: MemoryBackend(128, uid, subtask))
    node = Node(
        0, KeyedProcess(function(ttl), lambda record: record[0], "wait", False), "kept", "kept", True, 1, "rows", ()
    )  # type: ignore[arg-type]
    task: Any = RUNTIME[KeyedProcess](node, OperatorContext("kept", "kept", 0, 1, 0, services))
    before = tracemalloc.get_traced_memory()[0]
    for first in range(0, keys, BATCH):
        some = range(first, min(first + BATCH, keys))
        services.now += STEP
        times = services.now * BATCH + apart * np.arange(len(some))  # with 0, of a source that stamps with milliseconds
        task.process(Rows([(KEYS[key](i), VALUES[value](i)) for i in some], times), 0)
    task.backend.freeze(CutRequest(1))
    while not task.backend.encode(10_000)[1]:
        pass
    task.backend.confirm(1)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    task.close()
    return used / keys


def lines(keys: int) -> Iterator[dict[str, Any]]:
    """A line for each type of keys and values."""
    for key in KEYS:
        for value in VALUES:
            found = {name: bytes_per_key(keys, key, value, ttl) for name, ttl in LIVES.items()}
            found["event_apart"] = bytes_per_key(keys, key, value, LIVES["event"], apart=1)
            more = {f"{name}_more": round(one / found["none"] - 1, 3) for name, one in found.items() if name != "none"}
            yield {
                "keys": keys,
                "key": key,
                "value": value,
                **{name: round(one) for name, one in found.items()},
                **more,
            }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1_000_000)
    for line in lines(parser.parse_args().keys):
        print(json.dumps(line), flush=True)
