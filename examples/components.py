"""Connected components of a graph whose edges arrive as a stream: which vertices hang together?

    python examples/components.py --edges 1000000 --vertices 500000

Each vertex calls its component by the smallest vertex of it that it has heard of, and tells its neighbours when it hears
of a smaller one. The answer so far is there at any time, and it only ever gets better.
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tailrace as tr

COMPONENTS = "vertex long, component long"
Message = tuple[
    int, int, int | None
]  # a vertex, another one that hangs together with it, and that one if it is a neighbour


class Vertex(tr.KeyedProcessFunction):
    """A record of COMPONENTS whenever a vertex hears of a smaller one."""

    component = tr.ValueState(int)
    neighbours = tr.ListState(int)

    def process(self, message: Message, ctx: tr.Context) -> Iterator[Message]:
        vertex, other, neighbour = message
        before = self.component.value
        component = min(other, vertex if before is None else before)
        if neighbour is not None:
            self.neighbours.add(neighbour)
        if component != before:
            self.component.value = component
            ctx.emit("components", (vertex, component))
            yield from ((one, component, None) for one in self.neighbours if component < one)
        elif neighbour is not None and component < neighbour:
            yield neighbour, component, None


def both_ends(edge: Any) -> list[Message]:
    """What an edge says to its two ends."""
    return [(edge.a, edge.b, edge.b), (edge.b, edge.a, edge.a)]


def components(edges: tr.DataStream) -> tr.DataStream:
    """Records of COMPONENTS. Of those of a vertex, the smallest component is the newest."""

    def loop(messages: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        results = messages.key_by(lambda message: message[0]).process(Vertex())
        return results, results.side_output("components")

    # Of several vertices that one is yet to hear of, the smallest will do.
    smallest = tr.Combine(key=lambda message: message[0], merge=min)
    return edges.flat_map(both_ends).iterate(loop, combine=smallest)


def random_edges(edges: int, vertices: int, seed: int = 15) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(seed).integers(vertices, size=(edges, 2)), columns=["a", "b"])


def main(env: tr.Environment, edges: pd.DataFrame) -> DataFrame:
    """Runs the job. Returns a DataFrame of COMPONENTS with a row for each vertex that has an edge."""
    stream = env.from_dataframe(env.spark.createDataFrame(edges))
    found = components(stream).to_dataframe(COMPONENTS)
    return found.groupBy("vertex").agg(F.min("component").alias("component"))


def by_union_find(edges: pd.DataFrame) -> dict[int, int]:
    """The smallest vertex of the component of each vertex, in plain Python."""
    parents: dict[int, int] = {}

    def root(vertex: int) -> int:
        while (parent := parents.setdefault(vertex, vertex)) != vertex:
            parents[vertex] = vertex = parents[parent]
        return vertex

    for a, b in edges.itertuples(index=False):
        low, high = sorted((root(a), root(b)))
        parents[high] = low
    return {vertex: root(vertex) for vertex in parents}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Connected components of a random graph.")
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--vertices", type=int, default=500_000)
    parser.add_argument("--master", help="of Spark; local where nothing is said")
    parser.add_argument("--parallelism", type=int)
    args = parser.parse_args()

    if args.master:
        os.environ["TAILRACE_MASTER"] = args.master
    env = tr.Environment(parallelism=args.parallelism, progress=True)
    edges = random_edges(args.edges, args.vertices)
    found = main(env, edges).toPandas()

    sizes = found.component.value_counts()
    print(
        f"\n{len(found):,} vertices with edges, {len(sizes):,} components. The largest one has {sizes.max():,} vertices."
    )
    same = dict(zip(found.vertex, found.component, strict=True)) == by_union_find(edges)
    print(f"Union-find comes to {'the same' if same else 'OTHER'} components.")
    raise SystemExit(not same)
