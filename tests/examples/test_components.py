"""The components example: it finds what union-find finds, whatever the parallelism and the order of events."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pandas as pd
import pytest

import tailrace as tr

pytestmark = pytest.mark.search

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import components

    yield components
    sys.modules.pop("components", None)


Edge = namedtuple("Edge", ["a", "b"])


def found(example: Any, edges: list[Any], parallelism: int, seed: int | None = None) -> dict[int, int]:
    """The component of each vertex, from the records that came last. They never get worse."""
    env = tr.Environment(parallelism=parallelism)
    sink = example.components(env.from_collection(edges)).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env) if seed is None else tr.testing.simulate(env, seed=seed)
    assert job.await_termination()
    last: dict[int, int] = {}
    for vertex, component in sink.result():
        assert component < last.get(vertex, 1 << 60)
        last[vertex] = component
    return last


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize(("edges", "vertices"), [(1, 2), (500, 2_000), (2_000, 2_000), (2_000, 300)])
def test_the_components_of_a_random_graph(example: Any, edges: int, vertices: int, parallelism: int) -> None:
    table = example.random_edges(edges, vertices)
    graph = [Edge(*edge) for edge in table.itertuples(index=False)]
    assert found(example, graph, parallelism) == example.by_union_find(table)


@pytest.mark.parametrize("parallelism", [2])
def test_the_news_of_the_smallest_vertex_comes_to_the_end_of_a_long_chain(example: Any, parallelism: int) -> None:
    chain = [Edge(n, n + 1) for n in range(1_000)]
    assert found(example, chain, parallelism) == dict.fromkeys(range(1_001), 0)


@pytest.mark.parametrize("seed", range(8))
def test_the_components_on_a_simulated_cluster(example: Any, seed: int) -> None:
    table = example.random_edges(60, 50, seed)
    graph = [Edge(*edge) for edge in table.itertuples(index=False)]
    assert found(example, graph, 1 + seed % 3, seed) == example.by_union_find(table)


@pytest.mark.parametrize("edges", [10, 1_000, 3_000])
def test_union_find_agrees_with_networkx(example: Any, edges: int) -> None:
    table = example.random_edges(edges, 2_000)
    graph = nx.from_pandas_edgelist(table, "a", "b")
    expected = {vertex: min(one) for one in nx.connected_components(graph) for vertex in one}
    assert example.by_union_find(table) == expected


@pytest.mark.spark
def test_the_components_on_spark(example: Any, spark: Any) -> None:
    edges = example.random_edges(20_000, 12_000)
    env = tr.Environment(spark, parallelism=2, progress=False)
    rows = example.main(env, edges).collect()
    assert {row.vertex: row.component for row in rows} == example.by_union_find(pd.DataFrame(edges))
    assert len(rows) == len({row.vertex for row in rows})
