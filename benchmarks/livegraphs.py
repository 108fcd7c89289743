"""Graphs whose edges come and go: what a change of one edge costs, in a function of `tailrace.graphs` that holds many edges.

By CPU, in one process, without a job around it: what a job adds is in *latency*."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

import tailrace as tr

from .algorithms import ends_of

VERBS = ("components", "paths", "cores", "labels", "ranks")


@dataclass(frozen=True)
class LiveSpec:
    verb: str = "components"
    kind: str = "random"
    edges: int = 1_000_000
    batch: int = 1024  # edges that come together while the graph is loaded, as in a job
    probes: int = 500  # edges that go, and come again
    tolerance: float = 0.01

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> LiveSpec:
        kinds: dict[str, Callable[[str], Any]] = {
            "kind": str,
            "edges": int,
            "batch": int,
            "probes": int,
            "tolerance": float,
        }
        return cls(**{**{name: kinds[name](value) for name, value in options.items() if name in kinds}, **more})


def function_of(spec: LiveSpec) -> Any:
    from tailrace.graphs.live import components, cores, labels, paths, ranks

    return {
        "components": components.LiveComponents,
        "paths": lambda: paths.LivePaths([0], directed=True),
        "cores": cores.LiveCores,
        "labels": lambda: labels.LiveLabels(5),
        "ranks": lambda: ranks.LiveRanks(0.85, spec.tolerance, None),
    }[spec.verb]()


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def run(spec: LiveSpec) -> dict[str, Any]:
    """CPU milliseconds of a change, and bytes of memory for each edge of the graph."""
    a, b = (ends.tolist() for ends in ends_of(spec.kind, spec.edges))
    operator = tr.testing.harness(function_of(spec), key=lambda _: None)
    before, start = resident(), time.process_time()
    for first in range(0, len(a), spec.batch):
        some = slice(first, first + spec.batch)
        operator.push_many([("+", *change) for change in zip(a[some], b[some], strict=True)])
    for turn in range(1, 3):  # behind the first one changes are still coming
        operator.advance_clock(turn * 60)
    load = time.process_time() - start
    bytes_per_edge = (resident() - before) / len(a)
    draw, took, results = np.random.default_rng(11), [], 0
    for edge in draw.integers(0, len(a), spec.probes).tolist():
        for op in "-+":
            start = time.process_time()
            results += len(operator.push((op, a[edge], b[edge])))
            took.append(1000 * (time.process_time() - start))
    places = {f"p{place}_ms": round(float(np.percentile(took, place)), 3) for place in (50, 99)}
    return {
        "load_changes_per_second": round(len(a) / load),
        **places,
        "max_ms": round(max(took), 3),
        "results_per_change": round(results / len(took), 1),
        "bytes_per_edge": round(bytes_per_edge),
    }
