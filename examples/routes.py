"""The fewest miles from one airport to all others, kept right while airlines open routes and cancel them.

    pip install "tailrace[examples]"
    python examples/routes.py --airport SFO

The 9,161 routes that US airlines flew in July 2026 arrive as a stream, in random order, and some are cancelled again. In a
loop airports tell each other how far it is. The job ends by itself when there is nothing left to tell.
"""

import argparse
import os
from collections.abc import Iterator
from math import asin, cos, radians, sin, sqrt
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
from bokeh_sampledata.airport_routes import airports, routes
from bokeh_sampledata.us_states import data as states
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from pyspark.sql import DataFrame

import tailrace as tr

DISTANCES = "airport string, miles double, way array<string>"
PLACES = {a.IATA: ((a.Longitude - 360) % -360, a.Latitude) for a in airports.itertuples()}  # Guam lies west of Hawaii


def miles_between(a: str, b: str) -> float:
    """Along the great circle."""
    (x, y), (u, v) = (map(radians, PLACES[airport]) for airport in (a, b))
    return 2 * 3958.8 * asin(sqrt(sin((v - y) / 2) ** 2 + cos(y) * cos(v) * sin((u - x) / 2) ** 2))


def changes_of_routes(cancelled: int, seed: int = 2026) -> pd.DataFrame:
    """What happens, in order: an airline opens a route from `airport` (change = 1), or cancels one (change = -1)."""
    chance = np.random.default_rng(seed)
    opened = pd.DataFrame({"airport": routes.Source, "destination": routes.Destination, "change": 1})
    opened["miles"] = list(map(miles_between, opened.airport, opened.destination))
    opened["moment"] = chance.random(len(opened))
    closed = opened.sample(cancelled, random_state=chance).assign(change=-1)
    closed["moment"] = chance.uniform(closed.moment, 1)
    return pd.concat([opened, closed]).sort_values("moment", ignore_index=True).drop(columns="moment")


# The dataflow.


# A way from the start to an airport: its miles, and all airports on it. The least of several has the fewest miles.
Way = tuple[float, tuple[str, ...]]
# What one airport (the second) tells another: this is your way by me. None: there is no way by me any more.
Offer = tuple[str, str, Way | None]


class Airport(tr.CoProcessFunction):
    """All airports, one at a time. An airport tells its destinations, and the world, whenever its shortest way changes.

    It keeps the newest offer of each airport that flies here; the shortest of them counts. A route that is cancelled
    takes back one offer, and the next best one counts. No way leads to an airport twice: otherwise two airports that are
    cut off would go on believing each other, with a detour that grows and grows.
    """

    legs = tr.MapState(str, tuple)  # destination: how many airlines fly there, and the miles
    offers = tr.MapState(str, tuple)  # by whom: the way
    shortest = tr.ValueState(tuple)

    def __init__(self, start: str) -> None:
        self.start = start

    def process1(self, route: Any, ctx: tr.Context) -> Iterator[Offer]:
        """A route from here is opened or cancelled. The changes add up, so that they may come in any order."""
        airlines, _ = self.legs.get(route.destination, (0, 0.0))
        self.legs[route.destination] = airlines + route.change, route.miles
        if airlines + route.change in (0, 1):  # nobody flies any more, or somebody does
            yield self.offer(ctx.key, route.destination)

    def process2(self, offer: Offer, ctx: tr.Context) -> Iterator[Offer]:
        """An airport that flies here makes an offer, in place of the one before."""
        _, by, way = offer
        if way is None:
            self.offers.remove(by)
        else:
            self.offers[by] = way
        shortest = min(self.offers.values(), default=None)
        if shortest != self.shortest.value:
            self.shortest.value = shortest
            ctx.emit("shortest", (ctx.key, shortest))
            yield from [self.offer(ctx.key, to) for to, (airlines, _) in self.legs.items() if airlines > 0]

    def offer(self, here: str, destination: str) -> Offer:
        way = (0.0, (here,)) if here == self.start else self.shortest.value
        airlines, miles = self.legs[destination]
        if way is None or airlines <= 0 or destination in way[1]:
            return destination, here, None
        return destination, here, (way[0] + miles, (*way[1], destination))


class Last(tr.KeyedProcessFunction):
    """A record of DISTANCES for each airport that is reached in the end. At the end of the input all timers fire."""

    way = tr.ValueState(tuple)

    def process(self, results: tuple[str, Way | None], ctx: tr.Context) -> None:
        self.way.value = results[1]
        ctx.set_timer(event_time=9e9)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[tuple[Any, ...]]:
        if self.way.value is not None:
            yield (ctx.key, *self.way.value)


def shortest_ways(changes: tr.DataStream, start: str) -> tr.DataStream:
    """A record of DISTANCES for each airport."""

    def loop(changes_and_offers: tr.ConnectedStreams) -> tuple[tr.DataStream, tr.DataStream]:
        offers = changes_and_offers.key_by("airport", lambda offer: offer[0]).process(Airport(start))
        return offers, offers.side_output("shortest")  # back into the loop, and out of it

    return changes.iterate_with_feedback(loop).key_by(lambda results: results[0]).process(Last())


# The results.


def by_dijkstra(changes: pd.DataFrame, start: str) -> dict[str, float]:
    """The same distances, by networkx on the routes that are left."""
    left = changes.groupby(["airport", "destination", "miles"], as_index=False).change.sum().query("change > 0")
    graph = nx.from_pandas_edgelist(left, "airport", "destination", "miles", nx.DiGraph)
    graph.add_node(start)
    return nx.single_source_dijkstra_path_length(graph, start, weight="miles")


NEAR, FAR = ((-126, -64), (16.5, 50)), ((-220, -128), (-17, 73))
"""What the map and its inset show, longitudes and latitudes: the islands of the Pacific are far from all the rest."""


def draw(ways: pd.DataFrame, start: str, file: str) -> None:
    """All ways on a map, with Alaska and the Pacific in an inset."""
    figure = Figure(figsize=(15, 8.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="longitude", ylabel="latitude", title=f"The shortest ways from {start}")
    inset = axes.inset_axes((0.005, 0.01, 0.27, 0.46))
    inset.set(xticks=[], yticks=[])
    last_legs = [[PLACES[airport] for airport in way[-2:]] for way in ways.way]
    dots = np.array([PLACES[airport] for airport in ways.airport]).reshape(-1, 2)
    for part, (longitudes, latitudes) in ((axes, NEAR), (inset, FAR)):
        part.set(aspect=1.25, xlim=longitudes, ylim=latitudes)
        for state in states.values():
            part.plot((state["lons"] - 360) % -360, state["lats"], color="silver", linewidth=0.7, zorder=0)
        part.add_collection(LineCollection(last_legs, array=ways.miles, cmap="plasma", linewidths=0.8))
        colours = part.scatter(*dots.T, c=ways.miles, cmap="plasma", s=8)
        part.plot(*PLACES[start], marker="o", color="black")
    figure.colorbar(colours, ax=axes, label="miles", shrink=0.8)
    figure.savefig(file, dpi=120)


def main(env: tr.Environment, changes: pd.DataFrame, start: str) -> DataFrame:
    """Runs the job. What it finds is a DataFrame, and a table with its files in out/distances."""
    stream = env.from_dataframe(env.spark.createDataFrame(changes))
    distances = shortest_ways(stream, start).to_dataframe(DISTANCES)
    distances.write.mode("overwrite").option("path", str(Path("out/distances").resolve())).saveAsTable("distances")
    return distances


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The fewest miles from one airport to all others.")
    parser.add_argument("--airport", default="SFO", choices=sorted(set(routes.Source)), metavar="CODE")
    parser.add_argument("--cancel", type=int, default=500, metavar="N", help="how many routes are cancelled")
    parser.add_argument("--out", default="routes.png", help="the map (%(default)s)")
    parser.add_argument("--master", help="of Spark; local where nothing is said")
    parser.add_argument("--parallelism", type=int)
    parser.add_argument("--checkpoint-dir", help="take checkpoints into this folder")
    args = parser.parse_args()
    if not 0 <= args.cancel <= len(routes):
        parser.error(f"--cancel: there are {len(routes):,} routes")

    if args.master:
        os.environ["TAILRACE_MASTER"] = args.master
    checkpoint = tr.CheckpointConfig(args.checkpoint_dir) if args.checkpoint_dir else None
    env = tr.Environment(parallelism=args.parallelism, checkpoint=checkpoint, progress=True)
    changes = changes_of_routes(args.cancel)
    distances = main(env, changes, args.airport)

    print(f"\nThe airports farthest from {args.airport}:")
    env.spark.table("distances").orderBy("miles", ascending=False).show(10, truncate=False)
    draw(distances.toPandas(), args.airport, args.out)
    found = {row.airport: row.miles for row in distances.collect()} | {args.airport: 0.0}
    same = found == by_dijkstra(changes, args.airport)
    print(f"\n{len(found) - 1} airports can be reached. networkx finds {'the same' if same else 'OTHER'} distances.")
    print(f"The map is {args.out}, the table is in out/distances.")
    raise SystemExit(not same)
