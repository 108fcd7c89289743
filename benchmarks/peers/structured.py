"""Windows, sessions and the interval join as Structured Streaming does them. Its input is there as Parquet files before the
clock starts; its state is in RocksDB, and there is a shuffle partition for each core, as users set it for little data."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from tailrace.spark.cluster.session import local_session

from .. import workload
from ..join import JoinSpec, columns
from ..measure import Spec
from ..streaming import cpu
from ..workload import GAP, WINDOW, Tally

FILE, FILES = 250_000, 4
"""Records of a file, and files of a batch."""
DAY = "interval 1 day"
"""Event time begins a day late: at its zero a record would be late, since that is the first watermark."""
CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.session.timeZone": "UTC",
}


def run(spec: Any) -> Any:
    """One run, behind a short one that starts what is started once."""
    parallelism = 1 if isinstance(spec, JoinSpec) else spec.parallelism
    spark = local_session(parallelism, CONF)
    spark.conf.set("spark.sql.shuffle.partitions", parallelism)
    for key, value in CONF.items():
        spark.conf.set(key, value)
    once = _join if isinstance(spec, JoinSpec) else _windows
    try:
        for one in (replace(spec, records=FILE), spec):
            folder = tempfile.mkdtemp(prefix="tailrace-structured-")
            try:
                found = once(spark, Path(folder), one)
            finally:
                shutil.rmtree(folder)
        return found
    finally:
        spark.stop()


def _files(folder: Path, records: int, make: Callable[[int, int], pa.RecordBatch], last: pa.RecordBatch) -> str:
    """Writes records in files, and last ones that take event time past all others, and then another batch to see it."""
    folder.mkdir()
    for number, start in enumerate(range(0, records, FILE)):
        batch = make(start, min(start + FILE, records))
        pq.write_table(pa.table(batch), folder / f"{number:06}.parquet")
    for number in range(2 * FILES):
        pq.write_table(pa.table(last), folder / f"last-{number}.parquet")
    return f"file://{folder}"


def _stream(spark: Any, place: str) -> Any:
    schema = spark.read.parquet(place).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES).parquet(place)


def _finish(df: Any, folder: Path, each: Callable[[Any], None]) -> tuple[float, float]:
    """Runs a query to its end; seconds by the clock and of CPU."""
    began, before = time.perf_counter(), cpu()
    query = df.writeStream.outputMode("append").option("checkpointLocation", f"file://{folder}/query")
    query = query.foreachBatch(lambda batch, _: each(batch)).trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - began, cpu() - before


def _windows(spark: Any, folder: Path, spec: Spec) -> Tally:
    """Count and sum per key and window, or session."""
    sessions = spec.options.get("window") == "session"
    make = workload.session_columns if sessions else workload.timed_columns
    zero = make(0, 1)
    end = pa.array([10 * (spec.records + WINDOW)], pa.int64()).view(pa.timestamp("us"))
    last = pa.RecordBatch.from_arrays([end, pa.array([-1], pa.int64()), pa.array([0.0])], names=zero.schema.names)
    df = _stream(spark, _files(folder / "in", spec.records, make, last))
    df = (
        df.withColumn("value", F.col("value") + 100.0)
        .filter("value < 550")
        .withColumn("value", F.expr("value * 0.5 + 1"))
    )
    df = df.withColumn("time", F.expr(f"cast(time as timestamp) + {DAY}")).withWatermark("time", "0 seconds")
    span = F.session_window("time", f"{GAP} microseconds") if sessions else F.window("time", f"{WINDOW} microseconds")
    df = df.groupBy(span.alias("span"), "key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    df = df.select("key", F.expr(f"unix_micros(span.start - {DAY})").alias("start"), "n", "total")
    tally = Tally()
    counts, totals = Counter[int](), Counter[int]()
    length = 2 * WINDOW if sessions else WINDOW

    def each(batch: Any) -> None:
        for row in (
            batch.filter("key >= 0").toArrow().to_pylist()
        ):  # a filter in the query would hide the last ones from it
            number = row["start"] // length + 1
            counts[row["key"]] += number * row["n"]
            totals[row["key"]] += number * row["total"]
            tally.count += 1

    tally.first = time.time()
    _, tally.cpu = _finish(df, folder, each)
    tally.last = time.time()
    tally.latest = {key: (float(n), float(totals[key])) for key, n in counts.items()}
    return tally


def _join(spark: Any, folder: Path, spec: JoinSpec) -> dict[str, Any]:
    """Orders with their payments, by id and within ten seconds."""
    end = pa.record_batch({"id": [-1], "at": [10.0 * spec.records], "value": [0.0]}, columns(0, 1).schema)
    sides = []
    for name in ("orders", "payments"):
        df = _stream(spark, _files(folder / name, spec.records, columns, end))
        df = df.withColumn("at", F.expr(f"cast(at as timestamp) + {DAY}")).withWatermark("at", "0 seconds")
        sides.append(df.filter("id >= 0").alias(name))
    near = "payments.at between orders.at - interval 10 seconds and orders.at + interval 10 seconds"
    df = sides[0].join(sides[1], F.expr(f"orders.id = payments.id and {near}"))
    df = df.select((F.col("orders.value") + F.col("payments.value")).alias("value"))
    found = Counter[str]()

    def each(batch: Any) -> None:
        [row] = batch.agg(F.count("*").alias("n"), F.sum("value").alias("total")).collect()
        found.update(n=row["n"], total=row["total"] or 0)

    seconds, used = _finish(df, folder, each)
    if (found["n"], found["total"]) != (spec.records, 0.5 * spec.records * (spec.records - 1)):
        raise SystemExit(f"{spec.system}: {found['n']} pairs of {spec.records}")
    figures = {"cpu_seconds": round(used, 3), "seconds": round(seconds, 2)}
    return figures | {"records_per_cpu_second": int(2 * spec.records / used), "verified": True}
