"""PageRank of US airports: where is a passenger who takes one route after the other, at random?

    pip install "tailrace[examples]"
    python examples/pagerank.py

A loop in rounds: what is fed back in one round is seen in the next, and a round ends for all airports at once.
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import pandas as pd
from bokeh_sampledata.airport_routes import routes
from pyspark.sql import DataFrame

import tailrace as tr

RANKS = "round int, airport string, rank double, change double"
DAMPING = 0.85  # so likely it is that the passenger takes a route, and does not turn up at any airport at all


Share = tuple[str, float]  # so much of its rank an airport hands on to this one


class Airport(tr.KeyedProcessFunction):
    """A record of RANKS for each airport and round. Round 0 is the input: the routes."""

    destinations = tr.ListState(str)
    received = tr.ValueState(float, default=0.0)
    rank = tr.ValueState(float, default=0.0)

    def __init__(self, airports: int) -> None:
        self.airports = airports

    def process(self, record: Any, ctx: tr.Context) -> None:
        if ctx.round == 0:
            self.destinations.add(record.destination)
        else:
            self.received.value += record[1]

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Share]:
        received = 1 / self.airports if round == 0 else self.received.value  # at first all are equal
        rank = (1 - DAMPING) / self.airports + DAMPING * received
        ctx.emit("ranks", (round, ctx.key, rank, abs(rank - self.rank.value)))
        self.rank.value, self.received.value = rank, 0.0
        destinations = self.destinations.get()
        for destination in destinations:
            yield destination, rank / len(destinations)
        yield ctx.key, 0.0  # who has a record in a round is called at its end


def ranks(flown: tr.DataStream, airports: int, tolerance: float, rounds: int = 100) -> tr.DataStream:
    """Records of RANKS, until those of a round differ from the ones before by less than `tolerance`, all together."""

    def loop(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        shares = records.key_by(lambda record: record[0]).process(Airport(airports))
        return shares, shares.side_output("ranks")

    def settled(result: Any) -> bool:
        return sum(change for _, _, _, change in result.output) < tolerance

    return flown.iterate(loop, rounds=tr.Rounds(max=rounds, until=settled))


def read_routes() -> pd.DataFrame:
    """A row for each airline that flies from `airport` to `destination`. Each airport has routes that leave it."""
    return pd.DataFrame({"airport": routes.Source, "destination": routes.Destination})


def main(env: tr.Environment, flown: pd.DataFrame, tolerance: float = 1e-9) -> DataFrame:
    """Runs the job. Returns a DataFrame of RANKS; those of the last round are the answer."""
    stream = env.from_dataframe(env.spark.createDataFrame(flown))
    return ranks(stream, flown.airport.nunique(), tolerance).to_dataframe(RANKS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PageRank of US airports.")
    parser.add_argument("--master", help="of Spark; local where nothing is said")
    parser.add_argument("--parallelism", type=int)
    args = parser.parse_args()

    if args.master:
        os.environ["TAILRACE_MASTER"] = args.master
    found = main(tr.Environment(parallelism=args.parallelism, progress=True), read_routes())
    last = found.agg({"round": "max"}).first()[0]
    print(f"\nThe airports of the highest rank, after {last} rounds:")
    found.where(found.round == last).select("airport", "rank").orderBy("rank", ascending=False).show(10)
