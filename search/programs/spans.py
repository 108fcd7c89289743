"""A golden program for the search, with a loop in rounds by spans of event time, and its result by plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import tailrace as tr
from search.programs.loops import looping

HOUR = 3_600
KEYS = 7
ROUNDS = 4


def seconds_of(i: int) -> int:
    """When a number comes, about in order; no number comes in the third hour, and few do in the first."""
    time = i * 97 + (i * 7_919) % 900
    return time if time < 2 * HOUR else time + HOUR + 40


class Gives(tr.KeyedProcessFunction):
    """A function that adds up what comes, and gives a quarter of it on when a round ends."""

    total = tr.ValueState(int, default=0)
    rounds = tr.ValueState(int, default=0)

    def process(self, value: tuple[int, int], ctx: tr.Context) -> None:
        self.total.value += value[1]

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        self.rounds.value += 1
        ctx.emit("found", (int(ctx.timestamp or 0) // HOUR, round, ctx.key, self.total.value, self.rounds.value))
        half = self.total.value // 2
        self.total.value -= half
        if half > 1:
            yield (ctx.key * 3 + 1) % KEYS, half // 2


def _body(values: tr.DataStream) -> Any:
    given = values.key_by(lambda value: value[0]).process(Gives(), uid="gives")
    return given, given.side_output("found")


def hours(rounds: Callable[[], tr.Rounds]) -> Callable[[tr.Environment, int, float | None], tr.DataStream]:
    """What is found in each round of each hour, and how much that is, by windows behind the loop."""

    def by_hours(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, n, rate=rate), uid="numbers")
        timed = numbers.assign_timestamps(seconds_of, out_of_orderness=1_000)
        spill = looping()["spill"]
        found = timed.map(lambda i: (i % KEYS, i)).iterate(_body, rounds=rounds(), spill=spill, uid="loop")
        many = found.key_by(lambda one: one[0]).window(tr.Tumbling("1 hour")).aggregate(n=tr.Count())
        return found.union(many.map(lambda row: ("window", row["key"], row["n"])))

    return by_hours


def interpreted(last: Callable[[int, list[Any]], bool]) -> Callable[[int], Counter[Any]]:
    """The result of plain Python. `last`: whether a round that has fed this back is the last one."""

    def expected(n: int) -> Counter[Any]:
        found = Counter[Any]()
        for hour in sorted({seconds_of(i) // HOUR for i in range(n)}):
            given = [(i % KEYS, i) for i in range(n) if seconds_of(i) // HOUR == hour]
            totals, rounds, round, results = Counter[int](), Counter[int](), 0, 0
            while given:
                for key, amount in given:
                    totals[key] += amount
                keys, given = {key for key, _ in given}, []
                for key in keys:
                    rounds[key] += 1
                    found[hour, round, key, totals[key], rounds[key]] += 1
                    results += 1
                    half = totals[key] // 2
                    totals[key] -= half
                    given += [((key * 3 + 1) % KEYS, half // 2)] if half > 1 else []
                given = [] if last(round, given) else given
                round += 1
            found["window", hour, results] += 1
        return found

    return expected


def within_hours(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Rounds of each hour of event time, with windows of the hour behind them."""
    return hours(lambda: tr.Rounds(max=ROUNDS, span=HOUR))(env, n, rate)


_within_hours = interpreted(lambda round, _: round + 1 >= ROUNDS)
