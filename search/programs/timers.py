"""Golden programs of event time: many timers come due at once, so that cuts fall between two portions of them; and a
function is called in the order of time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tailrace as tr


class Onwards(tr.KeyedProcessFunction):
    """A function that sets some timers for each record, and reports where event time is behind the latest time that a key
    has seen."""

    furthest = tr.ValueState(float, default=-math.inf)

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        assert ctx.timestamp is not None
        for later in range(6):
            ctx.set_timer(event_time=ctx.timestamp + later + value / 1000)
        return self._seen(ctx)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, round(timestamp, 3)
        yield from self._seen(ctx)

    def _seen(self, ctx: tr.Context) -> Iterator[Any]:
        if ctx.watermark < self.furthest.value:
            yield "back", ctx.watermark, self.furthest.value
        self.furthest.value = max(self.furthest.value, ctx.watermark)


def without_going_back(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Timers under event time that leaps. At one parallelism it never goes back, whatever checkpoint the function goes on
    from."""
    stamped = env.from_source(tr.sources.Sequence(0, n, rate=rate)).assign_timestamps(lambda i: i // 16 * 100.0)
    return stamped.key_by(lambda i: i % 5).process(Onwards(), parallelism=2)


def _without_going_back(n: int) -> Counter[Any]:
    return Counter((i % 5, round(i // 16 * 100.0 + later + i / 1000, 3)) for i in range(n) for later in range(6))


class Chained(tr.CoProcessFunction):
    """A function whose results depend on the order of all that it is called for, and on the watermark. What a key has seen
    of that counts on: behind a start at another parallelism a timer for a time that has passed sees an earlier one."""

    digest = tr.ValueState(int, default=0)
    furthest = tr.ValueState(float, default=-math.inf)

    def process1(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        assert ctx.timestamp is not None
        ctx.set_timer(event_time=ctx.timestamp + value % 9 - 2)
        return self._on(2 * value, ctx)

    def process2(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        return self._on(2 * value + 1, ctx)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        return self._on(round(timestamp) + 7_919, ctx)

    def _on(self, number: int, ctx: tr.Context) -> Iterator[Any]:
        self.digest.value = _chained(self.digest.value, number)
        self.furthest.value = max(self.furthest.value, ctx.watermark)
        yield ctx.key, self.digest.value, round(self.furthest.value * 1e6)


def _chained(digest: int, number: int) -> int:
    return (digest * 31 + number + 1) % 1_000_003


def in_order(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A function on two streams that is called in the order of time, and timers before, at and behind their records."""
    stamped = env.from_source(tr.sources.Sequence(0, n, rate=rate)).assign_timestamps(lambda i: float(i ^ 7), 7.0)
    first = stamped.filter(lambda i: i % 3 > 0)
    second = stamped.filter(lambda i: i % 3 < 2).rebalance().map(lambda i: i)
    both = first.connect(second).key_by(lambda i: i % 5, lambda i: i % 5)
    return both.process(Chained(), in_order=True)


def _in_order(n: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for key in range(5):
        digest, reached, timers = 0, -math.inf, set[int]()
        records = [
            (i ^ 7, port, i) for i in range(key, n, 5) for port, there in ((0, i % 3 > 0), (1, i % 3 < 2)) if there
        ]
        waiting = sorted(records, reverse=True)
        while waiting or timers:
            due = min(timers, default=None)
            if waiting and (due is None or waiting[-1][0] <= due):
                time, port, i = waiting.pop()
                number, reached = 2 * i + port, max(reached, time * 1_000_000 - 1)
                if not port:
                    timers.add(time + i % 9 - 2)
            else:
                assert due is not None
                timers.remove(due)
                number, reached = due + 7_919, max(reached, due * 1_000_000)
            digest = _chained(digest, number)
            found[key, digest, reached] += 1
    return found
