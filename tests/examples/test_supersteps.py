"""The examples in rounds: PageRank is that of networkx, and k-means that of a loop in numpy."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import tailrace as tr

pytestmark = pytest.mark.search

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def pagerank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import pagerank

    yield pagerank
    sys.modules.pop("pagerank", None)


@pytest.fixture
def kmeans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import kmeans

    yield kmeans
    sys.modules.pop("kmeans", None)


def results(env: Any, stream: Any, seed: int | None) -> list[Any]:
    sink = stream.sink_to(tr.sinks.Collect())
    job = tr.testing.run(env) if seed is None else tr.testing.simulate(env, seed=seed)
    assert job.await_termination()
    return list(sink.result())


WAYS = [(1, None), (2, None), (3, None), (2, 1), (3, 2)]
"""Parallelism, and the seed of a simulated cluster."""
FEW = [way if way in ((1, None), (3, 2)) else pytest.param(*way, marks=pytest.mark.exhaustive) for way in WAYS]
"""For a program that takes seconds: with one task and straight through, and with several in a simulated cluster."""


# PageRank.

Flown = namedtuple("Flown", ["airport", "destination"])


@pytest.mark.parametrize(("parallelism", "seed"), FEW)
def test_the_ranks_are_those_of_networkx(pagerank: Any, parallelism: int, seed: int | None) -> None:
    flown = [Flown(*route) for route in pagerank.read_routes().itertuples(index=False)]
    count = len({route.airport for route in flown})
    env = tr.Environment(parallelism=parallelism)
    rows = results(env, pagerank.ranks(env.from_collection(flown), count, tolerance=1e-6), seed)

    graph = nx.DiGraph()
    for route in flown:
        seen = graph.get_edge_data(*route, {"weight": 0})["weight"]
        graph.add_edge(*route, weight=seen + 1)
    last = max(row[0] for row in rows)
    ranks = {airport: rank for round, airport, rank, _ in rows if round == last}
    assert ranks == pytest.approx(nx.pagerank(graph, tol=1e-9), abs=1e-6)
    assert sum(ranks.values()) == pytest.approx(1)


def test_the_rounds_end_when_the_ranks_stand_still_and_not_before(pagerank: Any) -> None:
    flown = [Flown(*route) for route in pagerank.read_routes().itertuples(index=False)]
    env = tr.Environment(parallelism=2)
    rows = results(env, pagerank.ranks(env.from_collection(flown), 352, tolerance=1e-3), None)
    last = max(row[0] for row in rows)
    changes = [sum(row[3] for row in rows if row[0] == round) for round in range(last + 1)]
    assert [change < 1e-3 for change in changes] == [False] * last + [True]
    assert [sum(row[0] == round for row in rows) for round in range(last + 1)] == [352] * (last + 1)


def test_there_are_no_more_rounds_than_allowed(pagerank: Any) -> None:
    flown = [Flown("SFO", "SEA"), Flown("SEA", "SFO"), Flown("SEA", "ANC"), Flown("ANC", "SEA")]
    env = tr.Environment(parallelism=2)
    rows = results(env, pagerank.ranks(env.from_collection(flown), 3, tolerance=0.0, rounds=4), None)
    assert sorted({row[0] for row in rows}) == [0, 1, 2, 3]


def test_an_airport_that_nobody_flies_to_has_a_rank(pagerank: Any) -> None:
    flown = [Flown("OAK", "SFO"), Flown("SFO", "SEA"), Flown("SEA", "SFO")]
    env = tr.Environment(parallelism=2)
    rows = results(env, pagerank.ranks(env.from_collection(flown), 3, tolerance=1e-9, rounds=1_000), None)
    last = max(row[0] for row in rows)
    ranks = {airport: rank for round, airport, rank, _ in rows if round == last}
    graph = nx.DiGraph([tuple(route) for route in flown])
    assert ranks == pytest.approx(nx.pagerank(graph, tol=1e-10, max_iter=1_000), abs=1e-6)
    assert ranks["OAK"] == pytest.approx(0.05)


# k-means.

Point = namedtuple("Point", ["x", "y", "z"])


def by_numpy(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, list[int], int]:
    """The centres, how many points each one has, and the number of rounds."""
    for round in range(1_000):
        nearest = np.argmax(points @ centres.T, axis=1)
        sums = np.array([points[nearest == number].sum(axis=0) for number in range(len(centres))])
        new = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        if np.allclose(new, centres, rtol=0, atol=1e-9):
            return new, np.bincount(nearest).tolist(), round
        centres = new
    raise AssertionError("they do not come to rest")


@pytest.mark.parametrize(("parallelism", "seed"), WAYS)
@pytest.mark.parametrize("groups", [1, 5])
def test_the_centres_are_those_of_numpy(kmeans: Any, groups: int, parallelism: int, seed: int | None) -> None:
    points = kmeans.read_points()
    first = kmeans.first_centres(points, groups)
    env = tr.Environment(parallelism=parallelism)
    stream = env.from_collection([Point(*point) for point in points.itertuples(index=False)])
    rows = results(env, kmeans.centres(stream, first), seed)

    expected, counts, rounds = by_numpy(points.to_numpy(), np.array(first))
    last = max(row[0] for row in rows)
    found = sorted(row[1:] for row in rows if row[0] == last)
    assert last == rounds
    assert np.allclose([row[1:4] for row in found], expected, rtol=0, atol=1e-9)
    assert [row[4] for row in found] == counts and sum(counts) == 514


# Both, on Spark.


@pytest.mark.spark
def test_both_on_spark(pagerank: Any, kmeans: Any, spark: Any) -> None:
    env = tr.Environment(spark, parallelism=2, progress=False)
    ranks = pagerank.main(env, pagerank.read_routes()).toPandas()
    top = ranks[ranks["round"] == ranks["round"].max()].sort_values("rank", ascending=False)
    assert top["rank"].sum() == pytest.approx(1) and set(top.airport[:3]) == {"DEN", "DFW", "ORD"}

    centres = kmeans.main(env, kmeans.read_points(), 5).toPandas()
    last = centres[centres["round"] == centres["round"].max()]
    assert last.airports.sum() == 514 and last.moved.max() < 1e-9
