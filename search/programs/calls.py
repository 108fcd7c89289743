"""A golden program of asynchronous calls: in order, in order for each key, and in any order between two watermarks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tailrace as tr


class Service(tr.AsyncFunction):
    """A service that takes its time, and answers some calls only when they are made again."""

    def __init__(self) -> None:
        self.asked = set[int]()

    async def call(self, value: Any) -> Any:
        first = value[0] if isinstance(value, list) else value
        await asyncio.sleep(first * 7_919 % 13 / 10_000)
        if first % 5 == 0 and first not in self.asked:
            self.asked.add(first)
            raise ConnectionError(f"no answer for {first}")
        return value


class Onwards(tr.KeyedProcessFunction):
    """A function that reports a record which comes behind a later one of its key."""

    last = tr.ValueState(int, default=-1)

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        if value < self.last.value:
            yield -1 - value
        self.last.value = value
        yield value


def called(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Calls whose results must be in order, and none of which may be late behind them."""
    again = tr.Retry(2, wait=0.0002)
    source = env.from_source(tr.sources.Sequence(0, n, rate=rate), parallelism=1)
    stamped = source.assign_timestamps(lambda i: i, 3.0, parallelism=1)
    ordered = stamped.map_async(Service(), capacity=5, retry=again, parallelism=1)
    by_key = ordered.key_by(lambda i: i % 7).map_async(Service(), capacity=6, ordered="key", retry=again)
    checked = by_key.key_by(lambda i: i % 7).process(Onwards())
    unordered = checked.rebalance().map_async(Service(), capacity=8, ordered=False, retry=again, batch=3)
    return unordered.key_by(lambda i: i % 3).window(tr.Tumbling(10)).aggregate(n=tr.Count(), s=tr.Sum()).map(tuple)


def _called(n: int) -> Counter[Any]:
    windows: dict[Any, list[int]] = {}
    for i in range(n):
        windows.setdefault((i % 3, i - i % 10), []).append(i)
    return Counter((key, float(start), start + 10.0, len(of), sum(of)) for (key, start), of in windows.items())
