"""The routes example: after any changes, in any order of messages, the distances are those of networkx."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tailrace as tr
from tailrace.testing.faults import Fault
from tests.environ import plain_environ

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import routes

    yield routes
    sys.modules.pop("routes", None)


Route = namedtuple("Route", ["airport", "destination", "change", "miles"])


# The changes.


def test_all_9161_routes_are_opened_and_some_are_cancelled_later(example: Any) -> None:
    changes = example.changes_of_routes(500)
    assert list(changes.columns) == ["airport", "destination", "change", "miles"]
    assert changes.change.value_counts().to_dict() == {1: 9_161, -1: 500}
    so_far = changes.groupby(["airport", "destination"]).change.cumsum()
    assert (so_far >= 0).all()  # nothing is cancelled before it was opened
    assert 3_000 < changes.index[changes.change < 0].to_series().mean() < 8_000  # and not all of it at the end
    assert changes.equals(example.changes_of_routes(500))
    assert not changes.equals(example.changes_of_routes(500, seed=1))


def test_miles_are_those_of_the_great_circle(example: Any) -> None:
    assert example.miles_between("SFO", "JFK") == pytest.approx(2_580, abs=1)
    assert example.miles_between("HNL", "GUM") == example.miles_between("GUM", "HNL") == pytest.approx(3_800, abs=10)
    assert example.miles_between("SFO", "SFO") == 0


# The function by hand, in a network in which messages of one airport to another stay in order, and nothing else does.


class Network:
    """The example's airports in one harness, with a line of messages from each airport to each other."""

    def __init__(self, example: Any, start: str) -> None:
        self.airports = tr.testing.harness(example.Airport(start), key="airport", key2=lambda offer: offer[0])
        self.lines: dict[tuple[str, str], deque[Any]] = {}

    def change(self, route: Any) -> None:
        self.send(self.airports.push(route, input=1))

    def send(self, offers: list[Any]) -> None:
        for offer in offers:
            self.lines.setdefault(offer[:2], deque()).append(offer)

    def deliver_one(self, chance: random.Random) -> bool:
        """Whether there was something to deliver."""
        if not self.lines:
            return False
        line = chance.choice(list(self.lines))
        offer = self.lines[line].popleft()
        if not self.lines[line]:
            del self.lines[line]
        self.send(self.airports.push(offer, input=2))
        return True

    def told(self) -> dict[str, Any]:
        """The newest output of each airport."""
        return dict(self.airports.side("shortest"))


def flights(example: Any, chance: random.Random) -> list[Any]:
    """Changes of the routes between a few real airports, many of them cancellations."""
    names = chance.sample(["SFO", "SEA", "DEN", "ORD", "ANC", "HNL", "ATL", "JFK", "BOS"], chance.randint(2, 9))
    opened: list[tuple[str, str]] = []
    changes = []
    for _ in range(chance.randint(1, 120)):
        cancel = bool(opened) and chance.random() < 0.45
        route = opened.pop(chance.randrange(len(opened))) if cancel else tuple(chance.sample(names, 2))
        if not cancel:
            opened.append(route)
        changes.append(Route(*route, -1 if cancel else 1, example.miles_between(*route)))
    return changes


def expected(example: Any, changes: list[Any], start: str) -> dict[str, float]:
    found = example.by_dijkstra(pd.DataFrame(changes), start)
    return {airport: miles for airport, miles in found.items() if airport != start}


def distances(network: Network) -> dict[str, float]:
    return {airport: way[0] for airport, way in network.told().items() if way is not None}


@pytest.mark.parametrize("seed", range(30))
def test_after_any_changes_and_in_any_order_of_messages_the_distances_are_right(example: Any, seed: int) -> None:
    chance = random.Random(seed)
    changes = flights(example, chance)
    start = changes[0].airport
    network = Network(example, start)
    haste, pause = chance.choice([0.05, 0.5, 2.0]), chance.choice([1, 7, 1_000])
    for count, change in enumerate(changes, 1):
        network.change(change)
        while chance.random() < haste / (1 + haste) and network.deliver_one(chance):
            pass
        if count % pause == 0 or count == len(changes):
            while network.deliver_one(chance):
                pass
            assert distances(network) == expected(example, changes[:count], start)


@pytest.mark.parametrize("seed", range(10))
def test_a_route_may_be_cancelled_before_it_is_opened(example: Any, seed: int) -> None:
    chance = random.Random(seed)
    changes = flights(example, chance)
    start = changes[0].airport
    network = Network(example, start)
    for change in chance.sample(changes, len(changes)):
        network.change(change)
        network.deliver_one(chance)
    while network.deliver_one(chance):
        pass
    assert distances(network) == expected(example, changes, start)


def test_two_airports_that_are_cut_off_do_not_go_on_believing_each_other(example: Any) -> None:
    def route(airport: str, destination: str, change: int) -> Route:
        return Route(airport, destination, change, example.miles_between(airport, destination))

    network, chance = Network(example, "SFO"), random.Random(1)
    for one in [route("SFO", "ANC", 1), route("ANC", "SEA", 1), route("SEA", "ANC", 1)]:
        network.change(one)
    while network.deliver_one(chance):
        pass
    assert network.told()["SEA"][1] == ("SFO", "ANC", "SEA")
    network.change(route("SFO", "ANC", -1))
    assert sum(network.deliver_one(chance) for _ in range(100)) <= 5
    assert network.told() == {"ANC": None, "SEA": None}


# The dataflow, in this process and on a simulated cluster.


def found(example: Any, changes: list[Any], start: str, parallelism: int, seed: int | None) -> dict[str, float]:
    env = tr.Environment(parallelism=parallelism)
    ways = example.shortest_ways(env.from_collection(changes), start).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env) if seed is None else tr.testing.simulate(env, seed=seed)
    assert job.await_termination()
    for airport, miles, way in ways.result():
        assert way[0] == start and way[-1] == airport and len(set(way)) == len(way)
        assert miles == pytest.approx(sum(map(example.miles_between, way, way[1:])))
    return {airport: miles for airport, miles, _ in ways.result()}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_the_distances_are_those_of_networkx(example: Any, parallelism: int) -> None:
    changes = [Route(*change) for change in example.changes_of_routes(200).itertuples(index=False)][:1_500]
    required = expected(example, changes, "SFO")
    assert len(required) > 200
    assert found(example, changes, "SFO", parallelism, None) == required


@pytest.mark.parametrize("seed", range(10))
def test_they_are_on_a_simulated_cluster_too(example: Any, seed: int) -> None:
    changes = flights(example, random.Random(seed))
    start = changes[0].airport
    assert found(example, changes, start, 1 + seed % 3, seed) == expected(example, changes, start)


@pytest.mark.parametrize("seed", range(8))
def test_they_are_when_workers_and_the_driver_are_lost(example: Any, seed: int) -> None:
    changes = flights(example, random.Random(100 + seed))
    start = changes[0].airport
    env = tr.Environment(
        parallelism=1 + seed % 3,
        checkpoint=tr.CheckpointConfig("in memory", interval=0.005),
        restart=tr.FixedDelay(attempts=100, delay=0.01),
    )
    sink = example.shortest_ways(env.from_collection(changes), start).sink_to(tr.sinks.Collect())
    faults = [Fault(60 + 30 * seed, "kill", which=seed), Fault(200 + 20 * seed, "crash-driver")]
    job = tr.testing.simulate(env, seed=seed, faults=faults)
    assert job.await_termination()
    assert sum(job.simulation.covered[what] for what in ("killed", "crashed the driver")) >= 1
    rows = sink.result()
    assert {airport: miles for airport, miles, _ in rows} == expected(example, changes, start)
    assert len(rows) == len({airport for airport, _, _ in rows})  # each one once


# All of it, on Spark.


@pytest.mark.spark
@pytest.mark.paths
def test_it_runs_as_a_script_and_says_only_what_it_has_to_say(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLES / "routes.py"), "--airport", "JFK", "--checkpoint-dir", "checkpoints"]
    done = subprocess.run(script, cwd=tmp_path, env=plain_environ(), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "The airports farthest from JFK:" in done.stdout
    assert "|SPN    |" in done.stdout and "[JFK, " in done.stdout
    assert "networkx finds the same distances." in done.stdout
    noise = [line for line in done.stderr.splitlines() if not line.startswith("to_dataframe: ")]
    assert [line for line in noise if "Using incubator modules" not in line] == []  # the JVM's own; nothing stops it
    assert (tmp_path / "routes.png").read_bytes()[:4] == b"\x89PNG"
    assert list((tmp_path / "out" / "distances").glob("*.parquet"))
    assert {path.name for path in tmp_path.iterdir()} <= {"routes.png", "out", "checkpoints", "spark-warehouse"}
