"""Functions and collections that would silently give something else than they look like are refused where they are written,
or where they give it."""

import functools
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import Row

import tailrace as tr

Pair = namedtuple("Pair", "key n")


def yields(value: Any, more: Any = None) -> Iterator[Any]:
    yield value


async def waits(value: Any, more: Any = None) -> Any:
    return value


async def yields_and_waits(value: Any, more: Any = None) -> Any:
    yield value


class Called:
    """An object that is called as a function."""

    def __call__(self, value: Any, more: Any = None) -> Iterator[Any]:
        yield value


class Mapper(tr.MapFunction):
    def map(self, value: Any) -> Any:
        yield value


class AsyncMapper(tr.MapFunction):
    async def map(self, value: Any) -> Any:
        return value


class Methods:
    def yields(self, value: Any, more: Any = None) -> Iterator[Any]:
        yield value


YIELDING: dict[str, Any] = {
    "function": yields,
    "partial": functools.partial(yields),
    "object": Called(),
    "method": Methods().yields,
}
ASYNC: dict[str, Any] = {"async": waits, "async generator": yields_and_waits, "partial": functools.partial(waits)}

Verb = Callable[[tr.DataStream, Any], Any]
ONE_VALUE: dict[str, Verb] = {
    "map": lambda s, f: s.map(f),
    "filter": lambda s, f: s.filter(f),
    "key_by": lambda s, f: s.key_by(f),
    "partition_by": lambda s, f: s.partition_by(f),
    "assign_timestamps": lambda s, f: s.assign_timestamps(f),
    "reduce": lambda s, f: s.key_by(lambda v: v).reduce(f),
    "window.reduce": lambda s, f: s.key_by(lambda v: v).window(tr.Tumbling(1)).reduce(f),
    "Callback": lambda s, f: s.sink_to(tr.sinks.Callback(f)),
}
SEVERAL: dict[str, Verb] = {
    "flat_map": lambda s, f: s.flat_map(f),
    "process": lambda s, f: s.process(f),
    "keyed process": lambda s, f: s.key_by(lambda v: v).process(f),
}


def stream() -> tr.DataStream:
    return tr.Environment(parallelism=1).from_collection([1])


@pytest.mark.parametrize("fn", YIELDING.values(), ids=YIELDING)
@pytest.mark.parametrize("verb", ONE_VALUE)
def test_a_function_that_yields_is_refused_where_one_value_is_wanted(verb: str, fn: Any) -> None:
    with pytest.raises(
        (tr.GraphError, tr.ConfigError), match=r"yields, so each call gives a generator and no value; return.*flat_map"
    ):
        ONE_VALUE[verb](stream(), fn)


@pytest.mark.parametrize("fn", ASYNC.values(), ids=ASYNC)
@pytest.mark.parametrize("verb", {**ONE_VALUE, **SEVERAL})
def test_an_async_function_is_refused_everywhere(verb: str, fn: Any) -> None:
    with pytest.raises((tr.GraphError, tr.ConfigError), match="is an async function, and nobody would await"):
        (ONE_VALUE | SEVERAL)[verb](stream(), fn)


@pytest.mark.parametrize("fn", YIELDING.values(), ids=YIELDING)
@pytest.mark.parametrize("verb", SEVERAL)
def test_a_function_that_yields_is_right_where_several_are_wanted(verb: str, fn: Any) -> None:
    SEVERAL[verb](stream(), fn)


@pytest.mark.parametrize("fn", [Mapper(), AsyncMapper()])
def test_methods_of_functions_are_refused_as_well(fn: Any) -> None:
    with pytest.raises(tr.GraphError, match=r"map: .*Mapper\.map (yields|is an async function)"):
        stream().map(fn)


def test_a_generator_of_a_source_may_yield_and_must_not_be_async() -> None:
    env = tr.Environment(parallelism=1)
    out = env.from_source(tr.sources.Generator(lambda: iter([1]))).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [1]
    with pytest.raises(tr.ConfigError, match="Generator: waits is an async function"):
        tr.sources.Generator(waits)


@pytest.mark.parametrize("fn", [yields, waits, yields_and_waits])
@pytest.mark.parametrize("verb", ["map", "filter"])
def test_a_lambda_that_calls_one_of_these_is_reported_at_its_first_record(verb: str, fn: Any) -> None:
    given = stream().map(abs)
    message = fails(getattr(given, verb)(lambda value: fn(value), name="odd"))
    assert "operator 'odd'" in message and "record 1" in message and "and no value; return the value itself" in message


@pytest.mark.parametrize("fn", [yields, waits, lambda value: map(print, [value])])
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_callback_whose_work_would_not_be_done_is_refused(fn: Any) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Callback(lambda value: fn(value)))
    with pytest.raises(tr.JobFailed, match=r"record 1.* a callback does its work when it is called, and it returned a"):
        tr.testing.run(env)


# What is returned, and is one record.

ONE: list[Any] = [
    "word",
    b"word",
    bytearray(b"w"),
    {"a": 1},
    Pair("a", 1),
    Row(a="a", b=1),
    pd.DataFrame({"a": [1]}),
    pa.table({"a": [1]}),
]


def fails(made: tr.DataStream) -> str:
    made.sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed) as raised:
        tr.testing.run(made.env)
    return str(raised.value)


@pytest.mark.parametrize("one", ONE, ids=lambda one: type(one).__name__)
def test_one_record_returned_from_flat_map_is_not_taken_apart(one: Any) -> None:
    message = fails(stream().flat_map(lambda v: one, name="parts"))
    assert "operator 'parts'" in message and "record 1" in message
    assert f"returned one {type(one).__name__}" in message and "return [value], or yield it" in message


@pytest.mark.parametrize("one", [*ONE, 7], ids=lambda one: type(one).__name__)
def test_one_record_that_a_generator_of_a_source_returns_is_not_taken_apart(one: Any) -> None:
    source = tr.sources.Generator(lambda: one)
    message = fails(tr.Environment(parallelism=1).from_source(source, name="parts"))
    assert "operator 'parts'" in message
    assert f"fn() must return an iterator over records, and it returned one {type(one).__name__}" in message


class Returning(tr.KeyedProcessFunction):
    """Returns one record from the method that is named."""

    def __init__(self, where: str, one: Any) -> None:
        self.where, self.one = where, one

    def process(self, value: Any, ctx: tr.Context) -> Any:
        ctx.set_timer(event_time=1)
        return self.one if self.where == "process" else None

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Any:
        return self.one if self.where == "on_timer" else None

    def finish(self, ctx: tr.Context) -> Any:
        return self.one if self.where == "finish" else None


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("where", ["process", "on_timer", "finish"])
@pytest.mark.parametrize("one", [*ONE, ("a", 1)], ids=lambda one: type(one).__name__)
def test_one_record_returned_from_a_process_function_is_not_taken_apart(where: str, one: Any, timed: bool) -> None:
    given = stream().assign_timestamps(lambda v: v) if timed else stream()
    message = fails(given.key_by(lambda v: v).process(Returning(where, one), name="parts"))
    assert "operator 'parts'" in message and f"returned one {type(one).__name__}" in message
    assert "yield the value instead, or return [value]" in message


MANY: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, 2],
    "generator": lambda: (x for x in [1, 2]),
    "keys": lambda: {1: 1, 2: 2}.keys(),
    "iterator": lambda: iter((1, 2)),
    "range": lambda: range(1, 3),
    "None": lambda: None,
    "nothing": tuple,
}


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("many", MANY)
def test_what_is_several_records_or_none_goes_on(many: str, copies: bool) -> None:
    env, make = tr.Environment(parallelism=1, copy_records=copies), MANY[many]
    source = env.from_collection([0])
    out = source.flat_map(lambda v: make()).sink_to(tr.sinks.Collect())
    processed = source.process(lambda v, ctx: make()).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == processed.result() == list(make() or ())


def test_a_tuple_from_flat_map_is_its_records() -> None:
    env = tr.Environment(parallelism=1)
    out = env.from_collection([1]).flat_map(lambda v: (v, v + 1)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [1, 2]


def test_what_cannot_be_gone_through_is_reported() -> None:
    assert "flat_map must return an iterable or None ('int' object is not iterable)" in fails(
        stream().flat_map(lambda v: 1)
    )


def test_an_error_in_a_generator_of_flat_map_is_the_users() -> None:
    def broken(value: int) -> Iterator[int]:
        yield value
        raise TypeError("'int' object is not iterable, says the user")

    assert "TypeError: 'int' object is not iterable, says the user" in fails(stream().flat_map(broken))


# Collections.

COLLECTIONS: list[tuple[Any, str]] = [
    (pd.DataFrame({"a": [1, 2]}), r"got DataFrame, .* write from_collection\(df\.itertuples\(index=False\)\)"),
    (pl.DataFrame({"a": [1, 2]}), r"got DataFrame; write from_collection\(df\.iter_rows\(named=True\)\)"),
    (pa.table({"a": [1, 2]}), r"got Table; write from_collection\(table\.to_pylist\(\)\)"),
    ({"a": 1}, r"got dict, which goes through its keys; write from_collection\(d\.items\(\)\)"),
    ("text", "got str"),
    (b"bytes", "got bytes"),
    (pd.Series([1]), "got Series"),
    (7, "got int"),
]


@pytest.mark.parametrize(("items", "message"), COLLECTIONS, ids=lambda x: type(x).__name__)
def test_a_collection_that_is_none_of_records_is_refused_with_what_to_write(items: Any, message: str) -> None:
    with pytest.raises(tr.GraphError, match=message):
        tr.Environment().from_collection(items)


def test_what_the_error_says_to_write_gives_the_rows() -> None:
    df = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    env = tr.Environment(parallelism=1)
    rows = env.from_collection(df.itertuples(index=False)).map(lambda row: (row.a, row.b)).sink_to(tr.sinks.Collect())
    named = env.from_collection(pl.from_pandas(df).iter_rows(named=True)).sink_to(tr.sinks.Collect())
    listed = env.from_collection(pa.Table.from_pandas(df).to_pylist()).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert rows.result() == [(1, "x"), (2, "y")]
    assert named.result() == listed.result() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def returns_beside(value: Any, more: Any = None) -> Any:
    if value == 1:
        return [value]
    yield value


class ReturnsBeside(tr.KeyedProcessFunction):
    def process(self, value: Any, ctx: Any) -> Any:
        ctx.set_timer(event_time=0)
        return ()

    def on_timer(self, timestamp: float, ctx: Any) -> Any:
        return (yield timestamp) or [timestamp]


class ReturnsAtTheEnd(tr.ProcessFunction):
    def process(self, value: Any, ctx: Any) -> None:
        pass

    def finish(self, ctx: Any) -> Any:
        yield 1
        return [2]


class ReturnsFromTwo(tr.CoProcessFunction):
    def process1(self, value: Any, ctx: Any) -> Any:
        yield value
        return [value]

    def process2(self, value: Any, ctx: Any) -> None:
        pass


def batches_beside(batch: Any) -> Any:
    yield batch
    return [batch]


RETURNING: dict[str, Callable[[tr.DataStream], tr.DataStream]] = {
    "flat_map": lambda s: s.flat_map(returns_beside),
    "process": lambda s: s.process(returns_beside),
    "partial": lambda s: s.process(functools.partial(returns_beside)),
    "on_timer": lambda s: s.key_by(lambda v: v).process(ReturnsBeside()),
    "finish": lambda s: s.process(ReturnsAtTheEnd()),
    "process1": lambda s: s.connect(s).process(ReturnsFromTwo()),
    "map_batches": lambda s: s.to_columns("v long").map_batches(batches_beside),
}


@pytest.mark.parametrize("dataflow", RETURNING.values(), ids=RETURNING)
def test_what_a_function_returns_that_yields_is_not_dropped_in_silence(
    dataflow: Callable[[tr.DataStream], tr.DataStream],
) -> None:
    env = tr.Environment(parallelism=1)
    dataflow(env.from_collection([1])).sink_to(tr.sinks.Collect())
    with pytest.raises(
        tr.JobFailed, match=r"yields, and so Python drops the (list|tuple|RecordBatch) that it returned"
    ):
        tr.testing.run(env)


def test_a_function_that_yields_may_return_nothing() -> None:
    def early(value: int, ctx: tr.Context) -> Any:
        if value == 1:
            return
        if value == 2:
            return ctx.emit("two", value)
        with open("/dev/null"):
            for _ in range(2):
                yield value
                return None

    env = tr.Environment(parallelism=1)
    found = env.from_collection([1, 2, 3]).process(early)
    rest, two = found.sink_to(tr.sinks.Collect()), found.side_output("two").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert (rest.result(), two.result()) == ([3], [2])


@pytest.mark.parametrize("forgot", [lambda v: v.isalpha, lambda v: functools.partial(len, v), lambda v: lambda: v])
def test_a_filter_that_gives_a_function_is_refused(forgot: Callable[[str], Any]) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection(["1"]).filter(forgot).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"the filter gave a function .*call it"):
        tr.testing.run(env)


class OpensLater(tr.MapFunction):
    async def open(self, ctx: Any) -> None:  # type: ignore[override]
        pass

    def map(self, value: Any) -> Any:
        return value


class ClosesInParts(tr.ProcessFunction):
    def process(self, value: Any, ctx: Any) -> None:
        pass

    def close(self) -> Any:
        yield


def test_open_and_close_that_would_not_run_are_refused() -> None:
    with pytest.raises(tr.GraphError, match=r"map: OpensLater\.open is an async function"):
        stream().map(OpensLater())
    with pytest.raises(tr.GraphError, match=r"process: ClosesInParts\.close yields"):
        stream().process(ClosesInParts())


class AsyncSum(tr.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    async def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator


def test_states_refuse_functions_that_give_no_value() -> None:
    with pytest.raises(tr.GraphError, match="ReducingState: waits is an async function"):
        tr.ReducingState(int, reduce=waits)
    with pytest.raises(tr.GraphError, match="ReducingState: yields yields"):
        tr.ReducingState(int, reduce=yields)
    with pytest.raises(tr.GraphError, match=r"AggregatingState: AsyncSum\.add is an async function"):
        tr.AggregatingState(int, aggregate=AsyncSum())
