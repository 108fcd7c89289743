"""Shortest paths over a graph that changes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import itemgetter
from typing import Any

import tailrace as tr
from tailrace.graphs.live.edges import Change, DirectedGraph, Edges, VertexTable
from tailrace.graphs.live.spans import FirstSpan

Leg = tuple[Any, Any, Any]  # from, to, length
Entry = tuple[Any, int, Any, Any]  # a distance, hops, the vertex before, and the vertex to which this way leads


class LivePaths(DirectedGraph):
    """The shortest ways from each source over a graph that changes.

    A way is (distance, hops, the vertex before); the least one counts. Distances are exact sums, so that a longer way is
    never as long as a shorter one by rounding. A new edge spreads what it makes shorter. When an edge goes, the vertices
    are found whose every shortest way led over it, in the order of their ways; they get new ones from their other
    neighbours, and no other vertex is looked at (Ramalingam and Reps, "An Incremental Algorithm for a Generalization of the
    Shortest-Path Problem", 1996)."""

    way = tr.ValueState(tuple)
    """The shortest way, of a key (vertex, source)."""
    weighted = True

    def __init__(self, sources: list[Any], directed: bool) -> None:
        self.sources, self.directed, self.both_ways = sources, directed, not directed

    def open(self, ctx: tr.Context) -> None:
        super().open(ctx)
        self.ways = VertexTable(ctx, self.way)

    def load(self, span: FirstSpan, known: list[Any]) -> Iterator[tuple[Any, ...]]:
        lengths = [exact(weight) for weight in span.weight.tolist()]
        self.load_edges(self.edges, span, "out" if self.directed else "both", lengths)
        if self.directed:
            self.load_edges(self.into, span, "into", lengths)
        ways = self.ways_of_sources()
        for one in ways:
            one.begin(known)
        return results(ways)

    def ways_of_sources(self) -> list[SourceWays]:
        into = self.into if self.directed else self.edges
        return [SourceWays(source, self.ways, self.edges, into) for source in self.sources]

    def take(self, changes: list[Change]) -> Iterator[tuple[Any, ...]]:
        ways = self.ways_of_sources()
        for op, some in groupby(changes, itemgetter(0)):
            if op == "+":
                new = [leg for _, a, b, weight in some for leg in self.change(a, b, weight, 1)[0]]
                for one in ways:
                    one.add(new)
                continue
            for _, a, b, weight in some:
                legs, left = self.change(a, b, weight, -1)
                for one in () if left else ways:
                    one.remove(legs)
        return results(ways)

    def change(self, a: Any, b: Any, weight: Any, by: int) -> tuple[list[Leg], int]:
        """The ways over an edge, and how often it is there, with one more or one less."""
        length, left = exact(weight), 0
        legs = [(a, b, length)] if self.directed or a == b else [(a, b, length), (b, a, length)]
        for x, y, _ in legs:
            left = self.edges.change(x, (y, length), by)
            if self.directed:
                self.into.change(y, (x, length), by)
        return legs, left


class SourceWays:
    """Ways from one source, with those that a change has replaced."""

    def __init__(self, source: Any, ways: VertexTable, out: Edges, into: Edges) -> None:
        self.source, self.ways, self.out, self.into = source, ways, out, into
        self.before: dict[Any, Any] = {}

    def of(self, vertex: Any) -> Any:
        return self.ways.get((vertex, self.source))

    def put(self, vertex: Any, way: Any) -> None:
        self.before.setdefault(vertex, self.of(vertex))
        if way is None:
            self.ways.remove((vertex, self.source))
        else:
            self.ways[vertex, self.source] = way

    def begin(self, known: list[Any]) -> None:
        """All ways over edges that are new, where those of the vertices `known` are gone."""
        for one in known:
            if self.of(one) is not None:
                self.put(one, None)
        if self.source in self.out or self.source in self.into:
            self.spread([(0, 0, None, self.source)])

    def add(self, legs: list[Leg]) -> None:
        """Ways over edges that are new."""
        heap: list[Entry] = []
        for x, y, length in legs:
            if self.source in (x, y) and self.of(self.source) is None:
                heap.append((0, 0, None, self.source))
            elif way := self.of(x):
                heap.append((way[0] + length, way[1] + 1, x, y))
        self.spread(heap)

    def spread(self, heap: list[Entry]) -> None:
        """Takes ways that are less than those before, the least first, and goes on from there."""
        heapify(heap)
        while heap:
            distance, hops, parent, one = heappop(heap)
            old = self.of(one)
            if old is None or (distance, hops) < old[:2]:
                self.put(one, (distance, hops, parent))
                for end, length in self.out.near(one):
                    further, there = (distance + length, hops + 1), self.of(end)
                    if there is None or further < there[:2] or (further == there[:2] and one < there[2]):
                        heappush(heap, (*further, one, end))
            elif (distance, hops) == old[:2] and hops and parent < old[2]:
                self.put(one, (distance, hops, parent))

    def remove(self, legs: list[Leg]) -> None:
        """Ways without an edge that is gone."""
        suspects = [
            (*there[:2], y)
            for x, y, length in legs
            if (way := self.of(x)) and (there := self.of(y)) and (way[0] + length, way[1] + 1) == there[:2]
        ]
        if self.of(self.source) and self.source not in self.out and self.source not in self.into:
            self.put(self.source, None)  # it is no vertex any more, and had no edge out
        lost = self.without_support(suspects)
        heap: list[Entry] = []
        for one in lost:
            self.put(one, None)
        for one in lost:
            for other, leg in self.into.near(one):
                if way := self.of(other):
                    heap.append((way[0] + leg, way[1] + 1, other, one))
        self.spread(heap)

    def without_support(self, suspects: list[tuple[Any, int, Any]]) -> set[Any]:
        """The vertices that no neighbour justifies the way of any more. Others of the suspects get the vertex before that is
        left."""
        heapify(suspects)
        lost: set[Any] = set()
        seen: set[Any] = set()
        while suspects:
            distance, hops, one = heappop(suspects)
            if one in seen:
                continue
            seen.add(one)
            parents = [
                other
                for other, leg in self.into.near(one)
                if other not in lost and (way := self.of(other)) and (way[0] + leg, way[1] + 1) == (distance, hops)
            ]
            if parents:
                self.put(one, (distance, hops, min(parents)))
                continue
            lost.add(one)
            for end, leg in self.out.near(one):
                there = self.of(end)
                if there and there[:2] == (distance + leg, hops + 1):
                    heappush(suspects, (*there[:2], end))
        return lost


def results(ways: list[SourceWays]) -> Iterator[tuple[Any, ...]]:
    """Changes of the result, from the ways before to those of now."""
    for one in ways:
        for vertex in sorted(one.before):
            old, row = row_of(one.before[vertex]), row_of(one.of(vertex))
            if old != row:
                if old is not None:
                    yield "-", vertex, one.source, *old
                if row is not None:
                    yield "+", vertex, one.source, *row


def exact(weight: float) -> Any:
    """A weight whose sums are exact: a whole number, or a fraction."""
    return int(weight) if weight == int(weight) else Fraction(weight)


def row_of(way: Any) -> tuple[float, Any] | None:
    """What a result has of a way: its distance and the vertex before."""
    return way and (float(way[0]), way[2])
