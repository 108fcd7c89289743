"""Graph algorithms beside igraph and SciPy: graphs of hundreds of vertices, and those of a shape that is hard."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

import tailrace as tr
from tailrace.graphs import forests, supersteps
from tailrace.graphs.hits import Hits
from tailrace.graphs.live.components import LiveComponents
from tailrace.graphs.live.cores import LiveCores
from tailrace.graphs.live.paths import LivePaths
from tailrace.graphs.neighbours import IndependentSet, KCore, LabelPropagation, Triangles
from tailrace.graphs.paths import ShortestPaths
from tailrace.graphs.ranks import PageRank
from tailrace.graphs.walks import RandomWalks

from .test_against_networkx import outcome, stream

igraph = pytest.importorskip("igraph")

Edges = list[tuple[int, int]]
PATH = [(n, n + 1) for n in range(10_000)]
SHAPES: dict[str, Edges] = {
    "one vertex": [(7, 7)],
    "star": [(0, n) for n in range(1, 1000)],
    "star to its centre": [(n, 0) for n in range(1, 1000)],
    "clique": [(a, b) for a in range(40) for b in range(a)],
    "path": random.Random(1).sample(PATH, len(PATH)),
    "circle": [(n, (n + 1) % 100) for n in range(100)],
    "an edge a hundred times": [(1, 2)] * 100 + [(2, 1)],
    "a third of the edges at one vertex": [(0, n) for n in range(1, 700)] + [(n, 7 * n % 700) for n in range(1400)],
}


def random_edges(seed: int) -> Edges:
    draw = random.Random(seed)
    size = draw.choice([30, 200, 600])
    ends = [
        draw.randrange(size) if draw.random() < 0.8 else draw.randrange(3) for _ in range(2 * draw.randint(1, 1500))
    ]
    return list(zip(ends[::2], ends[1::2], strict=True))


GRAPHS = [*SHAPES, 0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 1000))]
IN_MANY_STEPS = ("star to its centre", "clique", "path", "circle")
RANKED = [pytest.param(one, marks=pytest.mark.exhaustive) if one in IN_MANY_STEPS else one for one in GRAPHS]


def parallelism_of(name: str | int) -> int:
    return 1 + (list(SHAPES).index(name) if isinstance(name, str) else name) % 5


def edges_of(name: str | int) -> Edges:
    return SHAPES[name] if isinstance(name, str) else random_edges(name)


def numbers_of(edges: Edges) -> tuple[list[int], Any]:
    """The ids, and the edges by their places there."""
    ids = sorted({end for edge in edges for end in edge})
    place = {one: n for n, one in enumerate(ids)}
    return ids, igraph.Graph(n=len(ids), edges=[(place[a], place[b]) for a, b in edges], directed=True)


def least_of(ids: list[int], parts: Any) -> list[tuple[int, int]]:
    return sorted((ids[one], ids[min(part)]) for part in parts for one in part)


@pytest.mark.parametrize("name", GRAPHS)
def test_components_cores_and_triangles_are_those_of_igraph(name: str | int) -> None:
    edges, parallelism = edges_of(name), parallelism_of(name)
    ids, graph = numbers_of(edges)
    found = outcome(lambda e, v: forests.run(forests.Stars(), forests.Components(), e, v), edges, ids, parallelism)
    assert found == least_of(ids, graph.connected_components(mode="weak"))
    found = outcome(
        lambda e, v: forests.run(forests.Distinct(), forests.StrongComponents(), e, v), edges, ids, parallelism
    )
    assert found == least_of(ids, graph.connected_components(mode="strong"))
    simple = graph.as_undirected().simplify()
    if name != "path":  # a step for each edge
        found = outcome(lambda e, v: supersteps.run(KCore(), e, v), edges, ids, parallelism)
        assert found == list(zip(ids, simple.coreness(), strict=True))
    triangles = np.bincount(np.array(simple.list_triangles(), int).ravel(), minlength=len(ids)).tolist()
    found = outcome(lambda e, v: supersteps.run(Triangles(), e, v), edges, ids, parallelism)
    assert found == list(zip(ids, triangles, simple.degree(), strict=True))


@pytest.mark.parametrize("name", RANKED)
def test_ranks_are_those_of_igraph_and_ways_those_of_scipy(name: str | int) -> None:
    edges, parallelism = edges_of(name), parallelism_of(name)
    ids, graph = numbers_of(edges)
    ranks = outcome(lambda e, v: supersteps.run(PageRank(0.85, 1e-9, None, None), e, v), edges, ids, parallelism)
    wanted = graph.pagerank(damping=0.85)
    assert ranks == [(one, pytest.approx(rank, abs=1e-8)) for one, rank in zip(ids, wanted, strict=True)]
    if name == "path":
        edges = [edge for edge in edges if edge[1] < 300]
        ids, _ = numbers_of(edges)
    weights = [float(1 + (3 * a + 5 * b) % 7) for a, b in edges]
    weighted = [(*edge, weight) for edge, weight in zip(edges, weights, strict=True)]
    lightest: dict[tuple[int, int], float] = {}
    for a, b, weight in weighted:
        lightest[a, b] = min(weight, lightest.get((a, b), weight))
    rows, ends = (np.searchsorted(ids, column) for column in zip(*lightest, strict=True))
    lengths = coo_array((list(lightest.values()), (rows, ends)), shape=(len(ids), len(ids))).tocsr()
    far = dijkstra(lengths, indices=0)
    found = outcome(lambda e, v: supersteps.run(ShortestPaths(ids[:1], True, False), e, v), weighted, ids, parallelism)
    assert [row[::2] for row in found] == [
        (one, way) for one, way in zip(ids, far.tolist(), strict=True) if way < np.inf
    ]


@pytest.mark.parametrize("name", GRAPHS)
def test_live_graphs_are_those_of_igraph_before_and_behind_the_removal_of_edges(name: str | int) -> None:
    """A whole graph at once; then some of them go, one at a time."""
    edges = edges_of(name)
    gone = random.Random(5).sample(range(len(edges)), min(20, len(edges)))
    left = [edge for n, edge in enumerate(edges) if n not in set(gone)]
    for kind, function in (("components", LiveComponents()), ("cores", LiveCores()), ("paths", LivePaths([0], True))):
        operator = tr.testing.harness(function, key=lambda _: None)
        operator.push_many([("+", *edge) for edge in edges])
        operator.advance_clock(60)
        operator.advance_clock(120)
        results = {True: list(operator.outputs)}
        for n in gone:
            operator.push(("-", *edges[n]))
        results[False] = operator.outputs
        for whole, changes in results.items():
            there = edges if whole else left
            ids, graph = numbers_of(there)
            table = {}
            for op, one, *value in changes:
                if op == "+":
                    assert one not in table
                    table[one] = value
                else:
                    assert table.pop(one) == value
            if kind == "components":
                wanted = [(one, [least]) for one, least in least_of(ids, graph.connected_components(mode="weak"))]
            elif kind == "cores":
                cores = graph.as_undirected().simplify().coreness()
                wanted = [(one, [core]) for one, core in zip(ids, cores, strict=True)]
            else:
                far = graph.distances(0, mode="out")[0] if ids[:1] == [0] else []
                wanted = [(one, far[n]) for n, one in enumerate(ids) if n < len(far) and far[n] < np.inf]
                table = {one: value[1] for one, value in table.items()}
            assert sorted(table.items()) == wanted


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_graph_without_edges_has_its_vertices_and_one_without_vertices_nothing(parallelism: int) -> None:
    programs = {
        Hits(1e-9, None): [(1, 0.0, 0.0)],
        IndependentSet(0): [(1,)],
        KCore(): [(1, 0)],
        LabelPropagation(3): [(1, 1)],
        PageRank(0.85, 1e-9, None, None): [(1, 1.0)],
        RandomWalks(1, 2, 0): [(1, 0, 0, 1)],
        ShortestPaths([1], False, False): [(1, 1, 0.0, None)],
        Triangles(): [(1, 0, 0)],
    }
    makes = {program: (lambda e, v, one=program: supersteps.run(one, e, v)) for program in programs}
    for program, wanted in programs.items():
        for vertices in ([1], []):
            env = tr.Environment(parallelism=parallelism)
            made = makes[program](stream(env, [], "src", "dst"), stream(env, [(one,) for one in vertices], "id"))
            found = made.to_rows().sink_to(tr.sinks.Collect())
            tr.testing.run(env)
            assert [tuple(row) for row in found.result()] == (wanted if vertices else []), type(program).__name__
