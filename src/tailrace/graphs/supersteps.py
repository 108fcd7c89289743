"""Supersteps over a graph in slices: a loop in rounds whose operator holds the vertices of its subtask in arrays.

A program of vertices is written once for all vertices of a slice: it gets arrays and gives arrays. Its sums over the whole
graph are sums of integers, so that they do not depend on how many slices there are, nor on who is faster.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import tailrace as tr

Array = Any  # of numpy; its types of items do not help a reader here

COLUMNS = ("key", "other", "value", "tag", "kind")
RECORD = pa.schema(
    [("key", pa.int64()), ("other", pa.int64()), ("value", pa.int64()), ("tag", pa.int64()), ("kind", pa.int8())]
)
VERTEX, EDGE, REVERSE, PORT, GREETING, PORTS, TOTAL, MESSAGE, LONE, GATHERED = range(10)
"""Kinds of records. `key` is the vertex or port to which a record goes. An EDGE leads from `key` to `other`, a REVERSE to
`key` from `other`; `value` is the weight, as the bits of a double. A PORT is a number under which a slice can be reached. A
LONE is a vertex `other` without edges out, a GATHERED an edge from `other` to `tag`, for the slice that ends the program."""
TIME_IS_UP = -1
"""The number of the total by which one slice ends the program for all, in one step."""
EDGES = -2
"""The number of the total of edges."""
GATHER_STEP = 64
"""The step before which a program over few edges goes on in one slice. Random graphs need fewer; a path of a million
vertices needs a million, each of which has its price, whatever little it does."""
FIRST_RESULT = 2
"""The first step behind which each program has a result."""
PARTS = 1 << 17
"""Records of a batch, at most."""
NONE = np.empty(0, np.int64)


def records(kind: int, key: Array, other: Array = 0, value: Array = 0, tag: Array = 0) -> Iterator[pa.RecordBatch]:
    """Batches of records of one kind. A number instead of an array stands for as many of it."""
    size = len(key)
    columns = [np.ascontiguousarray(np.broadcast_to(one, size), np.int64) for one in (key, other, value, tag)]
    kinds = np.full(min(size, PARTS), kind, np.int8)
    for start in range(0, size, PARTS):
        parts = [column[start : start + PARTS] for column in columns]
        yield pa.RecordBatch.from_arrays([pa.array(one) for one in (*parts, kinds[: len(parts[0])])], schema=RECORD)


def bits(values: Array) -> Array:
    """The bits of doubles, as integers."""
    return np.ascontiguousarray(values, np.float64).view(np.int64)


def doubles(values: Array) -> Array:
    """The doubles that have these bits."""
    return np.ascontiguousarray(values, np.int64).view(np.float64)


def distinct(values: Array) -> Array:
    """Sorted values, each once. Faster than `np.unique`, which hashes."""
    values = np.sort(values)
    return values if len(values) < 2 else values[np.concatenate([[True], values[1:] != values[:-1]])]


def runs(values: Array) -> tuple[Array, Array]:
    """Sorted values, each once, and where in `values`, which are sorted, each begins."""
    if not len(values):
        return values, np.empty(0, np.intp)
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return values[starts], starts


@dataclass(slots=True)
class Adjacency:
    """Edges of the vertices of a slice in compressed rows: those of vertex number `i` are at `first[i]` to `first[i + 1]`,
    sorted by their other end, and by weight where there are several."""

    first: Array
    rows: Array  # the number of the vertex, for each edge
    ends: Array  # the vertex at the other end, for each edge
    weights: Array

    @classmethod
    def of(cls, ids: Array, vertices: Array, ends: Array, weights: Array) -> Adjacency:
        order = np.lexsort((weights, ends, vertices))
        rows = np.searchsorted(ids, vertices[order])
        first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(ids)))]).astype(np.intp)
        return cls(first, rows, ends[order], weights[order])

    @property
    def degrees(self) -> Array:
        return np.diff(self.first)

    def edges_of(self, vertices: Array) -> Array:
        """Places of all edges of these vertices, given by their numbers, in order."""
        start = self.first[vertices]
        count = self.first[vertices + 1] - start  # not `degrees`, which is as long as all vertices
        before = np.cumsum(count)
        return np.arange(before[-1] if len(before) else 0) + np.repeat(start - before + count, count)


@dataclass(slots=True)
class VertexSlice:
    """Vertices of one subtask: their ids, sorted, the edges from them and, where the program requires it, to them."""

    ids: Array
    out: Adjacency
    into: Adjacency | None

    def numbers(self, ids: Array) -> Array:
        """The numbers of vertices of this slice."""
        return np.searchsorted(self.ids, ids)


@dataclass(slots=True)
class ReceivedMessages:
    """Messages of one superstep, in the order of their targets."""

    target: Array = field(default_factory=lambda: NONE)  # numbers of vertices in the slice
    other: Array = field(default_factory=lambda: NONE)
    value: Array = field(default_factory=lambda: NONE)
    tag: Array = field(default_factory=lambda: NONE)

    def __len__(self) -> int:
        return len(self.target)


class SentMessages:
    """Messages and totals of one slice for the next superstep."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.totals: dict[int, int] = {}

    def send(self, target: Array, other: Array = 0, value: Array = 0, tag: Array = 0) -> None:
        """Sends a message to each vertex of `target`, an array of ids."""
        self.batches.extend(records(MESSAGE, target, other, value, tag))

    def add(self, number: int, amount: int) -> None:
        """Adds to the total of this number, which each slice gets with the next superstep. It keeps the loop going."""
        self.totals[number] = self.totals.get(number, 0) + int(amount)


class VertexProgram:
    """A program for all vertices of a slice. Its attributes are its state, and go into checkpoints."""

    schema: pa.Schema
    """Columns of the result."""
    both_ways = False
    """The slice has the edges into its vertices, too."""
    sorts = True
    """Messages to one vertex come in one order, whoever sent them first: for sums of floats. Otherwise in any order."""

    gather_limit = 0
    """The number of edges, at most, for which one slice finds the whole result where steps are very many: see
    `solve_gathered`."""

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        """One superstep, from number 0 on, which has no messages. The program ends when no slice sends or adds anything."""
        raise NotImplementedError

    def solve_gathered(self, vertices: Array, src: Array, dst: Array, weights: Array) -> list[Any]:
        """The columns of the result for the whole graph, which must be as right as those of the steps. `vertices` are those
        without edges out. It is called in one slice, for a program with a `gather_limit`, in place of the step with the
        number `GATHER_STEP`."""
        raise NotImplementedError

    def stop(self, totals: dict[int, int]) -> None:
        """Ends the program, in place of a step, where its time is up. Its result is that of the step before."""

    def result(self, part: VertexSlice) -> list[Any]:
        """The columns of the result, for the vertices of this slice."""
        raise NotImplementedError


class Supersteps:
    """Supersteps of one slice: it is loaded, the slices find each other's ports, and the program runs."""

    def __init__(self, program: VertexProgram, seconds: float | None = None) -> None:
        self.program = copy.deepcopy(program)
        self.seconds, self.until = seconds, math.inf
        self.received: dict[int, list[tuple[Array, ...]]] = {}
        self.graph: VertexSlice | None = None
        self.port, self.ports = -1, NONE
        self.number, self.gathers = 0, False
        self.found: list[Any] | None = None  # once the graph is in one slice

    def receive(self, batch: pa.RecordBatch) -> None:
        key, other, value, tag, kind = (column.to_numpy() for column in batch.columns)
        present = np.flatnonzero(np.bincount(kind, minlength=MESSAGE + 1))
        for one in present.tolist():
            chosen = (key, other, value, tag)
            if len(present) > 1:
                here = kind == one
                chosen = (key[here], other[here], value[here], tag[here])
            self.received.setdefault(one, []).append(chosen)

    def take(self, kind: int) -> tuple[Array, ...]:
        """All that came of one kind, in columns."""
        parts = self.received.pop(kind, [])
        if not parts:
            return NONE, NONE, NONE, NONE
        return parts[0] if len(parts) == 1 else tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def advance(self, round: int, now: float) -> Iterator[pa.RecordBatch]:
        """Records for the next round, at the end of a round."""
        if round == 0:
            self.load()
            yield from records(GREETING, np.zeros(1, np.int64), self.port)
        elif round == 1:
            slices = np.sort(self.take(GREETING)[1])  # all of them, in one slice; none in the others
            yield from records(PORTS, np.repeat(slices, len(slices)), np.tile(slices, len(slices)))
        else:
            if round == 2:
                self.ports = np.sort(self.take(PORTS)[1])
                self.until = math.inf if self.seconds is None else now + self.seconds
            yield from self.step(now)

    def load(self) -> None:
        ports = self.take(PORT)[0]
        if not len(ports):
            raise RuntimeError("a slice has no port: a bug in tailrace, please report it")
        self.port = int(ports.min())
        vertices, out, into = self.take(VERTEX)[0], self.take(EDGE), self.take(REVERSE)
        ids = distinct(np.concatenate([vertices, out[0], into[0]]))
        reverse = Adjacency.of(ids, into[0], into[1], doubles(into[2])) if self.program.both_ways else None
        self.graph = VertexSlice(ids, Adjacency.of(ids, out[0], out[1], doubles(out[2])), reverse)

    def step(self, now: float) -> Iterator[pa.RecordBatch]:
        assert self.graph is not None
        totals: dict[int, int] = {}
        _, index, value, _ = self.take(TOTAL)
        for one in distinct(index).tolist():
            totals[one] = sum(value[index == one].tolist())
        inbox, outbox = self.inbox(), SentMessages()
        if TIME_IS_UP in totals:
            self.program.stop(totals)
            return
        if self.number == 0 and self.program.gather_limit:
            outbox.add(EDGES, len(self.graph.out.rows))
        elif self.number == 1:
            self.gathers = 0 < totals.pop(EDGES, 0) <= self.program.gather_limit
        if self.gathers and self.number > GATHER_STEP:
            self.end_gathered()
            return
        if self.gathers and self.number == GATHER_STEP:
            outbox.batches.extend(self.gather())
        else:
            self.program.step(self.number, self.graph, inbox, totals, outbox)
        if now >= self.until and self.number >= FIRST_RESULT and (outbox.batches or outbox.totals):
            outbox.add(TIME_IS_UP, 1)
        self.number += 1
        yield from outbox.batches
        for one, amount in outbox.totals.items():
            yield from records(TOTAL, self.ports, one, amount)

    def gather(self) -> Iterator[pa.RecordBatch]:
        """The edges of this slice, and its vertices without any, for the first of all slices."""
        assert self.graph is not None
        out = self.graph.out
        host, lone = self.ports[0], self.graph.ids[out.degrees == 0]
        yield from records(LONE, np.full(len(lone), host), lone)
        yield from records(
            GATHERED, np.full(len(out.rows), host), self.graph.ids[out.rows], bits(out.weights), out.ends
        )

    def end_gathered(self) -> None:
        vertices, (_, src, weights, dst) = self.take(LONE)[1], self.take(GATHERED)
        if self.port == self.ports[0]:
            self.found = self.program.solve_gathered(vertices, src, dst, doubles(weights))
        else:
            self.found = [NONE] * len(self.program.schema)

    def inbox(self) -> ReceivedMessages:
        target, other, value, tag = self.take(MESSAGE)
        order = np.lexsort((value, tag, other, target)) if self.program.sorts else np.argsort(target, kind="stable")
        assert self.graph is not None
        return ReceivedMessages(self.graph.numbers(target[order]), other[order], value[order], tag[order])

    def result(self) -> Iterator[pa.RecordBatch]:
        assert self.graph is not None
        columns = self.program.result(self.graph) if self.found is None else self.found
        kinds = self.program.schema.types
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        whole = pa.RecordBatch.from_arrays(arrays, schema=self.program.schema)
        for start in range(0, whole.num_rows, PARTS):
            yield whole.slice(start, PARTS)


class SuperstepOperator(tr.MapBatchesFunction):
    """The operator of the loop: one slice in each subtask."""

    held = tr.OperatorState(object)

    def __init__(self, program: VertexProgram, seconds: float | None) -> None:
        self.program, self.seconds = program, seconds

    def open(self, ctx: tr.Context) -> None:
        self.ctx = ctx
        if not self.held.exists():
            self.held.value = Supersteps(self.program, self.seconds)

    def map_batches(self, batch: pa.RecordBatch) -> None:
        self.held.value.receive(batch)

    def on_round_end(self, round: int) -> list[pa.RecordBatch]:
        return list(self.held.value.advance(round, self.ctx.now()))

    def finish(self) -> None:
        for batch in self.held.value.result():
            self.ctx.emit("results", batch)


class Loaded(tr.MapBatchesFunction):
    """Records of a graph from its edges: (src, dst), or (src, dst, weight). Vertices have one column."""

    def __init__(self, both_ways: bool) -> None:
        self.both_ways = both_ways

    def map_batches(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        ends = [whole_ids(batch, at) for at in range(min(batch.num_columns, 2))]
        if len(ends) == 1:
            return list(records(VERTEX, ends[0]))
        a, b = ends
        weights = bits(checked_weights(batch) if batch.num_columns > 2 else np.ones(len(a)))
        out = records(EDGE, a, b, weights)
        back = records(REVERSE, b, a, weights) if self.both_ways else records(VERTEX, distinct(b))
        return [*out, *back]


def whole_ids(batch: pa.RecordBatch, at: int) -> Array:
    column = batch.column(at)
    if column.null_count:
        raise ValueError(f"an id of a vertex is null: column {batch.schema.names[at]!r}; leave such rows out")
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)


def checked_weights(batch: pa.RecordBatch) -> Array:
    column, name = batch.column(2), batch.schema.names[2]
    if column.null_count:
        raise ValueError(f"a weight of an edge is null: column {name!r}; fill it, or leave such rows out")
    weights = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if not np.isfinite(weights).all():
        raise ValueError(f"a weight of an edge is not finite: column {name!r}")
    return weights


def run(
    program: VertexProgram,
    edges: tr.DataStream,
    vertices: tr.DataStream | None = None,
    seconds: float | None = None,
) -> tr.DataStream:
    """The result of a program as a stream in columns. `edges` has the columns src, dst and perhaps a weight, `vertices` an
    id; ids are integers. The program ends after some `seconds`, if it has not before."""
    env: Any = edges.env
    ports = env.from_collection([(n,) for n in range(PORTS_PER_JOB)], name="ports").to_columns(
        pa.schema([("port", pa.int64())])
    )
    inputs = [edges.map_batches(Loaded(program.both_ways)), ports.map_batches(port_records)]
    if vertices is not None:
        inputs.append(vertices.map_batches(Loaded(program.both_ways)))

    def body(stream: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        slices = stream.key_by("key").map_batches(SuperstepOperator(program, seconds), name=type(program).__name__)
        return slices, slices.side_output("results")

    return inputs[0].union(*inputs[1:]).iterate(body, rounds=tr.Rounds())


PORTS_PER_JOB = 4096
"""Numbers that are dealt to the slices, so that each gets some: with 64 slices one of 10^26 jobs has a slice without one."""


def port_records(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return list(records(PORT, batch.column(0).to_numpy()))
