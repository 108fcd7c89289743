"""Random walks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.graphs.neighbours import EdgeIndex, splitmix
from tailrace.graphs.supersteps import ReceivedMessages, SentMessages, VertexProgram, VertexSlice


class RandomWalks(VertexProgram):
    """Walks of random steps along edges: `walks` from each vertex, each of at most `length` edges. Which way a walk takes
    depends on the seed, its start and its number, and on nothing else."""

    sorts = False
    schema = pa.schema([("start", pa.int64()), ("walk", pa.int64()), ("step", pa.int64()), ("id", pa.int64())])

    def __init__(self, walks: int, length: int, seed: int) -> None:
        self.walks, self.length, self.seed = walks, length, seed
        self.seen: list[tuple[Any, ...]] = []

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        at, start, walk = inbox.target, inbox.other, inbox.tag
        if number == 0:
            at, start, walk = self.begin(part)
        self.seen.append((start, walk, np.full(len(at), number), part.ids[at]))
        if number < self.length:
            degree = part.out.degrees[at]
            going = degree > 0
            at, start, walk, degree = at[going], start[going], walk[going], degree[going]
            draw = self.draw(start, walk, number)
            edge = part.out.first[at] + (draw % degree.astype(np.uint64)).astype(np.intp)
            outbox.send(part.out.ends[edge], start, 0, walk)

    def begin(self, part: VertexSlice) -> tuple[Any, Any, Any]:
        """The vertex, the start and the number of each walk."""
        at = np.tile(np.arange(len(part.ids)), self.walks)
        return at, part.ids[at], np.repeat(np.arange(self.walks), len(part.ids))

    def draw(self, start: Any, walk: Any, step: Any) -> Any:
        """A number of chance for each step of a walk."""
        mixed = splitmix(splitmix(start, self.seed) ^ walk.astype(np.uint64), 1)
        return splitmix(mixed ^ np.asarray(step).astype(np.uint64), 2)

    def result(self, part: VertexSlice) -> list[Any]:
        return [np.concatenate(column) for column in zip(*self.seen, strict=True)]


ASK, ANSWER = 0, 1


class BiasedWalks(RandomWalks):
    """Walks whose next step depends on the one before (Grover and Leskovec, "node2vec: Scalable Feature Learning for
    Networks", 2016): an edge back to the vertex before has the weight 1/p, one to a vertex to which that one leads, too, has
    1, and any other one 1/q.

    A vertex knows which of its edges lead back. Of the others it draws one as if all had the greater weight of the two, and
    sends a query to the vertex before, whether it leads there as well: if the edge has the lesser weight it is taken as
    often as that is of the greater one, and else another one is drawn. Walks that wait for an answer get it in the next
    step but one."""

    def __init__(self, walks: int, length: int, seed: int, p: float, q: float) -> None:
        super().__init__(walks, length, seed)
        self.back, self.near, self.far = 1 / p, 1.0, 1 / q
        self.most = max(self.near, self.far)
        self.waiting: list[tuple[Any, ...]] = [(), ()]
        """Of odd and of even steps, the walks that wait: vertex, start, number, step, the vertex before, edge, attempt."""

    def step(
        self, number: int, part: VertexSlice, inbox: ReceivedMessages, totals: dict[int, int], outbox: SentMessages
    ) -> None:
        if number == 0:
            self.index = EdgeIndex(part.out)
            at, start, walk = self.begin(part)
            self.seen.append((start, walk, np.zeros(len(at), np.int64), part.ids[at]))
            at, start, walk = (one[part.out.degrees[at] > 0] for one in (at, start, walk))
            if self.length:
                draw = self.draw(start, walk, 0) % part.out.degrees[at].astype(np.uint64)
                edge = part.out.first[at] + draw.astype(np.intp)
                self.leave(part, [at, start, walk, np.zeros(len(at), np.int64), edge], outbox)
            return
        came = inbox.tag >= 0
        code = -1 - inbox.tag[~came]
        question, place = code % 2 == ASK, code // 2
        target, other, value = inbox.target[~came], inbox.other[~came], inbox.value[~came]
        _, leads = self.index.of(target[question], value[question])
        outbox.send(other[question], value=leads.astype(np.int64), tag=-1 - (2 * place[question] + ANSWER))
        again = self.take(part, place[~question], value[~question] == 1, number, outbox)
        walk, step = inbox.tag[came] // (self.length + 1), inbox.tag[came] % (self.length + 1)
        at, start, before = inbox.target[came], inbox.other[came], inbox.value[came]
        self.seen.append((start, walk, step, part.ids[at]))
        going = (step < self.length) & (part.out.degrees[at] > 0)
        fresh = (*(one[going] for one in (at, start, walk, step, before)), np.zeros(int(going.sum()), np.int64))
        self.choose(part, [np.concatenate(pair) for pair in zip(again, fresh, strict=True)], number, outbox)

    def take(self, part: VertexSlice, place: Any, leads: Any, number: int, outbox: SentMessages) -> tuple[Any, ...]:
        """Takes the edges of walks that have an answer, or gives the walks back for another attempt."""
        if not len(place):
            return tuple(np.empty(0, np.int64) for _ in range(6))
        at, start, walk, step, before, edge, attempt = (one[place] for one in self.waiting[number % 2])
        taken = self.chance(start, walk, step, attempt, 4) * self.most < np.where(leads, self.near, self.far)
        self.leave(part, [one[taken] for one in (at, start, walk, step, edge)], outbox)
        return tuple(one[~taken] for one in (at, start, walk, step, before, attempt + 1))

    def choose(self, part: VertexSlice, walks: list[Any], number: int, outbox: SentMessages) -> None:
        """Draws an edge for each walk. One that leads back is taken."""
        at, start, walk, step, before, attempt = walks
        first, degree = part.out.first[at], part.out.degrees[at]
        low, high = self.index.range_of(at, before)
        backs = high - low
        drawn = self.chance(start, walk, step, attempt, 3) * (backs * self.back + (degree - backs) * self.most)
        back = (drawn < backs * self.back) | (backs == degree)
        which = np.where(back, drawn / self.back, (drawn - backs * self.back) / self.most).astype(np.intp)
        which = np.minimum(which, np.maximum(np.where(back, backs, degree - backs) - 1, 0))
        edge = np.where(back, low, first) + which
        edge += np.where(~back & (edge >= low), backs, 0)
        self.leave(part, [one[back] for one in (at, start, walk, step, edge)], outbox)
        at, start, walk, step, before, edge, attempt = (
            one[~back] for one in (at, start, walk, step, before, edge, attempt)
        )
        self.waiting[number % 2] = at, start, walk, step, before, edge, attempt
        tag = -1 - (2 * np.arange(len(at)) + ASK)
        outbox.send(before, part.ids[at], part.out.ends[edge], tag)

    def chance(self, start: Any, walk: Any, step: Any, attempt: Any, seed: int) -> Any:
        """A number from 0 to less than 1 for each attempt of each step of a walk."""
        drawn = splitmix(self.draw(start, walk, step) ^ attempt.astype(np.uint64), seed)
        return (drawn >> np.uint64(11)) * 2.0**-53

    def leave(self, part: VertexSlice, walks: list[Any], outbox: SentMessages) -> None:
        """Sends walks along edges: vertex, start, number, step and edge of each."""
        at, start, walk, step, edge = walks
        outbox.send(part.out.ends[edge], start, part.ids[at], walk * (self.length + 1) + step + 1)
