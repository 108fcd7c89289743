"""Shortest paths from given vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.graphs.forests import matrix
from tailrace.graphs.supersteps import (
    NONE,
    ReceivedMessages,
    SentMessages,
    VertexProgram,
    VertexSlice,
    bits,
    distinct,
    doubles,
)

HOPS = 1 << 32
"""A tag is the number of a source times this, plus the hops of a way."""


class ShortestPaths(VertexProgram):
    """Distances from each source, and the vertex before on a shortest way. Of several shortest ways one with the fewest hops
    counts, and of these the one whose last vertex has the least id: so no way goes in a circle, even over edges of no
    length."""

    sorts = False

    def __init__(self, sources: list[int], weighted: bool, both_ways: bool, most: int | None = None) -> None:
        self.sources, self.weighted, self.both_ways, self.most = np.array(sources, np.int64), weighted, both_ways, most
        self.gather_limit = 1 << 24 if most is None else 0  # a way of `most` edges takes no more steps
        self.distance: Any = None
        self.schema = pa.schema(
            [("id", pa.int64()), ("source", pa.int64()), ("distance", pa.float64()), ("parent", pa.int64())]
        )

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        if number == 0:
            if self.weighted and (part.out.weights < 0).any():
                raise ValueError("shortest_paths: a weight is negative, and a way could get shorter without end")
            shape = (len(self.sources), len(part.ids))
            self.distance, self.hops = np.full(shape, np.inf), np.full(shape, HOPS, np.int64)
            self.parent = np.zeros(shape, np.int64)
            for one, source in enumerate(self.sources.tolist()):
                at = int(part.numbers(source))
                if at < len(part.ids) and part.ids[at] == source:
                    self.distance[one, at], self.hops[one, at], self.parent[one, at] = 0.0, 0, source
                    self.send(part, one, np.array([at]), outbox)
            return
        source, hops, distance = inbox.tag // HOPS, inbox.tag % HOPS, doubles(inbox.value)
        for one in np.unique(source).tolist():
            here = source == one
            self.relax(part, one, inbox.target[here], distance[here], hops[here], inbox.other[here], outbox)

    def relax(
        self, part: VertexSlice, one: int, at: Any, distance: Any, hops: Any, parent: Any, outbox: SentMessages
    ) -> None:
        order = np.lexsort((parent, hops, distance, at))
        at, distance, hops, parent = at[order], distance[order], hops[order], parent[order]
        best = np.concatenate([[True], at[1:] != at[:-1]])
        at, distance, hops, parent = at[best], distance[best], hops[best], parent[best]
        old, old_hops = self.distance[one, at], self.hops[one, at]
        shorter = (distance < old) | ((distance == old) & (hops < old_hops))
        better = shorter | ((distance == old) & (hops == old_hops) & (parent < self.parent[one, at]))
        changed = at[better]
        self.distance[one, changed], self.hops[one, changed] = distance[better], hops[better]
        self.parent[one, changed] = parent[better]
        self.send(part, one, at[shorter], outbox)

    def send(self, part: VertexSlice, one: int, vertices: Any, outbox: SentMessages) -> None:
        hops = self.hops[one, vertices]
        if self.most is not None:
            vertices = vertices[hops < self.most]
        for edges in (part.out, part.into) if part.into is not None else (part.out,):
            at = edges.edges_of(vertices)
            rows = edges.rows[at]
            length = edges.weights[at] if self.weighted else 1.0
            tag = one * HOPS + self.hops[one, rows] + 1
            with np.errstate(over="ignore"):
                distance = self.distance[one, rows] + length
            check_lengths(distance)
            outbox.send(edges.ends[at], part.ids[rows], bits(distance), tag)

    def solve_gathered(self, vertices: Any, src: Any, dst: Any, weights: Any) -> list[Any]:
        """The ways from each source. Dijkstra's distances are the steps' to the last bit, since a longer way stays one when
        an edge is added. Edges that keep to these distances give the hops, and edges that keep to both the vertex before.
        Where a length vanishes in rounding, steps may keep the hops of a way that was shortened without a change of the sum:
        of the ways of one length another one counts then."""
        if self.both_ways:
            src, dst, weights = np.append(src, dst), np.append(dst, src), np.append(weights, weights)
        if not self.weighted:
            weights = np.ones(len(src))
        order = np.lexsort((weights, dst, src))
        src, dst, weights = src[order], dst[order], weights[order]
        lightest = np.ones(len(src), bool)
        lightest[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
        src, dst, weights = src[lightest], dst[lightest], weights[lightest]
        ids = distinct(np.concatenate([vertices, src, dst]))
        rows, ends = np.searchsorted(ids, src), np.searchsorted(ids, dst)
        parts = [self.ways(int(one), ids, rows, ends, weights) for one in self.sources[np.isin(self.sources, ids)]]
        if not parts:
            return [NONE] * len(self.schema)
        id, source, distance, parent, hops = (np.concatenate(column) for column in zip(*parts, strict=True))
        return [id, source, distance, pa.array(parent, mask=hops == 0)]

    def ways(self, source: int, ids: Any, rows: Any, ends: Any, weights: Any) -> tuple[Any, ...]:
        """The vertices that are reached from one source, with their distance, the vertex before and the hops."""
        from scipy.sparse.csgraph import dijkstra

        start = int(np.searchsorted(ids, source))
        distance = dijkstra(matrix(weights, rows, ends, len(ids)), indices=start)
        reached = np.isfinite(distance[rows])
        rows, ends = rows[reached], ends[reached]
        with np.errstate(over="ignore"):
            after = distance[rows] + weights[reached]
        check_lengths(after)
        tight = after == distance[ends]
        rows, ends = rows[tight], ends[tight]
        hops = dijkstra(matrix(np.ones(len(rows)), rows, ends, len(ids)), indices=start) if self.weighted else distance
        last = hops[rows] + 1 == hops[ends]
        parent = np.zeros(len(ids), np.int64)
        parent[ends[last][::-1]] = ids[rows[last][::-1]]  # of several the last one stays, which is the first
        there = np.flatnonzero(np.isfinite(distance))
        return ids[there], np.full(len(there), source), distance[there], parent[there], hops[there]

    def result(self, part: VertexSlice) -> list[Any]:
        one, at = np.nonzero(np.isfinite(self.distance))
        parent = self.parent[one, at]
        return [
            part.ids[at],
            self.sources[one],
            self.distance[one, at],
            pa.array(parent, mask=self.hops[one, at] == 0),
        ]


def check_lengths(distance: Any) -> None:
    if np.isinf(distance).any():
        raise ValueError("shortest_paths: a way is longer than the greatest double; divide the weights")
