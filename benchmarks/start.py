"""How soon a job of a session gives its first record, and what DataFrames cost on their way in and out, beside Spark's own
writing and reading of the same rows."""

from __future__ import annotations

import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import tailrace as tr

from .ours import Generate

STAMP = struct.Struct("<d")


@dataclass(frozen=True)
class StartSpec:
    jobs: int = 6  # of one session, one after the other
    rows: int = 10_000_000
    turns: int = 3  # of DataFrames in and out, beside Spark's
    parallelism: int = 2

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> StartSpec:
        return replace(cls(**more), **{name: int(value) for name, value in options.items()})


class Tell:
    """Tells the driver when the first record is at the sink."""

    def __init__(self, port: int) -> None:
        self.port, self.told = port, False

    def __call__(self, record: Any) -> None:
        if not self.told:
            self.told = True
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.sendto(STAMP.pack(time.time()), ("127.0.0.1", self.port))


class CountRows:
    """How many rows the batches have had so far."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        return pa.record_batch({"rows": [self.rows]})


def run(spec: StartSpec) -> dict[str, Any]:
    from tailrace.spark.cluster.session import active_or_local

    begun = time.time()
    spark = active_or_local(spec.parallelism + 1)
    session = time.time() - begun
    firsts = _first_records(spec, spark)
    return {
        "session_seconds": round(session, 3),
        "first_job_seconds": round(firsts[0], 3),
        "later_jobs_seconds": round(statistics.median(firsts[1:]), 3),
        "slowest_later_job_seconds": round(max(firsts[1:]), 3),
        **(_dataframes(spec, spark) if spec.rows else {}),
    }


def _first_records(spec: StartSpec, spark: Any) -> list[float]:
    """Seconds from `execute` to the first record at the sink, job by job."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    listener.settimeout(120.0)
    found = []
    for number in range(spec.jobs):
        env = tr.Environment(spark, parallelism=spec.parallelism, progress=False)
        numbers = env.from_source(tr.sources.Sequence(0, 1000)).key_by(abs)
        numbers.count().sink_to(tr.sinks.Callback(Tell(listener.getsockname()[1])), parallelism=1)
        begun = time.time()
        job = env.execute(f"start-{number}")
        found.append(STAMP.unpack(listener.recv(64))[0] - begun)
        job.await_termination()
    return found


def _dataframes(spec: StartSpec, spark: Any) -> dict[str, Any]:
    """Rows into a dataflow and out of one. Each is compared with Spark's writing the same rows as Parquet files and reading
    them again."""
    rows = (
        spark.range(0, spec.rows, 1, spec.parallelism).selectExpr("id", "id % 10000 AS key", "rand(7) AS value").cache()
    )
    rows.write.format("noop").mode("overwrite").save()  # they are in memory, for everybody
    taken: dict[str, list[float]] = {"spark": [], "in": [], "out": []}
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        ways = {
            "spark": lambda turn: _by_spark(spark, rows, str(Path(folder, str(turn)))),
            "in": lambda turn: _into(spec, spark, rows),
            "out": lambda turn: _out_of(spec, spark, folder),
        }
        for turn in range(-1, spec.turns):  # the first one warms up
            for name, way in ways.items():
                seconds = _time(way, turn)
                if turn >= 0:
                    taken[name].append(seconds)
    medians = {name: statistics.median(found) for name, found in taken.items()}
    return {
        "rows": spec.rows,
        "spark_write_and_read_seconds": round(medians["spark"], 2),
        "from_dataframe_seconds": round(medians["in"], 2),
        "to_dataframe_seconds": round(medians["out"], 2),
        "from_dataframe_ratio": round(medians["in"] / medians["spark"], 2),
        "to_dataframe_ratio": round(medians["out"] / medians["spark"], 2),
    }


def _time(way: Callable[[int], None], turn: int) -> float:
    begun = time.perf_counter()
    way(turn)
    return time.perf_counter() - begun


def _by_spark(spark: Any, rows: Any, path: str) -> None:
    rows.write.mode("overwrite").parquet(path)
    spark.read.parquet(path).write.format("noop").mode("overwrite").save()


def _into(spec: StartSpec, spark: Any, rows: Any) -> None:
    env = tr.Environment(spark, parallelism=spec.parallelism, progress=False)
    counted = env.from_dataframe(rows, form="columns").map_batches(CountRows()).sink_to(tr.sinks.Collect())
    env.execute("in").await_termination()
    if sum(1 for _ in counted.result()) == 0:
        raise AssertionError("no row came in")


def _out_of(spec: StartSpec, spark: Any, folder: str) -> None:
    env = tr.Environment(spark, parallelism=spec.parallelism, progress=False)
    frame = env.from_source(Generate(spec.rows, "columns", folder)).to_dataframe()
    frame.write.format("noop").mode("overwrite").save()
