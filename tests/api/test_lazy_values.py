"""What a function gives must be there: an iterator, which can be gone through only once, is no value, and a coroutine or a
generator is no work that was done."""

import itertools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr


async def waits(value: Any) -> Any:
    return value


LAZY: dict[str, Callable[[tr.DataStream], tr.DataStream]] = {
    "map: a map": lambda s: s.map(lambda v: map(str, [v])),
    "map: an iterator": lambda s: s.map(lambda v: iter([v])),
    "filter: a zip": lambda s: s.filter(lambda v: zip([v])),
    "yield for yield from": lambda s: s.process(lambda v, ctx: [(one for one in [v])]),
    "side output": lambda s: s.process(lambda v, ctx: ctx.emit("t", (one for one in [v]))).side_output("t"),
    "behind a filter that first keeps nothing": lambda s: s.filter(lambda v: v > 19_000).map(lambda v: iter([v])),
}


@pytest.mark.parametrize("dataflow", LAZY.values(), ids=LAZY)
def test_what_can_be_gone_through_only_once_is_no_record(dataflow: Callable[[tr.DataStream], tr.DataStream]) -> None:
    env = tr.Environment(parallelism=1)
    dataflow(env.from_source(tr.sources.Sequence(0, 20_000))).sink_to(tr.sinks.Callback(lambda v: None))
    with pytest.raises(tr.JobFailed, match=r"the function gave a \w+, and no (value|record)"):
        tr.testing.run(env)


class Chained(tr.AggregateFunction):
    """Collects values; its accumulator, or its result, can be gone through only once."""

    def __init__(self, lazy: str) -> None:
        self.lazy = lazy

    def create_accumulator(self) -> Any:
        return ()

    def add(self, value: Any, accumulator: Any) -> Any:
        return itertools.chain(accumulator, [value]) if self.lazy == "add" else (*accumulator, value)

    def get_result(self, accumulator: Any) -> Any:
        return map(str, accumulator) if self.lazy == "get_result" else list(accumulator)


class KeepsLazily(tr.KeyedProcessFunction):
    """Has a state of each kind that calls a function, and uses the one that is named."""

    reduced = tr.ReducingState(reduce=lambda a, b: itertools.chain([a], [b]))
    added = tr.AggregatingState(aggregate=Chained("add"))
    given = tr.AggregatingState(aggregate=Chained("get_result"))

    def __init__(self, name: str) -> None:
        self.used = name

    def process(self, value: Any, ctx: Any) -> Any:
        state = getattr(self, self.used)
        state.add(value)
        state.add(value)
        yield len(list(state.get()))


def windowed(stream: tr.DataStream) -> tr.WindowedStream:
    return stream.assign_timestamps(lambda v: 1).key_by(lambda v: 0).window(tr.Tumbling(10))


KEPT: dict[str, Callable[[tr.DataStream], tr.DataStream]] = {
    "reduce": lambda s: s.key_by(lambda v: 0).reduce(lambda a, b: itertools.chain([a], [b])),
    "reduce: a coroutine": lambda s: s.key_by(lambda v: 0).reduce(lambda a, b: waits(a) if b == 2 else b),
    "aggregate: add": lambda s: s.key_by(lambda v: 0).aggregate(x=Chained("add")),
    "aggregate: get_result": lambda s: s.key_by(lambda v: 0).aggregate(x=Chained("get_result")),
    "aggregate: a field": lambda s: s.key_by(lambda v: v).aggregate(x=tr.Max(lambda v: iter([v]))),
    "window.reduce": lambda s: windowed(s).reduce(lambda a, b: itertools.chain([a], [b])),
    "window: add": lambda s: windowed(s).aggregate(x=Chained("add")),
    "window: get_result": lambda s: windowed(s).aggregate(x=Chained("get_result")),
    "ReducingState": lambda s: s.key_by(lambda v: 0).process(KeepsLazily("reduced")),
    "AggregatingState: add": lambda s: s.key_by(lambda v: 0).process(KeepsLazily("added")),
    "AggregatingState: get_result": lambda s: s.key_by(lambda v: 0).process(KeepsLazily("given")),
}


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("dataflow", KEPT.values(), ids=KEPT)
def test_what_can_be_gone_through_only_once_is_neither_state_nor_a_result(
    dataflow: Callable[[tr.DataStream], tr.DataStream],
) -> None:
    env = tr.Environment(parallelism=1)
    dataflow(env.from_collection([1, 2, 3])).sink_to(tr.sinks.Collect())
    with pytest.raises(
        tr.JobFailed, match=r"gave a (chain|map|coroutine|list_iterator), and no value: whoever reads it"
    ):
        tr.testing.run(env)


def test_a_reduce_is_looked_at_behind_its_first_batch_too() -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_source(tr.sources.Sequence(0, 20_000))
    numbers.key_by(lambda v: v % 10_000).reduce(lambda a, b: iter([a, b])).sink_to(tr.sinks.Callback(lambda v: None))
    with pytest.raises(tr.JobFailed, match="the function of reduce gave a list_iterator, and no value"):
        tr.testing.run(env)


class Puts(tr.KeyedProcessFunction):
    """Has a state of each kind that takes values from user code, and puts something into the one that is named."""

    value = tr.ValueState(object)
    items = tr.ListState(object)
    entries = tr.MapState(object, object)
    reduced = tr.ReducingState(object, reduce=lambda a, b: a)
    aggregated = tr.AggregatingState(object, aggregate=Chained("none"))
    own = tr.OperatorState(object)

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self.put = put

    def process(self, value: Any, ctx: Any) -> Any:
        self.items.update([1, 2])
        self.put(self)
        return []


PUT: dict[str, Callable[[Any], Any]] = {
    "value: assigned": lambda f: setattr(f.value, "value", (v for v in [1])),
    "value: update": lambda f: f.value.update(iter([1])),
    "value: a coroutine": lambda f: f.value.update(waits(1)),
    "items: append": lambda f: f.items.append(map(str, [1])),
    "items: add": lambda f: f.items.add(zip([1])),
    "items: extend": lambda f: f.items.extend([1, iter([1])]),
    "items: update": lambda f: f.items.update(iter([1, iter([1])])),
    "items: value": lambda f: setattr(f.items, "value", [iter([1])]),
    "items: an item": lambda f: f.items.__setitem__(0, iter([1])),
    "items: a slice": lambda f: f.items.__setitem__(slice(0, 1), iter([1, iter([1])])),
    "entries: an entry": lambda f: f.entries.__setitem__("a", (v for v in [1])),
    "entries: put": lambda f: f.entries.put("a", enumerate([1])),
    "entries: update": lambda f: f.entries.update({"a": 1, "b": reversed([1])}),
    "entries: value": lambda f: setattr(f.entries, "value", {"a": iter([1])}),
    "reduced: add": lambda f: f.reduced.add(iter([1])),
    "reduced: update": lambda f: f.reduced.update(iter([1])),
    "aggregated: update": lambda f: f.aggregated.update(iter([1])),
    "own: update": lambda f: f.own.update(iter([1])),
    "own: assigned": lambda f: setattr(f.own, "value", waits(1)),
}


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("named", PUT)
def test_what_can_be_gone_through_only_once_is_refused_where_it_is_put_into_state(named: str) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([7]).key_by(lambda v: v).process(Puts(PUT[named]), name="keeper").sink_to(tr.sinks.Collect())
    state = named.partition(":")[0]
    with pytest.raises(
        tr.JobFailed,
        match=rf"(?s)'keeper'.*the function that sets state '{state}' gave a \w+, and no value.*put the value",
    ) as caught:
        tr.testing.run(env)
    assert "record 7:" in str(caught.value) and "lambda f: " in str(caught.value)


def test_items_and_entries_may_come_from_what_can_be_gone_through_only_once() -> None:
    def put(f: Any) -> None:
        f.items.update(iter([1, 2, 3]))
        f.items.extend(str(v) for v in [4])
        f.items[0:1] = (v for v in [0, [1]])
        f.entries.value = {"a": {1}, "b": 2}
        f.entries.update({"c": None})
        f.own.update([1])
        f.own.clear()
        found.append((list(f.items), dict(f.entries.value), f.own.exists()))

    found: list[Any] = []
    env = tr.Environment(parallelism=1)
    env.from_collection([7]).key_by(lambda v: v).process(Puts(put)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert found == [([0, [1], 2, 3, "4"], {"a": {1}, "b": 2, "c": None}, False)]


# Sinks.


class Later(tr.Sink):
    def writer(self, ctx: Any) -> tr.SinkWriter:
        return LaterWriter()

    def publish(self, prepared: Any) -> None:
        pass


class LaterWriter(tr.SinkWriter):
    async def write(self, batch: Any) -> None:  # type: ignore[override]
        pass

    def prepare(self) -> None:
        return None


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_sink_whose_write_would_not_run_is_refused() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(Later())
    with pytest.raises(tr.JobFailed, match=r"LaterWriter\.write gave a coroutine, so nothing was written"):
        tr.testing.run(env)


class Table(tr.Sink):
    """Writes into a table, and returns the cursor, which is an iterator."""

    def __init__(self, file: str) -> None:
        self.file = file

    def writer(self, ctx: Any) -> tr.SinkWriter:
        return TableWriter(self.file)

    def publish(self, prepared: Any) -> None:
        pass


class TableWriter(tr.SinkWriter):
    def __init__(self, file: str) -> None:
        self.rows = sqlite3.connect(file, isolation_level=None)
        self.rows.execute("create table if not exists t (n)")

    def write(self, batch: Any) -> Any:
        return self.rows.executemany("insert into t values (?)", [(value,) for value in batch])

    def prepare(self) -> None:
        return None


def test_what_a_sink_returns_of_work_that_is_done_does_not_matter(tmp_path: Path) -> None:
    file = str(tmp_path / "rows")
    env = tr.Environment(parallelism=1)
    numbers = env.from_collection([1, 2])
    numbers.sink_to(Table(file))
    numbers.sink_to(tr.sinks.Callback(lambda v: sqlite3.connect(file).execute("select 1")))
    tr.testing.run(env)
    assert sqlite3.connect(file).execute("select n from t").fetchall() == [(1,), (2,)]
