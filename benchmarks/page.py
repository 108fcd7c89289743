"""The cost of an open page: `python -m benchmarks.page`. JSON on standard output.

A page that is open takes one snapshot a second, whoever looks. This measures the processor time of one, from the view of the
job to its bytes, for the dataflow of *keyed*, as a share of what the workers of *keyed* take in a second: all of their
cores. Only processor time counts, so a busy machine changes little.
"""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec

import tailrace as tr
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView, SlotFigures
from tailrace.coordinator.view.snapshot_maker import WINDOW, SnapshotMaker

from .workload import rows

SECOND = 1_000_000
SHARE = 0.01
"""The share of the time of *keyed* that an open page may take."""


def keyed(parallelism: int, records: int = 1_000) -> Any:
    """The job of *keyed*, as it has run in one process."""
    env = tr.Environment(parallelism=parallelism)
    stream = env.from_collection(rows(0, records), name="records")
    summed = stream.key_by(lambda row: row[1]).reduce(lambda a, b: (a[0], a[1], a[2] + b[2]))
    summed.sink_to(tr.sinks.Callback(repr))
    return tr.testing.run(env).simulation


def cost(parallelism: int, repeat: int = 200) -> dict[str, Any]:
    """The processor time of a snapshot of *keyed*, and its share of the time of the job."""
    job = keyed(parallelism)
    maker = SnapshotMaker("id", "keyed", job.plan, lambda: 0)
    reports = job.reports
    for at in range(1, WINDOW + 1):
        moved = [msgspec.structs.replace(one, busy_micros=at * SECOND, records_in=at * 1_000) for one in reports]
        slots = tuple(SlotFigures([one for one in moved if one.subtask == slot]) for slot in range(parallelism))
        view = JobView(JobStatus.RUNNING, at * SECOND, slots=slots, due=True)
        maker.observe(view)
    started = time.thread_time()
    for _ in range(repeat):
        data = json.dumps(msgspec.to_builtins(maker.make(view))).encode()
    taken = (time.thread_time() - started) / repeat
    share = taken / parallelism
    figures = {"parallelism": parallelism, "snapshot_ms": round(taken * 1e3, 3), "bytes": len(data)}
    return {"workload": "page", **figures, "share_of_keyed": round(share, 6), "below_limit": share < SHARE}


if __name__ == "__main__":
    for parallelism in (1, 2, 8):
        print(json.dumps(cost(parallelism)), flush=True)
