"""`select`, `with_columns` and `filter` by expressions while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr

x, s = pc.field("x"), pc.field("s")
ROWS = [(0, 1.5, "a"), (1, None, "b"), (2, 0.5, None), (3, -1.0, "d")]


def made(
    build: Callable[[tr.DataStream], tr.DataStream], rows: Any = ROWS, schema: Any = "id long, x double, s string"
) -> Any:
    env = tr.Environment(parallelism=1)
    stream = build(env.from_collection(rows, parallelism=1).to_columns(schema))
    sink = (stream.to_rows() if stream.form == "columns" else stream).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return [tuple(row) for row in sink.result()]


def test_select_and_with_columns_compute_from_the_columns_of_before() -> None:
    assert made(lambda t: t.select("s", twice=x * 2))[:2] == [("a", 3.0), ("b", None)]
    assert made(lambda t: t.with_columns(id=pc.field("id") + 1, old="id", k=pc.scalar("k")))[:2] == [
        (1, 1.5, "a", 0, "k"),
        (2, None, "b", 1, "k"),
    ]


TWICE = [
    (lambda t: t.with_columns(z=pc.scalar(1)), r"several columns are named 'a'; the batch has a, a; give each a name"),
    (lambda t: t.select(b="a"), r"there are 2 columns 'a'; the stream has a, a"),
    (lambda t: t.filter(pc.field("a") > 1), r"there are 2 columns 'a'; the stream has a, a"),
]


@pytest.mark.parametrize(("build", "why"), TWICE)
def test_two_columns_of_one_name_are_the_user_s_error(build: Any, why: str) -> None:
    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch["id"], batch["id"]], names=["a", "a"])

    with pytest.raises(tr.JobFailed, match=why) as error:
        made(lambda t: build(t.map_batches(twice)))
    assert "inside tailrace" not in str(error.value)


def test_a_record_for_which_a_condition_is_null_is_not_kept() -> None:
    """As in SQL: neither by a condition nor by its opposite."""
    assert [row[0] for row in made(lambda t: t.filter(x > 0))] == [0, 2]
    assert [row[0] for row in made(lambda t: t.filter(~(x > 0)))] == [3]
    assert [row[0] for row in made(lambda t: t.with_columns(big=x > 1).filter("big"))] == [0]
    assert made(lambda t: t.with_columns(n=pc.scalar(None)).filter("n")) == []


def test_timestamps_stay_with_their_records() -> None:
    def windows(table: tr.DataStream) -> tr.DataStream:
        timed = table.assign_timestamps("id", out_of_orderness=10).filter(x.is_valid()).select("s", "x")
        return timed.key_by("s").window(tr.Tumbling(2)).count()

    assert made(windows) == [("a", 0.0, 2.0, 1), (None, 2.0, 4.0, 1), ("d", 2.0, 4.0, 1)]


BY_TWO = pc.scalar(1) / (pc.field("id") - 2)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda t: t.with_columns(q=BY_TWO), r"record \(2, 0\.5, None\): column 'q' cannot be computed: .*divide by zero"),
        (lambda t: t.filter(BY_TWO > 0), r"record \(2, 0\.5, None\): the condition cannot be computed: .*divide by zero"),
        (lambda t: t.select(q=pc.add(pc.field("id"), (1 << 63) - 3)), r"record \(3, -1\.0, 'd'\): column 'q' .*overflow"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_names_record_and_line(build: Any, why: str) -> None:
    with pytest.raises(tr.JobFailed, match=why) as caught:
        made(build)
    assert "is written at" in str(caught.value) and "test_expressions.py" in str(caught.value)


def test_behind_a_function_of_batches_the_types_are_found_when_it_runs() -> None:
    with pytest.raises(tr.JobFailed, match=r"operator 'far', .*column 's' is string, and no truth value"):
        made(lambda t: t.map_batches(lambda b: b).filter("s", name="far"))
    with pytest.raises(tr.JobFailed, match=r"operator 'far'.*no column 'gone'; the stream has id, x, s"):
        made(lambda t: t.map_batches(lambda b: b).select("gone", name="far"))
    assert made(lambda t: t.map_batches(lambda b: b).with_columns(x=x + 1))[0] == (0, 2.5, "a")


class Giving(tr.MapBatchesFunction):
    """Gives these batches, whatever comes."""

    def __init__(self, *batches: Any) -> None:
        self.batches = [pa.RecordBatch.from_pylist(one) for one in batches]

    def map_batches(self, batch: Any) -> Any:
        return list(self.batches)


def test_the_result_has_one_schema_too() -> None:
    """A column that is null only at first has no type yet: what is computed with it is of the first type."""
    given = [[{"x": None, "b": 1}], [{"x": 2.5, "b": 1}]]
    both = x + pc.field("b")
    with pytest.raises(tr.JobFailed, match=r"operator 'far'.*its first batch: .k int64.*3\.5 does not fit"):
        made(lambda t: t.map_batches(Giving(*given)).select(k=both, name="far"))
    assert made(lambda t: t.map_batches(Giving(*given)).select(k=both).to_columns("k double")) == [(None,), (3.5,)]


def test_what_stands_for_values_goes_on_as_these() -> None:
    def build(table: tr.DataStream) -> tr.DataStream:
        coded = table.with_columns(s=s.cast(pa.dictionary(pa.int32(), pa.string())))
        return coded.union(table).select("s", u=pc.utf8_upper(s))

    assert sorted(made(build, ROWS[:2])) == [("a", "A"), ("a", "A"), ("b", "B"), ("b", "B")]
    assert sorted(made(lambda t: t.with_columns(id=pc.scalar(None)).union(t).select("id"), ROWS[:1]), key=str) == [
        (0,),
        (None,),
    ]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_loop_in_columns_holds_its_feedback_to_the_schema_of_its_input(parallelism: int) -> None:
    """Feedback in doubles made the records of one loop be of two types."""
    env = tr.Environment(parallelism=parallelism)
    hops = env.from_collection([(i, i) for i in range(8)]).to_columns("id long, left long")
    kinds = set()

    def body(laps: tr.DataStream) -> Any:
        def less(batch: Any) -> Any:
            kinds.add(str(batch.schema.field("left").type))
            return batch.set_column(1, "left", pc.subtract(batch["left"].cast("double"), 1.0))

        fewer = laps.map_batches(less)
        return fewer.filter(pc.field("left") > 0).rebalance(), fewer.filter(pc.field("left") <= 0).select("id")

    out = hops.iterate(body).to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(row.id for row in out.result()) == list(range(8)) and kinds == {"int64"}


def test_feedback_that_the_schema_of_the_loop_cannot_hold_fails_the_job() -> None:
    env = tr.Environment(parallelism=1)
    hops = env.from_collection([(1, 3)]).to_columns("id long, left long")

    def body(laps: tr.DataStream) -> Any:
        fewer = laps.with_columns(left=pc.field("left") * 0.5)
        return fewer.filter(pc.field("left") > 1), fewer

    hops.iterate(body).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"'left' is declared int64, and 1\.5 does not fit"):
        tr.testing.run(env)


def test_feedback_in_columns_is_broadcast_once() -> None:
    """Where the loop takes it in rows, it was broadcast in front of the conversion and behind it."""
    env = tr.Environment(parallelism=2)
    hops = env.from_collection([(1, 2)]).to_columns("id long, left long")

    def body(streams: tr.ConnectedStreams) -> Any:
        fewer = streams.first.to_rows().union(streams.second).map(lambda r: (r[0], r[1] - 1))
        back = fewer.filter(lambda r: r[1] > 0).to_columns("id long, left long")
        return back.broadcast(), fewer.filter(lambda r: r[1] <= 0)

    out = hops.iterate_with_feedback(body).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [(1, 0), (1, 0)]
