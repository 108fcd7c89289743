"""Golden programs for the search, whose input falls silent. Records that event time releases in a loop must come out
during the silence, not only at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tailrace as tr
from search.programs.loops import Records, looping
from tailrace.api.connectors import NOTHING_YET, Reader, Source

LONGEST = 1_000
"""Longest silence, in checks of the silent source. Checks, and not seconds: a store that is away for as long as the draw has
it away stops the job, and with it the source."""
IN_TIME = 250
"""Checks within which the windows behind a loop must come."""
STEP = 0.02
"""Seconds between two checks of a silent source for these windows."""
SIZE = 8


class Silence:
    """State of the silence of the job that was built last. Its source and the function that waits for its windows are in
    one process, as the whole simulation is."""

    checks: int | None = None
    """Number of checks so far; None: not begun."""
    over = False


class Burst(Source):
    """A source of the numbers below `n` at once, then silence until a window has come, then the end."""

    bounded = True

    def __init__(self, n: int) -> None:
        self.n = n

    def splits(self, parallelism: int) -> list[Any]:
        return [self.n]

    def reader(self, split: Any, position: Any = None) -> Reader:
        return BurstReader(split, position or 0)


class BurstReader(Reader):
    def __init__(self, n: int, at: int) -> None:
        self.n, self.at = n, at
        self.again = 0.0

    def read(self, limit: int, now: float) -> Any:
        if self.at < self.n:
            found = list(range(self.at, min(self.n, self.at + limit)))
            self.at += len(found)
            Silence.checks = 0
            return found
        if Silence.checks is None or Silence.over or Silence.checks >= LONGEST:
            return None  # None: a job started again from behind the burst, whose windows may be out
        Silence.checks += 1
        self.again = now + STEP
        return NOTHING_YET

    def next_at(self, now: float) -> float:
        return self.again

    @property
    def position(self) -> int:
        return self.at


class InTime(tr.ProcessFunction):
    """A function that adds to a window whether it has come in time, and ends the silence."""

    def process(self, window: Any, ctx: tr.Context) -> Iterator[Any]:
        Silence.over = True
        checks = ctx.call(
            lambda: Silence.checks
        )  # a worker that is replayed in another process shares no memory with the source
        yield (*window, checks is None or checks < IN_TIME)


def _burst(env: tr.Environment, n: int) -> tr.DataStream:
    Silence.checks, Silence.over = None, False
    return env.from_source(Burst(n)).assign_timestamps(lambda i: i, 0)


def _windows(stream: tr.DataStream) -> tr.DataStream:
    counted = stream.key_by(lambda hop: hop[0] % 2).window(tr.Tumbling(SIZE)).count().map(tuple)
    return counted.process(InTime())


def _down(hops: tr.DataStream) -> Any:
    down = hops.map(lambda hop: (hop[0], hop[1] - 1))
    return down.filter(lambda hop: hop[1] > 0).rebalance(), down.filter(lambda hop: hop[1] <= 0)


def silent_nest(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Windows behind three nested loops: one watermark must come through all of them."""

    def middle(hops: tr.DataStream) -> Any:
        return None, hops.iterate(_down, **looping())

    def outer(hops: tr.DataStream) -> Any:
        return None, hops.iterate(middle, **looping())

    return _windows(_burst(env, n).map(lambda i: (i, 1 + i % 3)).iterate(outer, **looping()))


def silent_guest(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Windows behind a loop whose own input is over: the stream that entered the loop falls silent."""
    guests = _burst(env, n).map(lambda i: (i, 1 + i % 3))
    seeds = env.from_collection([(0, 1)]).assign_timestamps(lambda hop: hop[0], 0)
    return _windows(seeds.iterate(lambda hops: _down(hops.union(guests.enter(hops.scope))), **looping()))


def _windows_of(numbers: list[int]) -> Records:
    counted = Counter((i % 2, i - i % SIZE) for i in numbers)
    return Counter((key, float(at), float(at + SIZE), count, True) for (key, at), count in counted.items())


def _silent_nest(n: int) -> Records:
    return _windows_of(list(range(n)))


def _silent_guest(n: int) -> Records:
    return _windows_of([0, *range(n)])
