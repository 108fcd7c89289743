"""Event time in loops: how it comes to its end, what may hold it back, and what may not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from search.programs.timed_loops import reminded
from search.scenarios import NETWORKS
from tailrace.api.connectors import NOTHING_YET, Reader, Source
from tailrace.testing.faults import Fault

N = 20
START = 1_700_000_000
CALM = tr.testing.Conditions.calm()


class Returning(tr.KeyedProcessFunction):
    """Sends each record back by a timer that is due at its own time, and emits by a last timer what has come back."""

    pending = tr.MapState(float, list)
    seen = tr.ValueState(int, default=0)

    def process(self, record: Any, ctx: tr.Context) -> None:
        if record[0] == "back":
            self.seen.value += 1
            return
        assert ctx.timestamp is not None
        self.pending.put(ctx.timestamp, [*self.pending.get(ctx.timestamp, []), record])
        ctx.set_timer(event_time=ctx.timestamp)
        ctx.set_timer(event_time=1_000_000)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        if timestamp >= 1_000_000:
            yield "final", ctx.key, self.seen.value
            return
        pending = self.pending.get(timestamp, [])
        self.pending.remove(timestamp)
        yield from (("back", record[1]) for record in pending)


@pytest.mark.parametrize("seed", range(10))
def test_a_timer_at_the_end_of_event_time_finds_all_that_was_due_before_worked_off(seed: int) -> None:
    """The entries are at their last time while tasks further in do not know of it: what these have still to fire by
    then goes around before event time comes to its end."""

    def body(stream: tr.DataStream) -> Any:
        out = stream.rebalance().map(tuple).key_by(lambda r: r[1] % 5).process(Returning())
        return out.filter(lambda r: r[0] == "back"), out.filter(lambda r: r[0] == "final")

    env = tr.Environment(parallelism=2 + seed % 2)
    stamped = env.from_source(tr.sources.Sequence(0, N)).assign_timestamps(lambda i: i, 0)
    found = stamped.map(lambda i: ("in", i)).iterate(body).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=seed, conditions=NETWORKS["uneven"]).await_termination()
    assert sum(count for _, _, count in found.result()) >= N - 6, "all but those whose own timers are due at the end"


class Burst(Source):
    """Ten records at once, then 100 s of silence, then the end."""

    bounded = True

    def splits(self, parallelism: int) -> list[Any]:
        return [0]

    def reader(self, split: Any, position: Any = None) -> Reader:
        return BurstReader(position or 0)


class BurstReader(Reader):
    def __init__(self, at: int) -> None:
        self.at = at
        self.until: float | None = None

    def read(self, limit: int, now: float) -> Any:
        if self.at == 0:
            self.at, self.until = 10, now + 100
            return list(range(10))
        return NOTHING_YET if self.until is not None and now < self.until else None

    def next_at(self, now: float) -> float | None:
        return self.until

    @property
    def position(self) -> int:
        return self.at


class When(tr.ProcessFunction):
    """Adds how many seconds after the start it was."""

    def process(self, window: Any, ctx: tr.Context) -> Iterator[Any]:
        yield window[1], window[3], ctx.now() - START


def _counted(stream: tr.DataStream, size: float) -> tr.DataStream:
    return stream.key_by(lambda r: 0).window(tr.Tumbling(size)).count().process(When())


def _nested(levels: int) -> Any:
    """A body with so many loops inside; each record goes around the innermost one once."""

    def body(stream: tr.DataStream) -> Any:
        if levels:
            return None, stream.iterate(_nested(levels - 1))
        down = stream.map(lambda r: (r[0], r[1] - 1))
        return down.filter(lambda r: r[1] > 0), down.filter(lambda r: r[1] <= 0)

    return body


@pytest.mark.parametrize("levels", [0, 1, 3])
def test_a_watermark_gets_through_all_loops_though_nothing_else_comes(levels: int) -> None:
    env = tr.Environment(parallelism=1)
    stamped = env.from_source(Burst()).assign_timestamps(lambda n: n, 0).map(lambda n: (n, 2))
    result = _counted(stamped.iterate(_nested(levels)), 4).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=1, conditions=CALM).await_termination()
    found = sorted(result.result())
    assert [window[:2] for window in found] == [(0.0, 4), (4.0, 4), (8.0, 2)]
    assert all(window[2] < 1 for window in found[:2]), "not only when something else comes, after 100 s"


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_input_that_has_ended_holds_no_event_time_back(parallelism: int) -> None:
    """The loop's own input is one record; events enter it for two seconds."""

    def events(env: tr.Environment) -> tr.DataStream:
        source = tr.sources.Sequence(0, 200, rate=100.0)
        return env.from_source(source, parallelism=1).assign_timestamps(lambda n: n / 100, 0).map(lambda n: (n, 1))

    def body(stream: tr.DataStream) -> Any:
        both = stream.union(entering.enter(stream.scope)).map(lambda r: (r[0], r[1] - 1)).key_by(lambda r: r[0] % 3)
        held = both.process(Held())
        return held.filter(lambda r: r[1] >= 0), held.filter(lambda r: r[1] < 0)

    env = tr.Environment(parallelism=parallelism)
    entering = events(env)
    seeds = env.from_collection([(-1, 1)], parallelism=1).assign_timestamps(lambda r: 0.0, 0)
    result = _counted(seeds.iterate(body), 1).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=parallelism, conditions=CALM).await_termination()
    found = sorted(result.result())
    assert sum(window[1] for window in found) == 201
    assert found[0][0] == 0.0 and 0.9 < found[0][2] < 1.5, "when event time has come that far, and not at the end"


class Held(tr.KeyedProcessFunction):
    """Lets a record go when event time has come to it."""

    waiting = tr.ListState(object)

    def process(self, record: Any, ctx: tr.Context) -> None:
        assert ctx.timestamp is not None
        self.waiting.add((ctx.timestamp, record))
        ctx.set_timer(event_time=ctx.timestamp)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        waiting = list(self.waiting.get())
        self.waiting.clear()
        for time, record in waiting:
            if time <= timestamp:
                yield record
            else:
                self.waiting.add((time, record))


@pytest.mark.parametrize("levels", [0, 1])
def test_a_loop_may_assign_timestamps_itself(levels: int) -> None:
    """Nothing that comes into the loop has a time. What leaves it has, and event time goes with it."""

    def body(stream: tr.DataStream) -> Any:
        down = stream.map(lambda r: (r[0], r[1] - 1))
        inside = down.iterate(_nested(0)) if levels else down
        stamped = inside.assign_timestamps(lambda r: r[0] / 100, 0)
        return stamped.filter(lambda r: r[1] > 0), stamped.filter(lambda r: r[1] <= 0)

    env = tr.Environment(parallelism=1)
    numbers = env.from_source(tr.sources.Sequence(0, 300, rate=100.0)).map(lambda n: (n, 2))
    result = _counted(numbers.iterate(body), 1).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=1, conditions=CALM).await_termination()
    found = sorted(result.result())
    assert [window[:2] for window in found] == [(0.0, 100), (1.0, 100), (2.0, 100)]
    assert found[0][2] < 2.5, "while records go on coming"


@pytest.mark.parametrize("seed", [*range(6), 9, 12, 16, 19])
def test_what_event_time_of_the_loop_itself_sets_off_is_worked_off_before_its_end(seed: int) -> None:
    """The input has ended and has no time; the loop assigns times, and its head goes with them when a wave begins. What that
    sets off was behind the cut of the wave, which found nothing: event time came to its end beside it, and the last timers
    did not find what was on its way. And times that were assigned while a wave began came too late for the heads to go with
    them in this wave: it found nothing again, and event time came to its end before the heads had gone on."""
    env = tr.Environment(parallelism=2)
    found = reminded(env, 8, None).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=seed, conditions=NETWORKS["uneven"]).await_termination()
    assert sorted(found.result()) == [(i, 1) for i in range(8)]


def _count_down(stream: tr.DataStream) -> Any:
    down = stream.map(lambda r: (r[0], r[1] - 1))
    return down.filter(lambda r: r[1] > 0), down.filter(lambda r: r[1] <= 0)


@pytest.mark.parametrize("seed", [2, 3, 7, 9])
def test_the_end_of_event_time_is_sent_again_to_those_that_had_not_heard_of_it(seed: int) -> None:
    """A loop inside gets its input from a stream that entered and has ended. A checkpoint falls between the moments at which
    the two heads follow, and the job goes on from it."""

    def body(stream: tr.DataStream) -> Any:
        inside = entering.enter(stream.scope).iterate(_count_down, parallelism=2)
        down = stream.union(inside.map(lambda r: (r[0], 2))).map(lambda r: (r[0], r[1] - 1))
        return down.filter(lambda r: r[1] > 0), down.filter(lambda r: r[1] <= 0).map(lambda r: r[0])

    checkpoint = tr.CheckpointConfig(dir="memory", interval=1000.0, max_concurrent=3)
    env = tr.Environment(parallelism=1, checkpoint=checkpoint, restart=tr.FixedDelay(attempts=1000, delay=0.0))
    entering = env.from_collection([(100 + i, 1 + i % 3) for i in range(6)])
    numbers = env.from_collection([(i, 1 + i % 4) for i in range(12)])
    out = numbers.iterate(body, parallelism=1).sink_to(tr.sinks.Collect())
    faults = [
        Fault(0, "freeze", which=1, duration=1_000, after="Advance"),
        Fault(4 + seed % 8, "checkpoint", after="Advance"),
        Fault(0, "kill", 0, after="commit 1 done"),
    ]
    conditions = replace(NETWORKS["fast"], max_turns=20_000)
    tr.testing.simulate(env, seed=seed, faults=faults, conditions=conditions).await_termination()
    assert sorted(out.result()) == [*range(12), *range(100, 106)]


class Alarm(tr.KeyedProcessFunction):
    """Sets a timer, and emits when it fired."""

    def process(self, record: Any, ctx: tr.Context) -> None:
        ctx.set_timer(event_time=50.0)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield timestamp, ctx.watermark


@pytest.mark.parametrize("seed", range(3))
def test_an_input_that_has_ended_follows_the_others_before_timestamps_are_assigned_anew(seed: int) -> None:
    """The loop's own input is over, another stream goes on in it, and what leaves gets timestamps of quite another time in
    the loop. Timers before that are of the time of the inputs: they fire when the stream that goes on has come there."""

    def body(own: tr.DataStream) -> Any:
        alarms = own.key_by(lambda r: 0).process(Alarm())
        entered = ticks.enter(own.scope).map(lambda i: (float(i), None))
        return None, alarms.union(entered).assign_timestamps(lambda r: r[0] + 1_000_000, 0)

    env = tr.Environment(parallelism=1)
    ticks = env.from_source(tr.sources.Sequence(0, 60, rate=100)).assign_timestamps(lambda i: i, 0)
    own = env.from_collection([5.0]).assign_timestamps(lambda time: time, 0)
    found = own.iterate(body).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=seed).await_termination()
    [(due, watermark)] = [record for record in found.result() if record[1] is not None]
    assert due == 50.0 and 50 <= watermark < 60, "it fires when the ticks have come to it"
