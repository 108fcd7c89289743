"""Writing into a lake table beside writing Parquet files: CPU and time of one writer, and the time of commits.

`files`: columns are written, prepared and published, in files of `megabytes`, by `tr.sinks.Parquet` or `tr.sinks.Delta`.
`commit`: the time of `publish` of the Delta sink for one small file, again and again."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import tailrace as tr
from tailrace.testing.sinkworkers import WriterPlace

SYSTEMS = {"files": ("parquet", "delta"), "commit": ("delta",)}
ROWS = 65_536


@dataclass(frozen=True)
class TablesSpec:
    work: str = "files"
    system: str = "delta"
    megabytes: int = 128
    files: int = 4
    commits: int = 100

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> TablesSpec:
        kinds = {"work": str, "system": str, "megabytes": int, "files": int, "commits": int}
        return cls(**{name: kind(options[name]) for name, kind in kinds.items() if name in options} | more)  # type: ignore[arg-type]


def run(spec: TablesSpec) -> dict[str, Any]:
    """The figures of one work and system. Ends the program if the output is not what was written."""
    folder = tempfile.mkdtemp(prefix="tailrace-tables-")
    try:
        return (files if spec.work == "files" else commits)(spec, f"{folder}/out")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def batch_of(seed: int, rows: int) -> pa.RecordBatch:
    """Columns that do not compress well, as most data do not."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 1 << 60, rows)
    columns = {"n": pa.array(numbers), "x": pa.array(random.random(rows)), "text": pa.array(numbers).cast(pa.string())}
    return pa.record_batch(columns)


def place(number: int = 0) -> WriterPlace:
    return WriterPlace("job", "run", 1, "sink", 0, 1, number)


def files(spec: TablesSpec, out: str) -> dict[str, Any]:
    batches = [batch_of(seed, ROWS) for seed in range(8)]
    schema = batches[0].schema
    sink: Any = tr.sinks.Parquet(out, schema) if spec.system == "parquet" else tr.sinks.Delta(out, schema)
    sink.check()
    writer, limit, rows = sink.writer(place()), spec.megabytes << 20, 0
    started, busy = time.perf_counter(), time.process_time()
    for _ in range(spec.files):
        written = 0
        while written < limit:
            batch = batches[rows // ROWS % len(batches)]
            writer.write(batch)
            written, rows = written + batch.nbytes, rows + ROWS
        sink.publish([writer.prepare()])
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    found = ds.dataset(out).count_rows() if spec.system == "parquet" else deltalake.DeltaTable(out).count()
    if found != rows:
        raise SystemExit(f"{spec.system}: the output has not what it must have: {found} rows of {rows}")
    size = rows * batches[0].nbytes / ROWS / 1e6
    return {"rows": rows, "mb_per_second": size / seconds, "cpu_ms_per_mb": busy / size * 1000, "seconds": seconds}


def commits(spec: TablesSpec, out: str) -> dict[str, Any]:
    batch = batch_of(0, 100)
    sink: Any = tr.sinks.Delta(out, batch.schema)
    sink.check()
    times, writer = [], sink.writer(place())
    for _ in range(spec.commits):
        writer.write(batch)
        prepared = writer.prepare()
        started = time.perf_counter()
        sink.publish([prepared])
        times.append((time.perf_counter() - started) * 1000)
    if deltalake.DeltaTable(out).count() != 100 * spec.commits:
        raise SystemExit("delta: the output has not what it must have")
    tail = statistics.quantiles(times, n=20)[-1]
    return {"commit_ms_p50": statistics.median(times), "commit_ms_p95": tail, "commit_ms_max": max(times)}
