"""Graph algorithms on random graphs, beside those of networkx, at several parallelisms."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.graphs import forests, supersteps
from tailrace.graphs.hits import Hits
from tailrace.graphs.neighbours import IndependentSet, KCore, LabelPropagation, Triangles
from tailrace.graphs.paths import ShortestPaths
from tailrace.graphs.pregel import Pregel
from tailrace.graphs.ranks import PageRank
from tailrace.graphs.walks import BiasedWalks, RandomWalks

Edges = list[tuple[Any, ...]]
SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(6, 200))]


def edges_of(seed: int) -> tuple[Edges, list[int], int]:
    """Random edges with loops, doubled ones and whole weights, vertices of which some have no edge, and a parallelism. Ids
    are spread over all that a long can be."""
    draw = random.Random(seed)
    names = [
        draw.choice((0, -7, 2**63 - 1, -(2**63), 5)) ^ (n * draw.choice((1, 977))) for n in range(draw.randint(1, 40))
    ]
    names = [max(-(2**63), min(2**63 - 1, name)) for name in names]
    edges = [(draw.choice(names), draw.choice(names), float(draw.randint(0, 4))) for _ in range(draw.randint(1, 110))]
    return edges, sorted(set(names)), 1 + seed % 4


def stream(env: tr.Environment, rows: Edges, *names: str) -> tr.DataStream:
    kinds = {"weight": pa.float64()}
    return env.from_collection(rows).to_columns(pa.schema([(name, kinds.get(name, pa.int64())) for name in names]))


def outcome(
    make: Callable[[tr.DataStream, tr.DataStream], tr.DataStream], edges: Edges, vertices: list[int], parallelism: int
) -> list[tuple[Any, ...]]:
    env = tr.Environment(parallelism=parallelism)
    names = ("src", "dst", "weight")[: len(edges[0])]
    made = make(stream(env, edges, *names), stream(env, [(one,) for one in vertices], "id"))
    found = made.to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sorted(tuple(row) for row in found.result())


def simple(edges: Edges, vertices: list[int]) -> nx.Graph:
    """The graph without loops, with the lightest of edges side by side."""
    graph = nx.Graph()
    graph.add_nodes_from(vertices)
    for a, b, weight in sorted(edges, key=lambda edge: -edge[2]):
        if a != b:
            graph.add_edge(a, b, weight=weight)
    return graph


def unweighted(edges: Edges) -> Edges:
    return [edge[:2] for edge in edges]


@pytest.mark.parametrize("seed", SEEDS)
def test_components_are_those_of_networkx(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    graph = nx.DiGraph(unweighted(edges))
    graph.add_nodes_from(vertices)
    weak = outcome(
        lambda e, v: forests.run(forests.Stars(), forests.Components(), e, v), unweighted(edges), vertices, parallelism
    )
    assert weak == sorted((one, min(part)) for part in nx.weakly_connected_components(graph) for one in part)
    strong = outcome(
        lambda e, v: forests.run(forests.Distinct(), forests.StrongComponents(), e, v),
        unweighted(edges),
        vertices,
        parallelism,
    )
    assert strong == sorted((one, min(part)) for part in nx.strongly_connected_components(graph) for one in part)


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_edges_are_reduced_while_they_come(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    edges, vertices, parallelism = edges_of(seed)
    whole = outcome(
        lambda e, v: forests.run(forests.Stars(), forests.Components(), e, v), unweighted(edges), vertices, 1
    )
    monkeypatch.setattr(forests, "ENOUGH", 3)
    in_parts = [edge for edge in unweighted(edges) for _ in range(3)]
    found = outcome(
        lambda e, v: forests.run(forests.Stars(), forests.Components(), e.rebalance(), v),
        in_parts,
        vertices,
        parallelism,
    )
    assert found == whole


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spanning_forest_is_as_light_as_that_of_networkx_and_always_the_same(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    make = lambda e, v: forests.run(forests.SpanningForest(), forests.SpanningForest(), e)  # noqa: E731
    found = outcome(make, edges, vertices, parallelism)
    graph = simple(edges, vertices)
    wanted = list(nx.minimum_spanning_edges(graph))
    assert len(found) == len(wanted)
    assert sum(weight for _, _, weight in found) == sum(data["weight"] for _, _, data in wanted)
    assert all(graph[a][b]["weight"] == weight for a, b, weight in found)
    assert found == outcome(make, edges[::-1], vertices, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_shortest_ways_are_as_long_as_those_of_networkx_and_lead_back(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    sources = vertices[:3]
    found = outcome(
        lambda e, v: supersteps.run(ShortestPaths(sources, True, False), e, v), edges, vertices, parallelism
    )
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(vertices)
    graph.add_weighted_edges_from(edges)
    wanted = {
        (at, source): float(length)
        for source in sources
        for at, length in nx.single_source_dijkstra_path_length(graph, source).items()
    }
    assert {(at, source): length for at, source, length, _ in found} == wanted
    before = {(at, source): parent for at, source, _, parent in found}
    for (at, source), parent in before.items():
        hops = 0
        while at != source:
            lengths = [data["weight"] for data in graph[parent][at].values()]
            assert wanted[at, source] == wanted[parent, source] + min(lengths)
            at, parent, hops = parent, before[parent, source], hops + 1
            assert hops <= len(vertices)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_are_those_of_networkx_and_the_same_at_each_parallelism(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    edges = [(a, b, weight + 1) for a, b, weight in edges]
    sources = None if seed % 2 else vertices[:2]
    make = lambda e, v: supersteps.run(PageRank(0.85, 1e-12, None, sources), e, v)  # noqa: E731
    found = outcome(make, edges, vertices, parallelism)
    graph = nx.DiGraph()
    graph.add_nodes_from(vertices)
    for a, b, weight in edges:
        graph.add_edge(a, b, weight=weight + (graph[a][b]["weight"] if graph.has_edge(a, b) else 0))
    start = None if sources is None else {one: 1 / len(sources) for one in sources}
    wanted = nx.pagerank(graph, 0.85, personalization=start, tol=1e-13, max_iter=2000)
    assert found == [(one, pytest.approx(wanted[one], abs=1e-9)) for one in vertices]
    assert sum(rank for _, rank in found) == pytest.approx(1.0, abs=1e-12)
    assert found == outcome(make, edges[::-1], vertices, 1 + parallelism % 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_weights_each_edge_counts_as_one(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    make = lambda e, v: supersteps.run(PageRank(0.85, 1e-12, None, None), e, v)  # noqa: E731
    found = outcome(make, unweighted(edges), vertices, parallelism)
    assert found == outcome(make, [(a, b, 1.0) for a, b, _ in edges], vertices, parallelism)
    assert len(edges) < 5 or len({rank for _, rank in found}) > 1


@pytest.mark.parametrize("seed", SEEDS)
def test_hubs_and_authorities_are_those_of_a_plain_loop_and_the_same_at_each_parallelism(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    make = lambda e, v: supersteps.run(Hits(None, 6), e, v)  # noqa: E731
    found = outcome(make, unweighted(edges), vertices, parallelism)
    ways = set(unweighted(edges))
    hub, authority = dict.fromkeys(vertices, 1.0), dict.fromkeys(vertices, 0.0)
    for _ in range(6):
        authority = {one: sum(hub[a] for a, b in ways if b == one) for one in vertices}
        authority = {one: value / sum(authority.values()) for one, value in authority.items()}
        hub = {one: sum(authority[b] for a, b in ways if a == one) for one in vertices}
        hub = {one: value / sum(hub.values()) for one, value in hub.items()}
    assert found == [
        (one, pytest.approx(hub[one], abs=1e-12), pytest.approx(authority[one], abs=1e-12)) for one in vertices
    ]
    assert found == outcome(make, unweighted(edges)[::-1], vertices, 1 + parallelism % 4)


def test_hubs_settle() -> None:
    """A hub of three, and one of two of its authorities."""
    edges = [(1, 10), (1, 11), (1, 12), (2, 10), (2, 11)]
    make = lambda e, v: supersteps.run(Hits(1e-12, None), e, v)  # noqa: E731
    found = {one: (hub, authority) for one, hub, authority in outcome(make, edges, [99], 2)}
    hubs, authorities = nx.hits(nx.DiGraph(edges), max_iter=1000, tol=1e-12)
    assert found.pop(99) == (0.0, 0.0)
    assert found == {one: pytest.approx((hubs[one], authorities[one]), abs=1e-9) for one in found}


@pytest.mark.parametrize("seed", SEEDS)
def test_cores_and_triangles_are_those_of_networkx(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Triangles, "PAIRS", 5)
    edges, vertices, parallelism = edges_of(seed)
    graph = simple(edges, vertices)
    cores = outcome(lambda e, v: supersteps.run(KCore(), e, v), unweighted(edges), vertices, parallelism)
    assert cores == sorted(nx.core_number(graph).items())
    triangles = outcome(lambda e, v: supersteps.run(Triangles(), e, v), unweighted(edges), vertices, parallelism)
    assert triangles == sorted((one, count, graph.degree[one]) for one, count in nx.triangles(graph).items())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_set_is_independent_and_as_large_as_it_can_be(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    make = lambda e, v: supersteps.run(IndependentSet(seed), e, v)  # noqa: E731
    found = outcome(make, unweighted(edges), vertices, parallelism)
    graph, chosen = simple(edges, vertices), {one for (one,) in found}
    assert graph.subgraph(chosen).number_of_edges() == 0
    assert all(one in chosen or chosen & set(graph[one]) for one in vertices)
    assert found == outcome(make, unweighted(edges)[::-1], vertices, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_are_those_of_a_plain_loop(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    label = {one: one for one in vertices}
    for _ in range(4):
        met: dict[int, list[int]] = {one: [] for one in vertices}
        for a, b, _ in edges:
            met[a].append(label[b])
            met[b].append(label[a])
        label = {
            one: min(set(labels), key=lambda other: (-labels.count(other), other)) if labels else label[one]
            for one, labels in met.items()
        }
    found = outcome(lambda e, v: supersteps.run(LabelPropagation(4), e, v), unweighted(edges), vertices, parallelism)
    assert found == sorted(label.items())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_walks_go_along_edges_and_are_the_same_at_each_parallelism(seed: int, biased: bool) -> None:
    edges, vertices, parallelism = edges_of(seed)
    program = BiasedWalks(2, 3, seed, 0.5, 3) if biased else RandomWalks(2, 3, seed)
    make = lambda e, v: supersteps.run(program, e, v)  # noqa: E731
    found = outcome(make, unweighted(edges), vertices, parallelism)
    assert found == outcome(make, unweighted(edges)[::-1], vertices, 1)
    at = {(start, walk, step): one for start, walk, step, one in found}
    assert {key for key in at if key[2] == 0} == {(one, walk, 0) for one in vertices for walk in (0, 1)}
    out = {a for a, _, _ in edges}
    for (start, walk, step), one in at.items():
        assert step == 0 or (at[start, walk, step - 1], one) in set(unweighted(edges))
        assert step == 3 or ((start, walk, step + 1) in at) == (one in out)


@pytest.mark.parametrize(("p", "q"), [(0.25, 4), (5, 0.2), pytest.param(100, 100, marks=pytest.mark.exhaustive)])
def test_walks_turn_as_often_as_p_and_q_say(p: float, q: float) -> None:
    """From 1 by way of 2: back, to 2, 3 and 4 (by two edges) to which 1 leads as well, or on to 5 and 6."""
    edges = [(1, 2), (1, 3), (1, 4), (2, 1), (2, 3), (2, 4), (2, 4), (2, 5), (2, 6), (2, 2)]
    walks = 12_000
    found = outcome(lambda e, v: supersteps.run(BiasedWalks(walks, 2, 3, p, q), e, v), edges, [1], 2)
    by_two = {walk for start, walk, step, one in found if (start, step, one) == (1, 1, 2)}
    ends = [one for start, walk, step, one in found if start == 1 and step == 2 and walk in by_two]
    weights = {1: 1 / p, 2: 1, 3: 1, 4: 2, 5: 1 / q, 6: 1 / q}
    assert len(by_two) == pytest.approx(walks / 3, rel=0.05)
    for one, weight in weights.items():
        assert ends.count(one) / len(ends) == pytest.approx(weight / sum(weights.values()), abs=0.02)


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_program_in_rows_finds_components(seed: int) -> None:
    edges, vertices, parallelism = edges_of(seed)
    program = Pregel(initial=lambda one: one, message=lambda value, _: value, combine=min, update=min, directed=False)
    found = outcome(program.stream, unweighted(edges), vertices, parallelism)
    parts = nx.connected_components(simple(edges, vertices))
    assert found == sorted((one, min(part)) for part in parts for one in part)


def test_steps_of_a_program_in_rows_can_be_bounded() -> None:
    program = Pregel(initial=lambda one: one, message=lambda v, _: v, combine=min, update=min, max_iter=2)
    path = [(n, n + 1) for n in range(6)]
    assert outcome(program.stream, path, [], 2) == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 4)]


@pytest.mark.parametrize("edges", [[(1, None)], [(None, 1)]])
def test_an_id_that_is_null_is_refused(edges: Edges) -> None:
    with pytest.raises(tr.JobFailed, match="an id of a vertex is null"):
        outcome(lambda e, v: supersteps.run(KCore(), e, v), edges, [1], 1)


@pytest.mark.parametrize(("weight", "reason"), [(None, "is null"), (float("nan"), "not finite"), (-1.0, "is negative")])
def test_a_weight_that_has_no_result_is_refused(weight: float | None, reason: str) -> None:
    with pytest.raises(tr.JobFailed, match=reason):
        outcome(lambda e, v: supersteps.run(ShortestPaths([1], True, False), e, v), [(1, 2, weight)], [1], 1)


def test_a_way_that_is_longer_than_a_double_can_be_fails_the_job() -> None:
    """Without the error its vertex would be left out, as if no way led there."""
    make = lambda e, v: supersteps.run(ShortestPaths([1], True, False), e, v)  # noqa: E731
    with pytest.raises(tr.JobFailed, match="a way is longer than the greatest double"):
        outcome(make, [(1, 2, 1e308), (2, 3, 1e308)], [1], 1)


@pytest.mark.parametrize("scale", [1e308, 1.0, 5e-324])
def test_ranks_depend_on_what_weights_are_of_each_other(scale: float) -> None:
    """Ranks are right where the sum of two weights is more than a double can be, too: both vertices would have got
    nothing."""
    edges = [(1, 2, scale), (1, 3, scale), (2, 1, 1.0), (3, 1, 1.0), (2, 4, 1.0), (4, 1, 1e-320)]
    make = lambda e, v: supersteps.run(PageRank(0.85, 1e-12, None, None), e, v)  # noqa: E731
    assert outcome(make, edges, [1], 1) == outcome(make, [(a, b, 1.0) for a, b, _ in edges], [1], 1)


def test_an_edge_counts_however_often_it_is_there() -> None:
    make = lambda e, v: forests.run(forests.Stars(), forests.Components(), e, v)  # noqa: E731
    assert outcome(make, [(1, 2)] * 256, [3], 1) == [(1, 1), (2, 1), (3, 3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_slice_ends_a_long_program_as_all_slices_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are of all sizes, so that sums of them are rounded, and some are 0."""
    edges, vertices, parallelism = edges_of(seed)
    draw = random.Random(seed)
    edges = [(a, b, weight and weight * draw.random() * 10.0 ** draw.randint(-9, 9)) for a, b, weight in edges]
    edges[1:] = [(a, b, draw.choice((weight, edges[0][2]))) for a, b, weight in edges[1:]]
    programs = [
        lambda: ShortestPaths(vertices[:3], True, seed % 2 == 1),
        lambda: ShortestPaths([vertices[0], 10**15], False, seed % 2 == 0),
        KCore,
    ]
    for make in programs:
        run = lambda e, v: supersteps.run(make(), e, v)  # noqa: B023, E731
        whole = vertices if make is KCore else []
        straight = outcome(run, edges, whole, parallelism)
        with monkeypatch.context() as patch:
            patch.setattr(supersteps, "GATHER_STEP", 1 + seed % 3)
            assert outcome(run, edges, whole, 1 + parallelism % 4) == straight


def test_a_long_path_is_ended_in_one_slice_where_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    path = [(n, n + 1) for n in range(300)]
    found = outcome(lambda e, v: supersteps.run(ShortestPaths([0], False, False), e, v), path, [], 3)
    assert found == [(n, 0, float(n), n - 1 if n else None) for n in range(301)]
    monkeypatch.setattr(ShortestPaths, "solve_gathered", None)
    with pytest.raises(tr.JobFailed):
        outcome(lambda e, v: supersteps.run(ShortestPaths([0], False, False), e, v), path, [], 3)


def test_a_long_path_takes_a_step_for_each_edge_where_no_slice_has_room_for_it() -> None:
    path = [(n, n + 1) for n in range(300)]
    program = ShortestPaths([0], False, False)
    program.gather_limit = 299
    found = outcome(lambda e, v: supersteps.run(program, e, v), path, [], 3)
    assert found == [(n, 0, float(n), n - 1 if n else None) for n in range(301)]


@pytest.mark.parametrize(
    "program", [lambda: PageRank(0.85, 1e-10, None, None), KCore, lambda: ShortestPaths([0, -7], False, False)]
)
def test_programs_survive_the_loss_of_workers_and_of_the_driver(
    program: Callable[[], supersteps.VertexProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint holds the slices and the messages on their way, edges to the slice that ends a program among them."""
    from tailrace.testing.faults import Fault

    edges, _, _ = edges_of(3)

    def found(faults: list[Fault]) -> list[tuple[Any, ...]]:
        env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("in memory", interval=0.002))
        made = supersteps.run(program(), stream(env, unweighted(edges), "src", "dst"))
        sink = made.to_rows().sink_to(tr.sinks.Collect())
        assert tr.testing.simulate(env, seed=5, faults=faults).await_termination()
        return sorted(tuple(row) for row in sink.result())

    monkeypatch.setattr(supersteps, "GATHER_STEP", 2)
    straight = found([])
    assert straight
    for at in (200, 500, 900):
        assert found([Fault(at, "kill", which=1), Fault(at + 300, "crash-driver"), Fault(at + 400, "kill")]) == straight


def test_a_program_whose_time_is_up_gives_what_it_has_at_each_slice_in_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time stands still in a test that has no reason to wait: with no time at all a program has the steps that each result
    needs, and one in which all slices learn of the end."""
    path = [(n, n + 1) for n in range(300)]
    ways = outcome(lambda e, v: supersteps.run(ShortestPaths([0], False, False), e, v, 1e-9), path, [], 3)
    assert [distance for _, _, distance, _ in ways] == [float(n) for n in range(len(ways))]
    assert 2 <= len(ways) < 300
    monkeypatch.setattr(supersteps, "GATHER_STEP", 2)  # where the graph would go on in one slice it stays in all
    assert outcome(lambda e, v: supersteps.run(ShortestPaths([0], False, False), e, v, 1e-9), path, [], 3) == ways[:2]
    ranks = outcome(lambda e, v: supersteps.run(PageRank(0.85, 1e-12, None, None), e, v, 1e-9), path, [], 3)
    assert len(ranks) == 301
    assert sum(rank for _, rank in ranks) == pytest.approx(1.0, abs=1e-12)
    hubs = outcome(lambda e, v: supersteps.run(Hits(1e-15, None), e, v, 1e-9), path, [], 3)
    assert sum(hub for _, hub, _ in hubs) == pytest.approx(1.0, abs=1e-12)
