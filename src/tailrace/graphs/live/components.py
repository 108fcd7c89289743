"""Components of a graph that changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import tailrace as tr
from tailrace.graphs.forests import components
from tailrace.graphs.live.edges import Change, Findings, LiveGraph, VertexTable, differences
from tailrace.graphs.live.spans import FirstSpan, names_of


class LiveComponents(LiveGraph):
    """Components of a graph that changes.

    Of components that edges join, all but the one with the least id get another name, once for all edges that come
    together. When an edge goes, both of its ends search for each other, a vertex at a time in turn: this ends when they
    meet, or when the smaller part is known. Only a part that loses the least id is gone through beyond that."""

    component = tr.ValueState(object)

    def open(self, ctx: tr.Context) -> None:
        super().open(ctx)
        self.components = VertexTable(ctx, self.component)

    def load(self, span: FirstSpan, known: list[Any]) -> Iterator[tuple[Any, ...]]:
        self.load_edges(self.edges, span, "both")
        before, after = {one: self.components.get(one) for one in known}, dict[Any, Any]()
        for one in known:
            self.components.remove(one)
        if len(span.src):
            numbers, least = (names_of(span.ids, column) for column in components([span.src, span.dst], "weak"))
            after = dict(zip(numbers, least, strict=True))
        self.components.update(after)
        return differences({**dict.fromkeys(after), **before}, after)

    def take(self, changes: list[Change]) -> Iterator[tuple[Any, ...]]:
        self.before: dict[Any, Any] = {}
        for op, some in groupby(changes, itemgetter(0)):
            edges = [(a, b) for _, a, b, _ in some]
            if op == "+":
                self.add(edges)
            else:
                for a, b in edges:
                    self.remove(a, b)
        return differences(self.before, self.components)

    def rename(self, vertices: Iterable[Any], name: Any) -> None:
        """Moves vertices to the component of a name; None: to none."""
        for one in vertices:
            old = self.components.get(one)
            self.before.setdefault(one, old)
            if name is None:
                self.components.remove(one)
            elif name != old:
                self.components[one] = name

    def add(self, edges: list[tuple[Any, Any]]) -> None:
        """Joins the components between which edges come."""
        found = Findings(self.components.get)
        members: dict[Any, Any] = {}  # a vertex of each component, by its name
        joined: dict[Any, Any] = {}  # names of two components that are one now: the greater one -> the less
        for ends in edges:
            names = []
            for one in ends:
                name = one if found[one] is None else found[one]
                members.setdefault(name, one)
                names.append(least(joined, name))
            if names[0] != names[1]:
                joined[max(names)] = min(names)
        for name, one in members.items():
            new = found[one] is None  # such a vertex is alone
            if new or name in joined:
                self.rename([one] if new else self.part_of(one), least(joined, name))
        self.add_both(edges)

    def remove(self, a: Any, b: Any) -> None:
        """Takes an edge away, and makes two components where it was all that joined them. Raises `ValueError` if it is not
        there."""
        if self.change_both(a, b, -1):
            return
        gone = [one for one in dict.fromkeys((a, b)) if one not in self.edges]
        split = self.smaller_part(a, b) if a != b else None
        if split is not None:
            part, other = split
            if self.components[a] in part:  # this part keeps the name, and all others need a new one
                part = self.part_of(other)
            if part := part.difference(gone):
                self.rename(part, min(part))
        self.rename(gone, None)

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


def least(joined: dict[Any, Any], name: Any) -> Any:
    """The name at the end of the way from a name. Ways get shorter as they are taken."""
    while name in joined:
        before, name = name, joined[name]
        joined[before] = joined.get(name, name)
    return name
