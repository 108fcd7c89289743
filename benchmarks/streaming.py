"""A streaming DataFrame into a job beside the same query with Spark's own sink of Parquet files: records a second, and the
CPU time of all processes. The batches are the same ones: files of Parquet, some in each batch."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import tailrace as tr
from tailrace.spark.cluster.session import local_session

SYSTEMS = ("parquet", "tailrace")
COLUMNS = "id long, key int, value double, name string"


@dataclass(frozen=True)
class StreamingSpec:
    system: str = "tailrace"
    form: str = "columns"
    records: int = 16_000_000
    files: int = 16
    batch: int = 4
    """Files of each batch."""
    parallelism: int = 2

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> StreamingSpec:
        kinds = {"form": str, "records": int, "files": int, "batch": int}
        given = {name: kind(options[name]) for name, kind in kinds.items() if name in options}
        return cls(**{**more, **given})  # type: ignore[arg-type]


def run(spec: StreamingSpec) -> dict[str, Any]:
    """One run, behind a short one that starts Spark's workers. Ends the program if records are missing."""
    spark = local_session(2 * spec.parallelism)
    folder = tempfile.mkdtemp(prefix="tailrace-streaming-")
    try:
        for part, measured in (("warm", replace(spec, records=100_000, files=2, batch=1)), ("whole", spec)):
            write(f"{folder}/{part}/in", measured)
            figures = _measured(spark, f"{folder}/{part}", measured)
        return figures
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def write(place: str, spec: StreamingSpec) -> None:
    """The files of the input."""
    size = spec.records // spec.files
    for number in range(spec.files):
        random = np.random.default_rng(number)
        keys = random.integers(0, 1000, size)
        columns = {
            "id": pa.array(np.arange(number * size, (number + 1) * size)),
            "key": pa.array(keys.astype("int32")),
            "value": pa.array(random.random(size)),
            "name": pa.array(np.char.add("customer ", keys.astype(str))),
        }
        ds.write_dataset(pa.table(columns), f"{place}/{number:04d}", format="parquet")


def _measured(spark: Any, folder: str, spec: StreamingSpec) -> dict[str, Any]:
    df = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", spec.batch).parquet(f"file://{folder}/in/*")
    began, before = time.perf_counter(), cpu()
    count = (_by_spark if spec.system == "parquet" else _by_us)(df, folder, spec)
    seconds, used = time.perf_counter() - began, cpu() - before
    if count != spec.records:
        raise SystemExit(f"{spec.system}: {count} of {spec.records} records")
    return {
        "records_per_second": round(count / seconds),
        "cpu_us_per_record": round(used * 1e6 / count, 3),
        "seconds": round(seconds, 2),
    }


def _by_spark(df: Any, folder: str, spec: StreamingSpec) -> int:
    writer = df.writeStream.format("parquet").option("checkpointLocation", f"file://{folder}/query")
    writer.trigger(availableNow=True).start(f"file://{folder}/out").awaitTermination()
    return sum(pq.read_metadata(path).num_rows for path in ds.dataset(f"{folder}/out", format="parquet").files)


def _by_us(df: Any, folder: str, spec: StreamingSpec) -> int:
    checkpoint = tr.CheckpointConfig(f"{folder}/checkpoints")
    env = tr.Environment(df.sparkSession, parallelism=spec.parallelism, checkpoint=checkpoint, progress=False)
    stream = env.from_streaming(df, form=spec.form, trigger="available-now")  # type: ignore[arg-type]
    if spec.form == "columns":
        counts = stream.map_batches(lambda batch: pa.record_batch({"rows": [batch.num_rows]})).to_rows()
        sizes = counts.map(lambda row: row.rows)
    else:
        sizes = stream.batch(8192, timeout=1.0).map(len)
    sink = sizes.sink_to(tr.sinks.Collect())
    env.execute("streaming").await_termination()
    return sum(sink.result())


def cpu() -> float:
    """CPU seconds of this process and of all below it, also of those that have ended."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total
