"""Graphs whose edges come and go, beside networkx after each change."""

from __future__ import annotations

import random
from typing import Any

import networkx as nx
import pytest

import tailrace as tr
from tailrace import graphs
from tailrace.graphs import live
from tailrace.testing.faults import Fault

Changes = list[tuple[str, Any, Any]]
SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(8, 200))]


def changes_of(seed: int, most: int = 120) -> Changes:
    """Edges that come, also twice, and go. Some vertices have many neighbours."""
    draw = random.Random(seed)
    names: list[Any] = list(range(draw.randint(2, 14)))
    if seed % 2:
        names = [f"v{n}" for n in names]
    there: list[tuple[Any, Any]] = []
    found: Changes = []
    for _ in range(most):
        if there and draw.random() < 0.45:
            edge = there.pop(draw.randrange(len(there)))
            found.append(("-", *(edge if draw.random() < 0.5 else edge[::-1])))
        else:
            there.append((draw.choice(names), draw.choice(names)))
            found.append(("+", *there[-1]))
    return found


def table_of(results: Changes) -> dict[Any, Any]:
    """The table that changes amount to. Raises unless each "-" takes back what is there."""
    table: dict[Any, Any] = {}
    for op, one, value in results:
        if op == "-":
            assert table.pop(one) == value
        else:
            assert one not in table
            table[one] = value
    return table


def graph_of(changes: Changes) -> nx.MultiGraph:
    graph = nx.MultiGraph()
    for op, a, b in changes:
        if op == "+":
            graph.add_edge(a, b)
        else:
            graph.remove_edge(a, b)
    graph.remove_nodes_from([one for one in list(graph) if not graph.degree(one)])
    return graph


@pytest.mark.parametrize("seed", SEEDS)
def test_after_each_change_components_are_those_of_networkx(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "IN_A_BUCKET", 1 + seed % 3)
    changes = changes_of(seed)
    operator = tr.testing.harness(live.LiveComponents(), key=lambda _: 0)
    results: Changes = []
    for n, change in enumerate(changes, start=1):
        results += operator.push(change)
        parts = nx.connected_components(graph_of(changes[:n]))
        assert table_of(results) == {one: min(part) for part in parts for one in part}


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_components_and_degrees_survive_the_loss_of_workers_and_of_the_driver(seed: int) -> None:
    changes = changes_of(seed, most=300)
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("in memory", interval=0.003))
    stream = env.from_source(tr.sources.Collection(changes), parallelism=1)
    components = graphs.connected_components(stream).sink_to(tr.sinks.Collect())
    degrees = graphs.degrees(stream).sink_to(tr.sinks.Collect())
    faults = [Fault(100, "kill", which=1), Fault(300, "crash-driver"), Fault(350, "kill")]
    assert tr.testing.simulate(env, seed=seed, faults=faults).await_termination()
    graph = graph_of(changes)
    parts = nx.connected_components(graph)
    assert table_of(components.result()) == {one: min(part) for part in parts for one in part}
    by_vertex: dict[Any, Changes] = {}
    for change in degrees.result():  # in order by vertex, and in no order between them
        by_vertex.setdefault(change[1], []).append(change)
    assert {one: table_of(mine)[one] for one, mine in by_vertex.items() if table_of(mine)} == dict(graph.degree())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("-", 1, 2), r"a change takes away the edge \(1, 2\), which is not there"),
        (("*", 1, 2), r'begins with "\+" or "-"'),
        (("+", 1), r'a change of an edge is \("\+" or "-", src, dst\)'),
        (("+", 1.0, 2), r"ids of vertices that come and go are whole numbers or texts, not 1\.0"),
    ],
)
def test_a_change_that_is_none_is_refused(change: Any, reason: str) -> None:
    env = tr.Environment(parallelism=1)
    graphs.connected_components(env.from_collection([change])).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=reason):
        tr.testing.run(env)
