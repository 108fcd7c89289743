"""The experiment of FLIP-76: source -> map -> map -> sleepy map -> measuring map, every edge a shuffle, a checkpoint each
second on the local disk, under every policy and without checkpoints."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import tailrace as tr

SETTLE = 4.0
"""Seconds until channels are full; what is measured before does not count."""
SLEEPS = (0.0, 0.01, 0.1)
"""Milliseconds that the slow map takes for each record."""
POLICIES = ("none", "aligned", "unaligned-max-inflight", "unaligned", "continuous")
"""The last one is unaligned as well, and persists continuously what the one before persists once a checkpoint finds it."""


@dataclass(frozen=True)
class BackpressureSpec:
    policy: str = "unaligned"
    sleep: float = 0.1  # milliseconds for each record
    seconds: float = 20.0  # that are measured
    interval: float = 1.0
    cap: int = 1 << 20  # bytes in flight, with the policy that has a cap
    timeout: float = -1.0  # of the alignment, in seconds; below zero: none
    bytes: int = 100  # of each record
    parallelism: int = 4
    memory: str = "2m"  # of each worker for what its 16 channels hold

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> BackpressureSpec:
        kinds = {"policy": str, "sleep": float, "seconds": float, "interval": float, "cap": int, "timeout": float}
        kinds |= {"bytes": int, "memory": str}
        return cls(**{**{name: kinds[name](value) for name, value in options.items() if name in kinds}, **more})


class Sleepy(tr.MapFunction):
    """A map that takes its time."""

    def __init__(self, millis: float) -> None:
        self.seconds = millis / 1000

    def map(self, value: Any) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return value


def same(value: Any) -> Any:
    return value


def run(spec: BackpressureSpec) -> dict[str, Any]:
    from tailrace.spark.cluster.session import active_or_local

    spark = active_or_local(spec.parallelism)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        env = tr.Environment(
            spark,
            parallelism=spec.parallelism,
            memory=spec.memory,
            progress=False,
            checkpoint=settings_of(spec, folder),
        )
        text = "x" * spec.bytes
        stream = env.from_source(tr.sources.Generator(lambda i: (i, text)), parallelism=spec.parallelism)
        for function in (same, same, Sleepy(spec.sleep), same):
            stream = stream.shuffle().map(function)
        stream.sink_to(tr.sinks.Callback(lambda record: None))
        job = env.execute("backpressure")
        measured = watch(spec, job)
        job.cancel()
        job.await_termination(60)
    return {"workload": "backpressure", "policy": spec.policy, "sleep_ms": spec.sleep, **measured}


def settings_of(spec: BackpressureSpec, folder: str) -> tr.CheckpointConfig | None:
    if spec.policy == "none":
        return None
    return tr.CheckpointConfig(
        folder,
        interval=spec.interval,
        mode="unaligned" if spec.policy == "continuous" else spec.policy,
        persist_inflight="continuous" if spec.policy == "continuous" else "ad-hoc",
        max_inflight_bytes=spec.cap,
        alignment_timeout=spec.timeout if spec.timeout >= 0 else None,
        retain="never",
    )


def watch(spec: BackpressureSpec, job: Any) -> dict[str, Any]:
    """What a job does while it is measured."""
    while str(job.status) != "RUNNING":
        time.sleep(0.05)
    time.sleep(SETTLE)
    first = {checkpoint.id for checkpoint in job.checkpoints}
    began, records = time.monotonic(), through(job)
    queued, taken = [], {}
    while time.monotonic() - began < spec.seconds:
        time.sleep(spec.interval / 2)
        queued.append(job.inflight_bytes)
        taken |= {one.id: one for one in job.checkpoints if one.id not in first}
    took = time.monotonic() - began
    return {
        "records_per_second": round((through(job) - records) / took),
        "queued_bytes": round(statistics.median(queued)),
        **figures(list(taken.values())),
    }


def through(job: Any) -> int:
    """How many records have gone into sinks, by the newest reports."""
    return int(job.metrics()["records_out"])


def figures(taken: list[Any]) -> dict[str, Any]:
    if not taken:
        return {"checkpoints": 0}
    millis = sorted(1000 * one.duration for one in taken)
    parts = {
        name: statistics.median(1000 * one.details[name] for one in taken)
        for name in taken[0].details
        if name != "full_bytes"
    }
    return {
        "checkpoints": len(taken),
        "median_ms": round(statistics.median(millis), 1),
        "p99_ms": round(millis[min(len(millis) - 1, int(0.99 * len(millis)))], 1),
        "parts_ms": {name: round(value, 1) for name, value in parts.items()},
        "bytes": round(statistics.median(one.bytes for one in taken)),
        "inflight_bytes": round(statistics.median(one.inflight_bytes for one in taken)),
        "referred_bytes": round(statistics.median(one.inflight_referred_bytes for one in taken)),
        "ended_unaligned": sum(one.policy == "unaligned" for one in taken),
    }


def ratios(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records per second under each policy by those without checkpoints, of runs with the same sleep."""
    rates = {line["policy"]: line["records_per_second"] for line in lines}
    if not rates.get("none"):
        return []
    found = {policy: round(rate / rates["none"], 3) for policy, rate in rates.items() if policy != "none"}
    same = {"workload": "backpressure", "summary": True, "sleep_ms": lines[0]["sleep_ms"]}
    return [{**same, "throughput_ratio": found}]


def main() -> None:
    spec = BackpressureSpec.of(dict(one.split("=", 1) for one in sys.argv[1:]))
    print(json.dumps(run(spec)), flush=True)


if __name__ == "__main__":
    main()
