"""PageRank over a graph that changes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

import tailrace as tr
from tailrace.graphs.live.edges import Change, DirectedGraph, VertexTable
from tailrace.graphs.live.spans import FirstSpan, names_of

UNIT = 1 << 80
"""Scores are whole parts of this, so that nothing is lost by rounding, however many changes there are."""
SHARE = 1 << 62
"""Parts of a score that edges pass on are whole parts of this."""
STEPS = 1000
"""Steps of an estimate, at most: what is left behind them goes from vertex to vertex."""


class LiveRanks(DirectedGraph):
    """The score of each vertex of a graph that changes: how often surfers come by of whom one begins at each vertex, or at
    each of `sources`. Divided by the sum of all scores it is the rank.

    A vertex has a score and a residual: what it should have and does not have yet. The residual is always exactly what the
    edges and the scores of the other vertices make it. Where it is greater than a threshold it becomes a part of the score,
    and the vertices behind the edges get their parts of that as a residual (Zhang, Lofgren and Goel, "Approximate
    Personalized PageRank on Dynamic Graphs", 2016)."""

    score = tr.ValueState(int)
    residual = tr.ValueState(int)
    number = tr.ValueState(int)
    """The number of a vertex, where sources are given."""
    vertex = tr.ValueState(object)
    """The vertex of a number, of the key ("number", n)."""
    count = tr.ValueState(int, default=0)
    level = tr.ValueState(tuple)
    """The number of vertices; the threshold, and all residuals together; of the key of changes, where sources are given."""
    weighted = True
    threshold: int
    total: int
    """The threshold, and all residuals together, in the call under way."""

    def __init__(self, damping: float, tolerance: float, sources: list[Any] | None) -> None:
        self.passed = int(damping * SHARE)
        self.sources = None if sources is None else frozenset(sources)
        # All residuals together may be `tolerance` / 2 of all scores, times what is not passed on. Half of it is for
        # rounding. Scores together are at least what begins: one at each vertex, so that each may leave a residual of this
        # size, or at one of the sources.
        self.allowed = max(1, int(tolerance * (1 - damping) / 4 * UNIT))

    def open(self, ctx: tr.Context) -> None:
        super().open(ctx)
        self.scores, self.residuals = VertexTable(ctx, self.score), VertexTable(ctx, self.residual)
        self.numbers, self.vertices = VertexTable(ctx, self.number), VertexTable(ctx, self.vertex)

    def load(self, span: FirstSpan, known: list[Any]) -> Iterator[tuple[str, Any, float]]:
        self.threshold, self.total = self.level.value or (self.allowed, 0)
        weights = span.weight.tolist()
        self.load_edges(self.edges, span, "out", weights)
        self.load_edges(self.into, span, "into", weights)
        before: dict[Any, Any] = {}
        for one in known:
            if self.scores[one] is not None:
                before[one] = self.scores[one]
                self.leave(one)
        there = np.flatnonzero(span.there)
        ids = names_of(span.ids, there)
        for one in ids:
            before.setdefault(one, None)
            self.enter(one)
        begin = np.array([self.sources is None or one in self.sources for one in span.ids]) & span.there
        guess = estimate(span, begin.astype(np.float64), self.passed / SHARE, self.allowed / UNIT)
        scores = {one: int(score * UNIT) for one, score in zip(ids, guess[there].tolist(), strict=True) if score}
        residuals = {one: -score for one, score in scores.items()}
        for one, score in scores.items():
            for end, part in self.shares(one).items():
                residuals[end] = residuals.get(end, 0) + share(score, part)
        self.scores.update(scores)
        for one, amount in residuals.items():
            self.move(one, amount)
        yield from self.settle(set(ids), before)

    def take(self, changes: list[Change]) -> Iterator[tuple[str, Any, float]]:
        self.threshold, self.total = self.level.value or (self.allowed, 0)
        before: dict[Any, Any] = {}
        old = {a: self.shares(a) for a in dict.fromkeys(a for _, a, _, _ in changes)}
        for op, a, b, weight in changes:
            for one in (a, b):
                if op == "+" and self.scores[one] is None:
                    before.setdefault(one, None)
                    self.enter(one)
            by = 1 if op == "+" else -1
            self.edges.change(a, (b, float(weight)), by)
            self.into.change(b, (a, float(weight)), by)
        ends = {end for _, a, b, _ in changes for end in (a, b)}
        touched = set(ends)
        for a, shares in old.items():
            new, score = self.shares(a), self.scores[a]
            for end in shares.keys() | new.keys():
                self.move(end, share(score, new.get(end, 0)) - share(score, shares.get(end, 0)))
            touched |= shares.keys() | new.keys()
        for one in sorted(ends):
            if one not in self.edges and one not in self.into and self.scores[one] is not None:
                before.setdefault(one, self.scores[one])
                self.leave(one)
        if before.keys() & (self.sources or ()) and not any(self.scores[one] is not None for one in self.sources or ()):
            self.take_back(before)
        yield from self.settle(touched, before)

    def settle(self, touched: set[Any], before: dict[Any, Any]) -> Iterator[tuple[str, Any, float]]:
        """Takes residuals into scores, as far as the tolerance requires, and gives changes of scores."""
        self.push(touched, before)
        if self.sources is not None:
            while self.total > self.allowed and self.threshold > 1:
                self.threshold //= 2
                self.push({self.vertices["number", number] for number in range(self.count.value)}, before)
            if 8 * self.total < self.allowed:
                self.threshold = min(self.allowed, 2 * self.threshold)
            self.level.value = self.threshold, self.total
        for one in sorted(before):
            scores = before[one], self.scores[one]
            if scores[0] != scores[1]:
                for sign, value in zip("-+", scores, strict=True):
                    if value is not None:
                        yield sign, one, value / UNIT

    def enter(self, one: Any) -> None:
        """Makes a vertex, without a score."""
        self.scores[one] = 0
        if self.sources is None or one in self.sources:
            self.move(one, UNIT)
        if self.sources is not None:
            number = self.count.value
            self.numbers[one], self.vertices["number", number] = number, one
            self.count.value = number + 1

    def leave(self, one: Any) -> None:
        """Removes a vertex. The one with the last number gets its number."""
        self.scores.remove(one)
        self.move(one, -int(self.residuals[one] or 0))
        if self.sources is not None:
            last = self.count.value = self.count.value - 1
            other, number = self.vertices["number", last], self.numbers[one]
            self.numbers[other], self.vertices["number", number] = number, other
            self.numbers.remove(one)
            self.vertices.remove(("number", last))

    def take_back(self, before: dict[Any, Any]) -> None:
        """Takes all scores back where the last source has gone: what is below the threshold would be all that is left."""
        for number in range(self.count.value):
            one = self.vertices["number", number]
            before.setdefault(one, self.scores[one])
            self.scores[one] = 0
            self.move(one, -int(self.residuals[one] or 0))

    def shares(self, vertex: Any) -> dict[Any, int]:
        """The part of its score that a vertex passes on to each neighbour."""
        weights: dict[Any, list[float]] = {}
        for (end, weight), often in self.edges.of(vertex):
            weights.setdefault(end, []).append(weight * often)
        whole = math.fsum(one for some in weights.values() for one in some)
        if not whole:
            return {}
        return {end: int(math.fsum(some) / whole * self.passed) for end, some in weights.items()}

    def move(self, vertex: Any, amount: int) -> int:
        """The residual of a vertex, with `amount` more."""
        old = int(self.residuals[vertex] or 0)
        left = old + amount
        self.total += abs(left) - abs(old)
        if left:
            self.residuals[vertex] = left
        else:
            self.residuals.remove(vertex)
        return left

    def push(self, vertices: set[Any], before: dict[Any, Any]) -> None:
        """Takes residuals into scores, until none is above the threshold."""
        most = self.threshold
        waiting = deque(one for one in sorted(vertices) if abs(self.residuals[one] or 0) > most)
        queued = set(waiting)
        while waiting:
            one = waiting.popleft()
            queued.discard(one)
            old = self.scores[one]
            moved = int(self.residuals[one] or 0)
            if abs(moved) <= most:
                continue  # a push of another vertex has made up for it
            new = old + moved
            self.move(one, -moved)
            before.setdefault(one, old)
            self.scores[one] = new
            for end, part in self.shares(one).items():
                left = self.move(end, share(new, part) - share(old, part))
                if abs(left) > most and end not in queued:
                    queued.add(end)
                    waiting.append(end)


def share(score: int, part: int) -> int:
    return score * part // SHARE


def estimate(span: FirstSpan, begin: Any, damping: float, enough: float) -> Any:
    """The score of each vertex, about: what is left of a step is `enough` or less for each of them."""
    weight = span.weight * span.often
    whole = np.bincount(span.src, weight, len(span.ids))
    passed = damping * np.divide(weight, whole[span.src], out=np.zeros_like(weight), where=weight > 0)
    score = begin
    for _ in range(STEPS):
        before, score = score, begin + np.bincount(span.dst, passed * score[span.src], len(span.ids))
        if np.abs(score - before).max(initial=0.0) <= enough:
            break
    return score
