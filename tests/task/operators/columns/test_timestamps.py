"""Timestamps behind a function of batches: kept where it can be seen whose they are, given by the function, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr

EVENTS = [("a", 35), ("b", 15), ("c", 25)]
RIGHT = [("a", 30.0), ("b", 10.0), ("c", 20.0)]


def windows(f: Callable[[Any], Any], **options: Any) -> list[Any]:
    env = tr.Environment(parallelism=1)
    stream = env.from_collection(EVENTS, parallelism=1).to_columns("k string, t long")
    timed = stream.assign_timestamps("t", out_of_orderness=100).map_batches(f, **options)
    sink = timed.key_by("k").window(tr.Tumbling(10)).count().to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sorted((row.k, row.start) for row in sink.result())


@pytest.mark.parametrize(
    "f",
    [
        lambda b: b,
        lambda b: b.set_column(1, "t", pc.add(b["t"], 1000)),
        lambda b: b.select(["k"]),
        lambda b: pa.table(b),
        lambda b: [b.slice(2, 1), b.slice(0, 2)],
        lambda b: pa.record_batch({"k": b["k"].slice(0), "new": [1] * b.num_rows}),
    ],
)
def test_records_that_can_be_seen_keep_their_timestamps(f: Any) -> None:
    assert windows(f) == RIGHT


def test_a_part_has_the_timestamps_of_its_records() -> None:
    assert windows(lambda b: b.slice(1, 2)) == RIGHT[1:]


def pairs(batch: Any) -> Any:
    """Each record with the next one: both columns are slices of one."""
    return pa.record_batch(
        {
            "k": batch["k"].slice(0, batch.num_rows - 1),
            "t": batch["t"].slice(0, batch.num_rows - 1),
            "next": batch["t"][1:],
        }
    )


def test_columns_that_are_slices_of_one_tell_records_apart() -> None:
    """The second of two functions left the first pair out, and the other got the timestamp of that one: the place of a
    column in memory was looked up among those of the last column that lies there."""
    env = tr.Environment(parallelism=1)
    stream = env.from_collection(EVENTS, parallelism=1).to_columns("k string, t long").map_batches(pairs)
    timed = stream.assign_timestamps("t", out_of_orderness=100).map_batches(lambda b: b.slice(1).select(["t", "next"]))
    sink = timed.key_by("t").window(tr.Tumbling(10)).count().to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [(row.t, row.start) for row in sink.result()] == [(15, 10.0)]


@pytest.mark.parametrize(
    "f",
    [
        lambda b: b.sort_by("t"),
        lambda b: b.filter(pc.greater(b["t"], 0)),
        lambda b: pa.record_batch({"k": b["k"][:2], "next": b["k"][1:]}),
        lambda b: b.take(pa.array([2, 1, 0])),
        lambda b: pa.RecordBatch.from_pylist(b.to_pylist()),
    ],
)
def test_records_that_may_have_moved_have_none_and_a_window_refuses_them(f: Any) -> None:
    """Sorted records once got the timestamps of others, by their place."""
    with pytest.raises(tr.JobFailed, match=r"without a timestamp reached a window.*timestamps="):
        windows(f)


@pytest.mark.parametrize(
    "f",
    [
        lambda b: b.sort_by("t"),
        lambda b: b.filter(pc.greater(b["t"], 0)),
        lambda b: pa.RecordBatch.from_pylist(b.to_pylist()),
        lambda b: b,
    ],
)
def test_a_function_may_have_timestamps_in_a_column_that_moves_with_the_records(f: Any) -> None:
    assert windows(f, timestamps="at") == RIGHT


def test_an_earlier_batch_has_its_own_timestamps_in_its_column() -> None:
    class Late(tr.MapBatchesFunction):
        def open(self, ctx: Any) -> None:
            self.kept: list[Any] = []

        def map_batches(self, batch: Any) -> Any:
            self.kept.append(batch)
            return None

        def finish(self) -> Any:
            return self.kept

    assert windows(Late(), timestamps="at") == RIGHT
    with pytest.raises(tr.JobFailed, match="without a timestamp"):
        windows(Late())


def test_the_column_of_timestamps_must_come_back_and_its_name_must_be_free() -> None:
    with pytest.raises(tr.JobFailed, match="timestamps='at': what map_batches returned has no such column"):
        windows(lambda b: b.select(["k"]), timestamps="at")
    with pytest.raises(tr.JobFailed, match="timestamps='t': the stream has a column of this name"):
        windows(lambda b: b, timestamps="t")
    with pytest.raises(tr.GraphError, match="timestamps"):
        windows(lambda b: b, timestamps=3)
