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
