"""What a checkpoint holds besides states, as rows."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow.compute as pc
import pytest

import tailrace as tr
from tailrace.statedata.listings import view_of


def listed(stored: Any, what: str, **options: Any) -> list[dict[str, Any]]:
    view = view_of(stored, what, **options)
    schema = view.schema()
    return [row for part in view.parts() for batch in view.batches(part, schema) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def midway() -> Any:
    """A checkpoint of a run that is not over."""
    from tests.statedata.conftest import seen, taken

    return taken(lambda env: seen(env, 3_000), number=1)


def test_operators_are_reported_with_their_states(midway: Any) -> None:
    rows = listed(midway, "operators")
    assert [row["state"] for row in rows if row["uid"] == "numbers"] == [None]
    states = {row["state"]: row for row in rows if row["uid"] == "seen"}
    assert states["count"] | {"bytes": 0} == {
        "uid": "seen", "name": "process: Seen", "parallelism": 2, "finished": 0, "state": "count", "kind": "value",
        "encoding": "pickle", "type": "int", "entries": 10, "bytes": 0,
    }  # fmt: skip
    assert states["timers:event"]["entries"] == 10


def test_the_checkpoints_that_are_kept_are_listed(midway: Any) -> None:
    rows = listed(midway, "checkpoints")
    assert rows[-1]["checkpoint"] == midway.manifest.checkpoint and rows[-1]["path"] == midway.url
    assert [row["checkpoint"] for row in rows] == sorted({row["checkpoint"] for row in rows})
    assert rows[-1]["time"].timestamp() == midway.manifest.timestamp / 1e6


def test_splits_are_reported_with_the_positions_of_their_readers(midway: Any) -> None:
    rows = listed(midway, "positions")
    assert [(row["uid"], row["subtask"], row["status"], row["split"]) for row in rows] == [
        ("numbers", 0, "held", "(0, 2)"),
        ("numbers", 1, "held", "(1, 2)"),
    ]
    read = [pickle.loads(row["position"]) for row in listed(midway, "positions", uid="numbers", values="pickle")]
    counts = [row["value"] for row in listed(midway, "state", uid="seen", state="count")]
    assert sum(at // 2 for at in read) == sum(counts), "what was read at the cut is what the state has counted"
    assert listed(midway, "positions", uid="seen") == []


def test_splits_that_nobody_has_are_unassigned(checkpoint_of: Any, tmp_path: Any) -> None:
    for i in range(5):
        (tmp_path / f"{i}.txt").write_text("line\n" * 3_000)

    def build(env: tr.Environment) -> None:
        env.from_source(tr.sources.TextFiles(str(tmp_path)), uid="lines").sink_to(tr.sinks.Collect(), uid="out")

    stored = checkpoint_of(build, number=1)
    rows = listed(stored, "positions")
    assert {row["status"] for row in rows} >= {"held", "unassigned"}
    assert all(row["position"] is None for row in rows if row["status"] == "unassigned")
    assert all(".txt" in row["split"] for row in rows if row["split"] is not None)


def test_timers_are_reported_with_key_and_clock(midway: Any) -> None:
    rows = listed(midway, "timers", uid="seen")
    assert {(row["key"], row["time"].timestamp(), row["clock"]) for row in rows} == {
        (key, 1_000.0 + key, "event") for key in range(10)
    }
    assert listed(midway, "timers") == rows, "there is one operator with timers only"


def test_records_that_wait_for_event_time_are_reported_in_its_order(checkpoint_of: Any) -> None:
    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 3_000), uid="numbers").assign_timestamps(float, 1_000_000)
        ordered = numbers.key_by(lambda n: n % 10).process(lambda n, ctx: [n], in_order=True, uid="ordered")
        ordered.sink_to(tr.sinks.Collect(), uid="out")

    stored = checkpoint_of(build, number=1)
    rows = listed(stored, "waiting", values="columns")
    assert rows and {row["key"] for row in rows} == set(range(10))
    assert all(row["timestamp"].timestamp() == row["value"] and row["key"] == row["value"] % 10 for row in rows)
    assert {row["port"] for row in rows} == {0}
    assert listed(stored, "waiting", uid="ordered", values="columns") == rows


def test_feedback_is_reported_record_by_record(checkpoint_of: Any) -> None:
    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 2_000), uid="numbers")

        def body(stream: Any) -> Any:
            down = stream.rebalance().map(lambda n: n - 1, uid="down")
            return down.filter(lambda n: n > 0), down.filter(lambda n: n <= 0)

        numbers.iterate(body).sink_to(tr.sinks.Collect(), uid="out")

    for number in range(1, 6):
        rows = listed(checkpoint_of(build, number=number), "feedback", values="columns")
        if rows:
            break
    assert rows and {row["kind"] for row in rows} == {"feedback"}
    assert all(0 < row["value"] < 2_000 for row in rows)


def test_overtaken_records_are_reported_record_by_record(checkpoint_of: Any) -> None:
    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 4_000), uid="numbers")
        keyed = numbers.key_by(lambda n: n % 10)
        keyed.reduce(lambda a, b: a + b, uid="sums").sink_to(tr.sinks.Collect(), uid="out")

    for number in range(1, 6):
        stored = checkpoint_of(build, number=number, mode="unaligned")
        rows = listed(stored, "inflight", uid="sums", values="columns")
        if rows:
            break
    assert rows and {row["kind"] for row in rows} <= {"received", "sent", "returned"}
    assert {row["source"] for row in rows} == {"numbers"}
    assert all(0 <= row["value"] < 4_000 and row["key_group"] is not None for row in rows)
    assert listed(stored, "inflight", uid="numbers") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "position"}, "option \"what\" is one of state, timers, positions, .*not 'position'"),
        ({"what": "timers", "state": "count"}, 'option "state" names a state, and "what" asks for timers'),
        ({"what": "timers", "uid": "nobody"}, "no operator with uid 'nobody'; it has the operators .*'seen'"),
        ({"what": "inflight", "uid": "nobody"}, "no operator with uid 'nobody'"),
        ({}, "say of which operator, with its uid; it has the operators .*'seen'"),
    ],
)
def test_options_that_make_no_sense_are_refused(midway: Any, options: dict[str, str], message: str) -> None:
    with pytest.raises(tr.TailraceError, match=message):
        view_of(midway, **options)


def test_records_that_a_join_keeps_are_reported_with_their_input(checkpoint_of: Any) -> None:
    def build(env: tr.Environment) -> None:
        stamped = env.from_source(tr.sources.Sequence(0, 2_000), uid="numbers").assign_timestamps(float, 300.0)
        first, second = stamped.filter(lambda n: n % 2 == 0), stamped.filter(lambda n: n % 2 == 1)
        joined = first.key_by(lambda n: n // 10).join(second.key_by(lambda n: n // 10), within=(0, 500), uid="joined")
        joined.sink_to(tr.sinks.Collect(), uid="out")

    rows = listed(checkpoint_of(build, number=1), "waiting", values="columns")
    assert rows and {row["port"] for row in rows} <= {0, 1}
    for row in rows:
        value = row["value"]
        assert row["timestamp"].timestamp() == value and row["key"] == value // 10 and row["port"] == value % 2


def test_records_that_a_join_in_columns_keeps_are_reported_one_by_one(checkpoint_of: Any) -> None:
    def build(env: tr.Environment) -> None:
        rows = env.from_source(tr.sources.Sequence(0, 2_000), uid="numbers").map(lambda n: (n // 10, n), uid="rows")
        stamped = rows.to_columns("k long, n long", uid="columns").assign_timestamps("n", 300.0)
        first, second = (stamped.filter(pc.field("n") < 1_000_000, uid=f"half{i}") for i in range(2))
        joined = first.key_by("k").join(second.key_by("k"), within=(0, 500), uid="joined")
        joined.sink_to(tr.sinks.Collect(), uid="out")

    rows = listed(checkpoint_of(build, number=1), "waiting", values="columns")
    assert rows and {row["port"] for row in rows} <= {0, 1}
    for row in rows:
        key, number = row["value"]["k"], row["value"]["n"]
        assert row["timestamp"].timestamp() == number and row["key"] == key == number // 10
