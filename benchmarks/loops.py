"""Loops of tailrace alone: how soon one ends when its last record has left (*termination*), how long a lap takes one record,
and how many laps all records together make in a second (*lap*)."""

from __future__ import annotations

import json
import pickle
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tailrace as tr

from .ours import CountColumns, CountRows, Generate, GenerateReader, Report
from .recovery import Watched
from .workload import Tally

STAMP = struct.Struct("<q")
KEYS = 10_007


def with_options(spec: Any, options: dict[str, str]) -> Any:
    """A specification with other whole numbers, given as text."""
    return replace(spec, **{name: int(value) for name, value in options.items() if hasattr(spec, name)})


# Termination.


@dataclass(frozen=True)
class TerminationSpec:
    laps: int = 100
    records: int = 100
    runs: int = 5
    parallelism: int = 2


class Circle(tr.KeyedProcessFunction):
    """(key, laps left, when the last lap began)."""

    def process(self, record: tuple[int, int, int], ctx: tr.Context) -> Iterator[tuple[int, int, int]]:
        key, left, _ = record
        yield (key + 1, left - 1, 0) if left > 1 else (key, 0, time.time_ns())


class Tell:
    """Tells the driver when each record had made its last lap."""

    def __init__(self, port: int) -> None:
        self.port, self.socket = port, None

    def __call__(self, record: tuple[int, int, int]) -> None:
        if self.socket is None:
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.sendto(STAMP.pack(record[2]), ("127.0.0.1", self.port))


def going(record: Any) -> bool:
    return record[1] > 0


def gone(record: Any) -> bool:
    return record[1] == 0


def circle(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
    moved = records.key_by(itemgetter(0)).process(Circle())
    return moved.filter(going), moved.filter(gone)


def run_termination(spec: TerminationSpec) -> dict[str, Any]:
    from tailrace.spark.cluster.session import local_session

    spark = local_session(spec.parallelism)
    _terminate(TerminationSpec(laps=1, parallelism=spec.parallelism), spark)  # so that Spark and its workers are warm
    found = [_terminate(spec, spark) for _ in range(spec.runs)]
    line: dict[str, Any] = {}
    for name in found[0]:
        times = [one[name] for one in found]
        line[name] = {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}
    return line


def _terminate(spec: TerminationSpec, spark: Any) -> dict[str, float]:
    """Milliseconds from the last record's last lap to what ended then, and when its wait was over."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    listener.bind(("127.0.0.1", 0))
    env = tr.Environment(spark, parallelism=spec.parallelism, progress=False)
    records = env.from_collection([(key, spec.laps, 0) for key in range(spec.records)])
    records.iterate(circle).sink_to(tr.sinks.Callback(Tell(listener.getsockname()[1])))
    job = env.execute("termination")
    watched = Watched(job)
    job.await_termination()
    finished = time.time()
    listener.setblocking(False)
    last = max(STAMP.unpack(listener.recv(STAMP.size))[0] for _ in range(spec.records)) / 1e9
    listener.close()
    end = max(at for at, what in watched.events if what == "send EndLoop")
    sinks = max(at for at, what in watched.events if what == "got SubtasksFinished")
    return {"end_ms": 1000 * (end - last), "sinks_ms": 1000 * (sinks - last), "finished_seconds": finished - last}


# One record around a loop.


@dataclass(frozen=True)
class LapSpec:
    form: str = "rows"  # rows | columns
    records: int = 1  # one: what a lap takes; many: how many laps a second
    laps: int = 10_000
    parallelism: int = 2


SKIPPED = 1000
"""Laps that do not count: the first ones of one record."""


class Stamp(tr.KeyedProcessFunction):
    """Measures the time since the record was last seen, by a clock that all processes of a machine share."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, ctx: tr.Context) -> None:
        self.subtask, self.times = ctx.subtask, []

    def process(self, record: tuple[int, int, int, int], ctx: tr.Context) -> Iterator[tuple[int, int, int, int]]:
        key, left, other, before = record
        now = time.perf_counter_ns()
        self.times.append((left, now - before))
        yield other, left, key, now

    def close(self) -> None:
        Path(self.folder, f"laps-{self.subtask}").write_bytes(pickle.dumps(self.times))


def one_less(record: Any) -> Any:
    return (record[0], record[1] - 1, *record[2:])


def keys_of_two_subtasks(parallelism: int) -> tuple[int, int]:
    from tailrace.elements.keygroups import key_group, owners

    owner = owners(parallelism, 128)
    other = next(key for key in range(1, 1000) if owner[key_group(key, 128)] != owner[key_group(0, 128)])
    return 0, other


def _one(spec: LapSpec) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:

        def body(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
            moved = records.key_by(itemgetter(0)).process(Stamp(folder)).map(one_less)
            return moved.filter(going), moved.filter(gone)

        env = tr.Environment(parallelism=spec.parallelism, progress=False)
        here, there = keys_of_two_subtasks(spec.parallelism)
        out = env.from_collection([(here, spec.laps, there, 0)]).iterate(body).collect()
        assert len(out) == 1, out
        seen = [pickle.loads(path.read_bytes()) for path in Path(folder).glob("laps-*")]
    assert spec.parallelism == 1 or min(map(len, seen)) >= spec.laps // 2
    times = sorted(took / 1e6 for part in seen for left, took in part if left <= spec.laps - SKIPPED)
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {"lap_ms": {name: round(times[min(len(times) - 1, int(at * len(times)))], 3) for name, at in places.items()}}


# Many records around a loop.


class Circling(Generate):
    """(key, laps left, number)."""

    def __init__(self, spec: LapSpec, folder: str) -> None:
        super().__init__(spec.records, spec.form, folder)
        self.laps = spec.laps
        self.columns = ("key", "left", "value") if spec.form == "columns" else None

    def reader(self, split: tuple[int, int], position: Any = None) -> tr.Reader:
        return CirclingReader(self, split[0] if position is None else position, split[1])


class CirclingReader(GenerateReader):
    def __init__(self, source: Circling, at: int, end: int) -> None:
        super().__init__(source, at, end)
        laps = source.laps

        def columns(start: int, end: int) -> pa.RecordBatch:
            number = np.arange(start, end)
            return circling(number % KEYS, np.full(len(number), laps), pa.array(number))

        def rows(start: int, end: int) -> list[tuple[int, int, int]]:
            return [(i % KEYS, laps, i) for i in range(start, end)]

        self.make = columns if source.form == "columns" else rows


def circling(key: np.ndarray, left: np.ndarray, number: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(key), pa.array(left), number], names=["key", "left", "value"])


class Visit(tr.KeyedProcessFunction):
    """The keyed operator of the loop: it lets every record pass."""

    def process(self, record: tuple[int, int, int], ctx: tr.Context) -> list[tuple[int, int, int]]:
        return [record]


def step(record: tuple[int, int, int]) -> tuple[int, int, int]:
    """Another key: half of them belong to the other one of two subtasks."""
    key, left, number = record
    return (key * 7919 + 1) % KEYS, left - 1, number


def rows_loop(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
    moved = records.key_by(itemgetter(0)).process(Visit()).map(step)
    return moved.filter(going), moved.filter(gone)


def visit_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def step_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    key, left, number = batch.columns
    return circling((key.to_numpy() * 7919 + 1) % KEYS, left.to_numpy() - 1, number)


def going_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.greater(batch.column(1), 0))


def gone_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(batch.column(1), 0))


def columns_loop(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
    moved = records.key_by("key").map_batches(visit_columns).map_batches(step_columns)
    return moved.map_batches(going_columns), moved.map_batches(gone_columns)


def _many(spec: LapSpec) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        env = tr.Environment(parallelism=spec.parallelism, progress=False)
        records = env.from_source(Circling(spec, folder))
        if spec.form == "columns":
            records.iterate(columns_loop).sink_to(Report(folder, CountColumns))
        else:
            records.iterate(rows_loop).sink_to(Report(folder, CountRows))
        env.execute("lap").await_termination()
        result = Tally()
        for path in Path(folder).glob("tally-*"):
            result.add(pickle.loads(path.read_bytes()))
        first = min(float(path.read_text()) for path in Path(folder).glob("first-*"))
    if (result.count, result.total) != (spec.records, spec.records * (spec.records - 1) / 2):
        raise AssertionError(f"lap: {result.count} records with sum {result.total} came out of {spec.records}")
    seconds = result.last - first
    rate = round(spec.records * spec.laps / seconds)
    return {"seconds": round(seconds, 3), "laps_per_second": rate, "verified": True}


def run_lap(spec: LapSpec) -> dict[str, Any]:
    return _one(spec) if spec.records == 1 else _many(spec)


def run(spec: TerminationSpec | LapSpec) -> dict[str, Any]:
    return run_termination(spec) if isinstance(spec, TerminationSpec) else run_lap(spec)


if __name__ == "__main__":  # in this very process: python -m benchmarks.loops lap form=columns records=1000000 laps=40
    from benchmarks import loops

    what, *rest = sys.argv[1:]
    given = dict(one.split("=", 1) for one in rest)
    kind = loops.TerminationSpec() if what == "termination" else loops.LapSpec(given.pop("form", "rows"))
    print(json.dumps(loops.run(loops.with_options(kind, given))))
