"""Golden programs for the search, with loops in rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tailrace as tr
from search.programs.loops import Named

PLACES = 11
ROUNDS = 6


class Share(tr.KeyedProcessFunction):
    """A function that adds up what a place receives in a round, emits it at the round's end, and passes parts of it on."""

    got = tr.ValueState(int, default=0)
    rounds = tr.ValueState(int, default=0)

    def process(self, gift: Any, ctx: tr.Context) -> None:
        self.got.value += gift[1]

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        got, self.got.value = self.got.value, 0
        self.rounds.value += 1
        yield "told", (round, ctx.key, got, self.rounds.value)
        for to, part in _parts(ctx.key, got):
            yield "gift", (to, part)


def _parts(place: int, got: int) -> list[tuple[int, int]]:
    return [((place * 2 + 1) % PLACES, got // 3), ((place + 3) % PLACES, got // 3)] if got > 2 else []


def _body(gifts: tr.DataStream) -> Any:
    out = gifts.key_by(lambda gift: gift[0]).process(Share())
    going = out.filter(lambda r: r[0] == "gift").map(lambda r: r[1])
    return going, out.filter(lambda r: r[0] == "told").map(lambda r: r[1])


def shared_out(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Rounds up to a number."""
    gifts = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i % PLACES, 64 + i))
    return gifts.iterate(_body, rounds=tr.Rounds(max=ROUNDS), spill=tr.Spill(memory_bytes=200))


def judged(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Rounds until a place receives little."""
    gifts = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i % PLACES, 640 + i))
    until = tr.Rounds(until=lambda result: min((one[2] for one in result.output), default=0) < LITTLE)
    return gifts.iterate(_body, rounds=until)


def run_dry(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Rounds as long as there is anything to pass on, with a shuffle inside, and a check of each record's round."""

    def body(hops: tr.DataStream) -> Any:
        left = hops.rebalance().map(lambda hop: (hop[0], hop[1] - 1)).key_by(lambda hop: hop[0] % 7).process(InRound())
        return left.filter(lambda hop: hop[1] > 0), left.filter(lambda hop: hop[1] <= 0)

    hops = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i, 1 + i * i % 5))
    return hops.iterate(body, rounds=tr.Rounds())


class InRound(tr.KeyedProcessFunction):
    """A function that adds to each record the round it is in, and checks that this is the right one."""

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        assert ctx.round == 1 + hop[0] * hop[0] % 5 - (hop[1] + 1), (ctx.round, hop)
        yield hop[0], hop[1], ctx.round


def widened(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Rounds with a slot that takes part only in a stream which enters the loop."""
    tags = env.from_collection([(place, f"p{place}") for place in range(PLACES)])

    def body(hops: tr.DataStream) -> Any:
        inside = tags.enter(hops.scope).map(tuple, parallelism=env.parallelism + 1)
        both = hops.connect(inside).key_by(lambda hop: hop[0] % PLACES, lambda r: r[0])
        out = both.process(Named(), parallelism=env.parallelism)
        going = out.filter(lambda r: r[1][1] > 0).map(lambda r: (r[1][0], r[1][1] - 1))
        return going, out.map(lambda r: (r[0], *r[1]))

    hops = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i, i % 4))
    return hops.iterate(body, rounds=tr.Rounds())


def _widened(n: int) -> Counter[Any]:
    return Counter((f"p{i % PLACES}", i, left) for i in range(n) for left in range(i % 4 + 1))


class Heavy(tr.KeyedProcessFunction):
    """A function that has much state in subtask 1 and next to none in the others, so that snapshots take one worker
    long."""

    held = tr.ValueState(int)

    def process(self, record: Any, ctx: tr.Context) -> None:
        self.held.value = record if ctx.subtask == 1 else None


class OnItsOwn(tr.ProcessFunction):
    """A function that counts laps, and adds the round of each."""

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        yield hop[0], hop[1] + 1, ctx.round


LAPS = 15
WEIGHT = 300
"""Number of keys of `Heavy`."""


def apart(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Rounds in which no record changes its worker, so that each could go through them on its own."""

    def body(hops: tr.DataStream) -> Any:
        gone = hops.process(OnItsOwn())
        return gone.map(lambda hop: hop[:2]), gone

    hops = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i, 0)).rebalance()
    out = hops.iterate(body, rounds=tr.Rounds(max=LAPS))
    return out.union(env.from_source(tr.sources.Sequence(0, WEIGHT)).key_by(lambda i: i).process(Heavy()))


def _apart(n: int) -> Counter[Any]:
    return Counter((i, lap, lap - 1) for i in range(n) for lap in range(1, LAPS + 1))


class UntilTheRoundEnds(tr.KeyedProcessFunction):
    """A function that holds the records of a key until the round ends."""

    held = tr.ListState(object)

    def process(self, record: Any, ctx: tr.Context) -> None:
        self.held.add(record)

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        held = list(self.held.get())
        self.held.clear()
        yield from held


def held_beside(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Rounds with a function whose only input is a stream which enters the loop."""
    others = env.from_source(tr.sources.Sequence(n, 2 * n, rate=rate)).map(lambda i: (i, i % 4))

    def body(hops: tr.DataStream) -> Any:
        held = others.enter(hops.scope).key_by(lambda hop: hop[0] % PLACES).process(UntilTheRoundEnds())
        both = hops.union(held)
        return both.filter(lambda hop: hop[1] > 0).map(lambda hop: (hop[0], hop[1] - 1)), both

    hops = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i, i % 4))
    return hops.iterate(body, rounds=tr.Rounds())


def _held_beside(n: int) -> Counter[Any]:
    return Counter((i, left) for i in range(2 * n) for left in range(i % 4 + 1))


LITTLE = 900


def _rounds(gifts: list[tuple[int, int]]) -> Iterator[list[tuple[int, int, int, int]]]:
    rounds: Counter[int] = Counter()
    number = 0
    while gifts:
        got: Counter[int] = Counter()
        for place, gift in gifts:
            got[place] += gift
        for place in {place for place, _ in gifts}:
            rounds[place] += 1
        yield [(number, place, got[place], rounds[place]) for place in sorted({place for place, _ in gifts})]
        gifts = [part for place in sorted({place for place, _ in gifts}) for part in _parts(place, got[place])]
        number += 1


def _shared_out(n: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for number, one in enumerate(_rounds([(i % PLACES, 64 + i) for i in range(n)])):
        if number == ROUNDS:
            break
        found.update(one)
    return found


def _judged(n: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for rounds in _rounds([(i % PLACES, 640 + i) for i in range(n)]):
        found.update(rounds)
        if min(one[2] for one in rounds) < LITTLE:
            break
    return found


def _run_dry(n: int) -> Counter[Any]:
    return Counter((i, 0, i * i % 5) for i in range(n))
