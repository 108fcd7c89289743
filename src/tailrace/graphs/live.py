"""Graphs whose edges come and go: a stream of changes of edges in, a stream of changes of the result out.

A change of an edge is a record ("+" or "-", src, dst). A change of the result is ("+", id, value) or ("-", id, value): a "-"
takes back what a "+" has said before. After each change the result is that of the static algorithm over the edges that are
there. Ids are whole numbers or texts.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import tailrace as tr

IN_A_BUCKET = 32
"""Neighbours of a vertex in one entry of the state, about: a change writes so many, however many a vertex has."""


class LiveComponents(tr.KeyedProcessFunction):
    """Components of a graph that changes, all of it in the state of one key.

    An edge that joins two components gives the vertices of one of them a new name. When an edge goes, both of its ends
    search for each other, a vertex at a time in turn: this ends when they meet, or when the smaller part is known. Only a
    part that loses the least id is gone through beyond that."""

    component = tr.MapState(object, object)
    degree = tr.MapState(object, tuple)
    """Vertex -> the number of its buckets, and of its neighbours."""
    neighbours = tr.MapState(tuple, dict)
    """(Vertex, bucket) -> neighbour -> how often this edge is there."""

    def process(self, change: Any, ctx: tr.Context) -> Iterator[tuple[str, Any, Any]]:
        op, a, b = checked_change(change)
        before = {one: self.component.get(one, None) for one in (a, b)}
        after = self.add(a, b) if op == "+" else self.remove(a, b)
        for one in sorted(after):
            old = before[one] if one in before else self.component[one]
            new = after[one]
            if new is None:
                self.component.remove(one)
            else:
                self.component[one] = new
            if old != new:
                if old is not None:
                    yield "-", one, old
                if new is not None:
                    yield "+", one, new

    def add(self, a: Any, b: Any) -> dict[Any, Any]:
        """The components that are new, by vertex, with one more edge."""
        after: dict[Any, Any] = {one: self.component.get(one, one) for one in (a, b)}
        less, more = (a, b) if after[a] <= after[b] else (b, a)
        if after[a] != after[b]:
            after |= dict.fromkeys(self.part_of(more), after[less])
        self.count(a, b, 1)
        if a != b:
            self.count(b, a, 1)
        return after

    def remove(self, a: Any, b: Any) -> dict[Any, Any]:
        """The components that are new, by vertex, with one edge less. Raises `ValueError` if it is not there."""
        left = self.count(a, b, -1)
        if a != b:
            self.count(b, a, -1)
        if left:
            return {}
        after: dict[Any, Any] = {one: None for one in (a, b) if one not in self.degree}
        split = self.smaller_part(a, b) if a != b else None
        if split is None:
            return after
        part, other = split
        if self.component[a] in part:  # this part keeps the name, and all others need a new one
            part = self.part_of(other)
        there = [one for one in part if one not in after]
        return after | (dict.fromkeys(there, min(there)) if there else {})

    def smaller_part(self, a: Any, b: Any) -> tuple[set[Any], Any] | None:
        """The smaller part, and the end of the edge that is in the other one, where no other way joins `a` and `b`."""
        found, waiting = ({a}, {b}), (deque([a]), deque([b]))
        while True:
            for side in (0, 1):
                if not waiting[side]:
                    return found[side], (b, a)[side]
                for one in self.of(waiting[side].popleft()):
                    if one in found[1 - side]:
                        return None
                    if one not in found[side]:
                        found[side].add(one)
                        waiting[side].append(one)

    def part_of(self, start: Any) -> set[Any]:
        """All vertices of the component of a vertex."""
        found, waiting = {start}, [start]
        while waiting:
            for one in self.of(waiting.pop()):
                if one not in found:
                    found.add(one)
                    waiting.append(one)
        return found

    def of(self, vertex: Any) -> Iterator[Any]:
        """The neighbours of a vertex."""
        buckets, _ = self.degree.get(vertex, (0, 0))
        for bucket in range(buckets):
            yield from self.neighbours.get((vertex, bucket), ())

    def count(self, vertex: Any, neighbour: Any, change: int) -> int:
        """How often an edge is there, with the change."""
        buckets, degree = self.degree.get(vertex, (1, 0))
        place = vertex, code(neighbour) % buckets
        there = dict(self.neighbours.get(place, ()))
        left = there.pop(neighbour, 0) + change
        if left < 0:
            raise ValueError(f"a change takes away the edge ({vertex!r}, {neighbour!r}), which is not there")
        if left:
            there[neighbour] = left
        self.store(place, there)
        degree += (left > 0) - (left - change > 0)
        if degree > IN_A_BUCKET * buckets:
            self.deal(vertex, buckets, 2 * buckets)
            buckets *= 2
        if degree:
            self.degree[vertex] = buckets, degree
        else:
            self.degree.remove(vertex)
        return left

    def deal(self, vertex: Any, buckets: int, more: int) -> None:
        """Deals the neighbours of a vertex to more buckets."""
        dealt: dict[int, dict[Any, int]] = {}
        for bucket in range(buckets):
            for neighbour, often in self.neighbours.get((vertex, bucket), {}).items():
                dealt.setdefault(code(neighbour) % more, {})[neighbour] = often
        for bucket in range(more):
            self.store((vertex, bucket), dealt.get(bucket, {}))

    def store(self, place: tuple[Any, int], there: dict[Any, int]) -> None:
        if there:
            self.neighbours[place] = there
        else:
            self.neighbours.remove(place)


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


def checked_change(change: Any) -> tuple[str, Any, Any]:
    """The parts of a change of an edge. Raises `ValueError` or `TypeError` for anything else."""
    try:
        op, a, b = change
    except (TypeError, ValueError):
        raise TypeError(f'a change of an edge is ("+" or "-", src, dst), not {change!r}') from None
    if op not in ("+", "-"):
        raise ValueError(f'a change of an edge begins with "+" or "-", not {op!r}')
    for one in (a, b):
        if type(one) not in (int, str):
            raise TypeError(f"ids of vertices that come and go are whole numbers or texts, not {one!r}")
    return op, a, b


def code(one: Any) -> int:
    """A number of an id, the same in each process."""
    return one if type(one) is int else zlib.crc32(one.encode("utf-8", "surrogatepass"))


def connected_components(changes: tr.DataStream, **options: Any) -> tr.DataStream:
    """Changes of (id, component) for changes of edges."""
    return changes.key_by(lambda _: 0).process(LiveComponents(), **{"name": "connected_components", **options})


def degrees(changes: tr.DataStream, **options: Any) -> tr.DataStream:
    """Changes of (id, degree) for changes of edges."""
    ends = changes.flat_map(ends_of)
    return ends.key_by(lambda record: record[0]).process(LiveDegrees(), **{"name": "degrees", **options})


def ends_of(change: Any) -> list[tuple[Any, int, Any]]:
    op, a, b = checked_change(change)
    more = 1 if op == "+" else -1
    return [(a, 2 * more, change)] if a == b else [(a, more, change), (b, more, change)]
