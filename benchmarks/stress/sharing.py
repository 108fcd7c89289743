"""One application for a job, a streaming query and a batch job: who waits for whom, by the mode of Spark's scheduler.

The tasks of the batch job sleep for a second each, so the waits are those of slots, and not of a busy machine."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from datetime import datetime
from typing import Any

import tailrace as tr

from . import Setting
from .running import AT_ONCE, Wrong, session

SLOTS = 4
TASKS = 16
"""Tasks of the batch job, of a second each: 8 seconds on the two slots that the job leaves free."""
RATE = 20
"""Rows a second of the query."""
CALM = 8.0
"""Seconds before the first batch job, once the query has no more than a second of rows in a batch."""
WAYS = {"FIFO": ("FIFO", None), "FAIR": ("FAIR", None), "FAIR, batch in a pool": ("FAIR", "batch")}


def sharing(setting: Setting) -> dict[str, Any]:
    """How late rows of a query are, how long a batch job takes, how long a lost worker and the start of a job wait."""
    figures: dict[str, Any] = {}
    for name, (mode, pool) in WAYS.items():
        spark = session(setting, SLOTS, spark_scheduler_mode=mode)
        try:
            figures[name] = _measured(setting, spark, pool, setting.option("tasks", TASKS))
        finally:
            spark.stop()
    doubled = sum(one.pop("doubled") for one in figures.values())
    return {**figures, "wrong": f"{doubled} rows came twice" if doubled else ""}


class _Batch(threading.Thread):
    """A batch job of tasks that sleep."""

    def __init__(self, spark: Any, tasks: int, pool: str | None) -> None:
        super().__init__(daemon=True)
        self.context, self.tasks, self.pool = spark.sparkContext, tasks, pool
        self.begun = self.ended = 0.0

    def run(self) -> None:
        self.context.setLocalProperty("spark.scheduler.pool", self.pool)
        self.begun = time.time()
        self.context.parallelize(range(self.tasks), self.tasks).foreach(_sleep)
        self.ended = time.time()


def _sleep(_: int) -> None:
    time.sleep(1.0)


def _measured(setting: Setting, spark: Any, pool: str | None, tasks: int) -> dict[str, Any]:
    _run(_Batch(spark, SLOTS, pool))  # Spark's Python workers are there
    folder = f"{setting.folder}/{time.time()}"
    checkpoint = tr.CheckpointConfig(folder, interval=0.5)
    env = tr.Environment(spark, parallelism=2, checkpoint=checkpoint, restart=AT_ONCE, progress=False)
    rates = spark.readStream.format("rate").option("rowsPerSecond", RATE).load()
    sink = env.from_streaming(rates, trigger=0.25).map(_arrived).sink_to(tr.sinks.Collect())
    job = env.execute("sharing")
    _wait(job, lambda: _keeps_up(job))
    calm = time.time()
    time.sleep(CALM)
    batch = _run(_Batch(spark, tasks, pool))
    time.sleep(1.0)
    replaced = _killed(job, _Batch(spark, tasks, pool))
    _wait(job, lambda: _last_batch(job) > batch.ended)
    newest = _newest(job)
    _wait(job, lambda: _newest(job) > newest + 2)
    job.stop()
    rows = sink.result()
    late = {"alone": (calm, batch.begun), "beside a batch job": (batch.begun, batch.ended)}
    found = {
        f"rows {name}, seconds": _seconds([seen - at for _, at, seen in rows if first <= at < last])
        for name, (first, last) in late.items()
    }
    missing = set(range(max(value for value, _, _ in rows) + 1)) - {value for value, _, _ in rows}
    if missing:
        raise Wrong(f"{len(missing)} rows are missing, the first is {min(missing)}")
    return {
        **found,
        "doubled": len(rows) - len({value for value, _, _ in rows}),
        "batch job, seconds": round(batch.ended - batch.begun, 1),
        "a lost worker back after, seconds": round(replaced, 1),
        "a job of one record, seconds": round(_started(spark, _Batch(spark, tasks, pool)), 1),
    }


def _seconds(found: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(found), 1), "most": round(max(found), 1)}


def _arrived(row: Any) -> tuple[int, float, float]:
    return row.value, row.timestamp.timestamp(), time.time()


def _run(batch: _Batch) -> _Batch:
    batch.start()
    batch.join()
    return batch


def _killed(job: Any, batch: _Batch) -> float:
    """Seconds from the death of a worker, a second into a batch job, until all workers run."""
    batch.start()
    time.sleep(1.5)
    begun, restarts = time.time(), job.restarts
    os.kill(job._runner.machine.roster.slots[1].hello.pid, signal.SIGKILL)
    _wait(job, lambda: job.restarts > restarts and str(job.status) == "RUNNING")
    took = time.time() - begun
    batch.join()
    return took


def _started(spark: Any, batch: _Batch) -> float:
    """Seconds from start to end of a job of one record that starts a second into a batch job."""
    batch.start()
    time.sleep(1.5)
    begun = time.time()
    env = tr.Environment(spark, parallelism=2, progress=False)
    env.from_collection([1]).rebalance().sink_to(tr.sinks.Collect())
    job = env.execute("started")
    job.await_termination(180)
    took = time.time() - begun
    batch.join()
    return took


def _keeps_up(job: Any) -> bool:
    """True if the newest batch of the query began a moment ago, and has the rows of a second at most."""
    rows = [one["numInputRows"] for one in job.metrics()["queries"].values() if one is not None]
    return bool(rows) and 0 < max(rows) <= RATE and time.time() - _last_batch(job) < 3.0


def _last_batch(job: Any) -> float:
    """The time at which the newest batch of the job's query that has ended began; 0 before the first."""
    found = [one for one in job.metrics()["queries"].values() if one is not None]
    return max((datetime.fromisoformat(one["timestamp"]).timestamp() for one in found), default=0.0)


def _newest(job: Any) -> int:
    """The number of the newest checkpoint."""
    return job.checkpoints[-1].id if job.checkpoints else 0


def _wait(job: Any, condition: Any) -> None:
    until = time.monotonic() + 180
    while not condition():
        if time.monotonic() > until:
            raise Wrong(f"not within three minutes: {job.status}, {job.restarts} restarts, {job.exception()}")
        time.sleep(0.01)
