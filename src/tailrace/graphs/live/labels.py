"""Label propagation over a graph that changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tailrace as tr
from tailrace.graphs.live.edges import LiveGraph, VertexTable, differences


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

    def process(self, change: Any, ctx: tr.Context) -> Iterator[tuple[Any, ...]]:
        op, a, b, _ = self.parts(change)
        before: dict[Any, Any] = {}
        self.change_both(a, b, 1 if op == "+" else -1)
        for one in dict.fromkeys((a, b)):
            before[one] = self.labels.get(one)
            if one not in self.edges:
                self.labels.remove(one)
            elif before[one] is None:
                self.labels[one] = (one,) * self.steps
        touched = {one for one in (a, b) if one in self.edges}
        changed: set[Any] = set()  # by the step before
        for step in range(self.steps):
            met = touched.union(*(self.edges.near(one) for one in changed))
            new = {one: self.most(one, step) for one in met}
            changed = {one for one, label in new.items() if label != self.labels[one][step]}
            for one in changed:
                mine = self.labels[one]
                before.setdefault(one, mine)
                self.labels[one] = (*mine[:step], new[one], *mine[step + 1 :])
        last = {one: labels and labels[-1] for one, labels in before.items()}
        yield from differences(last, {one: labels and labels[-1] for one in before for labels in (self.labels[one],)})

    def most(self, one: Any, step: int) -> Any:
        """The label that most edges of a vertex have at their other end, before this step; the least of several."""
        count: dict[Any, int] = {}
        for other, often in self.edges.of(one):
            label = self.labels[other][step - 1] if step else other
            count[label] = count.get(label, 0) + often * (1 + (other == one))  # both ends of a loop are here
        return min(count, key=lambda label: (-count[label], label))
