"""What each verb does with the records of a stream."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tailrace as tr

Build = Callable[[tr.Environment], Any]


def records(build: Build, parallelism: int = 1, **settings: Any) -> list[Any]:
    """The records of the stream that `build` writes."""
    env = tr.Environment(parallelism=parallelism, **settings)
    out = build(env).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return list(out.result())


def numbers(env: tr.Environment, n: int = 10) -> tr.DataStream:
    return env.from_collection(range(n))


POINTS = pa.schema([("name", pa.string()), ("x", pa.int64())])


def points(env: tr.Environment) -> tr.DataStream:
    return env.from_collection([("a", 1), ("b", 2), ("a", 3)]).to_columns(POINTS)


# Row by row.


def test_map_gives_one_record_for_one() -> None:
    assert records(lambda env: numbers(env, 4).map(lambda x: x * x)) == [0, 1, 4, 9]


def test_a_map_may_give_none_which_is_a_record() -> None:
    assert records(lambda env: numbers(env, 3).map(lambda x: None)) == [None, None, None]


def test_filter_keeps_the_records_for_which_it_is_true() -> None:
    assert records(lambda env: numbers(env).filter(lambda x: x % 3 == 0)) == [0, 3, 6, 9]


def test_a_filter_may_keep_nothing() -> None:
    assert records(lambda env: numbers(env).filter(lambda x: False).rebalance().map(abs), 2) == []


def pairs(x: int) -> Iterator[tuple[int, str]]:
    yield x, "first"
    if x % 2:
        return
    yield x, "second"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: [x, x], [0, 0, 1, 1, 2, 2]),
        (lambda x: (x,), [0, 1, 2]),
        (lambda x: range(x), [0, 0, 1]),
        (lambda x: np.arange(x), [0, 0, 1]),
        (lambda x: map(str, range(x)), ["0", "0", "1"]),
        (lambda x: None if x == 1 else [x], [0, 2]),
        (lambda x: [], []),
        (pairs, [(0, "first"), (0, "second"), (1, "first"), (2, "first"), (2, "second")]),
    ],
)
def test_flat_map_gives_what_it_yields_or_returns(function: Any, expected: list[Any]) -> None:
    assert records(lambda env: numbers(env, 3).flat_map(function)) == expected


def test_a_long_chain_of_row_functions_runs_in_order() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = numbers(env, 3)
        for _ in range(25):
            stream = stream.map(lambda x: x + 1).filter(lambda x: True).flat_map(lambda x: [x])
        return stream

    assert records(program) == [25, 26, 27]


def test_two_branches_each_get_every_record() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = numbers(env, 3)
        return stream.map(lambda x: ("left", x)).union(stream.map(lambda x: ("right", x)))

    assert Counter(records(program)) == Counter([(side, x) for side in ("left", "right") for x in range(3)])


# Batch by batch, and between the forms.


def test_columns_become_named_tuples() -> None:
    row = records(lambda env: points(env).to_rows())[0]
    assert (row.name, row.x) == ("a", 1)


def test_rows_become_columns_and_rows_again() -> None:
    assert records(lambda env: points(env).map(lambda r: {"x": r.x, "name": r.name}).to_columns(POINTS).to_rows()) == [
        ("a", 1),
        ("b", 2),
        ("a", 3),
    ]


def test_a_row_verb_sees_columns_as_named_tuples() -> None:
    assert records(lambda env: points(env).map(lambda r: r.name + str(r.x))) == ["a1", "b2", "a3"]
    assert records(lambda env: points(env).filter(lambda r: r.x > 1).map(lambda r: r.x)) == [2, 3]
    assert records(lambda env: points(env).flat_map(lambda r: r.x * [r.name])) == ["a", "b", "b", "a", "a", "a"]


@pytest.mark.parametrize(
    "give",
    [
        lambda batch: batch,
        lambda batch: [batch.slice(0, 1), batch.slice(1)],
        lambda batch: (batch.slice(i, 1) for i in range(batch.num_rows)),
        lambda batch: pa.Table.from_batches([batch]),
        lambda batch: [batch.slice(0, 0), batch],
    ],
)
def test_map_batches_may_give_one_or_several(give: Any) -> None:
    assert sorted(records(lambda env: points(env).map_batches(give).to_rows())) == [("a", 1), ("a", 3), ("b", 2)]


def test_map_batches_may_give_nothing() -> None:
    assert records(lambda env: points(env).map_batches(lambda batch: None).to_rows()) == []
    assert records(lambda env: points(env).map_batches(lambda batch: batch.slice(0, 0)).to_rows(), 2) == []


def test_map_batches_never_sees_an_empty_batch() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        seen = points(env).map_batches(lambda batch: batch.filter(pa.array([False] * batch.num_rows)))
        return seen.map_batches(lambda batch: 1 // batch.num_rows).to_rows()

    assert records(program) == []


def test_map_batches_of_rows_takes_a_schema() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return env.from_collection([("a", 1)]).map_batches(lambda batch: batch.select(["x"]), schema=POINTS).to_rows()

    assert records(program) == [(1,)]


def test_what_a_function_of_batches_returns_has_one_schema() -> None:
    def give(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch, pa.record_batch({"other": [7]})]

    with pytest.raises(tr.JobFailed, match=r"operator 'map_batches: give'.*one schema.*it has no 'name', 'x'"):
        records(lambda env: points(env).map_batches(give).rebalance().map(tuple))


def test_a_sink_may_take_columns() -> None:
    class Writer(tr.SinkWriter):
        def write(self, batch: Any) -> None:
            seen.append(batch)

    class Columns(tr.Sink):
        form = "columns"

        def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
            return Writer()

    seen: list[pa.RecordBatch] = []
    env = tr.Environment(parallelism=1)
    points(env).sink_to(Columns())
    tr.testing.run(env)
    assert pa.Table.from_batches(seen).to_pydict() == {"name": ["a", "b", "a"], "x": [1, 2, 3]}


# Process functions and side outputs.


class Sort(tr.ProcessFunction):
    """Odd numbers go aside; the number of both comes at the end."""

    def open(self, ctx: tr.Context) -> None:
        self.seen = 0

    def process(self, value: int, ctx: tr.Context) -> Iterator[int] | None:
        self.seen += 1
        if value % 2:
            ctx.emit("odd", value)
            return None
        return iter([value])

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        ctx.emit("odd", "no more")
        yield f"{self.seen} seen"


def test_process_yields_returns_or_gives_nothing() -> None:
    assert records(lambda env: numbers(env, 3).process(lambda value, ctx: [value, -value])) == [0, 0, 1, -1, 2, -2]
    assert records(lambda env: numbers(env, 3).process(lambda value, ctx: None)) == []
    assert records(lambda env: numbers(env, 5).process(Sort())) == [0, 2, 4, "5 seen"]


def test_a_side_output_is_a_stream_of_its_own() -> None:
    assert records(lambda env: numbers(env, 5).process(Sort()).side_output("odd")) == [1, 3, "no more"]
    assert records(lambda env: numbers(env, 5).process(Sort()).side_output("unheard of")) == []


def test_what_nobody_takes_from_the_side_is_dropped() -> None:
    assert records(lambda env: numbers(env, 5).process(Sort()).map(str)) == ["0", "2", "4", "5 seen"]


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": 1}, 7])
def test_process_must_not_return_what_is_no_list_of_values(value: Any) -> None:
    with pytest.raises(tr.JobFailed, match="operator 'p', subtask 0, record 0: TypeError"):
        records(lambda env: numbers(env, 1).process(lambda v, ctx: value, name="p"))


def test_a_context_tells_where_a_function_runs() -> None:
    def tell(value: int, ctx: tr.Context) -> list[Any]:
        return [(ctx.subtask, ctx.parallelism, ctx.attempt, ctx.timestamp, ctx.watermark)]

    found = records(lambda env: numbers(env, 6).process(tell), 3)
    assert sorted(set(found)) == [(i, 3, 0, None, float("-inf")) for i in range(3)]


def test_a_contexts_random_numbers_follow_the_seed() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return numbers(env, 3).process(lambda value, ctx: [ctx.random.random()])

    first = records(program)
    assert first == records(program)
    assert len(set(first)) == 3


# More than one stream.


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_union_has_the_records_of_all(parallelism: int) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        a, b, c = env.from_collection([1, 2]), env.from_collection([3], parallelism=1), env.from_collection([])
        return a.union(b, c).map(lambda x: -x)

    assert sorted(records(program, parallelism)) == [-3, -2, -1]


def test_a_union_with_itself_has_every_record_twice() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = numbers(env, 3)
        return stream.union(stream, stream)

    assert sorted(records(program, 2)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_union_of_columns_stays_in_columns() -> None:
    assert len(records(lambda env: points(env).union(points(env)).map_batches(lambda b: b).to_rows(), 2)) == 6


class Enrich(tr.CoProcessFunction):
    """Orders wait for the name of their customer."""

    name = tr.ValueState(str)
    waiting = tr.ListState(int)

    def process1(self, order: tuple[int, int], ctx: tr.Context) -> Iterator[Any]:
        if self.name.value is None:
            self.waiting.add(order[1])
        else:
            yield self.name.value, order[1]

    def process2(self, customer: dict[str, Any], ctx: tr.Context) -> Iterator[Any]:
        self.name.value = customer["name"]
        for order in self.waiting.get():
            yield self.name.value, order
        self.waiting.clear()


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_two_keyed_streams_meet_under_their_keys(parallelism: int) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        orders = env.from_collection([(i % 5, i) for i in range(20)])
        customers = env.from_collection([{"id": float(i), "name": f"c{i}"} for i in range(5)])
        return orders.connect(customers).key_by(lambda o: o[0], lambda c: c["id"]).process(Enrich())

    assert sorted(records(program, parallelism)) == sorted((f"c{i % 5}", i) for i in range(20))


def test_streams_that_were_keyed_before_may_be_connected() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        orders = env.from_collection([(1, 7)]).key_by(lambda o: o[0])
        return orders.connect(env.from_collection([{"id": 1, "name": "c"}]).key_by(lambda c: c["id"])).process(Enrich())

    assert records(program) == [("c", 7)]


class Rules(tr.CoProcessFunction):
    def open(self, ctx: tr.Context) -> None:
        self.rules: list[str] = []
        self.values: list[int] = []

    def process1(self, value: int, ctx: tr.Context) -> None:
        self.values.append(value)

    def process2(self, rule: str, ctx: tr.Context) -> None:
        self.rules.append(rule)

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.subtask, sorted(self.values), sorted(self.rules)


def test_a_broadcast_stream_reaches_every_subtask_of_the_other() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        rules = env.from_collection(["r1", "r2"]).broadcast()
        return numbers(env, 4).connect(rules).process(Rules())

    found = sorted(records(program, 2))
    assert [rules for _, _, rules in found] == [["r1", "r2"]] * 2
    assert sorted(value for _, values, _ in found for value in values) == [0, 1, 2, 3]


def test_a_stream_may_be_connected_with_itself() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = numbers(env, 3)
        return stream.connect(stream.map(str)).process(Rules())

    assert records(program) == [(0, [0, 1, 2], ["0", "1", "2"])]


# Several sinks, several runs.


def test_several_results_come_from_one_run() -> None:
    env = tr.Environment(parallelism=2)
    seen: list[int] = []
    once = numbers(env, 5).map(lambda x: seen.append(x) or x)
    even = once.filter(lambda x: x % 2 == 0).sink_to(tr.sinks.Collect())
    odd = once.filter(lambda x: x % 2 == 1).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert (sorted(even.result()), sorted(odd.result())) == ([0, 2, 4], [1, 3])
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_no_sink_runs_twice() -> None:
    env = tr.Environment(parallelism=1)
    first: list[int] = []
    second: list[int] = []
    stream = numbers(env, 3)
    stream.sink_to(tr.sinks.Callback(first.append))
    tr.testing.run(env)
    stream.sink_to(tr.sinks.Callback(second.append))
    tr.testing.run(env)
    assert (first, second) == ([0, 1, 2], [0, 1, 2])
    with pytest.raises(tr.GraphError, match=r"nothing to run .everything written so far has run"):
        tr.testing.run(env)


def test_one_sink_may_end_two_streams() -> None:
    env = tr.Environment(parallelism=2)
    out = tr.sinks.Collect()
    numbers(env, 3).sink_to(out)
    numbers(env, 3).map(lambda x: x + 10).sink_to(out)
    tr.testing.run(env)
    assert sorted(out.result()) == [0, 1, 2, 10, 11, 12]
