"""PageRank, and personalised PageRank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.graphs.supersteps import ReceivedMessages, SentMessages, VertexProgram, VertexSlice, runs

MASS = 1 << 60
"""Ranks are whole parts of this, and all ranks are about this together. Sums of integers are the same in any order, so a
rank does not depend on the parallelism, nor on who is faster."""
VERTICES, LOST, CHANGE, SUM = range(4)


class PageRank(VertexProgram):
    """Ranks of vertices. What vertices without edges out would send goes to where a surfer begins anew: to all vertices,
    or to `sources`."""

    sorts = False
    schema = pa.schema([("id", pa.int64()), ("rank", pa.float64())])

    def __init__(self, damping: float, tolerance: float | None, most: int | None, sources: list[int] | None) -> None:
        self.damping, self.tolerance, self.most = damping, tolerance, most
        self.sources = None if sources is None else np.array(sources, np.int64)
        self.sum = MASS

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        if number == 0:
            self.share, self.target, self.order, self.starts = self.shares(part)
            beginning = np.ones(len(part.ids), bool) if self.sources is None else np.isin(part.ids, self.sources)
            self.beginning = beginning
            outbox.add(VERTICES, int(beginning.sum()))
            return
        if number == 1:
            if self.sources is not None and not totals.get(VERTICES):
                raise ValueError("pagerank: none of the sources is a vertex, so there is nowhere to begin")
            self.count = max(1, totals.get(VERTICES, 0))
            self.rank = np.where(self.beginning, MASS // self.count, 0)
            self.send(part, outbox)
            return
        if CHANGE in totals and self.ended(number, totals):
            self.stop(totals)
            return
        received = np.zeros(len(part.ids), np.int64)
        at, starts = runs(inbox.target)
        if len(at):
            received[at] = np.add.reduceat(inbox.value, starts)
        begin = (MASS - int(self.damping * MASS)) + int(self.damping * totals.get(LOST, 0))
        rank = np.floor(self.damping * received).astype(np.int64) + np.where(self.beginning, begin // self.count, 0)
        outbox.add(CHANGE, int(np.abs(rank - self.rank).sum()))
        outbox.add(SUM, int(rank.sum()))
        self.rank = rank
        self.send(part, outbox)

    def stop(self, totals: dict[int, int]) -> None:
        self.sum = max(1, totals[SUM])

    def ended(self, number: int, totals: dict[int, int]) -> bool:
        if self.most is not None and number - 2 >= self.most:
            return True
        return self.tolerance is not None and totals[CHANGE] <= self.tolerance * MASS

    def shares(self, part: VertexSlice) -> tuple[Any, ...]:
        """The part of a vertex that each edge gets, and the edges in the order of their targets."""
        weights = part.out.weights
        if (weights < 0).any():
            raise ValueError("pagerank: a weight is negative")
        whole = np.bincount(part.out.rows, weights, len(part.ids))
        if not np.isfinite(whole).all():  # a sum that no double holds: its parts count by what they are of each other
            weights = np.where(np.isfinite(whole)[part.out.rows], weights, weights * 2.0**-64)
            whole = np.bincount(part.out.rows, weights, len(part.ids))
        share = np.divide(weights, whole[part.out.rows], out=np.zeros_like(weights), where=weights > 0)
        order = np.argsort(part.out.ends, kind="stable")
        target, starts = runs(part.out.ends[order])
        return share, target, order, starts

    def send(self, part: VertexSlice, outbox: SentMessages) -> None:
        given = np.floor(self.rank[part.out.rows] * self.share).astype(np.int64)
        if len(self.target):
            outbox.send(self.target, value=np.add.reduceat(given[self.order], self.starts))
        outbox.add(LOST, int(self.rank.sum()) - int(given.sum()))

    def result(self, part: VertexSlice) -> list[Any]:
        return [part.ids, self.rank / self.sum]
