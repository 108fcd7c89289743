"""Components and spanning forests: each subtask reduces its edges to what still counts, and one of them joins these.

What a subtask keeps of its edges is bounded by the vertices that it has met: a forest says as much about components as all
edges do. Strong components are found in one subtask, with all edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import tailrace as tr
from tailrace.graphs.supersteps import PARTS, checked_weights, distinct, whole_ids

ENOUGH = 1 << 22
"""Edges that come in before they are reduced."""


def matrix(values: Any, rows: Any, columns: Any, size: int) -> Any:
    try:
        from scipy.sparse import coo_matrix
    except ImportError:
        raise tr.ConfigError('graphs need SciPy: pip install "tailrace[graphs]"') from None
    return coo_matrix((values, (rows, columns)), shape=(size, size)).tocsr()


def least_of_each(labels: Any, count: int, ids: Any) -> Any:
    """For each vertex the least id that has its label. Ids are sorted."""
    least = np.empty(count, np.int64)
    least[labels[::-1]] = ids[::-1]  # of several the last one stays, which is the first
    return least[labels]


def components(columns: list[Any], connection: str) -> list[Any]:
    from scipy.sparse.csgraph import connected_components

    a, b = columns
    ids = distinct(np.concatenate([a, b]))
    rows, ends = np.searchsorted(ids, a), np.searchsorted(ids, b)
    count, labels = connected_components(
        matrix(np.ones(len(a), np.int8), rows, ends, len(ids)), directed=connection == "strong", connection=connection
    )
    return [ids, least_of_each(labels, count, ids)]


class Reduction(tr.MapBatchesFunction):
    """A reduction of all edges of a subtask, when they are many, and at the end."""

    kept = tr.OperatorState(object)
    names: tuple[str, ...] = ("src", "dst")

    def map_batches(self, batch: pa.RecordBatch) -> None:
        columns = [whole_ids(batch, 0), whole_ids(batch, min(1, batch.num_columns - 1))]
        if len(self.names) > 2:
            columns.append(checked_weights(batch))
        parts, count = self.kept.value if self.kept.exists() else ([], 0)
        parts.append(columns)
        count += len(columns[0])
        if count >= ENOUGH:
            parts = [self.reduce(*(np.concatenate(one) for one in zip(*parts, strict=True)))]
            # What is left of these edges may be as many: the next time is when as many new ones have come.
            count = 0
        self.kept.value = (parts, count)

    def finish(self) -> list[pa.RecordBatch] | None:
        if not self.kept.exists():
            return None
        parts, _ = self.kept.value
        self.kept.clear()
        reduced = self.reduce(*(np.concatenate(one) for one in zip(*parts, strict=True)))
        whole = pa.RecordBatch.from_arrays([pa.array(one) for one in reduced], names=list(self.names))
        return [whole.slice(start, PARTS) for start in range(0, whole.num_rows, PARTS)]

    def reduce(self, *columns: Any) -> list[Any]:
        """Fewer edges that say as much."""
        raise NotImplementedError


class Stars(Reduction):
    """Components as stars: each vertex, and the least id of its component."""

    def reduce(self, a: Any, b: Any) -> list[Any]:
        return components([a, b], "weak")


class Distinct(Reduction):
    """Edges, each once."""

    def reduce(self, a: Any, b: Any) -> list[Any]:
        order = np.lexsort((b, a))
        a, b = a[order], b[order]
        new = np.ones(len(a), bool)
        new[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
        return [a[new], b[new]]


class StrongComponents(Distinct):
    """Strong components of all edges: each vertex, and the least id of its component."""

    names = ("id", "component")

    def finish(self) -> list[pa.RecordBatch] | None:
        self.ending = True
        return super().finish()

    def reduce(self, a: Any, b: Any) -> list[Any]:
        edges = super().reduce(a, b)
        return components(edges, "strong") if getattr(self, "ending", False) else edges


class Components(Stars):
    names = ("id", "component")


class SpanningForest(Reduction):
    """A minimum spanning forest. Edges are in the order of weight, lesser end, greater end, so that there is just one."""

    names = ("src", "dst", "weight")

    def reduce(self, a: Any, b: Any, weight: Any) -> list[Any]:
        from scipy.sparse.csgraph import minimum_spanning_tree

        a, b = np.minimum(a, b), np.maximum(a, b)
        order = np.lexsort((weight, b, a))
        a, b, weight = a[order], b[order], weight[order]
        keep = a != b
        keep[1:] &= (a[1:] != a[:-1]) | (b[1:] != b[:-1])  # the lightest of edges side by side
        a, b, weight = a[keep], b[keep], weight[keep]
        order = np.lexsort((b, a, weight))
        a, b, weight = a[order], b[order], weight[order]
        ids = distinct(np.concatenate([a, b]))
        rank = np.arange(1.0, len(a) + 1)
        tree = minimum_spanning_tree(matrix(rank, np.searchsorted(ids, a), np.searchsorted(ids, b), len(ids)))
        chosen = np.sort(tree.data).astype(np.int64) - 1
        return [a[chosen], b[chosen], weight[chosen]]


def run(
    local: Reduction, final: Reduction, edges: tr.DataStream, vertices: tr.DataStream | None = None
) -> tr.DataStream:
    """The reduction `final` of what the reductions `local` leave of the edges, and of the vertices, as a stream in
    columns."""
    streams = [edges.map_batches(local)]
    if vertices is not None:
        streams.append(vertices.map_batches(type(local)()))
    return streams[0].union(*streams[1:]).rebalance().map_batches(final, parallelism=1)
