"""k-means: the centres of five groups of airports, each of which lies nearest to the centre of its own group.

    pip install "tailrace[examples]"
    python examples/kmeans.py --groups 5

A loop in rounds: the airports stay where they are, in the state of the subtasks; only the centres go round.
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from bokeh_sampledata.airport_routes import airports
from pyspark.sql import DataFrame

import tailrace as tr

CENTRES = "round int, number int, x double, y double, z double, airports int, moved double"


Centre = tuple[int, np.ndarray]  # the number of a group, and a point on a globe of radius 1
Part = tuple[int, int, np.ndarray]  # what a subtask has of a group: its number, how many points, and their sum


class Nearest(tr.CoProcessFunction):
    """Gives each point to the group of the nearest centre; its part of each group comes out at the end of a round."""

    points = tr.OperatorState(list, default=[])
    centres = tr.OperatorState(dict, default={})

    def __init__(self, first: list[np.ndarray]) -> None:
        self.first = first

    def process1(self, point: Any, ctx: tr.Context) -> None:
        self.points.value.append(np.array(point))

    def process2(self, centre: Centre, ctx: tr.Context) -> None:
        self.centres.value[centre[0]] = centre[1]

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Part]:
        if round == 0:
            self.centres.value = dict(enumerate(self.first))
        if not self.points.value:
            return
        points, numbers = np.array(self.points.value), np.array(list(self.centres.value))
        nearest = numbers[np.argmax(points @ np.array(list(self.centres.value.values())).T, axis=1)]
        for number in np.unique(nearest).tolist():
            mine = points[nearest == number]
            yield number, len(mine), mine.sum(axis=0)


class Middle(tr.KeyedProcessFunction):
    """Makes the new centre of a group from its parts, at the end of a round. Emits a record of CENTRES aside."""

    count = tr.ValueState(int, default=0)
    total = tr.ValueState(np.ndarray, default=0.0)
    point = tr.ValueState(np.ndarray)

    def process(self, part: Part, ctx: tr.Context) -> None:
        _, count, total = part
        self.count.value += count
        self.total.value = self.total.value + total

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Centre]:
        point = self.total.value / np.linalg.norm(self.total.value)
        moved = 2.0 if self.point.value is None else float(np.linalg.norm(point - self.point.value))
        ctx.emit("centres", (round, ctx.key, *point.tolist(), self.count.value, moved))
        self.point.value, self.total.value, self.count.value = point, 0.0, 0
        yield ctx.key, point


def centres(points: tr.DataStream, first: list[np.ndarray], rounds: int = 100) -> tr.DataStream:
    """Records of CENTRES for each round, until all stand still."""

    def loop(points_and_centres: tr.ConnectedStreams) -> tuple[tr.DataStream, tr.DataStream]:
        points, centres = points_and_centres.first, points_and_centres.second.broadcast()
        parts = points.connect(centres).process(Nearest(first))
        middles = parts.key_by(lambda part: part[0]).process(Middle())
        return middles, middles.side_output("centres")

    def still(result: Any) -> bool:
        return all(moved < 1e-9 for *_, moved in result.output)

    return points.iterate_with_feedback(loop, rounds=tr.Rounds(max=rounds, until=still))


def read_points() -> pd.DataFrame:
    """The airports on a globe of radius 1."""
    north, east = np.radians(airports.Latitude), np.radians(airports.Longitude)
    return pd.DataFrame({"x": np.cos(north) * np.cos(east), "y": np.cos(north) * np.sin(east), "z": np.sin(north)})


def first_centres(points: pd.DataFrame, groups: int, seed: int = 1) -> list[np.ndarray]:
    return list(points.sample(groups, random_state=seed).to_numpy())


def main(env: tr.Environment, points: pd.DataFrame, groups: int) -> DataFrame:
    """Runs the job. Returns a DataFrame of CENTRES; those of the last round are the answer."""
    stream = env.from_dataframe(env.spark.createDataFrame(points))
    return centres(stream, first_centres(points, groups)).to_dataframe(CENTRES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The centres of groups of US airports.")
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--master", help="of Spark; local where nothing is said")
    parser.add_argument("--parallelism", type=int)
    args = parser.parse_args()

    if args.master:
        os.environ["TAILRACE_MASTER"] = args.master
    points = read_points()
    found = main(tr.Environment(parallelism=args.parallelism, progress=True), points, args.groups).toPandas()
    print(f"\nAfter {found['round'].max()} rounds the centres stand still:")
    for centre in found[found["round"] == found["round"].max()].sort_values("number").itertuples():
        near = airports.iloc[np.argmax(points.to_numpy() @ [centre.x, centre.y, centre.z])]
        print(f"  {centre.airports:>3} airports around {near.City} ({near.IATA})")
