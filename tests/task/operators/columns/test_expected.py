"""The columns of a stream without records: those that it has when records come."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr
from search.values import _keys, _numbers
from tailrace.task.operators.columns.expected import expected_schema


def columns_of_both(stream: tr.DataStream) -> tuple[pa.Schema, pa.Schema]:
    """The columns that are expected in a stream, and those that come."""
    seen: list[pa.Schema] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.schema)
        return batch

    stream.map_batches(look, name="look").sink_to(tr.sinks.Callback(lambda batch: None))
    env: Any = stream.env
    graph = env._plan(env._pending()).graph
    [node] = [one for one in graph.nodes if one.name == "look"]
    expected = expected_schema(graph, node)
    tr.testing.run(env)
    assert expected is not None and seen
    return expected, seen[0]


@pytest.mark.parametrize("seed", range(40))
def test_results_without_records_have_the_types_of_those_with_some(seed: int) -> None:
    random = Random(seed)
    (key, keys), (kind, values, summed) = _keys(random), _numbers(random)
    schema = pa.schema([("k", key), ("j", pa.int8()), ("t", pa.int64()), ("x", kind)])
    records = [(random.choice(keys), 1, at, random.choice(values)) for at in range(20)]
    table = tr.Environment(parallelism=1).from_collection(records).to_columns(schema).assign_timestamps("t", 99)
    table = table.filter(pc.field("t") >= 0).with_columns(twice=pc.field("t") * 2).select("k", "j", "twice", "t", "x")
    keyed = table.key_by("k") if random.random() < 0.5 else table.key_by("k", "j")
    named: dict[str, Any] = {"n": tr.Count(), "low": tr.Min("x"), "high": tr.Max("x")}
    if summed:
        named |= {"total": tr.Sum("x"), "mean": tr.Mean("x")}
    made = (keyed.window(tr.Tumbling(10)) if random.random() < 0.5 else keyed).aggregate(**named)
    expected, came = columns_of_both(made)
    assert expected.names == came.names == list(made.columns or ())
    assert expected.types == came.types


def test_what_depends_on_a_function_is_not_known() -> None:
    env = tr.Environment(parallelism=1)
    table = env.from_collection([(1,)]).to_columns("x long")
    out = table.map_batches(lambda batch: batch).key_by("x").count().sink_to(tr.sinks.Collect())
    assert out is not None
    graph: Any = env._plan(env._pending()).graph
    assert [expected_schema(graph, node) for node in graph.nodes if node.name.startswith("sink")] == [None]


def test_windows_without_records_have_their_bounds_and_their_firings() -> None:
    options: list[tuple[Any, dict[str, Any]]] = [
        (tr.Tumbling(10), {"early": tr.Every(records=3), "bounds": "datetime"}),
        (tr.Tumbling("1 day", zone="Europe/Berlin"), {"bounds": "datetime"}),
        (tr.Session(5), {"bounds": "datetime"}),
        (tr.Sliding(10, 5), {"late": tr.Every(seconds=1), "allowed_lateness": 5}),
    ]
    for windows, more in options:
        table = tr.Environment(parallelism=1).from_collection([("a", 1)]).to_columns("k string, t long")
        made = table.assign_timestamps("t").key_by("k").window(windows, **more).count()
        expected, came = columns_of_both(made)
        assert expected.names == came.names == list(made.columns or ())
        assert expected.types == came.types
