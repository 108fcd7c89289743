"""A stream in columns has one schema. Another type fits it value by value, or fails the job with the reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr


class Giving(tr.MapBatchesFunction):
    """Gives these batches, whatever comes."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self.batches = batches

    def map_batches(self, batch: Any) -> Any:
        return list(self.batches)


def given(batches: list[Any], build: Callable[[tr.DataStream], tr.DataStream], parallelism: int = 1) -> list[Any]:
    env = tr.Environment(parallelism=parallelism)
    made = [pa.RecordBatch.from_pylist(one) if isinstance(one, list) else one for one in batches]
    stream = env.from_collection([0], parallelism=1).map_batches(Giving(*made), schema="n long", name="gives")
    sink = build(stream).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return list(sink.result())


def test_numbers_that_fit_the_first_batchs_type_are_taken_as_they_are() -> None:
    """The first batch has doubles, the second happens to have whole numbers only: 1 is 1.0, and the sum goes on."""
    parts = [[{"k": "a", "x": 1.5}], [{"k": "a", "x": 1}]]
    last = given(parts, lambda s: s.key_by("k").sum("x").to_rows())[-1]
    assert tuple(last) == ("a", 2.5) and type(last.sum) is float


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (
            [{"k": "a", "x": 1.5}],
            r"column 'x' is declared int64, and 1\.5 does not fit: it has a fraction; double would",
        ),
        ([{"k": "a", "x": "1"}], "column 'x' is declared int64, and its values are of string"),
        ([{"k": "a"}], "it has no 'x'"),
        ([{"k": "a", "x": 1, "y": 2}], "there is no column for 'y'"),
    ],
)
def test_what_does_not_fit_the_first_batch_fails_the_job(second: Any, why: str) -> None:
    """Once 1.5 became 1 where the first batch had whole numbers, and a new column disappeared."""
    with pytest.raises(tr.JobFailed, match=f"operator 'gives'.*first batch: .k string, x int64.*{why}"):
        given([[{"k": "a", "x": 1}], second], lambda s: s.key_by("k").sum("x").to_rows())


def test_a_column_of_nulls_gets_the_type_of_the_first_batch_that_has_one() -> None:
    parts = [[{"k": "a", "x": None}], [{"k": "a", "x": 1.5}], [{"k": "a", "x": 2}]]
    assert [row.x for row in given(parts, lambda s: s.to_rows())] == [None, 1.5, 2.0]


@pytest.mark.parametrize(
    ("unknown", "known"),
    [([], [1.5]), ([None], [2, None]), ({"a": None}, {"a": "x"}), ({"a": []}, {"a": [1]}), ([{"a": None}], [{"a": 1}])],
)
def test_what_is_null_only_inside_of_others_gets_its_type_as_well(unknown: Any, known: Any) -> None:
    """Arrow knows no type of the items of an empty list: what came later did not fit any more."""
    parts = [[{"k": 1, "x": unknown}], [{"k": 1, "x": known}], [{"k": 1, "x": unknown}]]
    assert [row.x for row in given(parts, lambda s: s.to_rows())] == [unknown, known, unknown]


@pytest.mark.parametrize("first", [None, "a"])
def test_a_window_gives_results_of_the_type_that_a_column_got_later(first: Any) -> None:
    """The window kept the types of results of its first batch, in which the column was null only."""
    parts = [[{"k": first, "t": 1, "x": None}], [{"k": "a", "t": 2, "x": 1.5}, {"k": "a", "t": 3, "x": 2.0}]]

    def build(stream: tr.DataStream) -> tr.DataStream:
        keyed = stream.assign_timestamps("t", 100).key_by("k").window(tr.Tumbling(10))
        return keyed.aggregate(n=tr.Count(), total=tr.Sum("x"), least=tr.Min("x"), mean=tr.Mean("x")).to_rows()

    rows = {row.k: tuple(row)[3:] for row in given(parts, build)}
    assert rows["a"] == (2 + (first == "a"), 3.5, 1.5, 1.75)


def test_types_need_not_be_one_where_a_schema_is_declared_behind() -> None:
    """The advice of the error is to declare the schema behind the function: there it was refused all the same."""
    parts = [[{"k": "a", "x": 1}], [{"k": "a", "x": 1.5}], [{"k": "a", "x": 2, "more": 1}]]
    assert given(parts, lambda s: s.to_columns("x double, k string").to_rows()) == [(1.0, "a"), (1.5, "a"), (2.0, "a")]
    late = [[{"k": "a", "x": 1, "t": 1}], [{"k": "a", "x": 1.5, "t": 2}]]
    rows = given(late, lambda s: s.assign_timestamps("t").to_columns("x double").to_rows())
    assert [row.x for row in rows] == [1.0, 1.5]
    with pytest.raises(tr.JobFailed, match=r"operator 'gives'.*it has a fraction"):
        given(parts, lambda s: s.union(s.to_columns("x double, k string")).to_rows())


class Declaring(tr.Source):
    """Says which columns it has, and has others."""

    form, schema = "columns", pa.schema({"x": pa.int64()})

    def splits(self, parallelism: int) -> list[int]:
        return [0]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return DeclaringReader()


class DeclaringReader(tr.Reader):
    position = 0  # type: ignore[assignment]

    def read(self, limit: int, now: float) -> Any:
        self.position += 1
        return pa.record_batch({"x": [1], "y": ["lost"]}) if self.position == 1 else None


def test_a_source_that_says_its_schema_is_held_to_it_whatever_is_declared_behind() -> None:
    env = tr.Environment(parallelism=1)
    env.from_source(Declaring()).to_columns("x double").to_rows().sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"one schema, declared: .x int64.*there is no column for 'y'"):
        tr.testing.run(env)


def test_a_union_of_doubles_and_whole_numbers_is_of_the_type_that_came_first() -> None:
    """Where no types are declared, they are only known when it runs."""
    env = tr.Environment(parallelism=1)
    longs = env.from_collection([("a", 1), ("a", 2)]).to_columns("k string, x long").map_batches(lambda b: b)
    doubles = env.from_collection([("a", 1.5)]).to_columns("k string, x double").map_batches(lambda b: b)
    doubles.union(longs).key_by("k").sum("x").sink_to(tr.sinks.Collect())
    try:  # which is first is open; nothing is cut either way
        tr.testing.run(env)
    except tr.JobFailed as error:
        assert "1.5 does not fit" in str(error)


def test_to_columns_casts_and_selects_columns() -> None:
    """On a stream in columns a schema was ignored once."""
    parts = [[{"k": "a", "x": 2.0, "other": 1}]]
    assert given(parts, lambda s: s.to_columns("x long, k string").to_rows()) == [(2, "a")]
    seen = given(parts, lambda s: s.map_batches(lambda b: b, schema="x int").to_rows())
    assert [row._fields for row in seen] == [("x",)]
    with pytest.raises(tr.JobFailed, match=r"operator 'narrow'.*record \('a', 2\.5\).*2\.5 does not fit"):
        given([[{"k": "a", "x": 2.5}]], lambda s: s.to_columns("x long", name="narrow").to_rows())
    with pytest.raises(tr.JobFailed, match="it has no 'missing'"):
        given(parts, lambda s: s.to_columns("x double, missing string").to_rows())


def test_a_sink_of_columns_loses_none(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=1)
    first, second = pa.record_batch({"x": [1, 2]}), pa.record_batch({"x": [3], "y": ["keep"]})
    stream = env.from_collection([0]).map_batches(Giving(first), schema="n long")
    other = env.from_collection([0]).map_batches(Giving(second), schema="n long")
    stream.union(other).sink_to(tr.sinks.Parquet(str(tmp_path / "out")), name="files")
    with pytest.raises(tr.JobFailed, match=r"operator 'files'.*(no column for 'y'|has no 'y')"):
        tr.testing.run(env)


def test_a_sink_with_a_schema_takes_just_its_columns(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=1)
    table = env.from_collection([(1e300,)]).to_columns("x double")
    table.sink_to(tr.sinks.Parquet(str(tmp_path / "out"), "x float"), name="files")
    with pytest.raises(tr.JobFailed, match=r"operator 'files'.*column 'x' is declared float, and 1e\+300"):
        tr.testing.run(env)
    env = tr.Environment(parallelism=1)
    env.from_collection([(1.1,)]).to_columns("x double").sink_to(tr.sinks.Parquet(str(tmp_path / "near"), "x float"))
    tr.testing.run(env)
    [file] = [name for name in (tmp_path / "near").iterdir() if name.name.startswith("part")]
    assert pq.read_table(file).to_pylist() == [{"x": pa.scalar(1.1, pa.float32()).as_py()}]


SMALL = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize("how", ["rebalance", "count", "window"])
def test_dictionaries_of_many_batches_need_no_room_together(how: str) -> None:
    """Three batches with a hundred values each in dictionaries that hold 127: joined they had no room."""
    parts = []
    for i in range(3):
        key = pa.array([f"{i}_{j}" for j in range(100)]).dictionary_encode().cast(SMALL)
        parts.append(pa.record_batch({"k": key, "t": list(range(100))}))

    def build(stream: tr.DataStream) -> tr.DataStream:
        if how == "rebalance":
            return stream.rebalance().to_rows()
        if how == "count":
            return stream.key_by("k").count().to_rows()
        return stream.assign_timestamps("t", 200).key_by("k").window(tr.Tumbling(1000)).count().to_rows()

    assert len(given(parts, build, parallelism=2)) == 300


@pytest.mark.parametrize(
    "column",
    [
        pa.array(list("abcdefghijklmnop"), pa.string_view()),
        pa.RunEndEncodedArray.from_arrays([2, 16], ["u", "v"]),
        pa.array([[1], None, [2, 3], []] * 4, pa.list_view(pa.int64())),
        pa.array([{"a": "x"}] * 16, pa.struct([("a", SMALL)])),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_of_any_encoding_can_be_shuffled(column: pa.Array) -> None:
    batch = pa.record_batch({"k": column, "x": list(range(16))})
    rows = given([batch], lambda s: s.key_by("x").map_batches(lambda b: b).to_rows(), parallelism=3)
    assert [row.k for row in sorted(rows, key=lambda row: row.x)] == column.to_pylist()


def test_a_time_that_python_cannot_hold_is_reported_with_its_column() -> None:
    late = pa.record_batch({"at": pa.array([253_402_300_800 * 10**6], pa.timestamp("us"))})
    with pytest.raises(tr.JobFailed, match=r"operator 'to_rows'.*column 'at' of timestamp\[us\].*cannot hold"):
        given([late], lambda s: s.to_rows())


def test_the_window_of_an_instant_in_the_repeated_hour() -> None:
    """Two instants that show one wall clock time are two keys."""
    at = [datetime(2024, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    batch = pa.record_batch({"at": pa.array(at, pa.timestamp("us", "Europe/Berlin")), "t": [1, 1]})
    rows = given([batch], lambda s: s.assign_timestamps("t").key_by("at").window(tr.Tumbling(10)).count().to_rows())
    assert sorted((row.at.astimezone(UTC), row.count) for row in rows) == [(at[0], 1), (at[1], 1)]
