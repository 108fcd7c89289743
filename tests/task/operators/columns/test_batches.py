"""What `map_batches` sends aside: batches, of one schema for each side output, with their timestamps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr

Build = Callable[[tr.DataStream], tr.DataStream]


def parted(batch: pa.RecordBatch, ctx: tr.Context) -> pa.RecordBatch:
    odd = pc.equal(pc.bit_wise_and(batch["x"], 1), 1)
    ctx.emit("odd", batch.filter(odd))
    return batch.filter(pc.invert(odd))


class Parting(tr.MapBatchesFunction):
    """A function of batches that parts them as `parted` does, and emits at the end how many there were."""

    def open(self, ctx: tr.Context) -> None:
        self.ctx, self.batches = ctx, 0

    def map_batches(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.batches += 1
        odd = pc.equal(pc.bit_wise_and(batch["x"], 1), 1)
        self.ctx.emit("odd", batch.filter(odd))
        return batch.filter(pc.invert(odd))

    def finish(self) -> None:
        self.ctx.emit("batches", pa.record_batch({"n": [self.batches]}))


class PartingWithContext(tr.MapBatchesFunction):
    def map_batches(self, batch: pa.RecordBatch, ctx: tr.Context) -> pa.RecordBatch:  # type: ignore[override]
        return parted(batch, ctx)


def numbers(env: tr.Environment) -> tr.DataStream:
    return env.from_collection(range(10), parallelism=1).to_columns("x long")


def outcome(f: Any, tag: str = "odd", build: Build = lambda side: side, **options: Any) -> tuple[list[Any], list[Any]]:
    """The records of the main output and of a side output."""
    env = tr.Environment(parallelism=1, **options.pop("env", {}))
    made = numbers(env).map_batches(f, name="parts", **options)
    out, side = made.sink_to(tr.sinks.Collect()), build(made.side_output(tag)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return [tuple(row) for row in out.result()], [row if isinstance(row, tuple) else (row,) for row in side.result()]


def batches(*emitted: Any, tag: str = "odd", **options: Any) -> Any:
    """A function that emits these to a side output, and nothing else."""

    def emits(batch: Any, ctx: tr.Context) -> None:
        for one in emitted:
            ctx.emit(tag, one, **options)

    return emits


@pytest.mark.parametrize("f", [parted, Parting(), PartingWithContext(), lambda batch, ctx: parted(batch, ctx)])
@pytest.mark.parametrize("env", [{}, {"copy_records": True}, {"debug": True}])
def test_a_function_of_batches_parts_its_stream(f: Any, env: dict[str, bool]) -> None:
    assert outcome(f, env=env) == ([(x,) for x in range(0, 10, 2)], [(x,) for x in range(1, 10, 2)])


def test_what_is_said_at_the_end_may_go_aside_too() -> None:
    assert outcome(Parting(), "batches") == ([(x,) for x in range(0, 10, 2)], [(1,)])


def test_a_side_output_of_batches_is_a_stream_in_columns() -> None:
    made = numbers(tr.Environment()).map_batches(parted)
    side = made.side_output("odd")
    assert (side.form, side.columns) == ("columns", None)
    assert side.to_columns("x int").columns == side.to_columns("x int").filter(pc.field("x") > 1).columns == ("x",)


def test_frames_go_aside_as_frames() -> None:
    def frames(frame: Any, ctx: tr.Context) -> Any:
        odd = frame["x"].isin([1, 3, 5, 7, 9])
        ctx.emit("odd", frame[odd])
        return frame[~odd]

    assert outcome(frames, format="pandas") == outcome(parted)


def test_a_side_output_is_worked_on_as_every_stream_in_columns() -> None:
    sums = lambda side: side.with_columns(k=pc.scalar("all")).key_by("k").sum("x")  # noqa: E731
    assert outcome(parted, build=sums)[1] == [("all", 25)]


# Timestamps.


def stamped(f: Any, **options: Any) -> list[Any]:
    env = tr.Environment(parallelism=1)
    timed = numbers(env).assign_timestamps("x")
    side = timed.map_batches(f, **options).side_output("odd")
    out = side.process(lambda row, ctx: [(row.x, ctx.timestamp)]).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return list(out.result())


def test_records_that_can_be_seen_keep_their_timestamps_aside() -> None:
    def last(batch: pa.RecordBatch, ctx: tr.Context) -> None:
        ctx.emit("odd", batch.slice(8))

    assert stamped(last) == [(8, 8.0), (9, 9.0)]


def test_all_records_of_a_batch_may_be_given_one_timestamp() -> None:
    def later(batch: pa.RecordBatch, ctx: tr.Context) -> None:
        ctx.emit("odd", batch.take(pa.array([9, 8])), timestamp=20.0)

    assert stamped(later) == [(9, 20.0), (8, 20.0)]


def test_timestamps_in_a_column_are_there_aside_as_well() -> None:
    def backwards(batch: pa.RecordBatch, ctx: tr.Context) -> None:
        ctx.emit("odd", batch.take(pa.array([9, 8])))

    assert stamped(backwards, timestamps="at") == [(9, 9.0), (8, 8.0)]


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda b, ctx: ctx.emit("odd", b.select(["x"])), "what map_batches emitted to 'odd' has no such column"),
        (lambda b, ctx: ctx.emit("odd", b, timestamp=1.0), "are in its column 'at'; leave timestamp= out"),
    ],
)
def test_a_column_of_timestamps_is_the_only_place_for_them(f: Any, why: str) -> None:
    with pytest.raises(tr.JobFailed, match=why):
        stamped(f, timestamps="at")


# One schema each.


def test_each_side_output_has_a_schema_of_its_own() -> None:
    def several(batch: pa.RecordBatch, ctx: tr.Context) -> pa.RecordBatch:
        ctx.emit("odd", pa.record_batch({"name": ["a"], "n": [0.5]}))
        ctx.emit("odd", pa.record_batch({"name": ["b"], "n": [2]}))
        ctx.emit("nobody's", pa.record_batch({"z": [True]}))
        return batch.slice(0, 1)

    out, side = outcome(several)
    assert (out, side) == ([(0,)], [("a", 0.5), ("b", 2.0)])
    assert type(side[1][1]) is float


def test_what_does_not_fit_the_first_batch_that_went_there_fails_the_job() -> None:
    ones, halves = pa.record_batch({"n": [1]}), pa.record_batch({"n": [0.5]})
    why = r"operator 'parts'.*record \(0\.5,\): .*the schema of side output 'odd'.*first batch.*'n' is declared int64"
    with pytest.raises(tr.JobFailed, match=why):
        outcome(batches(ones, halves))
    assert outcome(batches(ones, halves), build=lambda side: side.to_columns("n double"))[1] == [(1.0,), (0.5,)]


# What is refused.


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (batches([1]), r"map_batches must emit to 'odd' pyarrow.RecordBatch\(es\), not list"),
        (batches({"x": 1}), "not dict"),
        (batches(pa.record_batch({"x": [1]}).to_pandas()), "not DataFrame; give it format='pandas'"),
        (batches(7), "not int"),
    ],
)
def test_what_is_no_batch_is_reported(f: Any, why: str) -> None:
    with pytest.raises(tr.JobFailed, match=f"operator 'parts'.*{why}"):
        outcome(f)


def test_open_has_nobody_to_emit_to() -> None:
    class Early(tr.MapBatchesFunction):
        def open(self, ctx: tr.Context) -> None:
            ctx.emit("odd", pa.record_batch({"x": [1]}))

        def map_batches(self, batch: Any) -> Any:
            return batch

    with pytest.raises(tr.JobFailed, match=r"operator 'parts'.*open emitted to a side output, before there is a batch"):
        outcome(Early())


def test_a_function_without_the_context_cannot_emit() -> None:
    made = numbers(tr.Environment()).map_batches(lambda batch: batch, name="plain")
    with pytest.raises(tr.GraphError, match=r"'plain' is not given the context, and cannot emit; .*: f\(batch, ctx\)"):
        made.side_output("odd")
    with pytest.warns(UserWarning, match="nothing in the function of operator 'map_batches: parted' emits to 'even'"):
        numbers(tr.Environment()).map_batches(parted).side_output("even")


def test_a_second_argument_with_a_default_is_the_functions_own() -> None:
    env = tr.Environment(parallelism=1)
    out = numbers(env).map_batches(lambda batch, count=1: batch.slice(0, count)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [tuple(row) for row in out.result()] == [(0,)]
