"""Graph algorithms from DataFrame to DataFrame: `tailrace.graphs`, GraphX of the same Spark, and igraph in one process."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SYSTEMS = ("tailrace", "graphx", "igraph")
"""Ways of GraphX are maps, for which Python finds no encoder: it is no peer of *paths*."""
ALGORITHMS = ("components", "pagerank", "paths", "triangles")
KINDS = ("random", "rmat", "grid", "path")
STEPS = 10  # of PageRank: as many for everybody
ONE_BIT = {"components", "paths", "triangles"}
"""Algorithms whose checksum is exactly the same for all systems."""


@dataclass(frozen=True)
class AlgorithmSpec:
    system: str = "tailrace"
    algorithm: str = "components"
    kind: str = "random"
    edges: int = 1_000_000
    parallelism: int = 2
    runs: int = 3
    warm: int = 1
    memory: str = "6g"  # of the JVM

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> AlgorithmSpec:
        kinds: dict[str, Callable[[str], Any]] = {"memory": str, "edges": int, "runs": int, "warm": int}
        return cls(**{**{name: kinds[name](value) for name, value in options.items() if name in kinds}, **more})


def ends_of(kind: str, edges: int) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of each edge, in random order. No edge is there twice, and none joins a vertex with itself, in neither
    direction: so GraphX, which wants them so for triangles, needs no other graph."""
    draw = np.random.default_rng(7)
    if kind == "path":
        a = np.arange(edges)
        b = a + 1
    elif kind == "grid":
        side = int((edges / 2) ** 0.5)
        at = np.arange(side * side)
        right, down = at[at % side < side - 1], at[at < side * (side - 1)]
        a, b = np.concatenate([right, down]), np.concatenate([right + 1, down + side])
    else:
        bits = max(4, int(np.ceil(np.log2(edges / 5))))
        a, b = np.zeros(int(edges * 1.3), np.int64), np.zeros(int(edges * 1.3), np.int64)
        if kind == "random":
            a, b = draw.integers(0, 1 << bits, len(a)), draw.integers(0, 1 << bits, len(b))
        else:  # R-MAT with the usual 0.57, 0.19, 0.19, 0.05
            for _ in range(bits):
                quarter = np.searchsorted([0.57, 0.76, 0.95], draw.random(len(a)))
                a, b = 2 * a + quarter // 2, 2 * b + quarter % 2
        least, most = np.minimum(a, b), np.maximum(a, b)
        key = np.unique((least << bits | most)[least != most])
        key = draw.permutation(key)[:edges]
        a, b = key >> bits, key & ((1 << bits) - 1)
    order = draw.permutation(len(a))
    return a[order], b[order]


def write(a: np.ndarray, b: np.ndarray, folder: str) -> str:
    """The edges as Parquet files, one for each of two cores."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(folder, "edges")
    path.mkdir()
    for part in (0, 1):
        pq.write_table(pa.table({"src": a[part::2], "dst": b[part::2]}), path / f"part-{part}.parquet")
    return str(path)


def run(spec: AlgorithmSpec) -> dict[str, Any]:
    """Times of one system, from the files to a checksum of the result, with the checksum."""
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        path = write(*ends_of(spec.kind, spec.edges), folder)
        once = {"tailrace": _tailrace, "graphx": _graphx, "igraph": _igraph}[spec.system](spec, path)
        times, found = [], 0.0
        for turn in range(spec.warm + spec.runs):
            start = time.perf_counter()
            found = once()
            if turn >= spec.warm:
                times.append(round(time.perf_counter() - start, 3))
    return {"seconds": round(statistics.median(times), 3), "all_seconds": times, "checksum": found}


def _session(spec: AlgorithmSpec) -> Any:
    from tailrace.spark.cluster.session import local_session

    return local_session(spec.parallelism, {"spark.driver.memory": spec.memory})


def _sum(df: Any, value: str, whole: bool) -> float:
    """A checksum of (id, value)."""
    text = f"sum(({value} + 1) * (id % 1009))" if whole else f"sum({value} * (1 + id % 7))"
    return round(float(df.selectExpr(text).first()[0]), 6)


def _tailrace(spec: AlgorithmSpec, path: str) -> Callable[[], float]:
    from tailrace import graphs

    spark = _session(spec)

    def once() -> float:
        edges = spark.read.parquet(path)
        if spec.algorithm == "components":
            return _sum(graphs.connected_components(edges), "component", True)
        if spec.algorithm == "pagerank":
            return _sum(graphs.pagerank(edges, tolerance=None, max_iter=STEPS), "rank", False)
        if spec.algorithm == "paths":
            return _sum(graphs.bfs(edges, [0]), "distance", True)
        return _sum(graphs.triangle_count(edges), "count", True)

    return once


def _graphx(spec: AlgorithmSpec, path: str) -> Callable[[], float]:
    from .peers import graphx

    spark = _session(spec)

    def once() -> float:
        found, done = graphx.algorithm(spec.algorithm, spark, spark.read.parquet(path), STEPS)
        if spec.algorithm == "pagerank":  # its ranks sum to the number of vertices, about
            found = found.crossJoin(found.selectExpr("sum(value) as whole")).selectExpr("id", "value / whole as value")
        checksum = _sum(found, "value", spec.algorithm != "pagerank")
        done()
        return checksum

    return once


def _igraph(spec: AlgorithmSpec, path: str) -> Callable[[], float]:
    import igraph
    import pyarrow.parquet as pq

    def once() -> float:
        table = pq.read_table(path)
        a, b = table["src"].to_numpy(), table["dst"].to_numpy()
        ids = np.unique(np.concatenate([a, b]))
        pairs = np.stack([np.searchsorted(ids, a), np.searchsorted(ids, b)], axis=1)
        directed = spec.algorithm in ("pagerank", "paths")
        graph = igraph.Graph(n=len(ids), edges=pairs, directed=directed)
        if spec.algorithm == "components":
            label = np.array(graph.connected_components(mode="weak").membership)
            least = np.full(label.max() + 1, np.iinfo(np.int64).max)
            np.minimum.at(least, label, ids)
            return float(((least[label] + 1) * (ids % 1009)).sum())
        if spec.algorithm == "pagerank":
            return round(float((np.array(graph.pagerank(damping=0.85)) * (1 + ids % 7)).sum()), 6)
        if spec.algorithm == "paths":
            distance = np.array(graph.distances(int(np.searchsorted(ids, 0)), mode="out")[0])
            there = np.isfinite(distance)
            return float(((distance[there] + 1) * (ids[there] % 1009)).sum())
        count = np.array(graph.list_triangles(), np.int64).ravel()  # none at all come as floats
        return float((ids[count] % 1009).sum() + (ids % 1009).sum())

    return once


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each algorithm and graph the seconds of everybody. Raises where two results differ."""
    found = []
    for case in dict.fromkeys((line["algorithm"], line["kind"], line["edges"]) for line in lines):
        mine = {line["system"]: line for line in lines if (line["algorithm"], line["kind"], line["edges"]) == case}
        sums = {line["checksum"] for line in mine.values()}
        if case[0] in ONE_BIT and len(sums) > 1:
            raise AssertionError(f"{case}: { ({name: line['checksum'] for name, line in mine.items()}) }")
        seconds = {name: line["seconds"] for name, line in mine.items()}
        ours = seconds.get("tailrace")
        ratio = {name: round(took / ours, 2) for name, took in seconds.items() if ours and name != "tailrace"}
        found.append(
            {"algorithm": case[0], "kind": case[1], "edges": case[2], "seconds": seconds, "times_as_fast": ratio}
        )
    return found
