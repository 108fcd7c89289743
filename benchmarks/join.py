"""A join of orders with their payments, each system in one process and one thread, by seconds of CPU. Orders and payments
have a key of their own each. Ours is an interval join; Bytewax has a join without time, which forgets a key with its pair,
and one by windows of event time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tailrace as tr

SYSTEMS = ("tailrace", "bytewax", "bytewax-windows")
BATCH = 4096
ZERO = datetime(2020, 1, 1, tzinfo=UTC)
PAGE = 4096


@dataclass(frozen=True)
class JoinSpec:
    system: str = "tailrace"
    records: int = 200_000
    """Number of orders, and of payments."""

    @classmethod
    def of(cls, options: dict[str, str]) -> JoinSpec:
        given = {name: options[name] for name in ("system",) if name in options}
        return cls(**given, **({"records": int(options["records"])} if "records" in options else {}))  # type: ignore[arg-type]


def rows(start: int, end: int) -> list[tuple[int, float]]:
    return [(i, i * 0.5) for i in range(start, end)]


class Rows(tr.Source):
    """Records in the order of time, a millisecond behind each other."""

    def __init__(self, records: int) -> None:
        self.records = records

    def splits(self, parallelism: int) -> list[int]:
        return [0]

    def reader(self, split: int, position: int | None = None) -> tr.Reader:
        return _Rows(self.records, position or 0)


class _Rows(tr.Reader):
    def __init__(self, records: int, at: int) -> None:
        self.records, self.at = records, at

    def read(self, limit: int, now: float = 0.0) -> Any:
        start = self.at
        if start == self.records:
            return None
        self.at = min(start + min(limit, BATCH), self.records)
        return rows(start, self.at)

    @property
    def position(self) -> int:
        return self.at


def run(spec: JoinSpec) -> dict[str, Any]:
    """Records per second of CPU, the result verified, and for ours the memory of a record that is kept."""
    found: list[float] = []
    job = {"tailrace": _tailrace, "bytewax": _bytewax, "bytewax-windows": _bytewax_windows}[spec.system](spec, found)
    gc.set_threshold(50_000)  # as our workers have it
    start = time.process_time()
    job()
    seconds = time.process_time() - start
    expected = sum(2 * value for _, value in rows(0, spec.records))
    if (len(found), sum(found)) != (spec.records, expected):
        raise SystemExit(f"{spec.system}: {len(found)} pairs of {spec.records}")
    figures = {
        "cpu_seconds": round(seconds, 3),
        "records_per_cpu_second": int(2 * spec.records / seconds),
        "verified": True,
    }
    return figures | ({"bytes_per_kept_record": _kept(spec)} if spec.system == "tailrace" else {})


def _tailrace(spec: JoinSpec, found: list[float]) -> Callable[[], Any]:
    env = tr.Environment(parallelism=1)
    sides = [
        env.from_source(Rows(spec.records)).assign_timestamps(lambda r: r[0] / 1000, 1).key_by(lambda r: r[0])
        for _ in range(2)
    ]
    pairs = sides[0].join(sides[1], within=(-10, 10))
    pairs.sink_to(tr.sinks.Callback(lambda pair: found.append(pair[0][1] + pair[1][1])))
    return lambda: tr.testing.run(env)


def _kept(spec: JoinSpec) -> int:
    """Bytes of memory of a record that a join keeps, without the record itself: one of each key."""
    import random

    import numpy as np

    from tailrace.elements.batches import Rows as Batch
    from tailrace.graph.graph import Node
    from tailrace.graph.operators import IntervalJoin
    from tailrace.task.channels.services import Services
    from tailrace.task.operators.context import OperatorContext
    from tailrace.task.operators.joins.interval import IntervalJoinTask

    operator = IntervalJoin((lambda r: r[0], lambda r: r[0]), 0, 10**15, "inner")
    node = Node(0, operator, "join", "join", True, 1, "rows", ())
    task = IntervalJoinTask(node, OperatorContext("join", "join", 0, 1, 0, Services(random_factory=random.Random)))
    some = rows(0, spec.records)
    before = _memory()
    for start in range(0, spec.records, BATCH):
        values = some[start : start + BATCH]
        task.process(Batch(values, np.arange(start, start + len(values)) + 1), 0)
    return (_memory() - before) // spec.records


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _bytewax(spec: JoinSpec, found: list[float]) -> Callable[[], Any]:
    import bytewax.operators as op

    flow, first, second, run_main = _inputs(spec)
    _output(op.join("join", first, second), found)
    return lambda: run_main(flow)


def _bytewax_windows(spec: JoinSpec, found: list[float]) -> Callable[[], Any]:
    import bytewax.operators.windowing as windowing

    flow, first, second, run_main = _inputs(spec)
    clock = windowing.EventClock(
        ts_getter=lambda r: ZERO + timedelta(milliseconds=r[0]), wait_for_system_duration=timedelta(seconds=1)
    )
    windows = windowing.TumblingWindower(length=timedelta(seconds=20), align_to=ZERO)
    joined = windowing.join_window("join", clock, windows, first, second)
    import bytewax.operators as op

    _output(op.map("pair", joined.down, lambda item: (item[0], item[1][1])), found)
    return lambda: run_main(flow)


def _inputs(spec: JoinSpec) -> Any:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import DynamicSource, StatelessSourcePartition
    from bytewax.testing import run_main

    class Reader(StatelessSourcePartition[Any]):
        at = 0

        def next_batch(self) -> list[Any]:
            if self.at == spec.records:
                raise StopIteration
            start, self.at = self.at, min(self.at + BATCH, spec.records)
            return [(str(r[0]), r) for r in rows(start, self.at)]

    class Source(DynamicSource[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Reader:
            return Reader()

    flow = Dataflow("join")
    return flow, op.input("first", flow, Source()), op.input("second", flow, Source()), run_main


def _output(pairs: Any, found: list[float]) -> None:
    import bytewax.operators as op
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    class Writer(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            found.extend(a[1] + b[1] for _, (a, b) in items)

    class Sink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Writer:
            return Writer()

    op.output("out", pairs, Sink())
