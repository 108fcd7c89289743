"""The keyed count of `benchmarks.latency` on Bytewax: as `bytewax_flow`, with a source that says when it is due."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from ..latency import LatencySpec, Record, Schedule, Seen
from .bytewax_flow import NAMES, clustered, in_cluster, joined

Named = tuple[str, tuple[int, float]]
"""What comes of a key: (its name, (count, when the record was due))."""


class Partition(StatelessSourcePartition[Record]):
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def next_batch(self) -> list[Record]:
        found = self.schedule.take(1 << 20, datetime.now(UTC).timestamp())
        if found is None:
            raise StopIteration
        return found

    def next_awake(self) -> datetime | None:
        return datetime.fromtimestamp(self.schedule.next_at, UTC) if self.schedule.begun else None


class Paced(DynamicSource[Record]):
    def __init__(self, spec: LatencySpec) -> None:
        self.spec = spec

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
        return Partition(Schedule(self.spec, worker_index))


class Count(StatefulBatchLogic[float, tuple[int, float], int]):
    __slots__ = ("count",)

    def __init__(self, state: int | None) -> None:
        self.count = state or 0

    def on_batch(self, values: list[float]) -> tuple[Iterable[tuple[int, float]], bool]:
        before = self.count
        self.count += len(values)
        return list(enumerate(values, before + 1)), False

    def snapshot(self) -> int:
        return self.count


class Writer(StatelessSinkPartition[Named]):
    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def write_batch(self, items: list[Named]) -> None:
        self.seen.take([(int(name), count, due) for name, (count, due) in items])


class Into(DynamicSink[Named]):
    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Writer:
        return Writer(self.seen)


def flow(spec: LatencySpec, seen: Seen) -> Dataflow:
    dataflow = Dataflow("latency")
    s = op.input("paced", dataflow, Paced(spec))
    k = op.map("key", s, lambda record: (NAMES[record[0]], record[1]))
    op.output("seen", op.stateful_batch("count", k, Count), Into(seen))
    return dataflow


def run(spec: LatencySpec, folder: str) -> None:
    """Leaves a file of each worker in `folder`."""
    in_cluster(__name__, (spec, folder), spec.parallelism)


def worker(given: Any, index: int, addresses: list[str]) -> None:
    spec, folder = given
    seen = Seen()
    joined(flow(spec, seen), addresses, index, epoch=10.0)
    seen.save(folder, index)


if __name__ == "__main__":
    clustered(worker, sys.argv[1], int(sys.argv[2]))
