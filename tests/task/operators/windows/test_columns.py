"""Windows in arrays are the windows that entries would be: the same results in the same order, the same checkpoints, in
whatever order things happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from twins import DAY, KEYS, SUMMED, VALUES, TimedTwins, Twins, columns, live_to_the_end

import tailrace as tr
from tailrace.elements.batches import Columns
from tailrace.errors import UserCodeError
from tailrace.graph.operators import Window
from tailrace.state import layers
from tailrace.task.operators.aggregates.state import AccumulatorSnapshot
from tailrace.task.operators.windows import state
from tailrace.task.operators.windows.aggregates import WindowTask
from tailrace.task.operators.windows.fronts import FrozenWindows, TimerFront, WindowFront
from tailrace.task.operators.windows.state import WindowState

COUNT_AND_SUM = {"n": tr.Count(), "s": tr.Sum("x")}


class WindowTwins(TimedTwins):
    """Windows of `size` every `slide`."""

    in_loop = False

    def __init__(
        self, key: Any, aggregates: dict[str, Any], seed: int, size: int = 10, slide: int = 10, lateness: int = 0
    ) -> None:
        self.spec = (size, slide, -3, lateness)
        super().__init__(key, aggregates, seed)

    def made(self, in_columns: bool = True) -> WindowTask:
        task = self.made_from(WindowTask, Window(self.key, *self.spec, tuple(self.aggregates.items())), in_columns)
        task.in_loop = self.in_loop
        return task

    @property
    def in_columns(self) -> bool:
        return self.tasks[0]._windows is not None

    def told(self, batch: Any) -> str:
        return str((batch.data.schema, batch.data.to_pylist(), batch.times.tolist()))

    def both(self, do: Callable[[Any], Any]) -> list[Any]:
        found = super().both(do)
        for ask in (WindowTask.next_event, WindowTask.done_until):
            assert ask(self.tasks[0]) == ask(self.tasks[1])
        if self.tasks[0]._windows is not None:
            self.tasks[0]._windows.check()
        return found


def timed(twins: WindowTwins, batch: Callable[[random.Random], Columns]) -> Callable[[random.Random], Columns]:
    """Batches at times around the event time of the twins: some late, some early."""

    def one(chance: random.Random) -> Columns:
        data = batch(chance).data
        times = [twins.time + chance.randrange(-15, 25) for _ in range(len(data))]
        return Columns(data, np.array(times, np.int64))

    return one


def plain(key: str, value: str, most: int, nulls: float) -> Callable[[random.Random], Columns]:
    (key_kind, key_of), (value_kind, value_of) = KEYS[key], VALUES[value]

    def one(chance: random.Random) -> Columns:
        missing = nulls if chance.random() < 0.5 else 0
        rows = [
            tuple(None if chance.random() < missing else x for x in (key_of(chance.randrange(most)), value_of(chance)))
            for _ in range(chance.choice([1, 5, 40]))
        ]
        return columns({"k": key_kind, "x": value_kind}, rows)

    return one


def lived(twins: WindowTwins, batch: Callable[[random.Random], Columns], steps: int) -> None:
    live_to_the_end(twins, timed(twins, batch), steps)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """State counts as large, what is frozen in columns comes out in bits, and slots are given back soon."""
    monkeypatch.setattr(layers, "SMALL", 10)
    monkeypatch.setattr(layers, "_UNPACKED", 7)
    monkeypatch.setattr(state, "_ROOM", 4)


SHAPES = {"tumbling": (10, 10, 0), "sliding": (10, 4, 0), "late": (10, 10, 12), "sliding and late": (9, 3, 8)}


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_all_kinds_have_the_windows_that_they_have_in_entries(key: str) -> None:
    for seed, shape in enumerate((SHAPES["sliding"], SHAPES["late"])):
        twins = WindowTwins("k", COUNT_AND_SUM, seed, *shape)
        lived(twins, plain(key, "integers", 30, 0.1 if seed else 0), 40)
        if key != "decimals":
            assert twins.tasks[0]._in_columns


@pytest.mark.parametrize("value", VALUES)
def test_values_of_all_kinds_are_aggregated_as_they_are_in_entries(value: str) -> None:
    every: dict[str, Any] = {"n": tr.Count(), "least": tr.Min("x"), "most": tr.Max("x")}
    summed: dict[str, Any] = {"s": tr.Sum("x"), "mean": tr.Mean("x")} if value in SUMMED else {}
    for seed, nulls in enumerate((0.3, 0)):
        twins = WindowTwins("k", every | summed, seed, *SHAPES["sliding and late"])
        lived(twins, plain("small integers", value, 12, nulls), 20)


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_happens_windows_in_arrays_are_the_same(shape: str) -> None:
    for seed in range(2):
        kind = ["small integers", "texts"][seed % 2]
        lived(WindowTwins("k", COUNT_AND_SUM, seed, *SHAPES[shape]), plain(kind, "integers", 60, 0.05), 90)


def test_keys_of_several_columns() -> None:
    kinds = {"a": pa.string(), "b": pa.int32(), "c": pa.date32(), "x": pa.float64()}

    def batch(chance: random.Random) -> Columns:
        choices: list[list[Any]] = [["x", "yy", None], [1, 2, None], [DAY, None], [0.5, 2.25, None]]
        return columns(kinds, [tuple(map(chance.choice, choices)) for _ in range(chance.choice([1, 20]))])

    for seed, shape in enumerate(SHAPES.values()):
        lived(WindowTwins(("a", "b", "c"), {"n": tr.Count(), "mean": tr.Mean("x")}, seed, *shape), batch, 50)


class LoopedTwins(WindowTwins):
    """In a loop a window that is over opens anew."""

    in_loop = True


def test_in_a_loop_windows_open_anew() -> None:
    for seed in range(4):
        lived(LoopedTwins("k", COUNT_AND_SUM, seed, 10, 5), plain("small integers", "integers", 8, 0), 50)


def two(twins: WindowTwins, rows: list[tuple[Any, ...]], kind: Any = None, at: int = 1) -> list[Any]:
    data = columns({"k": kind or pa.int64(), "x": pa.int64()}, rows).data
    return Twins.give(twins, Columns(data, np.full(len(data), at, np.int64)))


def aborted(seed: int) -> None:
    """A checkpoint is aborted in the midst, and the next one holds what it left."""
    twins = WindowTwins("k", COUNT_AND_SUM, seed, size=10, slide=5, lateness=5)
    for at in (1, 6, 14):
        two(twins, [(n, n) for n in range(at, 20 + at)], at=at)
        twins.freeze()
        twins.encode([1, 12, 70][seed % 3])
        two(twins, [(n, 1) for n in range(5)], at=at + 1)
        twins.settle(False)
        twins.advance(at + 3)
    twins.freeze()
    twins.encode(10**9)
    twins.settle(True)
    twins.compare()


@pytest.mark.parametrize("seed", range(3))
def test_what_an_aborted_checkpoint_left_is_in_the_next_one(seed: int) -> None:
    aborted(seed)


def test_a_sum_above_64_bits_is_refused_as_it_is_in_entries() -> None:
    errors = []
    for in_columns in (True, False):
        twins = WindowTwins("k", {"s": tr.Sum("x")}, 1)
        task = twins.made(in_columns)
        for x in (2**63 - 6, 5, 2**63 - 1):
            batch = columns({"k": pa.int64(), "x": pa.int64()}, [(1, x), (2, 1)]).data
            task.process(Columns(batch, np.array([3, 3])), 0)
        with pytest.raises(UserCodeError, match="does not fit its column") as error:
            task.advance(50, 10)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_what_arrays_cannot_hold_goes_on_in_entries_in_the_midst_of_a_batch() -> None:
    """The sum of the second of two windows of a batch does not fit, when the first one has got it; both had fired."""
    twins = WindowTwins("k", {"mean": tr.Mean("x")}, 1, size=10, slide=5, lateness=100)
    most = 2**63 - 1
    two(twins, [(1, 1), (2, 7)], at=1)
    two(twins, [(1, most - 3)], at=5)
    twins.advance(30)
    assert twins.in_columns
    [found] = two(twins, [(1, 3), (2, 1), (1, 1)], at=1)
    assert not twins.in_columns
    assert len(found.data) == 4
    twins.advance(500)
    assert twins.tasks[0].state_entries() == 0


def test_a_column_that_is_not_there_is_named() -> None:
    data = pa.record_batch({"k": [1]})
    for key, of in (("key", "k"), ("k", "x")):
        task = WindowTwins(key, {"s": tr.Sum(of)}, 1).made()
        with pytest.raises(UserCodeError, match="no column"):
            task.process(Columns(data, np.array([3])), 0)


def test_a_null_in_a_key_comes_late() -> None:
    twins = WindowTwins("k", COUNT_AND_SUM, 1, size=10, slide=5, lateness=20)
    two(twins, [(n, n) for n in range(20)])
    twins.advance(12)
    two(twins, [(None, 5), (3, None)])
    assert twins.in_columns
    twins.freeze()
    twins.encode(10**9)
    twins.settle(True)
    twins.restart(True)
    two(twins, [(None, 5), (3, 1)], at=8)
    assert twins.in_columns
    twins.advance(100)


def test_windows_of_another_lateness_go_on_in_entries() -> None:
    for before, after in ((0, 20), (20, 0), (20, 5)):
        twins = WindowTwins("k", COUNT_AND_SUM, 1, lateness=before)
        two(twins, [(n % 5, n) for n in range(20)])
        twins.advance(3)
        twins.freeze()
        twins.encode(10**9)
        twins.settle(True)
        twins.spec = (*twins.spec[:-1], after)
        twins.restart(True)
        two(twins, [(1, 5), (7, 7)])
        assert not twins.in_columns
        for to in (8, 12, 20, 100):
            twins.advance(to)
        assert twins.tasks[0].state_entries() == 0


@pytest.mark.parametrize("size", [10, 5 * 10**16])
def test_times_in_one_batch_may_lie_farther_apart_than_64_bits(size: int) -> None:
    """The windows of a batch were numbered by how far their starts lie behind the first one, which wrapped around."""
    twins = WindowTwins("k", COUNT_AND_SUM, 1, size, size)
    data = columns({"k": pa.int64(), "x": pa.int64()}, [(1, 1), (2, 2), (1, 3), (2, 4)]).data
    first, last = -9_000_000_000_000_000_000, 250_000_000_000_000_000
    twins.time = first - size
    for task in twins.tasks:
        task.ctx.watermark_time = twins.time
    for _ in range(2):
        Twins.give(twins, Columns(data, np.array([first, last, last, first])))
    assert twins.in_columns
    assert [one.data["n"].to_pylist() for one in twins.advance(first + size)] == [[2, 2]]
    assert [one.data["s"].to_pylist() for one in twins.advance(last + size)] == [[4, 6]]


def test_what_is_due_together_comes_as_one_batch() -> None:
    twins = WindowTwins("k", COUNT_AND_SUM, 1, size=10, slide=2)
    two(twins, [(n, 1) for n in range(50)], at=5)
    assert len(twins.advance(8)) == 1
    [found] = twins.advance(1_000)
    assert len(found.data) == 50 * 3


def test_windows_that_are_over_leave_no_slots_behind() -> None:
    """Keys that never come again, and windows that are over, with checkpoints and without."""
    for checkpoints in (False, True):
        twins = WindowTwins("k", COUNT_AND_SUM, 1)
        task = twins.tasks[0]
        for n in range(40):
            two(twins, [(f"{n} {i}", i) for i in range(20)], pa.string(), at=10 * n)
            twins.advance(10 * n)
            if checkpoints:
                twins.freeze()
                twins.encode(10**9)
                twins.settle(True)
        assert task._windows.pairs.count < 120 and task._windows.keys.count < 200


def test_a_hundred_thousand_open_windows_are_frozen_without_looking_at_each() -> None:
    task = WindowTwins("k", COUNT_AND_SUM, 1).made()
    numbers = np.arange(100_000)
    data = pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(numbers)], names=["k", "x"])
    task.process(Columns(data, np.zeros(100_000, np.int64)), 0)
    task.backend.freeze(layers.CutRequest(1))
    frozen = [task.table.frozen, task.timers.table.frozen]
    assert all(one is not None and not one.entries and len(one) == 100_000 for one in frozen)


# The tests of chance prove themselves: each of these faults is found.


PLANTS: dict[str, Any] = {
    "what is written after the cut is frozen, too": mock.patch.object(
        AccumulatorSnapshot, "keep", lambda self, slots: None
    ),
    "windows that an aborted checkpoint left are forgotten": mock.patch.object(
        WindowFront, "take_back", lambda self, columns, taken: None
    ),
    "timers that an aborted checkpoint left are forgotten": mock.patch.object(
        TimerFront, "take_back", lambda self, columns, taken: None
    ),
    "what was deleted stays": mock.patch.object(
        FrozenWindows, "drop", lambda self, limit: set(list(drop(self, limit))[1:])
    ),
    "slots are used again with what is in them": mock.patch.object(WindowState, "_clear", lambda self, slots: None),
    "windows begin in any order": mock.patch.object(
        WindowState, "_begin", lambda self, slots: begin(self, slots[::-1])
    ),
}
begin, drop = WindowState._begin, FrozenWindows.drop


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: str) -> None:
    with PLANTS[plant], pytest.raises((AssertionError, UserCodeError)):
        for seed in range(8):
            aborted(seed)
            lived(LoopedTwins("k", COUNT_AND_SUM, seed, 10, 5), plain("texts", "integers", 8, 0.1), 60)
            lived(WindowTwins("k", COUNT_AND_SUM, seed, 90, 50), plain("texts", "integers", 60, 0.1), 60)
