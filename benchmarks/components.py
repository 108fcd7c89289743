"""Connected components by label propagation, from DataFrame to DataFrame, on one Spark session of two cores."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .graphs import Graph, answer, verify, write

SYSTEMS = ("tailrace", "graphx", "dataframe")


@dataclass(frozen=True)
class ComponentsSpec:
    system: str = "tailrace"
    form: str = "columns"
    path: int = 0  # vertices of the path in the graph
    vertices: int = 200_000
    edges: int = 1_000_000
    parallelism: int = 2
    runs: int = 3  # that count, after `warm` others on the random graph
    warm: int = 4
    memory: str = "6g"  # of the JVM
    rounds: int = 120  # after which the DataFrame loop gives up,
    limit: float = 90.0  # or after so many seconds

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> ComponentsSpec:
        kinds: dict[str, Callable[[str], Any]] = {"memory": str, "limit": float}
        kinds |= dict.fromkeys(("path", "vertices", "edges", "runs", "warm", "rounds"), int)
        return cls(**{**{name: kinds[name](value) for name, value in options.items() if name in kinds}, **more})


def session(spec: ComponentsSpec) -> Any:
    from tailrace.spark.cluster.session import local_session

    return local_session(spec.parallelism, {"spark.driver.memory": spec.memory})


def run(spec: ComponentsSpec) -> dict[str, Any]:
    """Times of one system on one graph, the answer verified each time."""
    spark = session(spec)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        random, graph = (Graph(spec.vertices, spec.edges, path) for path in (0, spec.path))
        warming = spark.read.parquet(write(random, folder))
        edges = warming if spec.path == 0 else spark.read.parquet(write(graph, folder))
        for _ in range(spec.warm):
            _time(spec, spark, random, warming)
        found = [_time(spec, spark, graph, edges) for _ in range(spec.runs)]
    seconds = [one["seconds"] for one in found]
    middle = sorted(found, key=lambda one: one["seconds"])[len(found) // 2]
    return {**middle, "seconds": round(statistics.median(seconds), 3), "all_seconds": seconds, "verified": True}


def _time(spec: ComponentsSpec, spark: Any, graph: Graph, edges: Any) -> dict[str, Any]:
    start = time.perf_counter()
    labels, notes, done = _compute(spec, spark, edges)
    if notes.get("converged", True):
        found = answer(labels)
        seconds = time.perf_counter() - start
        verify(graph, found)
    else:
        seconds = time.perf_counter() - start
    done()
    spark._jvm.java.lang.System.gc()  # before the next one, not in it
    return {"seconds": round(seconds, 3), **notes}


def _compute(spec: ComponentsSpec, spark: Any, edges: Any) -> tuple[Any, dict[str, Any], Callable[[], None]]:
    """The labels, the figures to report, and a function that releases what they hold."""
    if spec.system == "graphx":
        from .peers import graphx

        return graphx.components(spark, edges)
    if spec.system == "dataframe":
        from .peers import dataframes

        return dataframes.components(spark, edges, spec.rounds, spec.limit)
    import tailrace as tr

    from . import propagate

    env = tr.Environment(spark, parallelism=spec.parallelism, progress=False)
    made = (propagate.in_columns if spec.form == "columns" else propagate.in_rows)(env, edges)
    return made, {}, lambda: None


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each graph the seconds of everybody, and how many times as fast ours is."""
    found = []
    for path in dict.fromkeys(line["path"] for line in lines):
        mine = [line for line in lines if line["path"] == path]
        seconds = {_name(line): line["seconds"] for line in mine}
        unfinished = [_name(line) for line in mine if not line.get("converged", True)]
        ours = {name: took for name, took in seconds.items() if name.startswith("tailrace")}
        ratio = {
            name: {peer: round(took / mine, 2) for peer, took in seconds.items() if peer not in ours}
            for name, mine in ours.items()
        }
        line = {"workload": "components", "summary": True, "path": path, "seconds": seconds, "times_as_fast": ratio}
        found.append({**line, "not_converged": unfinished} if unfinished else line)
    return found


def _name(line: dict[str, Any]) -> str:
    return f"tailrace {line['form']}" if line["system"] == "tailrace" else str(line["system"])


if __name__ == "__main__":  # a run in this very process: python -m benchmarks.components system=graphx path=2000
    from benchmarks import components

    given = dict(one.split("=", 1) for one in sys.argv[1:])
    names = {name: given.pop(name) for name in ("system", "form") if name in given}
    print(json.dumps(components.run(components.ComponentsSpec.of(given, **names))))
