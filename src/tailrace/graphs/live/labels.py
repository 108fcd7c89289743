"""Label propagation over a graph that changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import tailrace as tr
from tailrace.graphs.live.edges import Change, Findings, LiveGraph, VertexTable, differences
from tailrace.graphs.live.spans import FirstSpan, names_of
from tailrace.graphs.supersteps import Adjacency, runs


class LiveLabels(LiveGraph):
    """The label of each vertex after a number of steps over a graph that changes. A vertex keeps its labels of all steps: a
    label of one step depends on the edges of the vertex and on labels of the step before, and on nothing else."""

    label = tr.ValueState(tuple)
    """The labels of a vertex, one after each step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def open(self, ctx: tr.Context) -> None:
        super().open(ctx)
        self.labels = VertexTable(ctx, self.label)

    def load(self, span: FirstSpan, known: list[Any]) -> Iterator[tuple[Any, ...]]:
        near = self.load_edges(self.edges, span, "both")
        before = {one: (self.labels.get(one) or (None,))[-1] for one in known}
        for one in known:
            self.labels.remove(one)
        often = span.often[near.weights] * (1 + (near.rows == near.ends))  # both ends of a loop are here
        label, there = np.arange(len(span.ids)), np.flatnonzero(span.there)
        steps = []
        for _ in range(self.steps):
            label = labels_after(near, often, label)
            steps.append(names_of(span.ids, label[there]))
        labels = dict(zip(names_of(span.ids, there), zip(*steps, strict=True), strict=True))
        self.labels.update(labels)
        after = {one: mine[-1] for one, mine in labels.items()}
        return differences({**dict.fromkeys(after), **before}, after)

    def take(self, changes: list[Change]) -> Iterator[tuple[Any, ...]]:
        for op, a, b, _ in changes:
            self.change_both(a, b, 1 if op == "+" else -1)
        edges, labels = Findings(self.ends_of), Findings(self.labels.get)
        before: dict[Any, Any] = {}
        for one in dict.fromkeys(end for _, a, b, _ in changes for end in (a, b)):
            before[one] = labels[one]
            if not edges[one]:
                labels[one] = None
            elif before[one] is None:
                labels[one] = (one,) * self.steps
        touched = dict.fromkeys(one for one in before if edges[one])
        changed: list[Any] = []  # by the step before
        for step in range(self.steps):
            met = dict(touched)
            for one in changed:
                met.update(dict.fromkeys(other for other, _ in edges[one]))
            changed = []
            for one in met:
                new, mine = most(edges[one], labels, step), labels[one]
                if new != mine[step]:
                    changed.append(one)
                    before.setdefault(one, mine)
                    labels[one] = (*mine[:step], new, *mine[step + 1 :])
        for one, old in before.items():
            if labels[one] is None:
                self.labels.remove(one)
            elif labels[one] != old:
                self.labels[one] = labels[one]
        last = {one: old and old[-1] for one, old in before.items()}
        yield from differences(last, {one: labels[one] and labels[one][-1] for one in before})

    def ends_of(self, vertex: Any) -> list[tuple[Any, int]]:
        """The ends of the edges of a vertex, and how often each counts: both ends of a loop are here."""
        return [(end, often * (1 + (end == vertex))) for end, often in self.edges.of(vertex)]


def most(ends: list[tuple[Any, int]], labels: Findings, step: int) -> Any:
    """The label that most edges have at their other end, before this step; the least of several."""
    count: dict[Any, int] = {}
    for other, often in ends:
        label = labels[other][step - 1] if step else other
        count[label] = count.get(label, 0) + often
    highest = max(count.values())
    return min(label for label, times in count.items() if times == highest)


def labels_after(near: Adjacency, often: Any, label: Any) -> Any:
    """The labels of all vertices after a step: of each the label that most of its edges have at their other end, the least
    of several. Labels are numbers of vertices; `often` is how often each edge counts."""
    size = len(label)
    votes = near.rows * size + label[near.ends]
    order = np.argsort(votes, kind="stable")
    kinds, starts = runs(votes[order])
    if not len(kinds):
        return label
    times, at, name = np.add.reduceat(often[order], starts), kinds // size, kinds % size
    best = np.lexsort((name, -times, at))
    rows, first = runs(at[best])
    after = label.copy()
    after[rows] = name[best][first]
    return after
