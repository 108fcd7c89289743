"""One exact form of times: what a user compares as seconds is so for timestamps, windows, timers and the watermark."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from math import inf, nextafter
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.elements.timestamps import (
    FINE,
    MAX_TIME,
    MIN_TIME,
    ceil_micros,
    floor_micros,
    floor_of_floats,
    micros,
    seconds,
)
from tailrace.errors import IncompatibleState
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.operators.timer_heap import Timers, timers_of
from tailrace.task.operators.timestamps import arrow_times, times_of
from tailrace.testing.backends import Files


def noisy(base: float, steps: int) -> float:
    """The float so many neighbours away."""
    for _ in range(abs(steps)):
        base = nextafter(base, inf if steps > 0 else -inf)
    return base


EPOCHS = st.sampled_from([0.0, 1.0, 1_946.485, 1_799.999999, 1_800.0, 1.7e9, 4.2e9, -86_400.0])
SECONDS = st.one_of(
    st.floats(-1e11, 1e11),
    st.floats(-5_000, 5_000),
    st.builds(
        noisy,
        st.builds(lambda a, b: a + b, EPOCHS, st.integers(-(10**7), 10**7).map(lambda n: n / 1e6)),
        st.integers(-3, 3),
    ),
    st.integers(-(10**12), 10**12).map(lambda n: n / 1e6),
    st.integers(0, 20_000).map(lambda n: round(n * 1.37 + n * n * 0.0031, 3) + 1800.0),
    st.integers(0, 50_000).map(lambda n: sum([0.1] * (n % 40)) + n),
)
"""Seconds as people have them: whole microseconds, sums with the noise of floats, and anything."""


@given(SECONDS)
@example(1946.4850000000001)
@example(9.2e12)
@settings(max_examples=500)
def test_a_timestamp_is_cut_off_and_a_timer_is_rounded_up(time: float) -> None:
    down, up = floor_micros(time), ceil_micros(time)
    assert down / 1_000_000 <= time <= up / 1_000_000
    assert 0 <= up - down <= 1 or abs(time) > FINE
    if abs(time) < FINE:  # up to there neighbouring microseconds are different floats
        assert (down + 1) / 1e6 > time and (up - 1) / 1e6 < time
    assert micros(time) in (down, up) or abs(time) > FINE


@given(st.integers(-(2**51), 2**51))
def test_a_whole_number_of_microseconds_is_itself(time: int) -> None:
    exact = timedelta(microseconds=time)
    for same in (time / 1_000_000, exact, Decimal(time).scaleb(-6), pd.Timedelta(exact)):
        assert floor_micros(same) == ceil_micros(same) == micros(same) == time
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)
    assert floor_micros(moment) == ceil_micros(moment) == time
    assert floor_micros(moment.timestamp()) == time


@pytest.mark.parametrize("time", [MAX_TIME, MAX_TIME - 1, MIN_TIME])
def test_what_a_function_sees_as_the_time_at_the_end_is_a_time(time: int) -> None:
    """`ctx.timestamp` of the timers at the end of the input can be given to `ctx.stamped` and `ctx.set_timer`."""
    seen = seconds(time)
    for micros_of in (floor_micros, ceil_micros, micros):
        assert seconds(micros_of(seen)) == seen
    assert seconds(floor_of_floats(np.array([0.0, seen]))[1]) == seen
    assert seconds(times_of([0.0, seen])[1]) == seen
    assert seconds(arrow_times(pa.array([0.0, seen], pa.float64()))[1]) == seen


@given(st.lists(SECONDS, max_size=8))
def test_rows_and_columns_and_single_times_agree(times: list[float]) -> None:
    one_by_one = list(map(floor_micros, times))
    assert floor_of_floats(np.array(times, np.float64)).tolist() == one_by_one
    assert times_of(times).tolist() == one_by_one
    assert times_of([*times, None]).tolist()[:-1] == one_by_one
    assert arrow_times(pa.array(times, pa.float64())).tolist() == one_by_one


@given(st.integers(-(10**15), 10**15))
def test_what_is_finer_than_a_microsecond_is_cut_off_and_rounded_up_as_well(nanos: int) -> None:
    moment, span = pd.Timestamp(nanos, tz="UTC"), pd.Timedelta(nanos, "ns")
    for same in (moment, span, Decimal(nanos).scaleb(-9)):
        assert (floor_micros(same), ceil_micros(same)) == (nanos // 1000, -(-nanos // 1000))
    assert arrow_times(pa.array([nanos], pa.timestamp("ns"))).tolist() == [nanos // 1000]
    assert arrow_times(pa.array([Decimal(nanos).scaleb(-9)], pa.decimal128(30, 9))).tolist() == [nanos // 1000]


class Seen(tr.KeyedProcessFunction):
    """Emits each record with its time, and the timer that is set for the record's value."""

    asked = tr.MapState(int, float)

    def process(self, value: tuple[int, float, float], ctx: tr.Context) -> Iterator[Any]:
        number, _, ahead = value
        self.asked[number] = value[1] + ahead
        ctx.set_timer(event_time=self.asked[number])
        yield "record", number, ctx.timestamp

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        for number, count in self.asked.items():
            if count <= timestamp:
                del self.asked[number]
                yield "timer", number, timestamp, ctx.timestamp, ctx.watermark


class Stamped(tr.ProcessFunction):
    """Gives each record the time in its value anew, and emits a copy of it aside."""

    def process(self, value: tuple[int, float, float], ctx: tr.Context) -> Iterator[Any]:
        ctx.emit("aside", value, timestamp=value[1])
        yield ctx.stamped(value, value[1])


def now(record: Any, ctx: tr.Context) -> Iterator[Any]:
    yield record[0], ctx.timestamp


def windows(times: tr.DataStream) -> tr.DataStream:
    size = tr.Tumbling(0.25)
    return times.key_by(lambda v: v[0]).window(size).count()


@given(
    st.lists(st.tuples(SECONDS.filter(lambda t: abs(t) < FINE), st.sampled_from([0.0, 1800.0, 0.1, 1e-7])), max_size=12)
)
@settings(max_examples=40, deadline=None)
def test_timestamps_windows_stamped_records_and_timers_agree(times: list[tuple[float, float]]) -> None:
    env = tr.Environment(parallelism=1)
    rows = [(i, at, ahead) for i, (at, ahead) in enumerate(times)]
    timed = env.from_collection(rows).assign_timestamps(lambda v: v[1], out_of_orderness=timedelta(days=400_000))
    seen = timed.key_by(lambda v: v[0] % 2).process(Seen()).sink_to(tr.sinks.Collect())
    stamped = env.from_collection(rows).process(Stamped())
    again = stamped.process(now).sink_to(tr.sinks.Collect())
    aside = stamped.side_output("aside").process(now).sink_to(tr.sinks.Collect())
    counted = windows(timed).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    stamps = {number: stamp for kind, number, stamp, *_ in seen.result() if kind == "record"}
    assert dict(again.result()) == dict(aside.result()) == stamps
    for number, at, _ in rows:
        assert stamps[number] <= at < stamps[number] + 1.5e-6
    for window in counted.result():
        assert window.start <= rows[window.key][1] < window.end
        assert window.start <= stamps[window.key] < window.end
    fired = {number: rest for kind, number, *rest in seen.result() if kind == "timer"}
    assert len(fired) == len(rows)
    for number, at, ahead in rows:
        timestamp, own, watermark = fired[number]
        assert at + ahead <= timestamp < at + ahead + 2e-6
        assert timestamp == own == watermark


@given(st.lists(SECONDS, min_size=1, max_size=6))
def test_a_timer_is_deleted_by_the_float_that_it_was_set_with(times: list[float]) -> None:
    class Alarm(tr.KeyedProcessFunction):
        def process(self, value: tuple[str, float], ctx: tr.Context) -> None:
            act = ctx.set_timer if value[0] == "set" else ctx.delete_timer
            act(event_time=value[1])

        def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[float]:
            yield timestamp

    h = tr.testing.harness(Alarm(), key=lambda value: "all")
    for time in times:
        h.push(("set", time))
    for time in times[1:]:
        h.push(("delete", time))
    left = [times[0]] if ceil_micros(times[0]) not in map(ceil_micros, times[1:]) else []
    assert [ceil_micros(one) for one in h.advance_watermark(2e11)] == [ceil_micros(one) for one in left]


# The watermark that a timer sees.


class Pruned(tr.KeyedProcessFunction):
    """Counts what it has of the last ten seconds at each record's time, and forgets by the watermark what is older."""

    kept = tr.MapState(int, float)

    def process(self, value: tuple[int, float], ctx: tr.Context) -> None:
        self.kept[value[0]] = value[1]
        ctx.set_timer(event_time=value[1])

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        for number, at in self.kept.items():
            if at <= ctx.watermark - 10:
                del self.kept[number]
        yield timestamp, sum(at <= ctx.watermark for at in self.kept.values())


@given(st.lists(st.integers(0, 60), max_size=30), st.sampled_from([0, 5, 100]), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_what_a_timer_prunes_by_the_watermark_is_right_however_far_the_records_are(
    ats: list[int], ahead: int, seed: int
) -> None:
    env = tr.Environment(parallelism=1)
    source = env.from_collection(list(enumerate(ats))).assign_timestamps(lambda v: v[1], out_of_orderness=100)
    out = source.key_by(lambda v: 0).process(Pruned()).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=seed, conditions=tr.testing.Conditions(budget=(1, 1 + ahead))).await_termination()
    plain = pd.Series(ats, dtype=float)
    expected = Counter({at: int(((plain > at - 10) & (plain <= at)).sum()) for at in set(ats)})
    assert dict(out.result()) == dict(expected)
    assert [at for at, _ in out.result()] == sorted(set(ats))


def test_a_fraction_is_a_time_as_a_float_is() -> None:
    assert ceil_micros(Fraction(1, 3)) == 333_334 and floor_micros(Fraction(1, 3)) == 333_333  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        ceil_micros(inf)


def test_timers_whose_times_were_not_rounded_up_are_refused() -> None:
    def made() -> tuple[MemoryBackend, Timers]:
        backend = MemoryBackend()
        return backend, timers_of(backend, "event", lambda entry: entry[0])

    (backend, timers), files = made(), Files()
    timers.set("k", 7)
    assert timers.table.info.times_up
    timers.table.info = msgspec.structs.replace(timers.table.info, times_up=False)
    files.take(backend, 1)
    with pytest.raises(IncompatibleState, match=r"its timers .*: a build of tailrace before 0.1.0 has written it"):
        files.restore(made()[0], 1, True)
