"""The harness: one process function by hand, in the runtime it has in a job."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tailrace as tr


class Totals(tr.KeyedProcessFunction):
    total = tr.ValueState(int, default=0)

    def open(self, ctx: tr.Context) -> None:
        self.closed = False
        self.where = (ctx.subtask, ctx.parallelism, ctx.attempt)

    def process(self, value: tuple[str, int], ctx: tr.Context) -> Iterator[Any]:
        self.total.value += value[1]
        if value[1] < 0:
            ctx.emit("negative", value)
        if ctx.timestamp is not None:
            ctx.set_timer(event_time=ctx.timestamp + 60)
        yield ctx.key, self.total.value

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "timer", ctx.key, timestamp
        ctx.emit("fired", ctx.key)

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield "finished"

    def close(self) -> None:
        self.closed = True


def by_name(value: tuple[str, int]) -> str:
    return value[0]


def test_records_go_in_one_by_one_and_what_comes_out_is_returned() -> None:
    h = tr.testing.harness(Totals(), key=by_name)
    assert h.push(("a", 1)) == [("a", 1)]
    assert h.push(("b", 5)) == [("b", 5)]
    assert h.push(("a", -3)) == [("a", -2)]
    assert h.outputs == [("a", 1), ("b", 5), ("a", -2)]
    assert h.side("negative") == [("a", -3)]
    assert h.side("unheard of") == []
    assert h.state("total") == {"a": -2, "b": 5}


def test_a_key_may_be_a_column() -> None:
    def key_of(value: dict[str, Any], ctx: tr.Context) -> list[Any]:
        return [ctx.key]

    assert tr.testing.harness(key_of, key="name").push({"name": "x"}) == ["x"]
    assert tr.testing.harness(key_of, key=("name", "n")).push({"name": "x", "n": 2}) == [("x", 2)]


def test_timestamps_and_watermarks_are_seconds_or_datetimes() -> None:
    h = tr.testing.harness(Totals(), key=by_name)
    h.push(("a", 1), timestamp=10)
    h.push(("b", 1), timestamp=datetime(1970, 1, 1, 0, 1, tzinfo=UTC))
    assert h.timers == {"event": 2, "processing": 0}
    assert h.advance_watermark(69.9) == []
    assert h.advance_watermark(timedelta(seconds=70)) == [("timer", "a", 70.0)]
    assert h.advance_watermark(120) == [("timer", "b", 120.0)]
    assert h.side("fired") == ["a", "b"]


def test_neither_clock_goes_back() -> None:
    def told(value: Any, ctx: tr.Context) -> list[Any]:
        return [(ctx.watermark, ctx.now())]

    h = tr.testing.harness(told, now=100)
    h.advance_watermark(50)
    h.advance_watermark(40)
    h.advance_clock(90)
    assert h.push(1) == [(50.0, 100.0)]
    h.advance_clock(110)
    assert h.push(1) == [(50.0, 110.0)]


def test_at_the_end_timers_fire_and_finish_is_called() -> None:
    h = tr.testing.harness(Totals(), key=by_name)
    h.push(("a", 1), timestamp=10)
    assert h.end_input() == [("timer", "a", 70.0), "finished"]


def test_opened_at_once_and_closed_when_told() -> None:
    function = Totals()
    h = tr.testing.harness(function, key=by_name)
    assert (function.where, function.closed) == ((0, 1, 0), False)
    h.close()
    assert function.closed


def test_a_function_of_two_inputs() -> None:
    class Both(tr.CoProcessFunction):
        last = tr.ValueState(str)

        def process1(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
            yield "one", value, self.last.value

        def process2(self, value: Any, ctx: tr.Context) -> None:
            self.last.value = value["text"]

    h = tr.testing.harness(Both(), key=lambda value: value % 10, key2="n")
    assert h.push(11) == [("one", 11, None)]
    assert h.push({"n": 1.0, "text": "hello"}, input=2) == []
    assert h.push(21, input=1) == [("one", 21, "hello")]
    assert h.push(22) == [("one", 22, None)]


def test_a_function_without_a_key() -> None:
    class Twice(tr.ProcessFunction):
        def process(self, value: Any, ctx: tr.Context) -> list[Any]:
            ctx.emit("seen", value)
            return [value, value]

    h = tr.testing.harness(Twice())
    assert h.push("x") == ["x", "x"]
    assert h.side("seen") == ["x"]
    assert h.timers == {"event": 0, "processing": 0}


def test_what_the_function_raises_is_reported_as_in_a_job() -> None:
    def fail(value: Any, ctx: tr.Context) -> None:
        raise ValueError("no")

    with pytest.raises(tr.UserCodeError, match="record 5: ValueError: no") as caught:
        tr.testing.harness(fail).push(5)
    assert (caught.value.record, caught.value.subtask) == ("5", 0)


def test_what_cannot_be_driven_is_reported() -> None:
    with pytest.raises(tr.ConfigError, match="a KeyedProcessFunction needs a key: harness"):
        tr.testing.harness(Totals())
    with pytest.raises(tr.ConfigError, match=r"the function declares no state 'sum'; it has \['total'\]"):
        tr.testing.harness(Totals(), key=by_name).state("sum")


@pytest.mark.parametrize("number", [0, 2, 3])
def test_an_input_that_the_function_does_not_have_is_refused(number: int) -> None:
    """The record went in as if it had come on an input that there is."""

    class One(tr.ProcessFunction):
        def process(self, value: Any, ctx: tr.Context) -> Any:
            return [value]

    with pytest.raises(tr.ConfigError, match=rf"input={number}.*One has input 1; only a tr.CoProcessFunction has two"):
        tr.testing.harness(One()).push(1, input=number)


def test_a_third_input_of_two_is_refused() -> None:
    class Two(tr.CoProcessFunction):
        def process1(self, value: Any, ctx: tr.Context) -> Any:
            return [value]

        process2 = process1

    with pytest.raises(tr.ConfigError, match=r"input=3.*Two has input 1 and 2"):
        tr.testing.harness(Two()).push(1, input=3)
