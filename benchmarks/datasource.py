"""A Python Data Source in our workers beside Spark's own micro-batches over it: records a second of what is there
already, and the latency of records that come at a rate. Both run in one session, one after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import tailrace as tr
from tailrace.spark.cluster.session import local_session

SYSTEMS = ("tailrace", "spark")
BATCH = 8_192
PATIENCE = 120.0
"""Seconds behind the last record of a latency run in which it must have been read."""
SETTLE = 3.0
"""Seconds in front of the first record of a latency run: workers start."""


@dataclass(frozen=True)
class DataSourceSpec:
    system: str = "tailrace"
    measure: str = "throughput"
    """`throughput` or `latency`."""
    kind: str = "tuples"
    """`tuples` or `batches`: what the reader yields."""
    form: str = "columns"
    records: int = 2_000_000
    """Records of a throughput run."""
    rate: int = 1_000
    """Records a second of a latency run."""
    seconds: float = 15.0
    """Duration of a latency run."""
    parallelism: int = 2

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> DataSourceSpec:
        kinds = {"kind": str, "form": str, "records": int, "rate": int, "seconds": float}
        given = {name: kind(options[name]) for name, kind in kinds.items() if name in options}
        return cls(**{**more, **given})  # type: ignore[arg-type]


class Part(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Numbers(DataSource):
    """The numbers from 0 on, with the time at which each came to be."""

    def schema(self) -> str:
        return "id long, at double"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NumbersReader(self.options)


class NumbersReader(DataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self.kind, self.parts = options["kind"], int(options["parts"])
        self.begin, self.rate, self.count = float(options["begin"]), float(options["rate"]), int(options["count"])

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, *args: Any) -> dict[str, int]:
        if not self.rate:
            return {"at": self.count}
        return {"at": max(0, min(self.count, int((time.time() - self.begin) * self.rate)))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        first, size = start["at"], end["at"] - start["at"]
        bounds = [first + size * at // self.parts for at in range(self.parts + 1)]
        return [Part(*pair) for pair in pairwise(bounds)]

    def read(self, partition: Any) -> Iterator[Any]:
        begin, step = self.begin, 1 / self.rate if self.rate else 0.0
        if self.kind == "tuples":
            for number in range(partition.start, partition.end):
                yield number, begin + number * step
            return
        for first in range(partition.start, partition.end, BATCH):
            ids = np.arange(first, min(first + BATCH, partition.end))
            yield pa.record_batch({"id": pa.array(ids), "at": pa.array(begin + ids * step)})


def run(spec: DataSourceSpec) -> dict[str, Any]:
    """One run in a session of its own, behind a short one that starts Spark's workers."""
    spark = local_session(2 * spec.parallelism + 1)
    measured = {"tailrace": ours, "spark": sparks}[spec.system]
    try:
        warm = replace(spec, measure="throughput", records=10_000)
        measured(spark, warm)
        return measured(spark, spec)
    finally:
        spark.stop()


def options_for(spec: DataSourceSpec) -> dict[str, str]:
    """The options of the data source. Records of a latency run begin after a while."""
    lasts = spec.measure == "latency"
    rate, count = (spec.rate, int(spec.rate * spec.seconds)) if lasts else (0, spec.records)
    begin = time.time() + SETTLE * lasts
    made = {"kind": spec.kind, "parts": spec.parallelism, "begin": begin, "rate": rate, "count": count}
    return {name: str(value) for name, value in made.items()}


def ours(spark: Any, spec: DataSourceSpec) -> dict[str, Any]:
    env = tr.Environment(spark, parallelism=spec.parallelism, progress=False)
    lasts, options = spec.measure == "latency", options_for(spec)
    began = time.perf_counter()
    stream = env.from_data_source(Numbers, options, form=spec.form, until=None if lasts else "now")
    if spec.form == "columns":
        found = stream.map_batches(lambda batch: tally(batch, lasts)).sink_to(tr.sinks.Collect())
    else:
        found = stream.batch(BATCH, timeout=0.001).map(lambda rows: tally_rows(rows, lasts)).sink_to(tr.sinks.Collect())
    job = env.execute("data source")
    if lasts:
        wait_for(
            spec,
            options,
            lambda: (job.last_progress or {"tailrace": {"totalInputRows": 0}})["tailrace"]["totalInputRows"],
        )
        job.stop(drain=True)
    job.await_termination()
    took = time.perf_counter() - began
    tallies = list(found.result())
    return figures_of(spec, sum(count for count, _ in tallies), took, [late for _, lates in tallies for late in lates])


def tally(batch: Any, lasts: bool) -> Any:
    late = time.time() - batch.column("at").to_numpy() if lasts else ()
    return pa.record_batch({"count": [batch.num_rows], "late": pa.array([list(late)], pa.list_(pa.float64()))})


def tally_rows(rows: Any, lasts: bool) -> tuple[int, list[float]]:
    now = time.time()
    return len(rows), [now - row.at for row in rows] if lasts else []


def sparks(spark: Any, spec: DataSourceSpec) -> dict[str, Any]:
    """Without a job of ours: `noop` takes all records, and `foreachBatch` looks at each."""
    lasts, options = spec.measure == "latency", options_for(spec)
    late: list[float] = []

    def look(df: Any, number: int) -> None:
        rows = df.collect()
        now = time.time()
        late.extend(now - row.at for row in rows)

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers do not find this module
    spark.dataSource.register(Numbers)
    began = time.perf_counter()
    writer = spark.readStream.format("Numbers").options(**options).load().writeStream
    if lasts:
        query = writer.foreachBatch(look).start()
        wait_for(spec, options, lambda: len(late))
        query.stop()
        return figures_of(spec, len(late), 0.0, late)
    query = writer.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    took = time.perf_counter() - began
    return figures_of(spec, sum(one["numInputRows"] for one in query.recentProgress), took, [])


def wait_for(spec: DataSourceSpec, options: dict[str, str], read: Callable[[], int]) -> None:
    """Waits until all records of a latency run were read."""
    last = float(options["begin"]) + spec.seconds
    while time.time() < last or (read() < int(options["count"]) and time.time() < last + PATIENCE):
        time.sleep(0.2)


def figures_of(spec: DataSourceSpec, count: int, seconds: float, late: list[float]) -> dict[str, Any]:
    expected = int(options_for(spec)["count"])
    if count != expected:
        raise SystemExit(f"{spec.system}: {count} of {expected} records")
    if spec.measure == "throughput":
        return {"took": round(seconds, 3), "records_per_second": round(count / seconds)}
    parts = {f"p{at}_ms": round(float(np.percentile(late, at)) * 1000, 1) for at in (50, 95, 99)}
    return {**parts, "counted": len(late)}
