"""Timers on both clocks: set, set again, deleted, in order, in the past, from a timer, and at the end of the input."""

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.elements.cuts import CutRequest
from tailrace.elements.plainkeys import NAN, plain_key
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.operators.timer_heap import Timers, timers_of
from tailrace.testing.backends import Files

# The heap.


def due(timers: Timers, until: int) -> list[tuple[Any, int]]:
    found = []
    while (one := timers.pop_due(until)) is not None:
        found.append(one)
    return found


def test_timers_come_in_order_of_time_and_then_of_setting() -> None:
    timers = Timers()
    for key, time in [("a", 5), ("b", 3), ("c", 5), ("d", 4), ("b", 5)]:
        timers.set(key, time)
    assert timers.next_time() == 3
    assert due(timers, 4) == [("b", 3), ("d", 4)]
    assert due(timers, 100) == [("a", 5), ("c", 5), ("b", 5)]
    assert timers.next_time() is None and len(timers) == 0


KEYS = ["b", "a", 3, 2, -1, None, (1, "x"), (1, "w"), b"k", 2.5]


@given(st.permutations(KEYS), st.permutations(KEYS))
def test_timers_that_old_subtasks_have_set_at_once_have_one_order(first: list[Any], second: list[Any]) -> None:
    """Each of them has counted for itself. What is restored is in a table in any order, and the heap has any shape."""
    found = []
    for keys in (first, second):
        timers = Timers()
        for key in keys:
            timers.table[key, 7] = 1
        timers.rebuild()
        timers.set("new", 7)
        found.append([key for key, _ in due(timers, 7)])
    assert found[0] == found[1] and found[0][-1] == "new"
    assert len(found[0]) == len(KEYS) + 1


@given(
    st.lists(st.tuples(st.sampled_from(["set", "delete", "pop"]), st.integers(0, 3), st.integers(0, 9)), max_size=80)
)
def test_the_heap_holds_what_a_set_would(acts: list[tuple[str, int, int]]) -> None:
    timers, model = Timers(), set[tuple[int, int]]()
    for act, key, time in acts:
        if act == "set":
            timers.set(key, time)
            model.add((key, time))
        elif act == "delete":
            timers.delete(key, time)
            model.discard((key, time))
        else:
            found = timers.pop_due(time)
            earliest = min((t for _, t in model), default=None)
            assert (found is None) == (earliest is None or earliest > time)
            if found is not None:
                assert found in model and found[1] == earliest
                model.remove(found)
        assert len(timers) == len(model)
        assert timers.next_time() == min((t for _, t in model), default=None)
    assert sorted(due(timers, 100)) == sorted(model)


def test_a_timer_that_is_moved_on_and_on_leaves_no_trail() -> None:
    timers = Timers()
    for time in range(100_000):
        timers.delete("session", time + 999)
        timers.set("session", time + 1_000)
    assert len(timers) == 1
    assert len(timers._heap) < 100
    assert due(timers, 10**9) == [("session", 100_999)]


def test_all_timers_are_forgotten_at_once() -> None:
    timers = Timers()
    timers.set("a", 1)
    timers.clear()
    assert timers.next_time() is None and due(timers, 10) == []


# Of a function.


class Alarms(tr.KeyedProcessFunction):
    """Records are (key, orders); each order sets or deletes a timer. Fired timers are emitted with what was to be seen."""

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        for what, clock, time in value[1]:
            act = ctx.set_timer if what == "set" else ctx.delete_timer
            act(**{f"{clock}_time": time})
        return iter(())

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, ctx.time_domain, timestamp, ctx.timestamp, ctx.watermark


def alarms(**options: Any) -> tr.testing.Harness:
    return tr.testing.harness(Alarms(), key=lambda value: value[0], **options)


def test_an_event_time_timer_fires_when_the_watermark_has_come() -> None:
    h = alarms()
    h.push(("a", [("set", "event", 10.5)]))
    assert h.advance_watermark(10.499999) == []
    assert h.advance_watermark(10.5) == [("a", "event", 10.5, 10.5, 10.5)]
    assert h.advance_watermark(20) == []


def test_a_processing_time_timer_fires_when_the_clock_has_come() -> None:
    h = alarms(now=100)
    h.push(("a", [("set", "processing", 103)]))
    assert h.advance_watermark(1000) == []
    assert h.advance_clock(102.9) == []
    assert h.advance_clock(103) == [("a", "processing", 103.0, None, 1000.0)]


def test_setting_a_timer_twice_is_setting_it_once() -> None:
    h = alarms()
    h.push(("a", [("set", "event", 5), ("set", "event", 5.0), ("set", "event", timedelta(seconds=5))]))
    h.push(("a", [("set", "event", datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC))]))
    assert h.timers == {"event": 1, "processing": 0}
    assert len(h.advance_watermark(5)) == 1


def test_the_same_time_of_two_keys_or_two_clocks_is_two_timers() -> None:
    h = alarms()
    h.push(("a", [("set", "event", 5), ("set", "processing", 5)]))
    h.push(("b", [("set", "event", 5)]))
    assert h.timers == {"event": 2, "processing": 1}


def test_a_deleted_timer_does_not_fire() -> None:
    h = alarms()
    h.push(("a", [("set", "event", 5), ("set", "event", 6), ("delete", "event", 5), ("delete", "event", 7)]))
    h.push(("b", [("delete", "event", 6)]))
    assert [fired[2] for fired in h.advance_watermark(10)] == [6.0]


def test_a_timer_set_again_after_its_deletion_fires_once() -> None:
    h = alarms()
    h.push(("a", [("set", "event", 5), ("delete", "event", 5), ("set", "event", 5)]))
    assert len(h.advance_watermark(10)) == 1


def test_timers_fire_in_order_of_time_across_keys() -> None:
    h = alarms()
    for key, time in [("a", 9), ("b", 3), ("c", -4), ("a", 5), ("d", 3)]:
        h.push((key, [("set", "event", time)]))
    assert [(key, time) for key, _, time, _, _ in h.advance_watermark(9)] == [
        ("c", -4.0),
        ("b", 3.0),
        ("d", 3.0),
        ("a", 5.0),
        ("a", 9.0),
    ]


def test_a_timer_in_the_past_fires_with_the_next_watermark() -> None:
    h = alarms()
    h.advance_watermark(100)
    assert h.push(("a", [("set", "event", 50)])) == []
    assert h.advance_watermark(101) == [("a", "event", 50.0, 50.0, 100.0)]  # event time never goes back


def test_a_timer_in_the_past_of_the_clock_fires_at_once() -> None:
    h = alarms(now=100)
    assert h.push(("a", [("set", "processing", 50)])) == [("a", "processing", 50.0, None, float("-inf"))]


class Chain(tr.KeyedProcessFunction):
    """Each timer sets the next one, `left` times."""

    left = tr.ValueState(int)

    def __init__(self, clock: str, step: float) -> None:
        self.clock, self.step = clock, step

    def process(self, value: int, ctx: tr.Context) -> None:
        self.left.value = value
        ctx.set_timer(**{f"{self.clock}_time": 10})

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield timestamp
        if self.left.value:
            self.left.value -= 1
            ctx.set_timer(**{f"{self.clock}_time": timestamp + self.step})


@pytest.mark.parametrize("clock", ["event", "processing"])
def test_a_timer_may_set_the_next_one(clock: str) -> None:
    h = tr.testing.harness(Chain(clock, 1), key=lambda value: 0)
    h.push(5)
    advance = h.advance_watermark if clock == "event" else h.advance_clock
    assert advance(12) == [10.0, 11.0, 12.0]
    assert advance(100) == [13.0, 14.0, 15.0]


@pytest.mark.parametrize("clock", ["event", "processing"])
def test_a_timer_that_sets_one_in_the_past_is_followed_by_it(clock: str) -> None:
    h = tr.testing.harness(Chain(clock, -1), key=lambda value: 0)
    h.push(3)
    assert (h.advance_watermark if clock == "event" else h.advance_clock)(10) == [10.0, 9.0, 8.0, 7.0]


# At the end of the input.


def records(build: Callable[[tr.Environment], Any], how: str, parallelism: int = 1) -> list[Any]:
    env = tr.Environment(parallelism=parallelism)
    out = build(env).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env) if how == "run" else tr.testing.simulate(env, seed=int(how))
    job.await_termination()
    return list(out.result())


HOW = ["run", "1", "2", "3"]


@pytest.mark.parametrize("how", HOW)
def test_at_the_end_of_the_input_all_event_time_timers_fire(how: str) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        orders = [("a", [("set", "event", 1e9)]), ("b", [("set", "event", -1e9), ("set", "event", 5)])]
        return env.from_collection(orders).key_by(lambda v: v[0]).process(Alarms())

    fired = records(program, how)
    assert [(key, time) for key, _, time, _, _ in fired] == [("b", -1e9), ("b", 5.0), ("a", 1e9)]
    assert [watermark for *_, watermark in fired] == [-1e9, 5.0, 1e9]


@pytest.mark.parametrize("how", HOW)
def test_at_the_end_of_the_input_processing_time_timers_are_awaited(how: str) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        # A day from now: the simulated clock jumps there.
        function = Later("wait")
        return env.from_collection(["a", "b"]).key_by(str).process(function, at_end="wait")

    assert sorted(records(program, how)) == [("a", "event"), ("a", "processing"), ("b", "event"), ("b", "processing")]


@pytest.mark.parametrize("how", HOW)
def test_or_dropped_where_the_user_wants_it(how: str) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return env.from_collection(["a", "b"]).key_by(str).process(Later("drop"), at_end="drop")

    assert sorted(records(program, how)) == [("a", "event"), ("b", "event")]


class Later(tr.KeyedProcessFunction):
    def __init__(self, at_end: str) -> None:
        self.at_end = at_end

    def process(self, value: str, ctx: tr.Context) -> None:
        ctx.set_timer(processing_time=ctx.now() + 86_400)
        ctx.set_timer(event_time=0)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, ctx.time_domain


class PingPong(tr.KeyedProcessFunction):
    """A timer of each clock sets one of the other, `left` times; the end comes last."""

    left = tr.ValueState(int)

    def process(self, value: Any, ctx: tr.Context) -> None:
        self.left.value = value[1]
        ctx.set_timer(processing_time=ctx.now() + 1)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, ctx.time_domain
        self.left.value -= 1
        if self.left.value < 0:
            return
        if ctx.time_domain == "processing":
            ctx.set_timer(event_time=1)
        else:
            ctx.set_timer(processing_time=ctx.now() + 1)

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield "end", ctx.subtask


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_timers_of_one_clock_may_set_those_of_the_other_until_none_is_left(how: str, parallelism: int) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return env.from_collection([("a", 5), ("b", 0), ("c", 1)]).key_by(lambda v: v[0]).process(PingPong())

    found = records(program, how, parallelism)
    for key, count in [("a", 6), ("b", 1), ("c", 2)]:
        assert [domain for k, domain in found if k == key] == (["processing", "event"] * 3)[:count]
    assert sorted(one for one in found if one[0] == "end") == [("end", subtask) for subtask in range(parallelism)]


@pytest.mark.parametrize("how", HOW)
def test_what_a_timer_gives_at_the_end_passes_through_the_rest_of_the_chain_and_the_job(how: str) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        first = env.from_collection(["a"]).key_by(str).process(Later("wait"))
        # Chained behind the first, and behind a shuffle: both see the records of its last timers.
        again = first.map(lambda record: record).key_by(lambda record: record[1])
        return again.process(Later("wait")).map(lambda record: (*record, "again"))

    assert sorted(records(program, how, 2)) == [
        ("event", "event", "again"),
        ("event", "processing", "again"),
        ("processing", "event", "again"),
        ("processing", "processing", "again"),
    ]


def test_the_harness_ends_as_a_job_does() -> None:
    h = tr.testing.harness(PingPong(), key=lambda v: v[0], now=1000)
    h.push(("a", 3))
    assert h.end_input() == [("a", "processing"), ("a", "event"), ("a", "processing"), ("a", "event"), ("end", 0)]


def test_a_processing_time_timer_fires_while_the_input_still_runs() -> None:
    class Waiting(tr.Reader):
        """One record, then silence for an hour, then the end."""

        position = None
        given = False
        until: float | None = None

        def read(self, limit: int, now: float) -> Any:
            if not self.given:
                self.given, self.until = True, now + 3600
                return ["first"]
            assert self.until is not None
            return [] if now < self.until else None

        def next_at(self, now: float) -> float:
            assert self.until is not None
            return self.until

    class Source(tr.Source):
        def splits(self, parallelism: int) -> list[int]:
            return [0]

        def reader(self, split: int, position: Any = None) -> tr.Reader:
            return Waiting()

    class Soon(tr.KeyedProcessFunction):
        def process(self, value: str, ctx: tr.Context) -> None:
            self.start = ctx.now()
            ctx.set_timer(processing_time=ctx.now() + 60)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
            yield round(ctx.now() - self.start), ctx.watermark

    for how in HOW:
        assert records(lambda env: env.from_source(Source()).key_by(str).process(Soon()), how) == [(60, float("-inf"))]


@pytest.mark.parametrize("how", HOW)
def test_where_timers_are_dropped_those_set_at_the_end_are_too(how: str) -> None:
    class SetsAnother(tr.KeyedProcessFunction):
        def process(self, value: str, ctx: tr.Context) -> None:
            ctx.set_timer(event_time=1)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
            yield ctx.time_domain
            ctx.set_timer(processing_time=ctx.now() + 1)

    def program(env: tr.Environment) -> tr.DataStream:
        return env.from_collection(["a"]).key_by(str).process(SetsAnother(), at_end="drop")

    assert records(program, how) == ["event"]


# Timers are state.


def test_timers_come_back_from_a_checkpoint_in_their_order() -> None:
    def made() -> tuple[MemoryBackend, Timers]:
        backend = MemoryBackend()
        return backend, timers_of(backend, "event", lambda entry: entry[0])

    (old, timers), files = made(), Files()
    for key, time in [("b", 5), ("a", 5), ("c", 3), ("gone", 4), (float("nan"), 6)]:
        timers.set(plain_key(key), time)
    timers.delete("gone", 4)
    files.take(old, 1)
    timers.set("a", 1)
    new, restored = made()
    files.restore(new, 1, True)
    assert len(restored) == 4
    restored.set("z", 5)
    restored.set("b", 5)
    restored.delete(NAN, 6)
    assert due(restored, 100) == [("c", 3), ("b", 5), ("a", 5), ("z", 5)]


def test_timers_of_two_old_subtasks_come_together() -> None:
    """Timers were numbered in each of the two subtasks, so some have one time and one number."""
    new = MemoryBackend()
    restored = timers_of(new, "event", lambda entry: entry[0])
    for name in "ab":
        old, files = MemoryBackend(), Files()
        timers = timers_of(old, "event", lambda entry: entry[0])
        for i in range(50):
            timers.set(f"{name}{i}", 7)
        files.take(old, 1)
        files.restore(new, 1, False)
    assert len(due(restored, 7)) == 100


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=200))
def test_timers_are_the_same_with_checkpoints_under_way(acts: list[tuple[int, int]]) -> None:
    backend = MemoryBackend()
    busy, plain, number, going = timers_of(backend, "event", lambda entry: entry[0]), Timers(), 0, False
    for act, n in acts:
        if act == 0 and going:
            going = not backend.encode(1)[1]
        elif act == 0:
            (backend.confirm if n % 2 else backend.abort)(number)
            number, going = number + 1, True
            backend.freeze(CutRequest(number))
        else:
            for timers in (busy, plain):
                (timers.set if act > 1 else timers.delete)(n % 3, n)
            if act == 3:
                assert busy.pop_due(n) == plain.pop_due(n)
        assert (len(busy), busy.next_time()) == (len(plain), plain.next_time())


# At the ends of time.


class Last(tr.KeyedProcessFunction):
    """Each key sets one timer; what that emits may go around a loop."""

    def __init__(self, clock: str, time: Any) -> None:
        self.clock, self.time = clock, time

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        if value[0] == "fired":
            yield "returned", value[1]
        else:
            ctx.set_timer(**{f"{self.clock}_time": self.time})

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "fired", ctx.key


def around(function: Last, levels: int) -> Callable[[tr.Environment], tr.DataStream]:
    """A program with the function in so many loops; where there is one, what its timers emit comes back to it."""

    def body(stream: tr.DataStream) -> Any:
        out = stream.key_by(lambda value: value[1]).process(function)
        return out.filter(lambda value: value[0] == "fired"), out.filter(lambda value: value[0] == "returned")

    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection([("in", 1), ("in", 2), ("in", 3)]).assign_timestamps(lambda value: value[1], 0)
        if not levels:
            return stream.key_by(lambda value: value[1]).process(function)
        return stream.iterate(body if levels == 1 else lambda outer: (None, outer.iterate(body)))

    return program


WEST = timezone(timedelta(hours=-12))
LATEST = [
    pytest.param(timedelta(microseconds=MAX_TIME), id="the end of time"),
    pytest.param(timedelta(microseconds=LAST_TIME), id="just before it"),
    pytest.param(datetime.max, id="the end of the calendar"),
    pytest.param(datetime.max.replace(tzinfo=WEST), id="in the far west"),
    pytest.param(9.2e12, id="beyond the calendar"),
]


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("time", LATEST)
def test_a_timer_of_event_time_fires_at_the_end_of_the_input_however_late_it_is(time: Any, levels: int) -> None:
    """In a loop that is while the loop is still there: what it emits goes around."""
    found = "returned" if levels else "fired"
    for how in ("1", "2"):
        assert sorted(records(around(Last("event", time), levels), how, 2)) == [(found, 1), (found, 2), (found, 3)]


def test_a_timer_at_the_end_of_time_is_deleted_as_it_was_set() -> None:
    h = alarms()
    last = timedelta(microseconds=MAX_TIME)
    h.push(("a", [("set", "event", last), ("delete", "event", last)]))
    assert h.timers == {"event": 0, "processing": 0}


@pytest.mark.parametrize("levels", [0, 1])
@pytest.mark.parametrize("time", [*LATEST, pytest.param(1.7e12, id="milliseconds")])
def test_a_timer_of_the_clock_that_nobody_will_see_is_refused(time: Any, levels: int) -> None:
    """The end of the input would wait for it, for ever."""
    with pytest.raises(
        tr.JobFailed, match=r"process: Last.*processing-time timer at .* more than a thousand years away"
    ):
        records(around(Last("processing", time), levels), "1")


@pytest.mark.parametrize("clock", ["event", "processing"])
@pytest.mark.parametrize(
    "time",
    [sys.float_info.max, -sys.float_info.max, float("inf"), float("nan"), 2**63, timedelta.max, timedelta.min, 9.3e12],
)
def test_a_timer_outside_of_time_is_refused(clock: str, time: Any) -> None:
    h = alarms()
    with pytest.raises(
        tr.UserCodeError, match=r"OverflowError: .*(outside the range of int64|finite number of seconds)"
    ):
        h.push(("a", [("set", clock, time)]))


@pytest.mark.parametrize("clock", ["event", "processing"])
@pytest.mark.parametrize("time", [timedelta(microseconds=MIN_TIME), datetime.min])
def test_a_timer_at_the_beginning_of_time_fires_first(clock: str, time: Any) -> None:
    for levels in (0, 1):
        found = "returned" if levels else "fired"
        assert sorted(records(around(Last(clock, time), levels), "1", 2)) == [(found, 1), (found, 2), (found, 3)]
