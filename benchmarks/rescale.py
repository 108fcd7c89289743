"""How late records are when a job with state gets twice as many workers while they flow, and gives them back."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import tailrace as tr

from .failover import BUILD, USUAL, FailoverSpec, Listener, Paced, Tell, percentile, settle
from .recovery import Watched

STEPS = {
    "joined": "send Trigger",
    "acked": "got Ack",
    "reset": "got WasReset",
    "claimed": "claimed",
    "deploy_sent": "send Deploy",
    "deployed": "got Deployed",
    "started": "send Start",
}
"""Steps of a change of size, by their last event. The job stands still from `joined` to `started`."""
BEHIND = 3.0
"""Seconds behind the change over which latency is looked at."""


@dataclass(frozen=True)
class RescaleSpec(FailoverSpec):
    """`kills` is the number of times that the job grows and shrinks again."""

    rate: float = 20_000.0
    depth: int = 2
    kills: int = 3
    mode: str = "rescale"
    state: str = "memory"  # memory | disk


def run(spec: RescaleSpec) -> list[dict[str, Any]]:
    from tailrace.spark.cluster.session import active_or_local

    spark = active_or_local(2 * spec.parallelism)
    listener = Listener()
    listener.start()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        env = tr.Environment(
            spark,
            parallelism=spec.parallelism,
            progress=False,
            checkpoint=tr.CheckpointConfig(f"{folder}/checkpoints", interval=spec.interval, retain="never"),
            state_backend=spec.state,
        )
        BUILD[spec.job](spec, env.from_source(Paced(spec))).sink_to(tr.sinks.Callback(Tell(listener.port)))
        job = env.execute("rescale")
        watched = Watched(job)
        sizes = [2 * spec.parallelism, spec.parallelism] * spec.kills
        lines = [_change(spec, job, listener, watched, size) for size in sizes]
        job.cancel()
        job.await_termination(30)
    return lines


def _change(spec: RescaleSpec, job: Any, listener: Listener, watched: Watched, size: int) -> dict[str, Any]:
    settle(spec, job, listener)
    before, begun = len(job.slices), time.time()
    usual = [latency for _, latency in listener.latencies(begun - USUAL, begun - 0.1)]
    job.rescale(size, timeout=120)
    done = time.time()
    while not listener.latencies(done + BEHIND, time.time()):
        if not job.is_active:
            job.await_termination()
        time.sleep(0.1)
    worst = max(latency for _, latency in listener.latencies(begun, done + BEHIND))
    steps = watched.between(begun, done + 1.0, STEPS)  # who waits is answered before the start is sent
    return {
        "workload": "rescale",
        "job": spec.job,
        "state": spec.state,
        "before": before,
        "after": size,
        "worst_latency": round(worst, 3),
        "stood_still": round((steps["started"] - steps["joined"]) / 1000, 3),
        "seconds": round(done - begun, 3),
        "usual_p99_ms": round(1000 * percentile(usual, 0.99), 2),
        "steps_ms": steps,
    }


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, by the change."""
    changes: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        changes.setdefault(f"{line['before']} to {line['after']}", []).append(line)
    medians = {
        f"median_{name}": {
            one: round(statistics.median(line[name] for line in found), 3) for one, found in changes.items()
        }
        for name in ("worst_latency", "stood_still", "seconds")
    }
    slowest = {one: max(line["worst_latency"] for line in found) for one, found in changes.items()}
    return {"workload": "rescale", "summary": True, **medians, "slowest": slowest}
