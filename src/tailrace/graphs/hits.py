"""Hubs and authorities (HITS)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.graphs.ranks import MASS
from tailrace.graphs.supersteps import Adjacency, ReceivedMessages, SentMessages, VertexProgram, VertexSlice, runs

CHANGE, HIGH, LOW = range(3)
HALF = (1 << 31) - 1
"""A sum over all vertices is more than 64 bits hold, and travels in two totals, of which one has these bits."""


class Way:
    """The edges of a slice in one direction, those side by side once, in the order of their targets."""

    def __init__(self, edges: Adjacency) -> None:
        new = np.ones(len(edges.rows), bool)
        new[1:] = (edges.rows[1:] != edges.rows[:-1]) | (edges.ends[1:] != edges.ends[:-1])
        order = np.argsort(edges.ends[new], kind="stable")
        self.rows = edges.rows[new][order]
        self.targets, self.starts = runs(edges.ends[new][order])


class Hits(VertexProgram):
    """Hubs and authorities of vertices, by turns: an authority is as great as the hubs that lead to it are together, a hub
    as the authorities that it leads to. Both are whole parts of a whole, so that they do not depend on the parallelism.
    Edges side by side count once.

    In an odd step messages of hubs make authorities, in an even one messages of authorities make hubs."""

    sorts = False
    both_ways = True
    schema = pa.schema([("id", pa.int64()), ("hub", pa.float64()), ("authority", pa.float64())])

    def __init__(self, tolerance: float | None, most: int | None) -> None:
        self.tolerance, self.most = tolerance, most

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        if number == 0:
            assert part.into is not None
            self.ways = Way(part.out), Way(part.into)
            self.hub = np.full(len(part.ids), 1 << 20)  # all alike
            self.authority = np.zeros(len(part.ids), np.int64)
            self.send(0, self.hub, outbox)
            return
        values = self.parts(len(part.ids), inbox, (totals.get(HIGH, 0) << 31) + totals.get(LOW, 0))
        if number % 2:
            outbox.add(CHANGE, int(np.abs(values - self.authority).sum()))
            self.authority = values
        else:
            self.hub = values
            if self.ended(number // 2, totals):
                return
        self.send(number % 2, values, outbox)

    def parts(self, size: int, inbox: ReceivedMessages, whole: int) -> Any:
        """The sums of messages, as parts of `MASS`."""
        sums = np.zeros(size, np.int64)
        at, starts = runs(inbox.target)
        if len(at):
            sums[at] = np.add.reduceat(inbox.value, starts)
        return np.floor(sums * (MASS / whole)).astype(np.int64) if whole else sums

    def ended(self, turns: int, totals: dict[int, int]) -> bool:
        if self.most is not None and turns >= self.most:
            return True
        return self.tolerance is not None and totals[CHANGE] <= self.tolerance * MASS

    def send(self, way: int, values: Any, outbox: SentMessages) -> None:
        edges = self.ways[way]
        sent = values[edges.rows]
        if len(sent):
            outbox.send(edges.targets, value=np.add.reduceat(sent, edges.starts))
        outbox.add(HIGH, int((sent >> 31).sum()))
        outbox.add(LOW, int((sent & HALF).sum()))

    def result(self, part: VertexSlice) -> list[Any]:
        return [part.ids, self.hub / MASS, self.authority / MASS]
