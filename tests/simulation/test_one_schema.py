"""The one schema of a stream in columns, once found, is that of the stream behind a restore, at any parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from search.stories import Story
from tailrace.connectors.pace import Pace
from tailrace.coordinator.job.restarts import Never
from tailrace.testing.simulator import Simulation

RATE = 20_000.0
BIG = 2**53
"""From here on not every whole number is a double."""


class Typed(tr.MapBatchesFunction):
    """Gives numbers a type that depends on the subtask."""

    def __init__(self, *kinds: pa.DataType, plus: float = 0) -> None:
        self.kinds, self.plus = kinds, plus

    def open(self, ctx: Any) -> None:
        self.kind = self.kinds[ctx.subtask % len(self.kinds)]

    def map_batches(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        x = pa.array([x + self.plus for x in batch.column("x").to_pylist()], self.kind)
        return batch.set_column(batch.schema.get_field_index("x"), "x", x)


class Numbers(tr.Source):
    """Columns that nobody has declared."""

    form = "columns"

    def __init__(self, kind: pa.DataType, plus: float = 0) -> None:
        self.kind, self.plus = kind, plus

    def splits(self, parallelism: int) -> list[int]:
        return [0, 1, 2]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return NumbersReader(self, split, position or 0)


class NumbersReader(tr.Reader):
    def __init__(self, source: Numbers, split: int, position: int) -> None:
        self.source, self.split, self.at, self.pace = source, split, position, Pace(RATE / 5)

    def read(self, limit: int, now: float) -> Any:
        if self.at == 40:
            return None
        count = self.pace.allowance(1, now)
        self.pace.done += count
        self.at += count
        values = [self.split + self.source.plus] * count
        return pa.record_batch({"n": pa.array([self.split] * count), "x": pa.array(values, self.source.kind)})

    @property
    def position(self) -> int:
        return self.at

    def next_at(self, now: float) -> float:
        return self.pace.next_at(now)


Program = Callable[[tr.Environment], tr.DataStream]


def records(env: tr.Environment, value: Callable[[int], int] = lambda n: n) -> tr.DataStream:
    numbers = env.from_source(tr.sources.Sequence(0, 300, rate=RATE), uid="numbers", parallelism=1)
    return numbers.rebalance().map(lambda n: (n % 5, n, value(n)), uid="records").to_columns("k int, n long, x long")


def a_function(*kinds: pa.DataType, plus: float = 0) -> Program:
    def program(env: tr.Environment) -> tr.DataStream:
        return records(env).map_batches(Typed(*kinds, plus=plus), uid="typed").to_rows(uid="rows").map(tuple, uid="t")

    return program


class TypedAside(Typed):
    """A function of batches that emits its result to a side output."""

    def open(self, ctx: Any) -> None:
        super().open(ctx)
        self.ctx = ctx

    def map_batches(self, batch: pa.RecordBatch) -> Any:
        self.ctx.emit("typed", super().map_batches(batch))


def a_side_output(*kinds: pa.DataType, plus: float = 0) -> Program:
    def program(env: tr.Environment) -> tr.DataStream:
        typed = records(env).map_batches(TypedAside(*kinds, plus=plus), uid="typed").side_output("typed")
        return typed.to_rows(uid="rows").map(tuple, uid="t")

    return program


def a_source(kind: pa.DataType, plus: float = 0) -> Program:
    return lambda env: env.from_source(Numbers(kind, plus), uid="typed").to_rows(uid="rows").map(tuple, uid="t")


def interrupted(story: Story, program: Program, parallelism: int = 2) -> None:
    """A job that is gone behind its third checkpoint."""
    world = story.simulation(program, parallelism=parallelism, restarts=Never)
    assert world.run_until("commit 3 done"), world.coordinator.cause


def ended(story: Story, program: Program, parallelism: int) -> Simulation:
    """Goes on from there, until it has finished or failed."""
    world = story.again(program, parallelism=parallelism, restarts=Never)
    world.run()
    return world


def totals(story: Story) -> dict[Any, Any]:
    """The last result of each key."""
    found: dict[Any, Any] = {}
    for key, total in story.ledger.book.records():
        found[key] = max(found.get(key, total), total)
    return found


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("program", [a_function, a_source, a_side_output])
def test_what_is_refused_without_a_restart_is_refused_behind_one(
    story: Story, program: Callable[..., Program], parallelism: int
) -> None:
    """Whole numbers, and halves from the restart on: these were taken, because the schema was found out anew."""
    interrupted(story, program(pa.int64()))
    world = ended(story, program(pa.float64(), plus=0.5), parallelism)
    assert world.coordinator.cause is not None
    text = str(world.coordinator.cause)
    assert "that of its first batch, before the restart" in text and "it has a fraction" in text
    assert all(isinstance(value, int) for record in story.ledger.book.records() for value in record)


def summed(kind: pa.DataType, how: str, uid: str) -> Program:
    """Sums above what doubles can count. The operator that makes the types has another uid each time, so nobody but the
    aggregate knows what they were."""

    def program(env: tr.Environment) -> tr.DataStream:
        made = records(env, lambda n: BIG + 1 if n < 5 else 2).map_batches(Typed(kind), uid=uid)
        if how == "window":
            timed = made.assign_timestamps("n", out_of_orderness=1000, uid="at")
            keyed: Any = timed.key_by("k").window(tr.Tumbling(100_000))
            return keyed.aggregate(tr.Sum("x"), uid="sum").to_rows(uid="rows").map(lambda r: (r[0], r[3]), uid="t")
        return made.key_by("k").sum("x", uid="sum").to_rows(uid="rows").map(tuple, uid="t")

    return program


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("how", ["aggregate", "window"])
def test_a_sum_of_whole_numbers_stays_exact_where_they_come_as_doubles_later(
    story: Story, how: str, parallelism: int
) -> None:
    """Each is a whole number and fits. Behind the restart doubles were the type of the stream, and the sum was rounded."""
    interrupted(story, summed(pa.int64(), how, "before"))
    world = ended(story, summed(pa.float64(), how, "behind"), parallelism)
    assert world.coordinator.cause is None, world.coordinator.cause
    assert totals(story) == dict.fromkeys(range(5), BIG + 1 + 59 * 2)
    assert all(type(total) is int for total in totals(story).values())


@pytest.mark.parametrize("parallelism", [1, 3])
def test_subtasks_with_different_types_go_on_with_the_wider_one(story: Story, parallelism: int) -> None:
    """One subtask had 16 bits and one 64. A number that needs more than 16 comes behind the restore, everywhere."""
    interrupted(story, a_function(pa.int16(), pa.int64()))
    world = ended(story, a_function(pa.int64(), plus=1 << 20), parallelism)
    assert world.coordinator.cause is None, world.coordinator.cause
    assert len(story.ledger.book.records()) == 300


@pytest.mark.parametrize("parallelism", [1, 3])
def test_subtasks_with_types_that_come_to_none_need_the_parallelism_that_they_had(
    story: Story, parallelism: int
) -> None:
    interrupted(story, a_function(pa.int64(), pa.float64()))
    world = ended(story, a_function(pa.int64()), parallelism)
    text = str(world.coordinator.cause)
    assert "in its subtasks the stream had columns of different types" in text
    assert "x int64" in text and "x double" in text and "declare one, with to_columns(schema) behind it" in text


def test_so_do_side_outputs(story: Story) -> None:
    interrupted(story, a_side_output(pa.int64(), pa.float64()))
    world = ended(story, a_side_output(pa.int64()), 3)
    assert "in its subtasks side output 'typed' had columns of different types" in str(world.coordinator.cause)


def test_at_the_parallelism_that_it_had_each_subtask_keeps_its_own(story: Story) -> None:
    interrupted(story, a_function(pa.int64(), pa.float64()))
    world = ended(story, a_function(pa.float64(), pa.int64()), 2)
    assert world.coordinator.cause is None, world.coordinator.cause
    assert len(story.ledger.book.records()) == 300


def test_what_is_declared_behind_it_need_not_be_found_out(story: Story) -> None:
    """The advice of the error: with `to_columns` behind the function its types do not matter."""

    def declared(*kinds: pa.DataType, plus: float = 0) -> Program:
        def program(env: tr.Environment) -> tr.DataStream:
            made = records(env).map_batches(Typed(*kinds, plus=plus), uid="typed")
            return made.to_columns("k int, n long, x double", uid="as").to_rows(uid="rows").map(tuple, uid="t")

        return program

    interrupted(story, a_function(pa.int64(), pa.float64()))
    world = ended(story, declared(pa.int64(), pa.float64(), plus=0), 3)
    assert world.coordinator.cause is None, world.coordinator.cause
    assert len(story.ledger.book.records()) == 300
