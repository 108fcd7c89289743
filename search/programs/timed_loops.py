"""Golden programs with loops and event time: records inside must not be late, and timers fire inside and bring more
records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tailrace as tr
from search.programs.loops import Hop, Records, laps_of, looping, numbers, place_of


def windowed_behind(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Windows behind a loop: records still inside must not be late for them."""

    def body(hops: tr.DataStream) -> Any:
        down = hops.rebalance().map(lambda hop: Hop(hop[0], hop[1] - 1))
        return down.filter(lambda hop: hop[1] >= 0), down.filter(lambda hop: hop[1] < 0)

    stamped = numbers(env, n, rate).assign_timestamps(lambda i: i, 3.0).map(lambda i: Hop(i, laps_of(i)))
    out = stamped.iterate(body, **looping()).map(lambda hop: hop[0])
    return out.key_by(lambda i: i % 3).window(tr.Tumbling(16)).aggregate(n=tr.Count(), s=tr.Sum()).map(tuple)


def _windowed_behind(n: int) -> Records:
    windows: dict[Any, list[int]] = {}
    for i in range(n):
        windows.setdefault((i % 3, i - i % 16), []).append(i)
    return Counter((key, float(at), at + 16.0, len(of), sum(of)) for (key, at), of in windows.items())


class Held(tr.KeyedProcessFunction):
    """A function that holds each record in its first lap until event time is two seconds further than the record. The
    record then goes on with that time."""

    waiting = tr.MapState(float, list)

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        if hop[2]:
            yield hop[0], hop[1] - 1, True
            return
        assert ctx.timestamp is not None
        due = ctx.timestamp + 2
        self.waiting.put(due, [*self.waiting.get(due, []), hop])
        ctx.set_timer(event_time=due)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        held = self.waiting.get(timestamp, [])
        self.waiting.remove(timestamp)
        yield from ((hop[0], hop[1] - 1, True) for hop in held)


def held_inside(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Timers of event time that hold records back inside a loop; windows behind it must wait for them."""

    def body(hops: tr.DataStream) -> Any:
        held = hops.rebalance().map(tuple).key_by(place_of).process(Held())
        return held.filter(lambda hop: hop[1] >= 0), held.filter(lambda hop: hop[1] < 0).rebalance()

    stamped = numbers(env, n, rate).assign_timestamps(lambda i: i, 3.0).map(lambda i: (i, i % 3, False))
    out = stamped.iterate(body, **looping()).map(lambda hop: hop[0])
    return out.key_by(lambda i: i % 3).window(tr.Tumbling(16)).aggregate(n=tr.Count(), s=tr.Sum()).map(tuple)


def _held_inside(n: int) -> Records:
    windows: dict[Any, list[int]] = {}
    for i in range(n):
        windows.setdefault((i % 3, i + 2 - (i + 2) % 16), []).append(i)
    return Counter((key, float(at), at + 16.0, len(of), sum(of)) for (key, at), of in windows.items())


def _long_laps(i: int) -> int:
    return 30 if i % 6 == 0 else 1


def lingered(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Windows behind a loop in which some records go around for long, while event time passes them."""

    def body(hops: tr.DataStream) -> Any:
        down = hops.map(lambda hop: Hop(hop[0], hop[1] - 1))
        return down.filter(lambda hop: hop[1] > 0).rebalance(), down.filter(lambda hop: hop[1] <= 0)

    stamped = numbers(env, n, rate).assign_timestamps(lambda i: i, 3.0).map(lambda i: Hop(i, _long_laps(i)))
    out = stamped.iterate(body, **looping()).map(lambda hop: hop[0])
    return out.key_by(lambda i: i % 3).window(tr.Tumbling(4)).aggregate(n=tr.Count(), s=tr.Sum()).map(tuple)


def lingered_inside(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Windows behind a loop with an inner loop, in which some records go around for long. The outer loop's feedback brings
    them to the inner loop again, when event time has gone on behind that."""

    def inner(hops: tr.DataStream) -> Any:
        down = hops.map(lambda hop: (hop[0], hop[1] - 1, hop[2]))
        return down.filter(lambda hop: hop[1] > 0).rebalance(), down.filter(lambda hop: hop[1] <= 0)

    def body(hops: tr.DataStream) -> Any:
        wound = hops.map(lambda hop: (hop[0], 12 if hop[0] % 6 == 0 and hop[2] < 2 else 1, hop[2]))
        down = wound.iterate(inner, **looping()).map(lambda hop: (hop[0], 0, hop[2] - 1))
        return down.filter(lambda hop: hop[2] > 0), down.filter(lambda hop: hop[2] <= 0)

    stamped = numbers(env, n, rate).assign_timestamps(lambda i: i, 3.0).map(lambda i: (i, 0, 3))
    out = stamped.iterate(body, **looping()).map(lambda hop: hop[0])
    return out.key_by(lambda i: i % 3).window(tr.Tumbling(4)).aggregate(n=tr.Count(), s=tr.Sum()).map(tuple)


def _small_windows(n: int) -> Records:
    windows: dict[Any, list[int]] = {}
    for i in range(n):
        windows.setdefault((i % 3, i - i % 4), []).append(i)
    return Counter((key, float(at), at + 4.0, len(of), sum(of)) for (key, at), of in windows.items())


class LastCall(tr.KeyedProcessFunction):
    """A function that sends its records round again when event time has come to its end, which is long after all else is
    done."""

    waiting = tr.ListState(object)

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        if hop[1] % 2:
            yield hop
        else:
            self.waiting.add(hop)
            ctx.set_timer(event_time=1_000_000 + hop[0])

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        waiting = list(self.waiting.get())
        self.waiting.clear()
        yield from waiting


def called_last(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Timers of event time inside a loop that fire when nothing else is left, and bring the loop to work again."""

    def body(hops: tr.DataStream) -> Any:
        called = hops.key_by(place_of).process(LastCall())
        going = called.filter(lambda hop: hop[1] > 0).map(lambda hop: Hop(hop[0], hop[1] - 1))
        return going, called.filter(lambda hop: hop[1] <= 0).map(lambda hop: hop[0])

    return numbers(env, n, rate).map(lambda i: Hop(i, laps_of(i))).iterate(body, **looping())


class Later(tr.KeyedProcessFunction):
    """A function that sends a record round again some milliseconds later; a last one long after all else was done."""

    waiting = tr.MapState(int, object)

    def process(self, hop: Any, ctx: tr.Context) -> None:
        due = ctx.now() + (0.05 if hop[0] == 3 else 0.001 * (1 + hop[0] % 5))
        self.waiting.put(hop[0], (due, hop))
        ctx.set_timer(processing_time=due)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        due = [hop for at, hop in self.waiting.values() if at <= timestamp + 2e-6]
        for hop in due:
            self.waiting.remove(hop[0])
            yield hop


def waited_for(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Timers of the clock inside a loop; one of them fires long after everything looks idle."""

    def body(hops: tr.DataStream) -> Any:
        late = hops.key_by(lambda hop: hop[0] % 7).process(Later())
        going = late.filter(lambda hop: hop[1] > 0).map(lambda hop: Hop(hop[0], hop[1] - 1))
        return going, late.filter(lambda hop: hop[1] == 0).map(lambda hop: hop[0])

    return numbers(env, n, rate).map(lambda i: Hop(i, i % 3)).iterate(body, **looping())


class Reminded(tr.KeyedProcessFunction):
    """A function that sends each record back when event time has come to 5, and emits at a last timer how many have come
    back."""

    seen = tr.ValueState(int, default=0)

    def process(self, record: Any, ctx: tr.Context) -> Iterator[Any]:
        if record[0] == "back":
            self.seen.value += 1
            return
        ctx.set_timer(event_time=5)
        ctx.set_timer(event_time=1_000_000)
        yield "seen", record[1]

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ("back", ctx.key) if timestamp == 5 else ("final", (ctx.key, self.seen.value))


def reminded(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop that assigns event times to an input without any; timers of these times send the feedback."""

    def body(stream: tr.DataStream) -> Any:
        out = stream.key_by(lambda r: r[1]).process(Reminded()).rebalance()
        stamped = out.assign_timestamps(lambda r: 10, 0)
        return stamped.filter(lambda r: r[0] == "back"), stamped.filter(lambda r: r[0] == "final").map(lambda r: r[1])

    return numbers(env, n, rate).map(lambda i: ("in", i)).iterate(body, **looping())
