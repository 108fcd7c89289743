"""`process(fn, in_order=True)` where it is written: what it needs, and what it has."""

from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr


class Both(tr.CoProcessFunction):
    def process1(self, value: Any, ctx: tr.Context) -> None: ...

    def process2(self, value: Any, ctx: tr.Context) -> None: ...


def same(value: Any) -> Any:
    return value


def nothing(value: Any, ctx: tr.Context) -> None: ...


def timed(env: tr.Environment) -> tr.DataStream:
    return env.from_collection([1, 2]).assign_timestamps(same)


def in_a_loop(stream: Any) -> Any:
    ordered = stream.key_by(same).process(nothing, in_order=True)
    return ordered, ordered


REFUSED: dict[str, tuple[Callable[[tr.Environment], Any], str]] = {
    "no event time": (
        lambda env: env.from_collection([1]).key_by(same).process(nothing, in_order=True),
        "process: in_order=True is by event time, and the stream has none; call assign_timestamps before key_by",
    ),
    "one without event time": (
        lambda env: timed(env).connect(env.from_collection([1])).key_by(same, same).process(Both(), in_order=True),
        "process: in_order=True is by event time, and the second stream has none",
    ),
    "no key": (
        lambda env: timed(env).connect(timed(env)).process(Both(), in_order=True),
        "process: in_order=True hands over the records of a key in order; call key_by on both streams",
    ),
    "in a loop": (
        lambda env: timed(env).iterate(in_a_loop),
        "process: in_order=True cannot be kept in loop .*: a record that comes around may be older than all that was",
    ),
    "another value": (
        lambda env: timed(env).key_by(same).process(nothing, in_order="yes"),
        "process: in_order must be True or False, not 'yes'",
    ),
    "without key_by": (
        lambda env: timed(env).process(nothing, in_order=True),
        "process: unknown option in_order",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_keep_is_refused_where_it_is_written(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(tr.GraphError, match=message):
        build(tr.Environment(parallelism=2))


def test_behind_a_loop_it_has_every_record_in_order() -> None:
    """Records come out of the loop in another order than they went in: event time behind it waits for all of them."""
    env = tr.Environment(parallelism=2)
    numbers = env.from_collection(list(range(40)), parallelism=1).assign_timestamps(same)

    def body(stream: Any) -> Any:
        pairs = stream.map(lambda pair: (pair[0], pair[1] - 1))
        return pairs.filter(lambda pair: pair[1] > 0), pairs.filter(lambda pair: pair[1] <= 0)

    out = numbers.map(lambda n: (n, n * 7 % 5)).iterate(body)
    ordered = out.key_by(lambda pair: pair[0] % 3).process(lambda pair, ctx: [(pair[0], ctx.timestamp)], in_order=True)
    late = ordered.side_output("late").sink_to(tr.sinks.Collect())
    sink = ordered.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    for key in range(3):
        assert [n for n, _ in sink.result() if n % 3 == key] == list(range(key, 40, 3))
    assert all(n == time for n, time in sink.result()) and late.result() == []


def test_late_records_are_a_side_output_in_rows() -> None:
    env = tr.Environment(parallelism=1)
    events = [(1, 10), (1, 5), (1, 20)]
    stream = env.from_source(tr.sources.Generator(lambda: iter(events), rate=1))
    columns = stream.to_columns("key long, at long").assign_timestamps("at")
    ordered = columns.key_by("key").process(lambda row, ctx: [tuple(row)], in_order=True)
    late, sink = ordered.side_output("late").sink_to(tr.sinks.Collect()), ordered.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [tuple(row) for row in late.result()] == [(1, 5)] and sink.result() == [(1, 10), (1, 20)]
