"""Graphs whose edges come and go, beside the static answer after each change."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import networkx as nx
import pytest

import tailrace as tr
from tailrace import graphs
from tailrace.graphs.live import edges as live_edges
from tailrace.graphs.live import order, ranks
from tailrace.graphs.live.components import LiveComponents
from tailrace.graphs.live.cores import LiveCores
from tailrace.graphs.live.labels import LiveLabels
from tailrace.graphs.live.paths import LivePaths
from tailrace.graphs.live.ranks import LiveRanks
from tailrace.testing.faults import Fault

Changes = list[tuple[Any, ...]]
Table = dict[Any, Any]
SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(6, 200))]
TOLERANCE, DAMPING, STEPS = 0.01, 0.85, 3


def changes_of(seed: int, most: int = 120, weights: list[Any] | None = None) -> Changes:
    """Edges that come, also twice, and go; some from a vertex to itself. Some vertices have many neighbours."""
    draw = random.Random(seed)
    names: list[Any] = list(range(draw.randint(2, 14)))
    if seed % 2:
        names = [f"v{n}" for n in names]
    there: Changes = []
    found: Changes = []
    for _ in range(most):
        if there and draw.random() < 0.45:
            found.append(("-", *there.pop(draw.randrange(len(there)))))
        else:
            weight = [] if weights is None else [draw.choice(weights)]
            there.append((draw.choice(names), draw.choice(names), *weight))
            found.append(("+", *there[-1]))
    return found


def either_way(seed: int, changes: Changes) -> Changes:
    """The changes, some with the ends in the other order."""
    draw = random.Random(seed)
    return [(op, b, a, *w) if draw.random() < 0.5 else (op, a, b, *w) for op, a, b, *w in changes]


def table_of(results: Changes, key: int = 1) -> Table:
    """The table that changes amount to, with keys of so many columns. Raises unless each "-" takes back what is there."""
    table: Table = {}
    for op, *row in results:
        one, value = tuple(row[:key]), tuple(row[key:])
        if op == "-":
            assert table.pop(one) == value
        else:
            assert one not in table
            table[one] = value
    return table


def edges_after(changes: Changes) -> Changes:
    """The edges (src, dst, weight) that are there."""
    there: Changes = []
    for op, a, b, *weight in changes:
        edge = (a, b, *(weight or [1]))
        if op == "+":
            there.append(edge)
        else:
            there.remove(edge)
    return there


def undirected(edges: Changes) -> nx.Graph:
    graph = nx.Graph()
    graph.add_edges_from((a, b) for a, b, _ in edges)
    return graph


def components(edges: Changes) -> Table:
    return {(one,): (min(part),) for part in nx.connected_components(undirected(edges)) for one in part}


def cores(edges: Changes) -> Table:
    graph = undirected(edges)
    graph.remove_edges_from([(one, one) for one in list(graph)])
    return {(one,): (core,) for one, core in nx.core_number(graph).items()}


def labels(edges: Changes) -> Table:
    label = {one: one for one in undirected(edges)}
    for _ in range(STEPS):
        met: dict[Any, list[Any]] = {one: [] for one in label}
        for a, b, _ in edges:
            met[a].append(label[b])
            met[b].append(label[a])
        label = {one: min(set(labels), key=lambda other: (-labels.count(other), other)) for one, labels in met.items()}
    return {(one,): (name,) for one, name in label.items()}


def paths(edges: Changes, sources: list[Any], directed: bool) -> Table:
    """Distances, and the vertices before with the fewest hops, of which the least counts. Bellman and Ford."""
    steps = edges if directed else [*edges, *((b, a, w) for a, b, w in edges)]
    table: Table = {}
    for source in sources:
        if not any(source in edge[:2] for edge in edges):
            continue
        best: dict[Any, tuple[Any, int]] = {source: (0, 0)}
        for _ in range(len(edges)):
            for a, b, w in steps:
                if a in best and (b not in best or (best[a][0] + w, best[a][1] + 1) < best[b]):
                    best[b] = (best[a][0] + w, best[a][1] + 1)
        for one, way in best.items():
            before = [a for a, b, w in steps if b == one and a in best and (best[a][0] + w, best[a][1] + 1) == way]
            table[one, source] = (float(way[0]), min(before) if way[1] else None)
    return table


def exact_ranks(edges: Changes, sources: list[Any] | None) -> Table:
    graph = nx.DiGraph()
    for a, b, w in edges:
        graph.add_edge(a, b, weight=w + (graph[a][b]["weight"] if graph.has_edge(a, b) else 0))
    begin = None if sources is None else {one: 1.0 for one in sources if one in graph}
    return nx.pagerank(graph, DAMPING, personalization=begin, tol=1e-12, max_iter=1000)


ALGORITHMS: dict[str, tuple[Callable[[], Any], Callable[[Changes], Table]]] = {
    "components": (LiveComponents, components),
    "cores": (LiveCores, cores),
    "labels": (lambda: LiveLabels(STEPS), labels),
}


def harness_of(function: Any) -> Any:
    return tr.testing.harness(function, key=lambda _: None)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_change_the_result_is_the_static_one(seed: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_edges, "IN_A_BUCKET", 1 + seed % 3)
    function, answer = ALGORITHMS[name]
    changes = changes_of(seed)
    operator = harness_of(function())
    results: Changes = []
    for n, change in enumerate(either_way(seed, changes), start=1):
        results += operator.push(change)
        assert table_of(results) == answer(edges_after(changes[:n]))


def batches_of(seed: int, changes: Changes) -> list[Changes]:
    """The changes, in order, in batches of chance: of one, and of many."""
    draw = random.Random(seed)
    found, left = [], list(changes)
    while left:
        size = draw.choice([1, 1, 2, 5, 30, 80])
        found.append(left[:size])
        del left[:size]
    return found


def moved(seed: int, changes: Changes) -> Changes:
    """The changes, where ids are whole numbers with ids at both ends of 64 bits and beyond."""
    far = [-(1 << 63), (1 << 63) - 1, -1, 0, 1 << 64]
    if seed % 4 != 2:
        return changes
    return [(op, *(far[one] if one < len(far) else one for one in ends)) for op, *ends in changes]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_batch_the_result_is_the_static_one(seed: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_edges, "IN_A_BUCKET", (1, 3, 32)[seed % 3])
    function, answer = ALGORITHMS[name]
    operator = harness_of(function())
    results: Changes = []
    there: Changes = []
    before: Table = {}
    for batch in batches_of(seed, moved(seed, changes_of(seed, most=250))):
        found = operator.push_many(either_way(seed, batch))
        results, there = results + found, there + batch
        after = answer(edges_after(there))
        assert table_of(results) == after
        changed = [one for one in before.keys() | after.keys() if before.get(one) != after.get(one)]
        assert len(found) == sum(one in table for one in changed for table in (before, after))
        before = after


WEIGHTS: list[Any] = [0, 1, 2, 2, 0.5, 0.1, 0.2, 0.30000000000000004]


@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_change_ways_are_the_shortest(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_edges, "IN_A_BUCKET", 1 + seed % 3)
    sources, directed = (["v0", "v3"] if seed % 2 else [0, 3]), bool(seed % 4 < 2)
    changes = changes_of(seed, most=80, weights=WEIGHTS if seed % 3 else None)
    exactly = [(op, a, b, *map(Fraction, w)) for op, a, b, *w in changes]
    operator = harness_of(LivePaths(sources, directed))
    results: Changes = []
    for n, change in enumerate(changes if directed else either_way(seed, changes), start=1):
        results += operator.push(change)
        assert table_of(results, key=2) == paths(edges_after(exactly[:n]), sources, directed)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_batch_ways_are_the_shortest(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_edges, "IN_A_BUCKET", 1 + seed % 3)
    sources, directed = (["v0", "v3"] if seed % 2 else [0, 3]), bool(seed % 4 < 2)
    operator = harness_of(LivePaths(sources, directed))
    results: Changes = []
    there: Changes = []
    for batch in batches_of(seed, changes_of(seed, most=150, weights=WEIGHTS if seed % 3 else None)):
        results += operator.push_many(batch if directed else either_way(seed, batch))
        there += [(op, a, b, *map(Fraction, w)) for op, a, b, *w in batch]
        assert table_of(results, key=2) == paths(edges_after(there), sources, directed)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_are_as_near_as_the_tolerance(seed: int, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_edges, "IN_A_BUCKET", 1 + seed % 3)
    sources = None if seed % 3 else (["v0", "v1"] if seed % 2 else [0, 1])
    changes = changes_of(seed, most=60, weights=[0, 1, 2.5] if seed % 4 < 2 else None)
    batches = batches_of(seed, changes) if many else [[one] for one in changes]
    operator = harness_of(LiveRanks(DAMPING, TOLERANCE, sources))
    results: Changes = []
    there: Changes = []
    for batch in batches:
        results += operator.push_many(batch)
        there += batch
        found, edges = table_of(results), edges_after(there)
        vertices = {one for edge in edges for one in edge[:2]}
        assert set(found) == {(one,) for one in vertices}
        whole = sum(score for (score,) in found.values())
        if vertices and (sources is None or vertices & set(sources)):
            wanted = exact_ranks(edges, sources)
            assert sum(abs(found[one,][0] / whole - rank) for one, rank in wanted.items()) <= TOLERANCE
        else:
            assert whole == 0


class WatchedRanks(LiveRanks):
    """Ranks whose residuals are looked at after each change."""

    there: Changes

    def process_many(self, changes: list[Any], ctx: tr.Context) -> Any:
        yield from super().process_many(changes, ctx)
        self.there = edges_after([("+", *edge) for edge in getattr(self, "there", [])] + changes)
        vertices = {one for edge in self.there for one in edge[:2]}
        right = {one: ranks.UNIT if self.sources is None or one in self.sources else 0 for one in vertices}
        for one in vertices:
            right[one] -= self.scores[one]
            for end, part in self.shares(one).items():
                right[end] += ranks.share(self.scores[one], part)
        assert right == {one: self.residuals[one] or 0 for one in vertices}
        assert all(abs(left) <= self.threshold for left in right.values())


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_residuals_are_exactly_what_edges_and_scores_make_them(seed: int) -> None:
    """However many changes there were: nothing is lost by rounding."""
    operator = harness_of(WatchedRanks(DAMPING, TOLERANCE, None))
    for batch in batches_of(seed, changes_of(seed, most=60, weights=[1, 0.1, 0.7])):
        operator.push_many(batch)


def test_a_vertex_whose_residual_another_has_made_up_for_passes_nothing_on() -> None:
    operator = harness_of(WatchedRanks(DAMPING, TOLERANCE, [0]))
    great = 1 << 53
    for change in [(0, 3, 1), (1, 0, great), (3, 3, great), ("-", 0, 3, 1), (3, 4, 1), ("-", 3, 3, great)]:
        operator.push(change if change[0] == "-" else ("+", *change))


class WatchedCores(LiveCores):
    """Cores whose order is looked at after each change."""

    there: Changes

    def process_many(self, changes: list[Any], ctx: tr.Context) -> Any:
        yield from super().process_many(changes, ctx)
        self.there = edges_after([("+", *edge) for edge in getattr(self, "there", [])] + changes)
        standing = {one: self.standings.get(one) for edge in self.there for one in edge[:2]}
        places = {one: parts[:2] for one, parts in standing.items()}
        assert len(set(places.values())) == len(places)
        for one, (core, _, later, support, _, _) in standing.items():
            near = [other for other in self.edges.near(one) if other != one]
            assert later == sum(places[other] > places[one] for other in near) <= core
            assert support == sum(places[other][0] >= core for other in near) >= core
        for level in {core for core, *_ in standing.values()}:
            in_order = sorted((one for one in places if places[one][0] == level), key=places.__getitem__)
            ring = [("level", level), *in_order, ("level", level)]
            for before, one, behind in zip(ring, ring[1:], ring[2:], strict=False):
                assert standing[one][4:] == (before, behind)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_each_vertex_has_no_more_neighbours_behind_it_than_its_core_number(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And labels are as the order is, also where there is hardly room between two."""
    monkeypatch.setattr(order, "GAP", 2)
    operator = harness_of(WatchedCores())
    for batch in batches_of(seed, changes_of(seed, most=150)):
        operator.push_many(batch)


EVERY: dict[str, tuple[Callable[[tr.DataStream], tr.DataStream], int]] = {
    "components": (graphs.connected_components, 1),
    "degrees": (graphs.degrees, 1),
    "cores": (graphs.k_core, 1),
    "labels": (lambda s: graphs.label_propagation(s, max_iter=STEPS), 1),
    "paths": (lambda s: graphs.shortest_paths(s, [0, 3]), 2),
    "ranks": (lambda s: graphs.pagerank(s, tolerance=TOLERANCE), 1),
}


def outcome(
    changes: Changes, parallelism: int, faults: list[Fault], seed: int = 0, *, apart: bool = False
) -> dict[str, Changes]:
    """The results of all algorithms, on one stream of changes, each for itself. `apart`: each change has a time of its own,
    so that no other one is taken in together with it."""
    env = tr.Environment(parallelism=parallelism, checkpoint=tr.CheckpointConfig("in memory", interval=0.003))
    numbered = env.from_source(tr.sources.Collection(list(enumerate(changes))), parallelism=1)
    stream = (numbered.assign_timestamps(lambda pair: pair[0]) if apart else numbered).map(lambda pair: pair[1])
    sinks = {name: make(stream).sink_to(tr.sinks.Collect()) for name, (make, _) in EVERY.items()}
    assert tr.testing.simulate(env, seed=seed, faults=faults).await_termination()
    return {name: sink.result() for name, sink in sinks.items()}


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_results_survive_the_loss_of_workers_and_of_the_driver(parallelism: int) -> None:
    """What comes together depends on where a job goes on, and so do changes that others take back; what is left does not."""
    changes = changes_of(2 * parallelism, most=200)
    faults = [Fault(100, "kill", which=parallelism - 1), Fault(300, "crash-driver"), Fault(350, "kill")]
    found = outcome(changes, parallelism, faults, seed=parallelism)
    for name, results in found.items():
        right(name, results, changes)


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_changes_that_come_apart_give_the_same_results_at_each_parallelism(parallelism: int) -> None:
    """Over the loss of workers and of the driver, too."""
    changes = changes_of(2 * parallelism, most=200)
    faults = [Fault(100, "kill", which=parallelism - 1), Fault(300, "crash-driver"), Fault(350, "kill")]
    found = outcome(changes, parallelism, faults, seed=parallelism, apart=True)
    for name, results in outcome(changes, 1, [], apart=True).items():
        if name == "degrees":  # a key for each vertex: in order by vertex, and in no order between them
            mine, others = (sorted(one, key=lambda row: row[1]) for one in (found[name], results))
            assert mine == others
        else:
            assert found[name] == results


def in_degrees_and_out(edges: Changes) -> Table:
    return {(one,): (degree,) for one, degree in nx.MultiGraph([edge[:2] for edge in edges]).degree()}


STATIC: dict[str, Callable[[Changes], Table]] = {
    "components": components,
    "degrees": in_degrees_and_out,
    "cores": cores,
    "labels": labels,
    "paths": lambda edges: paths(edges, [0, 3], True),
}


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(4, 60))])
@pytest.mark.parametrize("name", STATIC)
def test_changes_of_an_edge_from_two_subtasks_fail_the_job_or_come_to_what_is_there(name: str, seed: int) -> None:
    """What one subtask adds another one removes, and adds again: chance decides what comes first."""
    halves: list[Changes] = [
        [("+", 0, 1), ("+", 1, 2), ("+", 2, 0), ("+", 0, 3)],
        [("+", 0, 2), ("-", 0, 1), ("+", 0, 1), ("-", 1, 2)],
    ]
    env = tr.Environment(parallelism=2)
    one, other = (env.from_source(tr.sources.Collection(half), parallelism=1) for half in halves)
    make, key = EVERY[name]
    sink = make(one.union(other)).sink_to(tr.sinks.Collect())
    try:
        tr.testing.simulate(env, seed=seed).await_termination()
    except tr.JobFailed as error:
        assert "which is not there" in str(error)
    else:
        assert table_of(sink.result(), key) == STATIC[name](edges_after([*halves[0], *halves[1]]))


def test_degrees_do_not_lose_an_edge_that_is_not_there() -> None:
    """Both ends have edges, so their degrees alone would not show it."""
    env = tr.Environment(parallelism=2)
    changes = env.from_collection([("+", 1, 2), ("+", 3, 4), ("-", 3, 1)], parallelism=1)
    graphs.degrees(changes).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"takes away the edge \(3, 1\), which is not there"):
        tr.testing.run(env)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("-", 1, 2), r"a change takes away the edge \(1, 2\), which is not there"),
        (("*", 1, 2), r'begins with "\+" or "-"'),
        (("+", 1), r'a change of an edge is \("\+" or "-", src, dst\)'),
        ("+12", r'a change of an edge is \("\+" or "-", src, dst\)'),
        (("+", 1, 2, 3.0), r'a change of an edge is \("\+" or "-", src, dst\), not'),
        (("+", 1.0, 2), r"ids of vertices that come and go are whole numbers or texts, not 1\.0"),
        (("+", 1, True), r"whole numbers or texts, not True"),
        (("+", 1, "2"), r"must be all whole numbers, or all texts"),
    ],
)
@pytest.mark.parametrize("verb", [graphs.connected_components, graphs.k_core])
def test_a_change_that_is_none_is_refused(verb: Any, change: Any, reason: str) -> None:
    env = tr.Environment(parallelism=1)
    verb(env.from_collection([change])).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=reason):
        tr.testing.run(env)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("+", 1, 2, -1), r"a weight of an edge is from 0 to 2\^53, not -1"),
        (("+", 1, 2, float("nan")), r"a weight of an edge is from 0"),
        (("+", 1, 2, (1 << 53) + 1), r"a weight of an edge is from 0"),
        (("+", 1, 2, True), r"a weight of an edge is a number, not True"),
        (("-", 1, 2, 2.5), r"takes away the edge \(1, 2\) of weight 2\.5, which is not there"),
    ],
)
def test_a_weight_that_has_no_result_is_refused(change: Any, reason: str) -> None:
    for function in (LivePaths([1], True), LiveRanks(DAMPING, TOLERANCE, None)):
        operator = harness_of(function)
        operator.push(("+", 1, 2, 2))
        with pytest.raises(Exception, match=reason):
            operator.push(change)


def right(name: str, results: Changes, changes: Changes) -> None:
    """Raises unless the results are those of the edges that the changes leave."""
    edges = edges_after([(op, a, b, *map(Fraction, w)) for op, a, b, *w in changes])
    if name != "ranks":
        assert table_of(results, EVERY[name][1]) == STATIC[name](edges)
        return
    scores, wanted = table_of(results), exact_ranks([(a, b, float(w)) for a, b, w in edges], None)
    whole = sum(score for (score,) in scores.values())
    assert scores.keys() == {(one,) for one in wanted}
    assert sum(abs(scores[one,][0] / whole - rank) for one, rank in wanted.items()) <= TOLERANCE


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "components": LiveComponents,
    "cores": LiveCores,
    "labels": lambda: LiveLabels(STEPS),
    "paths": lambda: LivePaths([0, 3], True),
    "ranks": lambda: LiveRanks(DAMPING, TOLERANCE, None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_at_each_quiet_moment_of_a_new_graph_the_result_is_the_static_one(
    seed: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes may have come before the many that wait for more, and go on behind them, as whole numbers of any size."""
    for constant, value in (
        ("TOGETHER", 5),
        ("BUSY", 40),
        ("NEW", (0, 10, 1000)[seed % 3]),
        ("IN_A_BUCKET", 1 + seed % 3),
    ):
        monkeypatch.setattr(live_edges, constant, value)
    draw, operator = random.Random(seed), harness_of(FUNCTIONS[name]())
    results, there, now = Changes(), Changes(), 0.0
    changes = changes_of(seed if name in ALGORITHMS else 2 * seed, 150, WEIGHTS if name in ("paths", "ranks") else None)
    for batch in batches_of(seed, moved(seed, changes) if name in ALGORITHMS else changes):
        results += operator.push_many(batch)
        there += batch
        now += draw.choice([0.0, live_edges.TURN / 2, live_edges.TURN])
        results += operator.advance_clock(now)
        if not operator.timers["processing"]:
            right(name, results, there)
    results += operator.end_input()
    right(name, results, there)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(3, 40))])
def test_a_first_span_survives_the_loss_of_workers_and_of_the_driver(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in (("TOGETHER", 2), ("BUSY", 3), ("TURN", 0.004)):
        monkeypatch.setattr(live_edges, constant, value)
    changes = changes_of(2 * seed, most=200)
    faults = [Fault(60 + 20 * seed, "kill"), Fault(150, "crash-driver"), Fault(250, "kill")]
    for name, results in outcome(changes, (2, 1, 5)[seed % 3], faults, seed=seed).items():
        right(name, results, changes)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_edge_that_is_not_there_when_its_turn_comes_fails_a_first_span(name: str) -> None:
    """Though it is there in the end."""
    operator = harness_of(FUNCTIONS[name]())
    operator.push_many([*(("+", n, n + 1) for n in range(300)), ("-", 7, 9), ("+", 7, 9)])
    with pytest.raises(Exception, match=r"takes away the edge \(7, 9\)( of weight 1\.0)?, which is not there"):
        operator.advance_clock(1)


@pytest.mark.parametrize(("pause", "waits"), [(0.0, True), (0.02, True), (0.05, False)])
def test_a_new_graph_waits_where_many_changes_come_soon_though_in_small_parts(pause: float, waits: bool) -> None:
    """As they do from a source that begins with small steps, or where a worker has little time."""
    operator = harness_of(LiveComponents())
    for turn in range(30):
        found = operator.push_many([("+", n, n + 1) for n in range(10 * turn, 10 * turn + 10)])
        assert bool(found) == (turn < 25 or not waits)
        assert operator.timers["processing"] == (turn >= 25 and waits)
        operator.advance_clock((turn + 1) * pause)
    operator.advance_clock(60)
    assert table_of(operator.outputs) == {(n,): (0,) for n in range(301)}


def test_many_changes_that_have_timestamps_do_not_wait() -> None:
    operator = harness_of(LiveComponents())
    star = [(0, n) for n in range(1, 500)]
    assert len(operator.push_many([("+", *edge) for edge in star], timestamp=1.0)) == 500
    assert len(operator.push_many([("-", *edge) for edge in star], timestamp=2.0)) == 500


def test_neighbours_of_a_hub_are_dealt_out_whatever_their_numbers_are() -> None:
    """What a change writes is a bucket: it must not have all neighbours because their numbers end in zeros."""
    operator = harness_of(LiveComponents())
    for n in range(1, 500):
        operator.push(("+", 0, n << 40))
    assert max(len(ends) for ends, _ in operator.state("out_ends").values()) <= 3 * live_edges.IN_A_BUCKET


def test_settings_that_a_stream_of_changes_does_not_have_are_refused() -> None:
    env = tr.Environment(parallelism=1)
    changes = env.from_collection([("+", 1, 2)])
    for call, reason in (
        (lambda: graphs.pagerank(changes, max_iter=3), "takes no max_iter: a change is answered as it comes"),
        (lambda: graphs.pagerank(changes, weight="miles"), "takes no weight: the fourth part of a change"),
        (lambda: graphs.pagerank(changes, tolerance=1e-13), "tolerance must be 1e-12 or more"),
        (lambda: graphs.pagerank(changes, sources=[]), "sources must be ids of vertices"),
        (lambda: graphs.shortest_paths(changes, "SFO"), "sources must be a list of ids"),
        (lambda: graphs.shortest_paths(changes, [1, "a"]), "all whole numbers or all texts"),
        (lambda: graphs.label_propagation(changes, max_iter=None), "give max_iter, the number of steps"),  # type: ignore[arg-type]
        (lambda: graphs.bfs(changes, [1]), "take shortest_paths"),
        (lambda: graphs.triangle_count(changes), "of a stream of edges that come and go there are"),
    ):
        with pytest.raises((tr.ConfigError, tr.TypeMismatch), match=reason):
            call()
