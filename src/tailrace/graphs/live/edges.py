"""A graph in keyed state, and the changes of its edges."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import tailrace as tr
from tailrace.graphs.live.spans import FirstSpan, columns_of, names_of, neighbours_of
from tailrace.graphs.supersteps import Adjacency

IN_A_BUCKET = 32
"""Ends of the edges of a vertex in one entry of the state, about: a change writes so many, however many a vertex has."""
MOST = 1 << 53
"""The greatest weight: doubles above are not all whole numbers."""

NOTHING_YET: tuple[Any, ...] = (), 0, 0, 0
ALL_TAKEN: tuple[Any, ...] = None, 0, 0, 0
"""What `LiveGraph.span` has of a graph without changes, and of one that is new no more."""
NO_ENDS: tuple[tuple[Any, ...], tuple[Any, ...]] = (), ()
ONE_KIND = "ids of vertices of one graph must be all whole numbers, or all texts"


TOGETHER = 256
"""Changes that come soon one behind the other, from which on a new graph waits for more of them."""
SOON = 1.0
"""Seconds in which they come."""
NEW = 1024
"""Changes up to which a graph is new."""
TURN = 0.2
"""Seconds of a turn of waiting."""
BUSY = 10_000
"""Changes in a turn, from which on another turn follows: as many as no live graph takes in as fast as they come."""
LONGEST = 1 << 24
"""Changes of a first span, at most."""

Change = tuple[str, Any, Any, Any]


class VertexTable:
    """A state by vertex: what is written is the entry of one vertex, and not the graph."""

    __slots__ = ("ctx", "state")

    def __init__(self, ctx: tr.Context, state: Any) -> None:
        self.ctx, self.state = ctx, state

    def get(self, vertex: Any) -> Any:
        """The value of a vertex, or None."""
        with self.ctx.at(vertex):
            return self.state.value

    __getitem__ = get

    def __setitem__(self, vertex: Any, value: Any) -> None:
        with self.ctx.at(vertex):
            self.state.value = value

    def update(self, values: dict[Any, Any]) -> None:
        ctx, state = self.ctx, self.state
        for vertex, value in values.items():
            with ctx.at(vertex):
                state.value = value

    def remove(self, vertex: Any) -> None:
        with self.ctx.at(vertex):
            self.state.clear()


class Findings(dict[Any, Any]):
    """What a change has come across: each is looked up once."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self.find = find

    def __missing__(self, key: Any) -> Any:
        found = self[key] = self.find(key)
        return found


class Edges:
    """Edges of vertices, one way, in two tables. An end is a neighbour, or (neighbour, weight)."""

    def __init__(self, ends: VertexTable, buckets: VertexTable) -> None:
        self.ends = ends
        """Vertex, or (vertex, bucket) from bucket 1 on -> the ends in this bucket, and pairs (end, how often) of those that
        are there more than once."""
        self.buckets = buckets
        """Vertex of more than one bucket -> the number of its buckets, and of its ends."""

    def __contains__(self, vertex: Any) -> bool:
        return self.ends.get(vertex) is not None or self.buckets.get(vertex) is not None

    def near(self, vertex: Any) -> list[Any]:
        """The ends of the edges of a vertex, each once."""
        hub = self.buckets.get(vertex)
        if hub is None:
            found = self.ends.get(vertex)
            return list(found[0]) if found else []
        return [end for one in range(hub[0]) if (found := self.ends.get(place(vertex, one))) for end in found[0]]

    def of(self, vertex: Any) -> list[tuple[Any, int]]:
        """The ends of the edges of a vertex, and how often each is there."""
        count, _ = self.buckets.get(vertex) or (1, 0)
        pairs: list[tuple[Any, int]] = []
        for one in range(count):
            ends, often = self.ends.get(place(vertex, one)) or ((), ())
            counts = dict(often)
            pairs += [(end, counts.get(end, 1)) for end in ends]
        return pairs

    def add(self, vertex: Any, ends: list[Any]) -> None:
        """Adds edges of a vertex: at once, where they are new and fit its bucket."""
        if self.buckets.get(vertex) is None:
            with self.ends.ctx.at(vertex):
                there, often = self.ends.state.value or NO_ENDS
                more = (*there, *ends)
                if len(more) <= IN_A_BUCKET and len(set(more)) == len(more):
                    self.ends.state.value = more, often
                    return
        for one in ends:
            self.change(vertex, one, 1)

    def change(self, vertex: Any, end: Any, by: int) -> int:
        """How often an edge is there, with one more or one less. Raises `ValueError` if that is less than never."""
        hub = self.buckets.get(vertex)
        with self.ends.ctx.at(place(vertex, code(end) % hub[0]) if hub else vertex):
            state = self.ends.state
            ends, often = state.value or NO_ENDS
            there = end in ends
            if by == 1 and not there:
                left = 1
                state.value = (*ends, end), often
                degree = len(ends) + 1
            else:
                counts = dict(often)
                left = counts.pop(end, int(there)) + by
                if left < 0:
                    raise ValueError(f"a change takes away the edge {edge_text(vertex, end)}, which is not there")
                if left > 1:
                    counts[end] = left
                if not left:
                    ends = tuple(one for one in ends if one != end)
                degree = len(ends)
                if ends:
                    state.value = ends, tuple(counts.items())
                else:
                    state.clear()
        if there == bool(left):
            return left
        count = 1
        if hub:
            count, degree = hub[0], hub[1] + (1 if left else -1)
        if degree > IN_A_BUCKET * count:
            self.deal(vertex, count, 2 * count)
            self.buckets[vertex] = 2 * count, degree
        elif hub and degree:
            self.buckets[vertex] = count, degree
        elif hub:
            self.buckets.remove(vertex)
        return left

    def load(self, ids: list[Any], near: Adjacency, ends: list[Any], often: Any) -> None:
        """Adds edges of vertices that have none, all of each vertex at once: `ends` in the order of `near`, and how often
        each is there."""
        first, counts = near.first.tolist(), dict[int, list[tuple[Any, int]]]()
        for at in np.flatnonzero(often > 1).tolist():
            counts.setdefault(int(near.rows[at]), []).append((ends[at], int(often[at])))
        ctx, state = self.ends.ctx, self.ends.state
        for n in np.flatnonzero(near.degrees).tolist():
            one, some = ids[n], tuple(ends[first[n] : first[n + 1]])
            if len(some) <= IN_A_BUCKET:
                with ctx.at(one):
                    state.value = some, tuple(counts.get(n, ()))
                continue
            count = 1
            while IN_A_BUCKET * count < len(some):
                count *= 2
            self.spread(one, some, dict(counts.get(n, ())), count)
            self.buckets[one] = count, len(some)

    def clear(self, vertex: Any) -> None:
        """Takes all edges of a vertex away."""
        count, _ = self.buckets.get(vertex) or (1, 0)
        for one in range(count):
            self.ends.remove(place(vertex, one))
        self.buckets.remove(vertex)

    def deal(self, vertex: Any, count: int, more: int) -> None:
        """Deals the ends of a vertex to more buckets."""
        all_ends: list[Any] = []
        all_counts: dict[Any, int] = {}
        for one in range(count):
            ends, often = self.ends.get(place(vertex, one)) or NO_ENDS
            all_ends += ends
            all_counts.update(often)
        self.spread(vertex, all_ends, all_counts, more)

    def spread(self, vertex: Any, ends: Iterable[Any], counts: dict[Any, int], count: int) -> None:
        """Stores the ends of a vertex in so many buckets."""
        dealt: list[list[Any]] = [[] for _ in range(count)]
        for end in ends:
            dealt[code(end) % count].append(end)
        for one, some in enumerate(dealt):
            if some:
                often = tuple((end, counts[end]) for end in some if end in counts)
                self.ends[place(vertex, one)] = tuple(some), often
            else:
                self.ends.remove(place(vertex, one))


def edge_text(vertex: Any, end: Any) -> str:
    """An edge, for errors."""
    if type(end) is not tuple:
        return f"({vertex!r}, {end!r})"
    return f"({vertex!r}, {end[0]!r}) of weight {float(end[1])!r}"


def place(vertex: Any, bucket: int) -> Any:
    """The key of a bucket."""
    return (vertex, bucket) if bucket else vertex


class LiveGraph(tr.KeyedProcessFunction):
    """A graph that changes, in the state of one subtask, by vertex. Changes of edges have one key of their own.

    The changes of its first span, until there is a quiet moment, wait, and are taken in at once (`load`). Changes behind
    that are taken in as they come (`take`)."""

    out_ends = tr.ValueState(tuple)
    buckets = tr.ValueState(tuple)
    kind = tr.ValueState(str)
    """The type of its ids, of the key of changes: ids of two types have no order."""
    span = tr.ValueState(tuple)
    """Of the key of changes, while the graph is new: its changes that were taken in, the number of batches that wait, of
    changes in these, and of these a turn ago. While none waits, the changes since a time, and that time."""
    waiting = tr.ValueState(object)
    """A batch of changes that wait, of the key ("waiting", number)."""
    weighted = False
    """A change may have a weight."""
    both_ways = True
    """An edge is an edge of both of its ends."""

    def open(self, ctx: tr.Context) -> None:
        self.ctx = ctx
        self.edges = Edges(VertexTable(ctx, self.out_ends), VertexTable(ctx, self.buckets))
        self.batches = VertexTable(ctx, self.waiting)

    def take(self, changes: list[Change]) -> Iterator[tuple[Any, ...]]:
        """Changes of the result, for changes of edges that have come together."""
        raise NotImplementedError

    def load(self, span: FirstSpan, known: list[Any]) -> Iterator[tuple[Any, ...]]:
        """Changes of the result, for all edges of the first span. `known` are the vertices that may have a result from
        before; they have no edges any more."""
        raise NotImplementedError

    def process(self, change: Any, ctx: tr.Context) -> Any:
        return self.process_many([change], ctx)

    def process_many(self, changes: list[Any], ctx: tr.Context) -> Any:
        new = self.kind.value is None
        parts = self.parts(changes)
        early, batches, count, before = NOTHING_YET if new else (self.span.value or ALL_TAKEN)
        if early is None:
            return self.take(parts)
        timed = ctx.timestamp is not None
        if not batches:
            now = ctx.now()
            count, before = (count + len(parts), before) if now - before <= SOON else (len(parts), now)
            if count < TOGETHER or len(parts) == 1 or timed or ctx.loop is not None:
                early += tuple(parts)
                self.span.value = (early, 0, count, before) if len(early) <= NEW else ALL_TAKEN
                return self.take(parts)
            count = before = 0
            ctx.set_timer(processing_time=now + TURN)
        self.batches["waiting", batches] = columns_of(parts)
        self.span.value = early, batches + 1, count + len(parts), before
        return self.end_span() if timed or count + len(parts) > LONGEST else None

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Any:
        early, batches, count, before = self.span.value
        if not batches:
            return None  # the span has ended before its turn
        if count - before < BUSY:
            return self.end_span()
        self.span.value = early, batches, count, count
        ctx.set_timer(processing_time=ctx.now() + TURN)
        return None

    def end_span(self) -> Any:
        early, batches, _, _ = self.span.value
        self.span.value = ALL_TAKEN
        columns = [columns_of(early)] if early else []
        for number in range(batches):
            columns.append(self.batches["waiting", number])
            self.batches.remove(("waiting", number))
        known = sorted({end for _, a, b, _ in early for end in (a, b)})
        for one in known:
            self.clear(one)
        return self.load(FirstSpan(columns, self.both_ways, self.weighted), known)

    def clear(self, vertex: Any) -> None:
        """Takes all edges of a vertex away."""
        self.edges.clear(vertex)

    def load_edges(self, edges: Edges, span: FirstSpan, way: str, weights: list[Any] | None = None) -> Adjacency:
        """Adds the edges of a span to a table without edges, with these weights where it has some."""
        near = neighbours_of(span, way)
        ends = names_of(span.ids, near.ends)
        if weights is not None:
            ends = list(zip(ends, names_of(weights, near.weights), strict=True))
        edges.load(span.ids, near, ends, span.often[near.weights])
        return near

    def parts(self, changes: list[Any]) -> list[Change]:
        """The parts of changes that have come together. Raises what `checked_change` raises."""
        found = [checked_change(one, self.weighted) for one in changes]
        kind = self.kind.value or type(found[0][1]).__name__
        for one, (_, a, _, _) in zip(changes, found, strict=True):
            if type(a).__name__ != kind:
                raise TypeError(f"{ONE_KIND}: {one!r}")
        if self.kind.value is None:
            self.kind.value = kind
        return found

    def add_both(self, edges: list[tuple[Any, Any]]) -> None:
        """Adds edges, each to both of its ends."""
        ends: dict[Any, list[Any]] = {}
        for a, b in edges:
            ends.setdefault(a, []).append(b)
            if a != b:
                ends.setdefault(b, []).append(a)
        for one, some in ends.items():
            self.edges.add(one, some)

    def change_both(self, a: Any, b: Any, by: int) -> int:
        """How often an edge is there, with a change of it. It is an edge of both of its ends."""
        left = self.edges.change(a, b, by)
        if a != b:
            self.edges.change(b, a, by)
        return left


class DirectedGraph(LiveGraph):
    """A graph that changes, with the edges out of each vertex, and into it."""

    in_ends = tr.ValueState(tuple)
    into_buckets = tr.ValueState(tuple)
    both_ways = False

    def open(self, ctx: tr.Context) -> None:
        super().open(ctx)
        self.into = Edges(VertexTable(ctx, self.in_ends), VertexTable(ctx, self.into_buckets))

    def clear(self, vertex: Any) -> None:
        super().clear(vertex)
        self.into.clear(vertex)


def differences(before: dict[Any, Any], after: Any) -> Iterator[tuple[Any, ...]]:
    """Changes of a result: of each vertex in `before`, from there to what it has in the table `after`. None is no result."""
    for one in sorted(before):
        old, new = before[one], after.get(one)
        if old != new:
            if old is not None:
                yield "-", one, old
            if new is not None:
                yield "+", one, new


def checked_change(change: Any, weighted: bool = False) -> tuple[str, Any, Any, Any]:
    """The parts of a change of an edge, with its weight, 1 for those without. Raises `ValueError` or `TypeError` for
    anything else."""
    shape = f'("+" or "-", src, dst{", weight" if weighted else ""})'
    if isinstance(change, str | bytes | dict | set) or not isinstance(change, Iterable):
        raise TypeError(f"a change of an edge is {shape}, not {change!r}")
    parts = tuple(change)
    if len(parts) != 3 and not (weighted and len(parts) == 4):
        raise TypeError(f"a change of an edge is {shape}, not {change!r}")
    op, a, b, weight = parts if len(parts) > 3 else (*parts, 1)
    if op not in ("+", "-"):
        raise ValueError(f'a change of an edge begins with "+" or "-", not {op!r}: {change!r}')
    for one in (a, b):
        if type(one) not in (int, str):
            raise TypeError(f"ids of vertices that come and go are whole numbers or texts, not {one!r}: {change!r}")
    if type(a) is not type(b):
        raise TypeError(f"{ONE_KIND}: {change!r}")
    if type(weight) not in (int, float):
        raise TypeError(f"a weight of an edge is a number, not {weight!r}: {change!r}")
    if not (math.isfinite(weight) and 0 <= weight <= MOST):
        raise ValueError(f"a weight of an edge is from 0 to 2^53, not {weight!r}: {change!r}")
    return op, a, b, weight


def code(end: Any) -> int:
    """A number of an end, equal in each process."""
    one = end[0] if type(end) is tuple else end
    return zlib.crc32(str(one).encode("utf-8", "surrogatepass"))  # also of numbers, which may be multiples of 1024
