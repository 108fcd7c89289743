"""The first span of a graph: the changes that came before its first quiet moment, and what they leave, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from tailrace.graphs.supersteps import Adjacency

Array = Any  # of numpy
Change = tuple[str, Any, Any, Any]
Columns = tuple[Array, Any, Any, Array]


def columns_of(changes: Sequence[Change]) -> Columns:
    """Changes in columns: whether an edge comes, both ends, weights."""
    ops, a, b, weights = zip(*changes, strict=True)
    return np.array([op == "+" for op in ops]), pack_ids(a), pack_ids(b), np.array(weights, np.float64)


def pack_ids(ids: tuple[Any, ...]) -> Any:
    """Ids in an array where all are whole numbers of 64 bits, else as they are."""
    if type(ids[0]) is int:
        try:
            return np.array(ids, np.int64)
        except OverflowError:
            pass
    return ids


class FirstSpan:
    """The edges that are there after all changes of a span, each once. Vertices have numbers, in the order of their ids.

    Raises `ValueError` where a change takes an edge away that is not there when its turn comes."""

    def __init__(self, changes: list[Columns], both_ways: bool, weighted: bool) -> None:
        come, a, b, weights = (list(column) for column in zip(*changes, strict=True))
        self.ids, x, y = number_ids(a, b)
        """All vertices that the changes name, also those without an edge that is left."""
        if both_ways:
            x, y = np.minimum(x, y), np.maximum(x, y)
        signs = np.where(np.concatenate(come), 1, -1)
        weight = np.concatenate(weights) + 0.0  # without the sign of a zero
        code = x * len(self.ids) + y
        order = np.lexsort((weight, code)) if (weight != weight[0]).any() else np.argsort(code, kind="stable")
        code, weight = code[order], weight[order]
        new = np.concatenate([[True], (code[1:] != code[:-1]) | (weight[1:] != weight[:-1])])
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(code)) - 1
        count = np.cumsum(signs[order])
        before = count[first] - signs[order][first]
        count -= np.repeat(before, np.diff(np.append(first, len(code))))
        if (count < 0).any():
            raise self.not_there(changes, int(order[count < 0].min()), weighted)
        left = last[count[last] > 0]
        self.often = count[left]
        self.weight = weight[left]
        self.src, self.dst = code[left] // len(self.ids), code[left] % len(self.ids)
        self.there = np.zeros(len(self.ids), bool)
        self.there[self.src] = self.there[self.dst] = True

    def not_there(self, changes: list[Columns], at: int, weighted: bool) -> ValueError:
        """The error for the change with this number."""
        for _, a, b, weights in changes:
            if at < len(a):
                more = f" of weight {float(weights[at])!r}" if weighted else ""
                ends = f"({list_of(a)[at]!r}, {list_of(b)[at]!r})"
                return ValueError(f"a change takes away the edge {ends}{more}, which is not there")
            at -= len(a)
        raise AssertionError("the change is one of them")


def number_ids(a: list[Any], b: list[Any]) -> tuple[list[Any], Array, Array]:
    """The ids, sorted, and their numbers for both ends of each change."""
    if all(isinstance(some, np.ndarray) for some in (*a, *b)):
        ids, numbers = np.unique(np.concatenate([*a, *b]), return_inverse=True)
        x, y = np.split(numbers.astype(np.int64), 2)
        return ids.tolist(), x, y
    one, other = (list(chain.from_iterable(map(list_of, column))) for column in (a, b))
    names = sorted({*one, *other})
    number = {name: n for n, name in enumerate(names)}
    x, y = (np.fromiter((number[name] for name in some), np.int64, len(some)) for some in (one, other))
    return names, x, y


def list_of(ids: Any) -> Any:
    """Ids as values of Python."""
    return ids.tolist() if isinstance(ids, np.ndarray) else ids


def neighbours_of(span: FirstSpan, way: str) -> Adjacency:
    """The edges of each vertex, in the order of their other ends: those "out" of it, "into" it or "both". In place of a
    weight they have the number of the edge. An edge of a vertex with itself is there once."""
    x, y = (span.dst, span.src) if way == "into" else (span.src, span.dst)
    edges = np.arange(len(x))
    if way == "both":
        back = np.flatnonzero(x != y)
        x, y, edges = np.concatenate([x, y[back]]), np.concatenate([y, x[back]]), np.concatenate([edges, back])
    order = np.argsort(x * len(span.ids) + y, kind="stable")
    x, y, edges = x[order], y[order], edges[order]
    first = np.concatenate([[0], np.cumsum(np.bincount(x, minlength=len(span.ids)))]).astype(np.intp)
    return Adjacency(first, x, y, edges)


def names_of(names: list[Any], numbers: Array) -> list[Any]:
    """The name of each number."""
    return [names[n] for n in numbers.tolist()]
