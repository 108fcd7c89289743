"""Core numbers of a graph that changes."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import tailrace as tr
from tailrace.graphs.live.edges import Change, Findings, LiveGraph, VertexTable, differences
from tailrace.graphs.live.order import LevelOrder, OrderedVertex, standings_of
from tailrace.graphs.live.spans import FirstSpan


class LiveCores(LiveGraph):
    """The core number of each vertex of a graph that changes.

    Vertices are in an order in which they could be taken away one by one, the least core numbers first: each has at most as
    many neighbours behind it as its core number is. A new edge that gives a vertex one more makes it rise, unless it could
    stand further back: those behind it are looked at in their order, as far as it matters. When an edge goes, vertices fall
    that have too few neighbours of their core number or above (Zhang, Yu, Zhang and Qin, "A Fast Order-Based Approach for
    Core Maintenance", 2017)."""

    standing = tr.ValueState(tuple)
    """Of each vertex, and of each level, what `OrderedVertex` has."""

    def open(self, ctx: tr.Context) -> None:
        super().open(ctx)
        self.standings = VertexTable(ctx, self.standing)

    def load(self, span: FirstSpan, known: list[Any]) -> Iterator[tuple[Any, ...]]:
        near = self.load_edges(self.edges, span, "both")
        stored = {one: self.standings.get(one) for one in known}
        before = {one: standing and standing[0] for one, standing in stored.items()}
        for one in (*known, *(("level", core) for core in {core for core in before.values() if core is not None})):
            self.standings.remove(one)
        standings = standings_of(span, near)
        self.standings.update(standings)
        after = {one: standing[0] for one, standing in standings.items() if standing[0] is not None}
        return differences({**dict.fromkeys(after), **before}, after)

    def take(self, changes: list[Change]) -> Iterator[tuple[Any, ...]]:
        self.seen = Findings(lambda vertex: OrderedVertex(self.standings.get(vertex)))
        self.order = LevelOrder(self.seen)
        self.near = Findings(lambda vertex: [one for one in self.edges.near(vertex) if one != vertex])
        for op, a, b, _ in changes:
            self.change(a, b, 1 if op == "+" else -1)
        yield from self.store()

    def change(self, a: Any, b: Any, by: int) -> None:
        """Takes in one edge more or less."""
        seen, left = self.seen, self.change_both(a, b, by)
        for one in dict.fromkeys((a, b)):
            self.near.pop(one, None)
            if by == 1 and seen[one].core is None:
                seen[one].core = 0
                self.order.put(one, self.order.before(("level", 0)))
        if by == 1:
            if left == 1 and a != b:
                self.connect(a, b)
        elif not left and a != b:
            self.separate(a, b)
        for one in dict.fromkeys((a, b)):
            if one not in self.edges:
                self.order.take(one)
                seen[one].core = None

    def store(self) -> Iterator[tuple[Any, ...]]:
        """Writes what has changed, and gives changes of core numbers."""
        before, after = dict[Any, Any](), dict[Any, Any]()
        for one, standing in self.seen.items():
            stored, parts = standing.stored, standing.parts()
            if parts is None:
                self.standings.remove(one)
            elif parts != stored:
                self.standings[one] = parts
            if standing.core != (stored and stored[0]):
                before[one], after[one] = stored and stored[0], standing.core
        return differences(before, after)

    def count(self, a: Any, b: Any, by: int) -> Any:
        """Counts an edge more or less where it counts. Its end that comes first in the order."""
        one, other = self.seen[a], self.seen[b]
        if one.core <= other.core:
            one.support += by
        if other.core <= one.core:
            other.support += by
        first = a if (one.core, one.label) < (other.core, other.label) else b
        self.seen[first].later += by
        return first

    def connect(self, a: Any, b: Any) -> None:
        """Raises the core numbers that a new edge raises."""
        seen, root = self.seen, self.count(a, b, 1)
        level = seen[root].core
        if seen[root].later <= level:
            return
        rising: dict[Any, None] = {}
        earlier = {root: 0}  # of those that were met: how many neighbours before them may rise
        moves: list[tuple[Any, Any]] = []
        waiting = [(seen[root].label, root)]
        while waiting:
            label, one = heappop(waiting)
            if earlier[one] + seen[one].later > level:
                rising[one] = None
                for other in self.near[one]:
                    standing = seen[other]
                    if standing.core == level and standing.label > label:
                        if other not in earlier:
                            earlier[other] = 0
                            heappush(waiting, (standing.label, other))
                        earlier[other] += 1
            elif earlier[one]:
                moves += self.stay(one, level, rising, earlier)
        for one, place in moves:  # not before: the labels above are those from before
            self.order.take(one)
            self.order.put(one, place)
        for one in reversed(rising):
            self.order.take(one)
            self.order.put(one, ("level", level + 1))
            seen[one].core = level + 1
        for one in rising:
            seen[one].support = 0
            for other in self.near[one]:
                if seen[other].core > level:
                    seen[one].support += 1
                    if seen[other].core == level + 1 and other not in rising:
                        seen[other].support += 1

    def stay(self, one: Any, level: int, rising: dict[Any, None], earlier: dict[Any, int]) -> Iterator[tuple[Any, Any]]:
        """Takes out of `rising` what does not rise because `one` does not: pairs of a vertex, and one that is before it
        from now on."""
        seen, place, fixed = self.seen, one, [one]
        known = {one}
        for gone in fixed:
            rising.pop(gone, None)
            for other in self.near[gone]:
                if other in rising:
                    if seen[other].label < seen[gone].label:
                        seen[other].later -= 1
                    else:
                        earlier[other] -= 1
                    if other not in known and earlier[other] + seen[other].later <= level:
                        known.add(other)
                        fixed.append(other)
                elif gone != one and earlier.get(other):
                    earlier[other] -= 1
            seen[gone].later += earlier[gone]
            earlier[gone] = 0
            if gone != one:
                yield gone, place
                place = gone

    def separate(self, a: Any, b: Any) -> None:
        """Lowers the core numbers that an edge held which is gone."""
        seen = self.seen
        self.count(a, b, -1)
        level = min(seen[a].core, seen[b].core)
        falling = [one for one in (a, b) if seen[one].core == level and seen[one].support < level]
        known = set(falling)
        for one in falling:
            mine = seen[one]
            mine.core, mine.later = level - 1, 0
            for other in self.near[one]:
                standing = seen[other]
                if standing.core >= level:
                    mine.later += 1
                if standing.core == level:
                    standing.support -= 1
                    if standing.label < mine.label:
                        standing.later -= 1
                    if standing.support < level and other not in known:
                        known.add(other)
                        falling.append(other)
        for one in falling:
            self.order.take(one)
            self.order.put(one, self.order.before(("level", level - 1)))
        for one in falling:
            seen[one].support = sum(seen[other].core >= level - 1 for other in self.near[one])
