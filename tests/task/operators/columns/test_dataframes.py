"""Functions of batches that work on frames of pandas and Polars: no value changes on the way in or out."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import polars
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.task.operators.columns.dataframes import frames_of

BATCH = pa.RecordBatch.from_pylist(
    [
        {
            "i": (1 << 53) + 1, "u": (1 << 64) - 1, "f": float("nan"), "s": "a", "b": b"x", "t": dt.datetime(9999, 1, 1),
            "z": dt.datetime(1, 1, 1, tzinfo=dt.UTC), "d": dt.date(9999, 12, 31), "m": Decimal("0.10"), "l": [1, None],
            "r": {"p": 1, "q": None}, "ok": True,
        },
        dict.fromkeys(("i", "u", "f", "s", "b", "t", "z", "d", "m", "l", "r", "ok")),
    ],
    schema=pa.schema(
        [
            ("i", pa.int64()), ("u", pa.uint64()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.binary()),
            ("t", pa.timestamp("us")), ("z", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("m", pa.decimal128(10, 2)),
            ("l", pa.list_(pa.int64())), ("r", pa.struct([("p", pa.int64()), ("q", pa.string())])), ("ok", pa.bool_()),
        ]
    ),
)  # fmt: skip


def ran(f: Any, format: Any = "pandas", schema: str = "id long, x double, s string", **options: Any) -> list[Any]:
    env = tr.Environment(parallelism=1)
    rows = [(0, 0.5, "a"), (None, 1.5, None), (2, 2.5, "a")]
    table = env.from_collection(rows, parallelism=1).to_columns(schema)
    sink = table.map_batches(f, format=format, **options).to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return [tuple(row) for row in sink.result()]


@pytest.mark.parametrize("format", ["pandas", "polars"])
def test_every_value_comes_back_as_it_was(format: Any) -> None:
    """Through the types of NumPy 2**53 + 1 beside a null became 2**53, and the year 9999 was out of range."""
    frames = frames_of(format)
    (back,) = frames.batches(frames.convert(BATCH)) or []
    assert back.schema.types == BATCH.schema.types and repr(back.to_pylist()) == repr(BATCH.to_pylist())


def test_a_function_gets_and_gives_frames() -> None:
    assert ran(lambda frame: frame.assign(id=frame["id"] + 1)) == [(1, 0.5, "a"), (None, 1.5, None), (3, 2.5, "a")]
    assert ran(lambda frame: frame[frame["x"] > 1]) == [(None, 1.5, None), (2, 2.5, "a")]
    assert ran(lambda frame: [frame[:1], frame[2:]]) == [(0, 0.5, "a"), (2, 2.5, "a")]
    assert ran(lambda frame: frame.groupby("s", dropna=False)["x"].sum().reset_index()) == [("a", 3.0), (None, 1.5)]
    assert ran(lambda frame: None) == []


class AtTheEnd(tr.MapBatchesFunction):
    """Says what it saw when there is no more."""

    seen = 0

    def map_batches(self, frame: Any) -> None:
        self.seen += len(frame)

    def finish(self) -> Any:
        return pd.DataFrame({"seen": [self.seen]})


def test_the_end_says_frames_too() -> None:
    assert ran(AtTheEnd()) == [(3,)]


def test_columns_of_objects_keep_their_values() -> None:
    held = [
        ["a", None],
        [1, None],
        [1.5, float("inf")],
        [Decimal("1.50"), 2],
        [[1], None],
        [{"p": 1}, {"p": None}],
        [b"x", b""],
    ]
    held += [[dt.date(2026, 1, 1), None], [dt.datetime(2026, 1, 1, 5), None], [dt.time(5), None], [None, None]]
    for values in held:
        assert [row[0] for row in ran(lambda frame, values=values: frame_of(values))] == values


@pytest.mark.parametrize(
    "values",
    [
        [dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 5)],
        [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
        [pd.Timestamp(1), pd.Timestamp(0)],
        [pd.Timedelta(1)],
        [1.5, True],
        ["a", b"b"],
        [{"p": 1}, {"q": 2}],
    ],
    ids=str,
)
def test_objects_that_arrow_would_cut_are_refused(values: list[Any]) -> None:
    """Of five o'clock among days it made a day, and of True among floats 1.0."""
    with pytest.raises(
        tr.JobFailed, match=r"column 'k' \(object\) has values that Arrow has no one type for: column 'k'"
    ):
        ran(lambda frame: frame_of(values))


def frame_of(values: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"k": pd.Series(values, dtype=object)})


def test_columns_of_numpy_keep_what_they_say() -> None:
    """A NaN is no null, and a missing time, which NumPy has, is one."""
    made = pd.DataFrame(
        {"x": [1.0, float("nan")], "s": ["a", None], "t": [pd.Timestamp(0), pd.NaT], "c": pd.Categorical(["p", "q"])}
    )
    frames = frames_of("pandas")
    (back,) = frames.batches(made) or []
    assert repr(back["x"].to_pylist()) == "[1.0, nan]" and back["x"].null_count == 0
    assert back["s"].to_pylist() == ["a", None] and back["t"].is_null().to_pylist() == [False, True]


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda frame: frame.groupby("s")[["x"]].sum(), r"the frame has an index \['s'\].*reset_index\(\)"),
        (lambda frame: frame.rename(columns={"x": 1}), r"names are no texts: \[1\]"),
        (lambda frame: frame[["x", "x"]], "the frame has several columns 'x'"),
        (lambda frame: frame.astype({"s": object}).fillna(0), r"column 's' \(object\) has values that Arrow has no"),
        (lambda frame: frame.assign(x=pd.Period("2026")), r"column 'x' is period\[.*\], which no stream carries"),
        (lambda frame: frame["x"], r"map_batches must return pandas.DataFrame\(s\), not Series"),
        (lambda frame: pa.table({"x": [1]}), r"must return pandas.DataFrame\(s\), not Table; give it format='arrow'"),
    ],
)  # fmt: skip
def test_what_no_stream_carries_is_refused(f: Any, why: str) -> None:
    with pytest.raises(tr.JobFailed, match=f"operator 'far'.*{why}"):
        ran(f, name="far")


def test_a_frame_from_a_function_of_batches_asks_for_its_format() -> None:
    with pytest.raises(
        tr.JobFailed, match=r"must return pyarrow.RecordBatch\(es\), not DataFrame; give it format='pandas'"
    ):
        ran(lambda batch: batch.to_pandas(), format="arrow")


def test_frames_keep_timestamps_as_batches_do() -> None:
    def starts(f: Any, **options: Any) -> list[Any]:
        env = tr.Environment(parallelism=1)
        timed = env.from_collection([("a", 35), ("b", 15)], parallelism=1).to_columns("k string, t long")
        timed = timed.assign_timestamps("t", out_of_orderness=100).map_batches(f, format="pandas", **options)
        sink = timed.key_by("k").window(tr.Tumbling(10)).count().to_rows().sink_to(tr.sinks.Collect())
        tr.testing.run(env)
        return [(row.k, row.start) for row in sink.result()]

    assert starts(lambda frame: frame.assign(more=1)) == [("b", 10.0), ("a", 30.0)]
    assert starts(lambda frame: frame.sort_values("t"), timestamps="at") == [("b", 10.0), ("a", 30.0)]
    with pytest.raises(tr.JobFailed, match="a record without a timestamp reached a window"):
        starts(lambda frame: frame.sort_values("t"))


@pytest.mark.parametrize("kind", [pa.timestamp("us", "+05:30"), pa.decimal256(60, 2)], ids=str)
def test_a_type_that_makes_polars_panic_is_refused_with_its_column(kind: pa.DataType) -> None:
    """A panic is no `Exception`, and looked as if the user's function had raised it."""
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int64()).cast(kind)], names=["when"])
    with pytest.raises(TypeError, match=r"column 'when' is .*, which is another type in Polars; cast it"):
        frames_of("polars").convert(batch)


def test_polars_refuses_what_it_has_no_type_for() -> None:
    times = pa.RecordBatch.from_arrays([pa.array([1], pa.time32("ms"))], names=["s"])
    with pytest.raises(TypeError, match=r"column 's' is time32\[ms\], which is another type in Polars; cast it"):
        frames_of("polars").convert(times)
    with pytest.raises(tr.JobFailed, match=r"LazyFrame; return lazy.collect\(\)"):
        ran(lambda frame: frame.lazy(), "polars")
    assert ran(lambda frame: frame.filter(polars.col("x") > 1), "polars") == [(None, 1.5, None), (2, 2.5, "a")]
