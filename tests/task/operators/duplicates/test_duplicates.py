"""Records without duplicates are those of a plain model, in rows as in columns, in whatever order things happen."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from twins import KEYS, Twins, columns, context, listened_to, live

from tailrace.elements.batches import Columns
from tailrace.graph.graph import Node
from tailrace.graph.operators import DropDuplicates
from tailrace.state import layers
from tailrace.task.operators.duplicates.duplicates import DuplicatesTask


def by_rows(task: DuplicatesTask, batch: Any, port: int) -> None:
    DuplicatesTask.process(task, batch.to_rows(), port)


class Unhurried(DuplicatesTask):
    """An operator that forgets all that is over at once: which keys a portion has depends on the order of the entries."""

    def _forget(self, time: int, limit: int) -> None:
        super()._forget(time, 10**6)


class DuplicateTwins(Twins):
    """One operator that is given columns, and one that is given rows."""

    kind: type[DuplicatesTask] = Unhurried

    def __init__(self, key: Any, seed: int, within: int | None, timed: bool = True) -> None:
        self.operator = DropDuplicates(key, within, timed)
        self.time = -30
        super().__init__(key, {}, seed)

    def made(self, in_columns: bool = True) -> DuplicatesTask:
        task = self.kind(Node(0, self.operator, "op", "u", True, 1, "columns", ()), context())
        listened_to(task)
        task.side_out["late"] = lambda late: task.given.append(("late", late))  # type: ignore[attr-defined]
        if not in_columns:
            task.process = MethodType(by_rows, task)  # type: ignore[method-assign]
        task.ctx.watermark_time = self.time
        task.ctx.services.now = self.time
        return task

    def told(self, batch: Any) -> str:
        if isinstance(batch, tuple):
            return "late " + self.told(batch[1])
        return repr((batch.to_rows().values, batch.times.tolist()))

    def advance(self, to: int, limit: int) -> None:
        self.time = max(self.time, to)
        for task in self.tasks:
            task.ctx.services.now = self.time
        self.both(lambda task: task.advance(self.time, limit))

    def restart(self, crossed: bool) -> None:
        super().restart(crossed)
        for task in self.tasks:
            task.backend.end_restore(True)

    def give(self, batch: Any) -> list[Any]:
        found = super().give(batch)
        if self.random.random() < 0.5:
            self.advance(self.time + self.random.randrange(12), 10**6)
        return found


def batches(twins: DuplicateTwins, key: str, most: int, nulls: float = 0.1) -> Callable[[Any], Columns]:
    kind, key_of = KEYS[key]
    if key == "floats":  # 0.0 and -0.0 are one key, and either may stand for it
        key_of = lambda n: [0.0, float("nan"), -float("nan"), n / 2][n % 4]  # noqa: E731

    def one(chance: random.Random) -> Columns:
        missing = nulls if chance.random() < 0.5 else 0
        rows = [
            (None if chance.random() < missing else key_of(chance.randrange(most)), n)
            for n in range(chance.choice([1, 5, 40]))
        ]
        data = columns({"k": kind, "n": pa.int64()}, rows).data
        return Columns(data, np.array([twins.time + chance.randrange(-8, 30) for _ in rows], np.int64))

    return one


@pytest.mark.parametrize("key", KEYS)
def test_records_in_columns_are_kept_as_those_in_rows_are(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SMALL", 10)
    for seed, (within, timed) in enumerate(((5, True), (200, True), (None, True), (7, False))):
        twins = DuplicateTwins("k", seed, within, timed)
        live(twins, batches(twins, key, 12), 60)


def test_keys_of_several_columns_are_kept_alike() -> None:
    twins = DuplicateTwins(("k", "n"), 1, 20)
    live(twins, batches(twins, "texts", 5), 60)


@pytest.mark.parametrize("seed", range(12))
def test_a_record_is_kept_if_none_of_its_key_was_kept_near_it(seed: int) -> None:
    chance = random.Random(seed)
    within = chance.choice([1, 5, 20])
    twins = DuplicateTwins("k", seed, within)
    one = batches(twins, "integers", 6)
    kept: dict[Any, list[int]] = {}
    late = total = 0
    for _ in range(60):
        reached, batch = twins.time, one(chance)
        expected, aside = [], []
        assert batch.times is not None
        for key, n, time in zip(*batch.data.to_pydict().values(), batch.times.tolist(), strict=True):
            near = kept.setdefault(key, [])
            if time <= reached:
                aside.append((key, n, time))
            elif not any(abs(time - other) <= within for other in near):
                near.append(time)
                expected.append((key, n, time))
        found: dict[bool, list[Any]] = {False: [], True: []}
        for part in twins.give(batch):
            is_late = isinstance(part, tuple)
            rows = (part[1] if is_late else part).to_rows()
            found[is_late] += [(*row, time) for row, time in zip(rows.values, rows.times.tolist(), strict=True)]
        assert found == {False: expected, True: aside}
        late, total = late + len(aside), total + len(expected)
    assert late and total
    assert twins.tasks[0].ctx.metrics.counters["late_records"] == late


def test_keys_whose_time_is_over_are_forgotten_a_portion_at_a_time() -> None:
    class Portions(DuplicateTwins):
        kind = DuplicatesTask

    twins = Portions("k", 0, 640)
    rows = [(n, n) for n in range(100)]
    twins.random.random = lambda: 1.0  # type: ignore[method-assign]
    twins.give(Columns(columns({"k": pa.int64(), "n": pa.int64()}, rows).data, np.full(100, 0, np.int64)))
    twins.advance(639, 10**6)
    assert len(twins.tasks[0].table) == 100
    twins.advance(700, 30)
    assert len(twins.tasks[0].table) == 70
    twins.advance(701, 10**6)
    assert len(twins.tasks[0].table) == 0 and not twins.tasks[0]._buckets


def test_a_key_that_comes_again_and_again_has_no_more_than_its_times() -> None:
    twins = DuplicateTwins("k", 0, 10)
    for time in range(0, 2_000, 11):
        twins.give(Columns(columns({"k": pa.int64(), "n": pa.int64()}, [(1, time)]).data, np.array([time], np.int64)))
        twins.advance(time - 1, 10**6)
    [(_, times)] = twins.tasks[0].table.items()
    assert len(times) <= 2
