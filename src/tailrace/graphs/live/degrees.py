"""Degrees of a graph that changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tailrace as tr

Change = tuple[str, Any, Any, Any]


class LiveDegrees(tr.KeyedProcessFunction):
    """The degree of each vertex of a graph that changes, by vertex. A record is (id, how much more, the change)."""

    degree = tr.ValueState(int, default=0)

    def process(self, record: tuple[Any, int, Change], ctx: tr.Context) -> Iterator[tuple[str, Any, int]]:
        one, more, change = record
        old, new = self.degree.value, self.degree.value + more
        if new < 0:
            raise not_there(change)
        if old:
            yield "-", one, old
        if new:
            self.degree.value = new
            yield "+", one, new
        else:
            self.degree.clear()


class LiveEdges(tr.KeyedProcessFunction):
    """How often each edge is there, by edge: degrees alone do not show that an edge goes which is not there."""

    often = tr.ValueState(int, default=0)

    def process(self, change: Change, ctx: tr.Context) -> None:
        left = self.often.value + (1 if change[0] == "+" else -1)
        if left < 0:
            raise not_there(change)
        if left:
            self.often.value = left
        else:
            self.often.clear()


def not_there(change: Change) -> ValueError:
    return ValueError(f"a change takes away the edge ({change[1]!r}, {change[2]!r}), which is not there")


def edge_of(change: Change) -> tuple[Any, Any]:
    """The ends of an edge, whichever comes first."""
    _, a, b, _ = change
    return (a, b) if a <= b else (b, a)


def ends_of(change: Change) -> list[tuple[Any, int, Change]]:
    """Records of `LiveDegrees`, one for each end of an edge."""
    op, a, b, _ = change
    more = 1 if op == "+" else -1
    return [(a, 2 * more, change)] if a == b else [(a, more, change), (b, more, change)]
