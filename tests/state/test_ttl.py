"""State with a time to live: what a function is given of it, on both clocks."""

from __future__ import annotations

from typing import Any

import pytest

import tailrace as tr


def scripted(**states: Any) -> Any:
    """A function that runs the code of each record on its states, and gives the result."""

    class Scripted(tr.KeyedProcessFunction):
        def process(self, value: Any, ctx: tr.Context) -> Any:
            yield value[1](self)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> Any:
            yield timestamp, self.s.value

    for name, state in states.items():
        setattr(Scripted, name, state)
        state.__set_name__(Scripted, name)
    return Scripted()


def harness(**states: Any) -> Any:
    return tr.testing.harness(scripted(**states), key=lambda value: value[0])


def run(bench: Any, code: Any, timestamp: float | None = None, key: str = "a") -> Any:
    return bench.push((key, code), timestamp)[0]


def put(value: Any) -> Any:
    return lambda self: setattr(self.s, "value", value)


def get(self: Any) -> Any:
    return self.s.value


def test_a_value_is_gone_a_lifetime_after_its_last_write() -> None:
    bench = harness(s=tr.ValueState(int, default=-1, ttl=tr.Ttl(10)))
    run(bench, put(1))
    bench.advance_clock(9.999999)
    assert run(bench, get) == 1
    run(bench, put(2))
    bench.advance_clock(19.999998)
    assert (run(bench, get), bench.state("s")) == (2, {"a": 2})
    bench.advance_clock(19.999999)
    assert (bench.state("s"), run(bench, get), run(bench, lambda self: self.s.exists())) == ({}, -1, False)


def test_a_read_begins_a_life_anew_only_where_the_declaration_says_so() -> None:
    seen = {}
    for refresh in ("read", "write"):
        bench = harness(s=tr.ValueState(int, default=-1, ttl=tr.Ttl(10, refresh=refresh)))
        run(bench, put(1))
        seen[refresh] = []
        for now in (6, 12, 21, 32):
            bench.advance_clock(now)
            seen[refresh].append(run(bench, get))
    assert seen == {"read": [1, 1, 1, -1], "write": [1, -1, -1, -1]}


def test_by_event_time_a_call_has_the_time_of_its_record_or_the_watermark_where_that_is_later() -> None:
    bench = harness(s=tr.ValueState(int, default=-1, ttl=tr.Ttl(10, clock="event")))
    run(bench, put(1), 100)
    bench.advance_clock(5_000)
    assert run(bench, get, 109) == 1
    assert run(bench, get, 50) == 1  # out of order, and not late
    assert run(bench, get, 110) == -1
    run(bench, put(2), 100)
    bench.advance_watermark(110)
    assert run(bench, get, 105) == -1
    assert run(bench, get, None) == -1


def test_a_timer_is_given_what_lives_at_its_time() -> None:
    class Remembers(tr.KeyedProcessFunction):
        s = tr.ValueState(int, default=-1, ttl=tr.Ttl(10, clock="event"))

        def process(self, value: Any, ctx: tr.Context) -> None:
            self.s.value = value
            ctx.set_timer(event_time=ctx.timestamp + 9)
            ctx.set_timer(event_time=ctx.timestamp + 10)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> Any:
            yield timestamp, self.s.value

    bench = tr.testing.harness(Remembers(), key=lambda value: 0)
    bench.push(7, 100)
    assert bench.advance_watermark(1_000) == [(109.0, 7), (110.0, -1)]


def test_where_event_time_has_not_begun_nothing_is_written_and_nothing_is_over() -> None:
    bench = harness(s=tr.ValueState(int, default=-1, ttl=tr.Ttl(10, clock="event")))
    assert run(bench, get) == -1
    with pytest.raises(tr.UserCodeError, match=r"ttl by event time, and event time has not begun.*assign_timestamps"):
        run(bench, put(1))
    bench.advance_watermark(5)
    run(bench, put(1))
    assert run(bench, get, 14) == 1


def test_the_end_of_event_time_ends_no_life() -> None:
    class AtEnd(tr.KeyedProcessFunction):
        s = tr.ValueState(int, default=-1, ttl=tr.Ttl(10, clock="event"))

        def process(self, value: Any, ctx: tr.Context) -> None:
            self.s.value = value
            ctx.set_timer(processing_time=1_000)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> Any:
            yield self.s.value

    bench = tr.testing.harness(AtEnd(), key=lambda value: 0)
    bench.push(7, 100)
    bench.advance_watermark(105)
    bench._task.advance(2**63 - 1, 1_000)  # the end of event time, while a timer of the clock is awaited
    assert bench.advance_clock(1_000) == [7]


def test_a_mutable_default_lives_as_long_as_a_written_value() -> None:
    bench = harness(s=tr.ValueState(list, default=[], ttl=tr.Ttl(10)))
    run(bench, lambda self: self.s.value.append(1))
    bench.advance_clock(9)
    run(bench, lambda self: self.s.value.append(2))
    assert run(bench, lambda self: list(self.s.value)) == [1, 2]
    bench.advance_clock(10)
    assert run(bench, lambda self: list(self.s.value)) == []


def test_each_item_of_a_list_has_a_life_of_its_own() -> None:
    bench = harness(s=tr.ListState(int, ttl=tr.Ttl(10)))
    run(bench, lambda self: self.s.append(1))
    bench.advance_clock(4)
    run(bench, lambda self: self.s.extend([2, 3]))
    bench.advance_clock(8)
    run(bench, lambda self: self.s.__setitem__(1, 20))
    assert run(bench, lambda self: (list(self.s), len(self.s), 1 in self.s, self.s[0])) == ([1, 20, 3], 3, True, 1)
    bench.advance_clock(10)
    assert run(bench, lambda self: (list(self.s), len(self.s), 1 in self.s, self.s[0])) == ([20, 3], 2, False, 20)
    bench.advance_clock(14)
    assert run(bench, lambda self: (self.s.get(), self.s[:], self.s.exists())) == ([20], [20], True)
    bench.advance_clock(18)
    assert run(bench, lambda self: (self.s.get(), len(self.s), self.s.exists())) == ([], 0, False)


def test_each_entry_of_a_mapping_has_a_life_of_its_own() -> None:
    bench = harness(s=tr.MapState(str, int, ttl=tr.Ttl(10)))
    run(bench, lambda self: self.s.put("x", 1))
    bench.advance_clock(6)
    run(bench, lambda self: self.s.update({"y": 2}))
    assert run(bench, lambda self: (self.s.items(), len(self.s))) == ([("x", 1), ("y", 2)], 2)
    bench.advance_clock(10)
    look = lambda self: (self.s.value, list(self.s), len(self.s), "x" in self.s, self.s.get("x", -1), self.s["y"])  # noqa: E731
    assert run(bench, look) == ({"y": 2}, ["y"], 1, False, -1, 2)
    bench.advance_clock(16)
    assert run(bench, lambda self: (self.s.values(), self.s.exists())) == ([], False)


def test_a_merged_value_that_is_over_is_not_merged() -> None:
    sums = tr.ReducingState(int, reduce=lambda a, b: a + b, ttl=tr.Ttl(10))
    bench = harness(s=sums, mean=tr.AggregatingState(object, aggregate=tr.Mean(), ttl=tr.Ttl(10)))

    def add(n: int) -> Any:
        return lambda self: (self.s.add(n), self.mean.add(n), self.s.get(), self.mean.get())[2:]

    seen = []
    for now, n in ((0, 1), (9, 3), (18, 5), (28, 2)):
        bench.advance_clock(now)
        seen.append(run(bench, add(n)))
    assert seen == [(1, 1.0), (4, 2.0), (9, 3.0), (2, 2.0)]


@pytest.mark.parametrize("wrong", ["10", 0, -1, "soon", None])
def test_a_lifetime_must_be_a_duration(wrong: Any) -> None:
    with pytest.raises(tr.ConfigError, match="Ttl: the lifetime"):
        tr.Ttl(wrong)


def test_what_makes_no_sense_is_refused_where_it_is_declared() -> None:
    with pytest.raises(tr.ConfigError, match="refresh"):
        tr.Ttl(1, refresh="never")  # type: ignore[arg-type]
    with pytest.raises(tr.ConfigError, match="clock"):
        tr.Ttl(1, clock="wall")  # type: ignore[arg-type]
    with pytest.raises(tr.ConfigError, match="event time stands still"):
        tr.Ttl(1, clock="event", clock_stops_with_job=True)
    with pytest.raises(tr.ConfigError, match=r"ttl must be a tr.Ttl, such as ttl=tr.Ttl\(3600\)"):
        tr.ValueState(int, ttl=3600)  # type: ignore[arg-type]


def test_a_lifetime_by_event_time_needs_a_stream_with_timestamps() -> None:
    env = tr.Environment()
    keyed = env.from_collection([("a", get)]).key_by(lambda value: value[0])
    function = scripted(s=tr.ValueState(int, ttl=tr.Ttl(10, clock="event")))
    with pytest.raises(tr.GraphError, match="the ttl of state 's' is by event time, and the stream has none"):
        keyed.process(function)


def test_entries_that_no_call_looks_at_are_removed_and_counted() -> None:
    bench = harness(s=tr.ValueState(int, default=-1, ttl=tr.Ttl(10)))
    for n in range(500):
        run(bench, put(n), key=f"k{n}")
    bench.advance_clock(11)
    for _ in range(20):
        run(bench, put(0), key="other")
    assert bench._task.backend.entries() == 1
    assert bench._task.ctx.metrics.counters["expired"] == 500


def test_a_failed_call_leaves_entries_and_the_times_of_their_writes_as_they_were() -> None:
    class Fails(tr.KeyedProcessFunction):
        s = tr.ValueState(int, default=-1, ttl=tr.Ttl(10))
        items = tr.ListState(int, ttl=tr.Ttl(10))
        entries = tr.MapState(str, int, ttl=tr.Ttl(10))

        def process(self, value: int, ctx: tr.Context) -> Any:
            seen = (self.s.value, list(self.items), dict(self.entries.value))
            self.s.value = value
            self.items.append(value)
            self.entries["x"] = value
            if value < 0:
                raise ValueError("negative")
            yield seen

    bench = tr.testing.harness(Fails(), key=lambda value: 0, on_error=tr.Aside("errors"))
    bench.push(1)
    bench.advance_clock(5)
    assert bench.push(-5) == []
    bench.advance_clock(9)
    assert bench.state("s") == {0: 1}
    bench.advance_clock(10)
    assert bench.push(2) == [(-1, [], {})]


def test_the_broadcast_side_goes_through_the_keys_that_live() -> None:
    class Rules(tr.BroadcastProcessFunction):
        s = tr.ValueState(int, ttl=tr.Ttl(10))

        def process(self, value: Any, ctx: Any) -> None:
            self.s.value = value[1]

        def process_broadcast(self, value: Any, ctx: Any) -> Any:
            yield [(key, self.s.value) for key in ctx.keys(self.s)]

    bench = tr.testing.harness(Rules(), key=lambda value: value[0])
    bench.push(("a", 1))
    bench.advance_clock(5)
    bench.push(("b", 2))
    bench.advance_clock(10)
    assert bench.push("look", input=2) == [[("b", 2)]]
