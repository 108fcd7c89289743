"""Degrees of a graph that changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tailrace as tr
from tailrace.graphs.live.edges import checked_change


class LiveDegrees(tr.KeyedProcessFunction):
    """The degree of each vertex of a graph that changes, by vertex. A record is (id, how much more, the change)."""

    degree = tr.ValueState(int, default=0)

    def process(self, record: tuple[Any, int, Any], ctx: tr.Context) -> Iterator[tuple[str, Any, int]]:
        one, more, change = record
        old, new = self.degree.value, self.degree.value + more
        if new < 0:
            raise ValueError(f"a change takes away an edge that is not there: {change!r}")
        if old:
            yield "-", one, old
        if new:
            self.degree.value = new
            yield "+", one, new
        else:
            self.degree.clear()


def ends_of(change: Any) -> list[tuple[Any, int, Any]]:
    """Records of `LiveDegrees`, one for each end of an edge."""
    op, a, b, _ = checked_change(change)
    more = 1 if op == "+" else -1
    return [(a, 2 * more, change)] if a == b else [(a, more, change), (b, more, change)]
