"""Windows in arrays are the windows that entries would be: the same results in the same order, the same checkpoints, in
whatever order things happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from twins import DAY, KEYS, SUMMED, VALUES, Twins, columns, context, listened_to, live

import tailrace as tr
from tailrace.elements.batches import Columns
from tailrace.graph.graph import Node
from tailrace.graph.operators import Window
from tailrace.state import layers
from tailrace.task.operators import windowstate
from tailrace.task.operators.window import WindowTask

COUNT_AND_SUM = {"n": tr.Count(), "s": tr.Sum("x")}


class WindowTwins(Twins):
    """Windows of `size` every `slide`. Event time goes on as it likes, by a step or several."""

    def __init__(
        self, key: Any, aggregates: dict[str, Any], seed: int, size: int = 10, slide: int = 10, lateness: int = 0
    ) -> None:
        self.spec = (size, slide, -3, lateness)
        self.time = -30
        super().__init__(key, aggregates, seed)

    def made(self, in_columns: bool = True) -> WindowTask:
        operator = Window(self.key, *self.spec, tuple(self.aggregates.items()))
        task = WindowTask(Node(0, operator, "op", "u", True, 1, "columns", ()), context())
        listened_to(task)
        task.side_out["late"] = task.given.append  # type: ignore[attr-defined]
        task._in_columns = task._in_columns and in_columns
        task.ctx.watermark_time = self.time
        return task

    @property
    def in_columns(self) -> bool:
        return self.tasks[0]._windows is not None

    def told(self, batch: Any) -> str:
        return str((batch.data.schema, batch.data.to_pylist(), batch.times.tolist()))

    def both(self, do: Callable[[Any], Any]) -> list[Any]:
        found = super().both(do)
        for ask in (WindowTask.next_event, WindowTask.done_until, WindowTask.state_entries):
            assert ask(self.tasks[0]) == ask(self.tasks[1])
        if self.tasks[0]._windows is not None:
            self.tasks[0]._windows.check()
        return found

    def advance(self, to: int, limit: int = 10**6) -> list[Any]:
        self.time = max(self.time, to)
        return self.both(lambda task: task.advance(self.time, limit))

    def restart(self, crossed: bool) -> None:
        super().restart(crossed)
        for task in self.tasks:
            task.backend.restored(True)
            task.one_schema.schema = self.schema

    schema: Any = None

    def give(self, batch: Any) -> list[Any]:
        """With event time now and then, which may stop in the midst of what is due."""
        self.schema = batch.data.schema
        found = super().give(batch)
        if self.random.random() < 0.5:
            self.advance(self.time + self.random.randrange(12), self.random.choice([1, 3, 10**6]))
        return found


def timed(twins: WindowTwins, batch: Callable[[random.Random], Columns]) -> Callable[[random.Random], Columns]:
    """The same batches at times around the event time of the twins: some late, some early."""

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
    live(twins, timed(twins, batch), steps)
    while twins.tasks[1].next_event() is not None:
        twins.advance(twins.tasks[1].next_event(), 7)
    assert twins.tasks[0].state_entries() == 0
    twins.compare()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """State counts as large, what is frozen in columns comes out in bits, and slots are given back soon."""
    monkeypatch.setattr(layers, "SMALL", 10)
    monkeypatch.setattr(layers, "_UNPACKED", 7)
    monkeypatch.setattr(windowstate, "_ROOM", 4)


SHAPES = {"tumbling": (10, 10, 0), "sliding": (10, 4, 0), "late": (10, 10, 12), "sliding and late": (9, 3, 8)}


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_all_kinds_have_the_windows_that_they_have_in_entries(key: str) -> None:
    for seed, shape in enumerate(SHAPES.values()):
        twins = WindowTwins("k", COUNT_AND_SUM, seed, *shape)
        lived(twins, plain(key, "integers", 30, 0.1 if seed % 2 else 0), 40)
        if key != "decimals":
            assert twins.tasks[0]._in_columns


@pytest.mark.parametrize("value", VALUES)
def test_values_of_all_kinds_are_aggregated_as_they_are_in_entries(value: str) -> None:
    every: dict[str, Any] = {"n": tr.Count(), "least": tr.Min("x"), "most": tr.Max("x")}
    summed: dict[str, Any] = {"s": tr.Sum("x"), "mean": tr.Mean("x")} if value in SUMMED else {}
    for seed, nulls in enumerate((0.3, 0)):
        twins = WindowTwins("k", every | summed, seed, *SHAPES["sliding and late"])
        lived(twins, plain("small integers", value, 12, nulls), 30)


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_happens_windows_in_arrays_are_the_same(shape: str) -> None:
    for seed in range(4):
        kind = ["small integers", "texts"][seed % 2]
        lived(WindowTwins("k", COUNT_AND_SUM, seed, *SHAPES[shape]), plain(kind, "integers", 60, 0.05), 90)


def test_keys_of_several_columns() -> None:
    kinds = {"a": pa.string(), "b": pa.int32(), "c": pa.date32(), "x": pa.float64()}

    def batch(chance: random.Random) -> Columns:
        choices: list[list[Any]] = [["x", "yy", None], [1, 2, None], [DAY, None], [0.5, 2.25, None]]
        return columns(kinds, [tuple(map(chance.choice, choices)) for _ in range(chance.choice([1, 20]))])

    for seed, shape in enumerate(SHAPES.values()):
        lived(WindowTwins(("a", "b", "c"), {"n": tr.Count(), "mean": tr.Mean("x")}, seed, *shape), batch, 50)
