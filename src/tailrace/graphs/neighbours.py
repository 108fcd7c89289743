"""Programs over neighbours, whatever the direction of an edge: k-core, independent sets, labels, triangles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.graphs.supersteps import (
    Adjacency,
    ReceivedMessages,
    SentMessages,
    VertexProgram,
    VertexSlice,
    distinct,
    runs,
)

UNKNOWN = np.iinfo(np.int64).max


def neighbours(part: VertexSlice) -> Adjacency:
    """The neighbours of each vertex, each once, without the vertex itself."""
    assert part.into is not None
    rows = np.concatenate([part.out.rows, part.into.rows])
    ends = np.concatenate([part.out.ends, part.into.ends])
    others = part.ids[rows] != ends
    rows, ends = rows[others], ends[others]
    order = np.lexsort((ends, rows))
    rows, ends = rows[order], ends[order]
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]) | (ends[1:] != ends[:-1])
    rows, ends = rows[new], ends[new]
    first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(part.ids)))]).astype(np.intp)
    return Adjacency(first, rows, ends, np.empty(0))


def peeling(near: Adjacency, there: Any) -> tuple[Any, Any]:
    """The core number of each vertex, and the vertices that are there in an order in which they can be removed one by
    one, the least core numbers first."""
    degree, left = near.degrees.copy(), there.copy()
    core, order, level = np.zeros(len(there), np.int64), [], 0
    while left.any():
        level = max(level, int(degree[left].min()))
        now = np.flatnonzero(left & (degree <= level))
        while len(now):
            core[now], left[now] = level, False
            order.append(now)
            ends = near.ends[near.edges_of(now)]
            touched, times = np.unique(ends[left[ends]], return_counts=True)
            degree[touched] -= times
            now = touched[degree[touched] <= level]
    return core, np.concatenate(order) if order else np.empty(0, np.intp)


class EdgeIndex:
    """An index of edges by their two ends."""

    def __init__(self, edges: Adjacency) -> None:
        self.names = distinct(edges.ends)
        self.keys = edges.rows * len(self.names) + np.searchsorted(self.names, edges.ends)

    def of(self, rows: Any, ends: Any) -> tuple[Any, Any]:
        """The place of each edge, and a mask of those that are there."""
        if not len(self.keys):
            return np.zeros(len(rows), np.intp), np.zeros(len(rows), bool)
        code = np.minimum(np.searchsorted(self.names, ends), len(self.names) - 1)
        key = rows * len(self.names) + code
        place = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return place, (self.names[code] == ends) & (self.keys[place] == key)

    def range_of(self, rows: Any, ends: Any) -> tuple[Any, Any]:
        """The places of all edges with these two ends: from the first to before the second."""
        code = np.searchsorted(self.names, ends)
        there = (
            self.names[np.minimum(code, len(self.names) - 1)] == ends if len(self.names) else np.zeros(len(rows), bool)
        )
        key = rows * len(self.names) + code
        low = np.searchsorted(self.keys, key)
        return low, np.where(there, np.searchsorted(self.keys, key, side="right"), low)


class KCore(VertexProgram):
    """The core number of each vertex: the greatest k such that it is in a part of the graph where all have k neighbours.
    Each vertex begins with its degree, and lowers it to the greatest h for which h neighbours have h or more (Lu, Zhou,
    Zhang and Stanley, "The H-index of a network node", 2016)."""

    sorts = False
    schema = pa.schema([("id", pa.int64()), ("core", pa.int64())])
    both_ways = True
    gather_limit = 1 << 24

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        if number == 0:
            self.edges = neighbours(part)
            self.places = EdgeIndex(self.edges)
            self.core = self.edges.degrees.astype(np.int64)
            self.known = np.full(len(self.edges.rows), UNKNOWN)
            self.send(part, np.arange(len(part.ids)), outbox)
            return
        if not len(inbox):
            return
        place, _ = self.places.of(inbox.target, inbox.other)
        np.minimum.at(self.known, place, inbox.value)
        touched = runs(inbox.target)[0]
        at = self.edges.edges_of(touched)
        rows, known = self.edges.rows[at], self.known[at]
        order = np.lexsort((-known, rows))
        rows, known = rows[order], known[order]
        _, starts = runs(rows)
        lengths = np.diff(np.append(starts, len(rows)))
        rank = np.arange(len(rows)) - np.repeat(starts, lengths) + 1
        core = np.add.reduceat(known >= rank, starts, dtype=np.int64)  # of each of `touched`
        fallen = core < self.core[touched]
        self.core[touched[fallen]] = core[fallen]
        self.send(part, touched[fallen], outbox)

    def send(self, part: VertexSlice, vertices: Any, outbox: SentMessages) -> None:
        at = self.edges.edges_of(vertices)
        rows = self.edges.rows[at]
        outbox.send(self.edges.ends[at], part.ids[rows], self.core[rows])

    def solve_gathered(self, vertices: Any, src: Any, dst: Any, weights: Any) -> list[Any]:
        ids = distinct(np.concatenate([vertices, src, dst]))
        edges = neighbours(VertexSlice(ids, Adjacency.of(ids, src, dst, weights), Adjacency.of(ids, dst, src, weights)))
        edges.ends = np.searchsorted(ids, edges.ends)
        core, _ = peeling(edges, np.ones(len(ids), np.bool_))
        return [ids, core]

    def result(self, part: VertexSlice) -> list[Any]:
        return [part.ids, self.core]


def splitmix(values: Any, seed: int) -> Any:
    """Well mixed numbers of numbers (splitmix64), the same on every machine."""
    with np.errstate(over="ignore"):
        z = (
            values.astype(np.uint64)
            + np.uint64(seed % (1 << 64)) * np.uint64(0x9E3779B97F4A7C15)
            + np.uint64(0x9E3779B97F4A7C15)
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


class IndependentSet(VertexProgram):
    """A maximal independent set: vertices come in an order that `seed` draws, and each joins that has no neighbour in the
    set."""

    sorts = False
    schema = pa.schema([("id", pa.int64())])
    both_ways = True
    IN, OUT = 1, 2

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def before(self, a: Any, b: Any) -> Any:
        x, y = splitmix(a, self.seed), splitmix(b, self.seed)
        return (x < y) | ((x == y) & (a < b))

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        if number == 0:
            self.edges = edges = neighbours(part)
            self.state = np.zeros(len(part.ids), np.int8)
            earlier = self.before(edges.ends, part.ids[edges.rows])
            self.waits = np.bincount(edges.rows, earlier, len(part.ids)).astype(np.int64)
            joining = np.flatnonzero(self.waits == 0)
        else:
            joined = inbox.value == self.IN
            leaving = runs(inbox.target[joined])[0]
            leaving = leaving[self.state[leaving] == 0]
            self.state[leaving] = self.OUT
            self.send(part, leaving, self.OUT, outbox)
            left = ~joined & self.before(inbox.other, part.ids[inbox.target])
            np.subtract.at(self.waits, inbox.target[left], 1)
            joining = runs(inbox.target[left])[0]
            joining = joining[(self.waits[joining] == 0) & (self.state[joining] == 0)]
        self.state[joining] = self.IN
        self.send(part, joining, self.IN, outbox)

    def send(self, part: VertexSlice, vertices: Any, state: int, outbox: SentMessages) -> None:
        at = self.edges.edges_of(vertices)
        outbox.send(self.edges.ends[at], part.ids[self.edges.rows[at]], state)

    def result(self, part: VertexSlice) -> list[Any]:
        return [part.ids[self.state == self.IN]]


class LabelPropagation(VertexProgram):
    """Labels that spread, all vertices at once: each takes the label that most of its edges have at their other end, the
    least of several. A vertex begins with its id. Edges count both ways, and as often as they are there."""

    sorts = False
    schema = pa.schema([("id", pa.int64()), ("label", pa.int64())])
    both_ways = True

    def __init__(self, most: int) -> None:
        self.most = most

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        if number == 0:
            self.label = part.ids.copy()
            changed = 1
        else:
            if number > 1 and not totals.get(0):
                return
            order = np.lexsort((inbox.value, inbox.target))
            at, label = inbox.target[order], inbox.value[order]
            new = np.ones(len(at), bool)
            new[1:] = (at[1:] != at[:-1]) | (label[1:] != label[:-1])
            starts = np.flatnonzero(new)
            count = np.diff(np.append(starts, len(at)))
            at, label = at[starts], label[starts]
            best = np.lexsort((label, -count, at))
            rows, starts = runs(at[best])
            chosen = label[best][starts]
            changed = int((self.label[rows] != chosen).sum())
            self.label[rows] = chosen
        if number < self.most:
            assert part.into is not None
            for edges in (part.out, part.into):
                outbox.send(edges.ends, value=self.label[edges.rows])
            outbox.add(0, changed)

    def result(self, part: VertexSlice) -> list[Any]:
        return [part.ids, self.label]


class Triangles(VertexProgram):
    """The number of triangles of each vertex. Each edge leads from the end with fewer neighbours to the other one (by id
    where they have as many); for each two edges of a vertex the nearer of their ends looks for the third edge."""

    sorts = False
    schema = pa.schema([("id", pa.int64()), ("count", pa.int64()), ("degree", pa.int64())])
    both_ways = True
    PAIR, CREDIT = 0, 1
    PAIRS = 1 << 21
    """Pairs that a slice sends in one superstep."""

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        if number == 0:
            self.edges = neighbours(part)
            self.count = np.zeros(len(part.ids), np.int64)
            self.degree = self.edges.degrees.astype(np.int64)
            outbox.send(self.edges.ends, part.ids[self.edges.rows], self.degree[self.edges.rows])
            return
        if number == 1:
            self.orient(part, inbox)
        else:
            self.answer(part, inbox, outbox)
        self.send(part, outbox)

    def orient(self, part: VertexSlice, inbox: ReceivedMessages) -> None:
        """Edges that lead away, those of a vertex in the order of their ends by degree and id."""
        place, _ = EdgeIndex(self.edges).of(inbox.target, inbox.other)
        degree = np.zeros(len(self.edges.rows), np.int64)
        degree[place] = inbox.value
        rows, ends = self.edges.rows, self.edges.ends
        mine, me = self.degree[rows], part.ids[rows]
        away = (mine < degree) | ((mine == degree) & (me < ends))
        rows, ends, degree = rows[away], ends[away], degree[away]
        first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(part.ids)))]).astype(np.intp)
        self.places = EdgeIndex(Adjacency(first, rows, ends, degree))
        order = np.lexsort((ends, degree, rows))
        self.rows, self.ends = rows[order], ends[order]
        self.later = first[self.rows + 1] - np.arange(len(self.rows)) - 1  # edges behind each one, of its vertex
        self.sent = np.concatenate([[0], np.cumsum(self.later)])
        self.next = 0

    def send(self, part: VertexSlice, outbox: SentMessages) -> None:
        """Pairs of edges from the first that was not sent yet: (edge, one behind it)."""
        if self.next >= len(self.rows):
            return
        last = int(np.searchsorted(self.sent, self.sent[self.next] + self.PAIRS, side="right")) - 1
        last = min(max(last, self.next + 1), len(self.rows))
        edges = np.arange(self.next, last)
        later = self.later[edges]
        near = np.repeat(edges, later)
        far = near + 1 + np.arange(len(near)) - np.repeat(np.cumsum(later) - later, later)
        outbox.send(self.ends[near], self.ends[far], self.PAIR, part.ids[self.rows[near]])
        self.next = last
        outbox.add(0, 1)  # more may follow, also where these edges have no pair

    def answer(self, part: VertexSlice, inbox: ReceivedMessages, outbox: SentMessages) -> None:
        credit = inbox.value == self.CREDIT
        np.add.at(self.count, inbox.target[credit], inbox.other[credit])
        at, far, origin = inbox.target[~credit], inbox.other[~credit], inbox.tag[~credit]
        _, closed = self.places.of(at, far)
        np.add.at(self.count, at[closed], 1)
        targets, counts = np.unique(np.concatenate([far[closed], origin[closed]]), return_counts=True)
        outbox.send(targets, counts, self.CREDIT)

    def result(self, part: VertexSlice) -> list[Any]:
        return [part.ids, self.count, self.degree]
