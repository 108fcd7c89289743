"""A join of orders with their payments, each system in one process and one thread, by seconds of CPU. Orders and payments
have a key of their own each. Ours is an interval join, in rows or in columns, and there also a join by windows or with
versions; Bytewax has a join without time, which forgets a key with its pair, and one by windows of event time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tailrace as tr
from tailrace.testing.inprocess import _simulate as simulate

SYSTEMS = ("tailrace", "tailrace-columns", "bytewax", "bytewax-windows")
BATCH = 4096
LARGE = 16_384
"""Number of records of a batch in columns at most."""
ZERO = datetime(2020, 1, 1, tzinfo=UTC)
PAGE = 4096


@dataclass(frozen=True)
class JoinSpec:
    system: str = "tailrace"
    verb: str = "interval"
    """What is joined in columns: "interval", "window" or "as of"."""
    records: int = 200_000
    """Number of orders, and of payments."""

    @classmethod
    def of(cls, options: dict[str, str]) -> JoinSpec:
        given = {name: options[name] for name in ("system", "verb") if name in options}
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


def columns(start: int, end: int) -> pa.RecordBatch:
    ids = np.arange(start, end)
    return pa.record_batch({"id": ids, "at": ids / 1000, "value": ids * 0.5})


class Batches(Rows):
    """The source of the records in columns."""

    form = "columns"
    schema = columns(0, 0).schema

    def reader(self, split: int, position: int | None = None) -> tr.Reader:
        return _Batches(self.records, position or 0)


class _Batches(_Rows):
    def read(self, limit: int, now: float = 0.0) -> Any:
        start = self.at
        if start == self.records:
            return None
        self.at = min(start + min(limit, LARGE), self.records)
        return columns(start, self.at)


class Totals(tr.Sink):
    """A sink that counts the rows of a join, and adds up the values of both sides."""

    form = "columns"

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        return _TotalsWriter(self)

    def publish(self, prepared: Any) -> None:
        pass


class _TotalsWriter(tr.SinkWriter):
    def __init__(self, sink: Totals) -> None:
        self.sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self.sink.count += batch.num_rows
        self.sink.total += sum(pc.sum(batch.column(name)).as_py() or 0.0 for name in ("value_x", "value_y"))


def run(spec: JoinSpec) -> dict[str, Any]:
    """Records per second of CPU, the result verified, and for ours the memory of a record that is kept."""
    found: list[float] = []
    job = JOBS[spec.system](spec, found)
    gc.set_threshold(50_000)  # as our workers have it
    start = time.process_time()
    job()
    seconds = time.process_time() - start
    expected = 0.5 * spec.records * (spec.records - 1)
    count, total = (len(found), sum(found)) if spec.system != "tailrace-columns" else (int(found[0]), found[1])
    if (count, total) != (spec.records, expected):
        raise SystemExit(f"{spec.system}: {count} pairs of {spec.records}")
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
    return lambda: _as_busy(env)


def _as_busy(env: tr.Environment) -> None:
    """Runs a job as `tr.testing.run` does, with the steps that a busy worker makes."""
    steps = replace(tr.testing.Conditions.calm(), budget=(LARGE, LARGE))
    simulate(env, "join", 0, steps, pickled=False, keep_trace=False).await_termination()


VERBS: dict[str, Callable[[tr.KeyedStream, tr.KeyedStream], tr.DataStream]] = {
    "interval": lambda a, b: a.join(b, within=(-10, 10)),
    "window": lambda a, b: a.join(b, window=tr.Tumbling(20)),
    "as of": lambda a, b: a.join_as_of(b, keep=10),
}
"""Joins in columns with one result for each pair of records."""


def _tailrace_columns(spec: JoinSpec, found: list[float]) -> Callable[[], Any]:
    env = tr.Environment(parallelism=1)
    sides = [env.from_source(Batches(spec.records)).assign_timestamps("at", 1).key_by("id") for _ in range(2)]
    totals = Totals()
    VERBS[spec.verb](sides[0], sides[1]).sink_to(totals)

    def job() -> None:
        _as_busy(env)
        found.extend([totals.count, totals.total])

    return job


def _kept(spec: JoinSpec) -> int:
    """Bytes of memory of a record that a join keeps, without the record itself: one of each key."""
    import random

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


JOBS: dict[str, Callable[[JoinSpec, list[float]], Callable[[], Any]]] = {
    "tailrace": _tailrace,
    "tailrace-columns": _tailrace_columns,
    "bytewax": _bytewax,
    "bytewax-windows": _bytewax_windows,
}
