"""Connected components by label propagation, as dataflows of tailrace with a loop.

Each vertex keeps the smallest label that it has received; it starts with its own number. When that falls it sends it to its
neighbours. Nothing else is known to anybody: there is no union-find, and messages go along edges only.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

import tailrace as tr

# In rows: (vertex, neighbour, True) is an edge, (vertex, label, False) a message. State is kept by key.

Record = tuple[int, int, bool]


def both_ways(edge: tuple[int, int]) -> tuple[Record, Record]:
    a, b = edge
    return (a, b, True), (b, a, True)


class Vertex(tr.KeyedProcessFunction):
    """One vertex. An edge says as much as a message: the label of a neighbour is its number or less."""

    label = tr.ValueState(int, default=None)
    neighbours = tr.ListState(int)

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Record]:
        me, received, is_edge = record
        label = self.label.value
        if label is None:
            ctx.set_timer(event_time=0)  # event time has an end, and it comes when the loop is at rest
            label = me
            if received >= me:
                self.label.value = me
        if is_edge:
            self.neighbours.add(received)
        if received < label:
            self.label.value = received
            for neighbour in self.neighbours.get():
                if neighbour > received:
                    yield neighbour, received, False
        elif is_edge and label < received:
            yield received, label, False

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        ctx.emit("labels", (ctx.key, self.label.value))


def smaller(a: Record, b: Record) -> Record:
    return a if a[1] <= b[1] else b


def in_rows(env: tr.Environment, edges: Any) -> Any:
    """From a DataFrame (a, b) to a DataFrame (v, label)."""

    def body(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        vertices = records.key_by(itemgetter(0)).process(Vertex())
        return vertices, vertices.side_output("labels")

    combine = tr.Combine(key=itemgetter(0), merge=smaller)
    labels = env.from_dataframe(edges).flat_map(both_ways).iterate(body, combine=combine)
    return labels.to_dataframe("v long, label long")


# In columns: (v, x, kind), where x is what the kind says.

EDGE, MESSAGE, LAP, LABEL = range(4)
FEW = 512
"""Changes that are sent at once, whatever is on its way."""
SCHEMA = pa.schema([("v", pa.int64()), ("x", pa.int64()), ("kind", pa.int8())])


def batch_of(v: np.ndarray, x: np.ndarray, kind: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(v), pa.array(x), pa.array(np.full(len(v), kind, np.int8))], schema=SCHEMA
    )


def both_ways_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    a, b = batch.column(0).to_numpy(), batch.column(1).to_numpy()
    return batch_of(np.concatenate([a, b]), np.concatenate([b, a]), EDGE)


class Vertices(tr.MapBatchesFunction):
    """All vertices of a subtask, in arrays by their numbers (which are small).

    What changes while many messages are on their way round the loop is told together: one record, the LAP, goes round behind
    them, and until it is back only a few changes are told at once. Nothing is told while edges still come in.
    """

    def open(self, ctx: tr.Context) -> None:
        self.labels = np.empty(0, np.int64)
        self.told = np.empty(0, np.int64)  # the least label that was sent to a vertex from here, or its number
        self.here = np.empty(0, bool)  # vertices of this subtask
        self.edges = Edges()
        self.changed: list[np.ndarray] = []  # vertices whose label fell, or that have new neighbours
        self.lapping = self.loading = False

    def map_batches(self, batch: pa.RecordBatch) -> list[pa.RecordBatch] | None:
        v, x, kind = (column.to_numpy() for column in batch.columns)
        if not kind.any():
            self.load(v, x)
        else:
            edge, received = kind == EDGE, kind == MESSAGE
            if edge.any():
                self.load(v[edge], x[edge])
            if received.any():
                self.hear(v[received], x[received])
            self.lapping = self.lapping and not (kind == LAP).any()
        if self.lapping and (self.loading or sum(map(len, self.changed)) > FEW):
            return None
        return self.tell() if self.changed else None

    def load(self, v: np.ndarray, neighbour: np.ndarray) -> None:
        self.make_room(max(v.max(), neighbour.max()))
        self.here[v] = True
        self.edges.add(v, neighbour)
        self.hear(v, neighbour)
        self.changed.append(v)
        self.loading = True

    def hear(self, v: np.ndarray, label: np.ndarray) -> None:
        self.make_room(v.max())  # a message may be faster than the first edge
        less = label < self.labels[v]
        if less.any():
            np.minimum.at(self.labels, v[less], label[less])
            self.changed.append(v[less])

    def tell(self) -> list[pa.RecordBatch] | None:
        """Messages with all changes that the neighbours have not received yet, and then the LAP."""
        lap = self.changed[0][:1]
        if self.loading:
            self.loading, self.lapping = False, True
            return [batch_of(lap, lap, LAP)]
        who, neighbour = self.edges.of(distinct(np.concatenate(self.changed)))
        self.changed = []
        label = self.labels[who]
        news = label < self.told[neighbour]
        neighbour = neighbour[news]
        if not len(neighbour):
            return None
        np.minimum.at(self.told, neighbour, label[news])
        neighbour = distinct(neighbour)
        messages = batch_of(neighbour, self.told[neighbour], MESSAGE)
        if self.lapping or len(neighbour) <= FEW:
            return [messages]
        self.lapping = True
        return [messages, batch_of(lap, lap, LAP)]

    def finish(self) -> pa.RecordBatch:
        v = np.flatnonzero(self.here)
        return batch_of(v, self.labels[v], LABEL)

    def make_room(self, most: int) -> None:
        """A place in the arrays for vertices up to this number."""
        size = len(self.labels)
        if most >= size:
            more = np.arange(size, max(2 * size, most + 1))
            self.labels = np.concatenate([self.labels, more])
            self.told = np.concatenate([self.told, more])
            self.here = np.concatenate([self.here, np.zeros(len(more), bool)])


class Edges:
    """Neighbours by vertex: most of them sorted by vertex, and what was added since."""

    def __init__(self) -> None:
        self.sources, self.targets = np.empty(0, np.int64), np.empty(0, np.int64)
        self.first = np.zeros(1, np.int64)  # where the sorted edges of each vertex begin
        self.recent: list[tuple[np.ndarray, np.ndarray]] = []
        self.count = 0  # of the recent ones
        self.scanned = 0  # recent ones looked at since all were sorted

    def add(self, v: np.ndarray, neighbour: np.ndarray) -> None:
        self.recent.append((v, neighbour))
        self.count += len(v)

    def of(self, vertices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each edge out of these vertices (in order, each once): its two ends."""
        self.scanned += self.count
        if self.scanned > len(self.sources):
            self._sort()
        known = vertices[: np.searchsorted(vertices, len(self.first) - 1)]
        start = self.first[known]
        count = self.first[known + 1] - start
        before = np.cumsum(count)
        at = np.arange(before[-1] if len(before) else 0) + np.repeat(start - before + count, count)
        found = [(self.sources[at], self.targets[at])]
        for v, neighbour in self.recent:
            place = np.minimum(np.searchsorted(vertices, v), len(vertices) - 1)
            found_there = vertices[place] == v
            found.append((v[found_there], neighbour[found_there]))
        if len(found) == 1:
            return found[0]
        return np.concatenate([v for v, _ in found]), np.concatenate([neighbour for _, neighbour in found])

    def _sort(self) -> None:
        sources, targets = zip((self.sources, self.targets), *self.recent, strict=True)
        everything = np.concatenate(sources)
        order = np.argsort(everything)
        self.sources, self.targets = everything[order], np.concatenate(targets)[order]
        self.first = np.concatenate([[0], np.cumsum(np.bincount(everything))])
        self.recent, self.count, self.scanned = [], 0, 0


def distinct(values: np.ndarray) -> np.ndarray:
    """In order, each once. Faster than `np.unique`, which hashes."""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])]


def messages(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    return None if batch.column(2)[0].as_py() == LABEL else batch


def labels(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """A batch is of labels from end to end, or has none."""
    if batch.column(2)[0].as_py() != LABEL:
        return None
    return pa.RecordBatch.from_arrays(batch.columns[:2], names=["v", "label"])


def in_columns(env: tr.Environment, edges: Any) -> Any:
    """From a DataFrame (a, b) to a DataFrame (v, label)."""

    def body(records: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        vertices = records.key_by("v").map_batches(Vertices())
        return vertices.map_batches(messages), vertices.map_batches(labels)

    records = env.from_dataframe(edges, form="columns").map_batches(both_ways_columns)
    return records.iterate(body).to_dataframe()
