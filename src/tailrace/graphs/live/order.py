"""An order of vertices by level, in which each can be put behind any other one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.graphs.live.edges import Findings
from tailrace.graphs.live.spans import FirstSpan, names_of
from tailrace.graphs.neighbours import peeling
from tailrace.graphs.supersteps import Adjacency

GAP = 1 << 16
"""How far the label of a new first or last vertex is from the one beside it."""


class OrderedVertex:
    """A vertex in the order, and what its core number needs: how many neighbours are behind it, and how many have its core
    number or a greater one. A level has one, too, as the place before its first vertex and behind its last."""

    __slots__ = ("before", "behind", "core", "label", "later", "stored", "support")

    def __init__(self, stored: tuple[Any, ...] | None) -> None:
        self.stored = stored
        """What the state has; None for a vertex that is not there."""
        self.core, self.label, self.later, self.support, self.before, self.behind = stored or NOWHERE

    def parts(self) -> tuple[Any, ...] | None:
        if self.before is None:
            return None
        return self.core, self.label, self.later, self.support, self.before, self.behind


NOWHERE: tuple[Any, ...] = (None, 0, 0, 0, None, None)


class LevelOrder:
    """Vertices of each level in an order: a ring through the place ("level", number). Labels grow along it, so that two
    vertices are compared without a walk. Where no label is free between two, some of those behind get others (Dietz and
    Sleator, "Two algorithms for maintaining order in a list", 1987)."""

    def __init__(self, seen: Findings) -> None:
        self.seen = seen

    def before(self, place: Any) -> Any:
        found = self.seen[place].before
        return place if found is None else found

    def behind(self, place: Any) -> Any:
        found = self.seen[place].behind
        return place if found is None else found

    def join(self, one: Any, other: Any) -> None:
        """Makes `other` the next one behind `one`. A level without vertices has nothing around it."""
        self.seen[one].behind, self.seen[other].before = (None, None) if one == other else (other, one)

    def take(self, vertex: Any) -> None:
        """Takes a vertex from its place."""
        gone = self.seen[vertex]
        self.join(gone.before, gone.behind)
        gone.before = gone.behind = None

    def put(self, vertex: Any, place: Any) -> None:
        """Puts a vertex that has no place behind another one, or first in a level."""
        seen, behind = self.seen, self.behind(place)
        if type(behind) is tuple:
            label = 0 if type(place) is tuple else seen[place].label + GAP
        elif type(place) is tuple:
            label = seen[behind].label - GAP
        else:
            if seen[behind].label - seen[place].label < 2:
                self.spread(place)
            label = (seen[place].label + seen[behind].label) // 2
        seen[vertex].label = label
        self.join(place, vertex)
        self.join(vertex, behind)

    def spread(self, place: Any) -> None:
        """Gives so many vertices behind a place other labels that there are gaps between them."""
        seen, start = self.seen, self.seen[place].label
        near = [self.behind(place)]
        while type(near[-1]) is not tuple and seen[near[-1]].label - start <= len(near) ** 2:
            near.append(self.behind(near[-1]))
        last = near.pop()
        width = GAP * (len(near) + 1) if type(last) is tuple else seen[last].label - start
        for n, one in enumerate(near, start=1):
            seen[one].label = start + width * n // (len(near) + 1)


def standings_of(span: FirstSpan, near: Adjacency) -> dict[Any, tuple[Any, ...]]:
    """What `OrderedVertex` has of each vertex with an edge, and of each level, where edges are those of a span."""
    others = near.rows != near.ends
    rows, ends = near.rows[others], near.ends[others]
    first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(span.ids)))]).astype(np.intp)
    core, order = peeling(Adjacency(first, rows, ends, ends), span.there)
    place = np.zeros(len(span.ids), np.int64)
    place[order] = np.arange(len(order))
    later = np.bincount(rows, place[ends] > place[rows], len(span.ids)).astype(np.int64)
    support = np.bincount(rows, core[ends] >= core[rows], len(span.ids)).astype(np.int64)
    found: dict[Any, tuple[Any, ...]] = {}
    levels, starts = np.unique(core[order], return_index=True)  # cores grow along the order
    for level, some in zip(levels.tolist(), np.split(order, starts)[1:], strict=True):
        ids, ring = names_of(span.ids, some), ("level", level)
        numbers = zip(later[some].tolist(), support[some].tolist(), strict=True)
        around = zip([ring, *ids], [*ids[1:], ring], strict=False)
        for n, (one, counts, (before, behind)) in enumerate(zip(ids, numbers, around, strict=True)):
            found[one] = level, n * GAP, *counts, before, behind
        found[ring] = None, 0, 0, 0, ids[-1], ids[0]
    return found
