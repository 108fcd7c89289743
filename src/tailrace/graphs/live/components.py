"""Components of a graph that changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import tailrace as tr
from tailrace.graphs.live.edges import LiveGraph, VertexTable, differences


class LiveComponents(LiveGraph):
    """Components of a graph that changes.

    An edge that joins two components gives the vertices of one of them a new name. When an edge goes, both of its ends
    search for each other, a vertex at a time in turn: this ends when they meet, or when the smaller part is known. Only a
    part that loses the least id is gone through beyond that."""

    component = tr.ValueState(object)

    def open(self, ctx: tr.Context) -> None:
        super().open(ctx)
        self.components = VertexTable(ctx, self.component)

    def process(self, change: Any, ctx: tr.Context) -> Iterator[tuple[Any, ...]]:
        op, a, b, _ = self.parts(change)
        before = {one: self.components.get(one) for one in (a, b)}
        after = self.add(a, b) if op == "+" else self.remove(a, b)
        for one, new in after.items():
            if one not in before:
                before[one] = self.components[one]
            if new is None:
                self.components.remove(one)
            elif new != before[one]:
                self.components[one] = new
        yield from differences(before, {one: after.get(one, old) for one, old in before.items()})

    def add(self, a: Any, b: Any) -> dict[Any, Any]:
        """The components that are new, by vertex, with one more edge."""
        after: dict[Any, Any] = {one: one if (name := self.components.get(one)) is None else name for one in (a, b)}
        less, more = (a, b) if after[a] <= after[b] else (b, a)
        if after[a] != after[b]:
            after |= dict.fromkeys(self.part_of(more), after[less])
        self.change_both(a, b, 1)
        return after

    def remove(self, a: Any, b: Any) -> dict[Any, Any]:
        """The components that are new, by vertex, with one edge less. Raises `ValueError` if it is not there."""
        if self.change_both(a, b, -1):
            return {}
        edges = self.edges
        after: dict[Any, Any] = {one: None for one in (a, b) if one not in edges}
        split = self.smaller_part(a, b) if a != b else None
        if split is None:
            return after
        part, other = split
        if self.components[a] in part:  # this part keeps the name, and all others need a new one
            part = self.part_of(other)
        there = [one for one in part if one not in after]
        return after | (dict.fromkeys(there, min(there)) if there else {})

    def smaller_part(self, a: Any, b: Any) -> tuple[set[Any], Any] | None:
        """The smaller part, and the end of the edge that is in the other one, where no other way joins `a` and `b`."""
        edges, found, waiting = self.edges, ({a}, {b}), (deque([a]), deque([b]))
        while True:
            for side in (0, 1):
                if not waiting[side]:
                    return found[side], (b, a)[side]
                for one in edges.near(waiting[side].popleft()):
                    if one in found[1 - side]:
                        return None
                    if one not in found[side]:
                        found[side].add(one)
                        waiting[side].append(one)

    def part_of(self, start: Any) -> set[Any]:
        """All vertices of the component of a vertex."""
        edges, found, waiting = self.edges, {start}, [start]
        while waiting:
            for one in edges.near(waiting.pop()):
                if one not in found:
                    found.add(one)
                    waiting.append(one)
        return found
