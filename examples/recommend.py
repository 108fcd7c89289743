"""Where to next? Airports for somebody who has been at some, by personalised PageRank over the routes of US airlines.

    pip install "tailrace[examples]"
    python examples/recommend.py SFO OAK

A passenger begins at one of the airports that are given, takes one route after the other at random, and begins anew now and
then. Where such passengers come by most often is near to the given airports in many ways. Routes open and close meanwhile,
and only scores that this changes are worked out again.
"""

import argparse
from collections.abc import Iterable
from typing import Any

import tailrace as tr
from tailrace import graphs


def scores(routes: tr.DataStream, visited: list[str], tolerance: float = 0.01) -> tr.DataStream:
    """Changes ("+" or "-", airport, score), for changes ("+" or "-", from, to) of routes."""
    return graphs.pagerank(routes, sources=visited, tolerance=tolerance)


def best(changes: Iterable[tuple[str, str, float]], visited: list[str], count: int) -> list[str]:
    """The airports with the highest scores, without those that were visited."""
    last: dict[str, float] = {}
    for op, airport, score in changes:
        if op == "+":
            last[airport] = score
        elif last[airport] == score:
            del last[airport]
    ranked = sorted(last, key=lambda airport: (-last[airport], airport))
    return [airport for airport in ranked if airport not in visited][:count]


def opened(routes: Any) -> list[tuple[str, str, str]]:
    """A change for each row of a table of routes."""
    return [("+", source, target) for source, target in zip(routes["Source"], routes["Destination"], strict=True)]


if __name__ == "__main__":
    from bokeh_sampledata.airport_routes import routes

    parser = argparse.ArgumentParser(description="Airports that are worth a flight.")
    parser.add_argument("visited", nargs="*", default=["SFO"])
    visited = parser.parse_args().visited
    env = tr.Environment(parallelism=1)
    found = scores(env.from_collection(opened(routes)), visited).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    print(*best(found.result(), visited, 10))
