"""Rounds by spans of event time: what a span has, and what is refused because it would reach into another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import tailrace as tr

SPAN = 10


class Sums(tr.KeyedProcessFunction):
    """Sums of a key so far, in this span."""

    total = tr.ValueState(int, default=0)
    seen = tr.OperatorState(list, default=[])

    def process(self, value: Any, ctx: tr.Context) -> None:
        self.total.value += 1
        self.seen.value = [*self.seen.value, value]

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        ctx.emit("sums", (ctx.timestamp, round, ctx.key, self.total.value))
        if round < 1:
            yield ctx.key, 0


def body(values: tr.DataStream) -> Any:
    sums = values.key_by(lambda value: value[0]).process(Sums())
    return sums, sums.side_output("sums")


def ran(
    times: list[float], parallelism: int = 2, combine: tr.Combine | None = None, loop: Any = body, **options: Any
) -> list[Any]:
    """What a loop over records of one key finds."""
    env = tr.Environment(parallelism=parallelism)
    records = env.from_collection([("a", time) for time in times], parallelism=1)
    timed = records.assign_timestamps(lambda record: record[1], out_of_orderness=5)
    found = timed.iterate(loop, rounds=tr.Rounds(**{"span": SPAN, **options}), combine=combine)
    out = found.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sorted(out.result())


@pytest.mark.parametrize("parallelism", [1, 5])
def test_each_span_begins_without_state_and_has_its_last_microsecond_as_time(parallelism: int) -> None:
    times = [-0.000001, 0, 4, 9.999999, 11, 8, 40]
    assert ran(times, parallelism) == [
        (-0.000001, 0, "a", 1),
        (-0.000001, 1, "a", 2),
        (9.999999, 0, "a", 4),
        (9.999999, 1, "a", 5),
        (19.999999, 0, "a", 1),
        (19.999999, 1, "a", 2),
        (49.999999, 0, "a", 1),
        (49.999999, 1, "a", 2),
    ]


@pytest.mark.parametrize(
    ("span", "counts"), [(0.000001, [1, 1, 1]), ("1 hour", [1, 1, 1]), (timedelta(days=20_000_000), [1, 2])]
)
def test_spans_of_any_size_hold_times_from_far_ago_until_far_ahead(span: Any, counts: list[int]) -> None:
    found = ran([-60_000_000_000, 0, 250_000_000_000], span=span, max=1)
    assert [(round, count) for _, round, _, count in found] == [(0, count) for count in counts]


def test_feedback_may_be_combined_be_a_stream_of_its_own_or_be_none() -> None:
    merged = tr.Combine(key=lambda value: value[0], merge=lambda a, b: a)
    assert [count for *_, count in ran([1, 2, 3], combine=merged)] == [3, 4]
    nothing = ran([1, 2, 11], loop=lambda values: (None, body(values)[1]))
    assert [(time, round, count) for time, round, _, count in nothing] == [(9.999999, 0, 2), (19.999999, 0, 1)]

    class Both(tr.CoProcessFunction):
        def process1(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
            yield "in", value, ctx.round

        def process2(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
            yield "back", value, ctx.round

    def separate(streams: Any) -> Any:
        both = streams.process(Both())
        return both.filter(lambda one: one[0] == "in").map(lambda one: one[1]), both

    env = tr.Environment(parallelism=2)
    timed = env.from_collection([1, 12]).assign_timestamps(lambda time: time)
    found = timed.iterate_with_feedback(separate, rounds=tr.Rounds(span=SPAN)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(found.result()) == [("back", 1, 1), ("back", 12, 1), ("in", 1, 0), ("in", 12, 0)]


def test_what_waits_for_its_span_goes_to_the_disk_where_memory_is_short() -> None:
    env = tr.Environment(parallelism=1)
    timed = env.from_collection([("a", i) for i in range(400)]).assign_timestamps(lambda r: r[1], out_of_orderness=500)
    rounds, spill = tr.Rounds(max=1, span=SPAN), tr.Spill(memory_bytes=2_000)
    found = timed.iterate(body, rounds=rounds, spill=spill).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(count for *_, count in found.result()) == [SPAN] * 40


def test_a_record_without_a_time_fails_with_what_to_do() -> None:
    env = tr.Environment(parallelism=1)
    one = env.from_collection([1]).assign_timestamps(lambda n: n)
    both = one.union(env.from_collection([2])).map(lambda n: ("a", n))
    both.iterate(body, rounds=tr.Rounds(span=SPAN)).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.TailraceError, match="no timestamp, and so no span; call assign_timestamps"):
        tr.testing.run(env)


class WithTimer(Sums):
    def on_timer(self, timestamp: float, ctx: tr.Context) -> None: ...


class WithFinish(Sums):
    def finish(self, ctx: tr.Context) -> None: ...


class WithLifetime(Sums):
    brief = tr.ValueState(int, ttl=tr.Ttl(60))


class Rules(tr.BroadcastProcessFunction):
    rules = tr.BroadcastState(str, int)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield value

    def process_broadcast(self, value: Any, ctx: tr.Context) -> None: ...


def processed(function: tr.KeyedProcessFunction, **options: Any) -> Callable[[tr.DataStream], Any]:
    def loop(values: tr.DataStream) -> Any:
        out = values.key_by(lambda value: value[0]).process(function, **options)
        return None, out

    return loop


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (processed(WithTimer()), "has on_timer"),
        (processed(WithFinish()), "has finish"),
        (processed(WithLifetime()), "has state with a ttl"),
        (processed(Sums(), on_error=tr.Aside()), "has on_error="),
        (lambda values: (None, values.key_by(lambda v: v[0]).count()), "is none of map, filter"),
        (lambda values: (None, values.connect(values.broadcast()).process(Rules())), "processes a broadcast stream"),
    ],
)
def test_what_would_reach_into_another_span_is_refused(loop: Any, message: str) -> None:
    with pytest.raises(tr.GraphError, match=message):
        ran([1], loop=loop)


def test_streams_that_cannot_be_held_by_span_are_refused() -> None:
    env = tr.Environment(parallelism=2)
    plain = env.from_collection([("a", 1)])
    timed = plain.assign_timestamps(lambda record: record[1])
    rounds = tr.Rounds(span=SPAN)
    with pytest.raises(tr.GraphError, match="call assign_timestamps"):
        plain.iterate(body, rounds=rounds)
    with pytest.raises(tr.TypeMismatch, match="call to_rows"):
        timed.to_columns("key string, time long").iterate(body, rounds=rounds)
    with pytest.raises(tr.GraphError, match="leave broadcast"):
        timed.broadcast().iterate(body, rounds=rounds)

    def entered(values: tr.DataStream) -> Any:
        return None, body(values.union(timed.enter(values.scope)))[1]

    with pytest.raises(tr.GraphError, match="unite it with the input"):
        timed.iterate(entered, rounds=rounds)


@pytest.mark.parametrize("span", [0, -1, "an hour", float("nan"), timedelta(days=999_999_999), True])
def test_a_span_is_a_length_of_time(span: Any) -> None:
    with pytest.raises(tr.ConfigError, match="Rounds: span"):
        tr.Rounds(span=span)


def test_input_without_an_end_needs_a_span_and_a_plan_names_it() -> None:
    env = tr.Environment(parallelism=1)
    endless = env.from_source(tr.sources.Sequence(0, None)).assign_timestamps(lambda n: n).map(lambda n: ("a", n))
    with pytest.raises(tr.GraphError, match="span='1 hour'"):
        endless.iterate(body, rounds=tr.Rounds())
    endless.iterate(body, rounds=tr.Rounds(max=3, span="1.5 hours")).sink_to(tr.sinks.Collect())
    assert "in rounds by spans of 5400 s of event time, at most 3" in str(env.graph())


def test_a_job_with_standbys_refuses_spans() -> None:
    config = tr.CheckpointConfig(dir="memory")
    env = tr.Environment(parallelism=1, checkpoint=config, standby=tr.StandbyConfig())
    timed = env.from_collection([("a", 1)]).assign_timestamps(lambda record: record[1])
    timed.iterate(body, rounds=tr.Rounds(span=SPAN)).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.GraphError, match="leave standby= out"):
        tr.testing.run(env)
