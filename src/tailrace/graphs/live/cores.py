"""Core numbers of a graph that changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tailrace as tr
from tailrace.graphs.live.edges import LiveGraph, VertexTable, differences


class LiveCores(LiveGraph):
    """The core number of each vertex of a graph that changes.

    An edge changes core numbers by one, of vertices that have the lesser core number of its ends and are joined to it by
    such vertices. A search from there stops where a vertex has too few neighbours to rise (Sariyuce, Gedik, Jacques-Silva,
    Wu and Catalyurek, "Streaming Algorithms for k-Core Decomposition", 2013)."""

    core = tr.ValueState(int)

    def open(self, ctx: tr.Context) -> None:
        super().open(ctx)
        self.cores = VertexTable(ctx, self.core)

    def process(self, change: Any, ctx: tr.Context) -> Iterator[tuple[Any, ...]]:
        op, a, b, _ = self.parts(change)
        before = {one: self.cores.get(one) for one in (a, b)}
        left = self.change_both(a, b, 1 if op == "+" else -1)
        if op == "+":
            for one in (a, b):
                if before[one] is None:
                    self.cores[one] = 0
            if left == 1 and a != b:
                self.rise(a if self.cores[a] <= self.cores[b] else b, before)
        elif not left and a != b:
            self.fall(a, b, before)
        for one in (a, b):
            if one not in self.edges:
                self.cores.remove(one)
        yield from differences(before, self.cores)

    def near(self, vertex: Any) -> list[Any]:
        """The neighbours of a vertex, without the vertex itself."""
        return [one for one in self.edges.near(vertex) if one != vertex]

    def rise(self, root: Any, before: dict[Any, Any]) -> None:
        """Raises the core numbers that an edge of `root` raises."""
        level = self.cores[root]
        may_rise: dict[Any, bool] = {}  # whether enough neighbours are at this level or above

        def may(one: Any) -> bool:
            if one not in may_rise:
                may_rise[one] = sum(self.cores[other] >= level for other in self.near(one)) > level
            return may_rise[one]

        def support(one: Any) -> int:
            return sum(
                self.cores[other] > level or (self.cores[other] == level and may(other)) for other in self.near(one)
            )

        if not may(root):
            return
        lost: dict[Any, int] = {}  # how many supporters a vertex has lost, also before it was reached
        supporters = {root: support(root)}
        stays: set[Any] = set()
        waiting = [root]
        while waiting and root not in stays:
            one = waiting.pop()
            if one in stays:
                continue
            if supporters[one] - lost.get(one, 0) > level:
                for other in self.near(one):
                    if other not in supporters and self.cores[other] == level and may(other):
                        supporters[other] = support(other)
                        waiting.append(other)
                continue
            staying = [one]
            stays.add(one)
            while staying:
                for other in self.near(staying.pop()):
                    if self.cores[other] == level:
                        lost[other] = lost.get(other, 0) + 1
                        if other in supporters and other not in stays and supporters[other] - lost[other] <= level:
                            stays.add(other)
                            staying.append(other)
        if root not in stays:
            for one in supporters.keys() - stays:
                before.setdefault(one, level)
                self.cores[one] = level + 1

    def fall(self, a: Any, b: Any, before: dict[Any, Any]) -> None:
        """Lowers the core numbers that the edge between `a` and `b` held."""
        level = min(self.cores[a], self.cores[b])
        waiting = [one for one in (a, b) if self.cores[one] == level]
        supporters: dict[Any, int] = {}
        while waiting:
            one = waiting.pop()
            if self.cores[one] != level:
                continue
            if one not in supporters:
                supporters[one] = sum(self.cores[other] >= level for other in self.near(one))
            if supporters[one] >= level:
                continue
            before.setdefault(one, level)
            self.cores[one] = level - 1
            for other in self.near(one):
                if self.cores[other] == level:
                    if other in supporters:
                        supporters[other] -= 1
                    waiting.append(other)
