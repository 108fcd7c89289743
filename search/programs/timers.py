"""A golden program in which many timers of event time come due at once, so that cuts fall between two portions of them."""

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
