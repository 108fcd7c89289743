"""State in columns is the state that entries would be: the same results, the same checkpoints, in whatever order things
happen. Each test drives an operator with its state in columns, and a twin without.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.elements.batches import Columns, Rows
from tailrace.elements.slottables import TextTable
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Aggregate
from tailrace.state import layers
from tailrace.state.memory import MemoryBackend
from tailrace.state.tables import Table
from tailrace.task.context import OperatorContext
from tailrace.task.operators.aggregate import AggregateTask
from tailrace.task.operators.columnstate import ColumnState, Frozen
from tailrace.task.services import Services
from tailrace.testing.backends import Files, Snapshot

DAY = date(2026, 1, 1)
KEYS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "small integers": (pa.int64(), lambda n: n),
    "integers": (pa.int64(), lambda n: n * 7919 - 50_000),
    "short integers": (pa.int16(), lambda n: n - 20),
    "unsigned": (pa.uint64(), lambda n: 2**64 - 1 - n),
    "texts": (pa.string(), lambda n: "ab" * (n % 13) + str(n)),
    "bytes": (pa.binary(), lambda n: bytes(n)),
    "truth": (pa.bool_(), lambda n: n % 2 == 0),
    "floats": (pa.float64(), lambda n: [0.0, -0.0, float("nan"), -float("nan"), n / 2][n % 5]),
    "dates": (pa.date32(), lambda n: DAY + timedelta(n)),
    "times": (pa.timestamp("us", "Europe/Berlin"), lambda n: 1_792_887_000_000_000 + n * 60_000_000),
    "decimals": (pa.decimal128(5, 2), lambda n: Decimal(n)),
}
VALUES: dict[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "integers": (pa.int64(), lambda r: r.randrange(-1_000, 1_000)),
    "short integers": (pa.int8(), lambda r: r.randrange(-100, 100)),
    "unsigned": (pa.uint64(), lambda r: r.randrange(2**40)),
    "large integers": (pa.int64(), lambda r: r.randrange(-(2**58), 2**58)),
    "floats": (pa.float64(), lambda r: r.choice([0.0, -0.0, float("nan"), float("inf"), 0.1, r.random()])),
    "plain floats": (pa.float64(), lambda r: r.gauss(0, 1e3)),
    "short floats": (pa.float32(), lambda r: float(np.float32(r.random()))),
    "truth": (pa.bool_(), lambda r: r.random() < 0.5),
    "dates": (pa.date32(), lambda r: DAY + timedelta(r.randrange(50))),
    "times": (pa.timestamp("us", "Europe/Berlin"), lambda r: 1_792_887_000_000_000 + r.randrange(200) * 60_000_000),
    "texts": (pa.string(), lambda r: r.choice("abc")),
    "decimals": (pa.decimal128(10, 2), lambda r: Decimal(r.randrange(1_000)) / 4),
}
SUMMED = [name for name in VALUES if name not in ("dates", "times", "texts")]


def made(key: Any, aggregates: dict[str, Any], in_columns: bool = True) -> AggregateTask:
    """An operator. Without `in_columns`: as if its types had no arrays."""
    services = Services(random_factory=random.Random, make_backend=lambda uid, subtask: MemoryBackend(uid=uid))
    node = Node(0, Aggregate(key, tuple(aggregates.items())), "op", "u", True, 1, "columns", ())
    task = AggregateTask(node, OperatorContext("op", "u", 0, 1, 0, services))
    task._in_columns = task._in_columns and in_columns
    task.given = []  # type: ignore[attr-defined]
    task.out = task.given.append  # type: ignore[attr-defined]
    return task


def exactly(value: Any) -> str:
    """What tells 1 from 1.0 and from True, and 0.0 from -0.0."""
    return repr(value)


def entries(task: AggregateTask) -> list[str]:
    return sorted(exactly(entry) for entry in task.table.items())


class Twins:
    """Two operators of the same kind, with what their checkpoints hold."""

    def __init__(self, key: Any, aggregates: dict[str, Any], seed: int) -> None:
        self.key, self.aggregates = key, aggregates
        self.random = random.Random(seed)
        self.tasks = [made(key, aggregates, in_columns) for in_columns in (True, False)]
        self.files = [Files(), Files()]
        self.number = 0
        self.pending: list[int] = []
        self.going: list[Snapshot] = []
        self.cuts: dict[int, list[str]] = {}
        self.confirmed = 0

    @property
    def in_columns(self) -> bool:
        return self.tasks[0]._state is not None

    def give(self, batch: Any) -> list[Any]:
        """The same batch to both. They give the same."""
        found = []
        for task in self.tasks:
            task.process(batch, 0)
            out = [one.to_rows() if isinstance(one, Rows) else one for one in task.given]  # type: ignore[attr-defined]
            task.given.clear()  # type: ignore[attr-defined]
            found.append(out)
        told = [[self._told(one) for one in out] for out in found]
        assert told[0] == told[1]
        assert self.tasks[0].state_entries() == self.tasks[1].state_entries()
        return found[0]

    def _told(self, batch: Any) -> str:
        times = None if batch.times is None else batch.times.tolist()
        if isinstance(batch, Rows):
            return exactly((batch.values, times))
        rows = batch.data.to_pylist()  # in whatever order
        return exactly((str(batch.data.schema), sorted(map(exactly, zip(rows, times or rows, strict=True)))))

    # Checkpoints.

    def freeze(self) -> None:
        if not self.going:
            self.number += 1
            cut = layers.CutRequest(self.number)
            self.cuts[self.number] = entries(self.tasks[1])
            for task in self.tasks:
                task.backend.freeze(cut)
                self.going.append(Snapshot(self.number))
            self._counted()

    def encode(self, limit: int) -> None:
        if self.going:
            done = [
                files.encode(task.backend, one, limit if i == 0 else 10**9)
                for i, (files, task, one) in enumerate(zip(self.files, self.tasks, self.going, strict=True))
                if i == 0 or not one.chains
            ]
            if done[0]:
                self.pending.append(self.number)
                self.going = []
            self._counted()

    def _counted(self) -> None:
        assert self.tasks[0].state_entries() == self.tasks[1].state_entries()

    def settle(self, confirm: bool) -> None:
        """The outcome of a checkpoint: of one that is being encoded only that it is over."""
        if self.pending and (confirm or not self.going):
            number = self.pending.pop(0)
            for files, task in zip(self.files, self.tasks, strict=True):
                if confirm:
                    files.confirm(task.backend, number)
                    self.confirmed = number
                    restored = made(self.key, self.aggregates)
                    files.restore(restored.backend, number, True)
                    assert entries(restored) == self.cuts[number]
                else:
                    task.backend.abort(number)
        elif self.going and not confirm:
            for task in self.tasks:
                task.backend.abort(self.number)
            self.going = []

    def restart(self, crossed: bool) -> None:
        """From the last checkpoint; `crossed`: each from that of the other."""
        for number in (*self.pending, *([self.number] if self.going else [])):
            self.cuts.pop(number)
        self.pending, self.going = [], []
        files = list(reversed(self.files)) if crossed else self.files
        self.files = files
        self.tasks = [made(self.key, self.aggregates, in_columns) for in_columns in (True, False)]
        if self.confirmed:
            for one, task in zip(files, self.tasks, strict=True):
                one.restore(task.backend, self.confirmed, True)
                assert entries(task) == self.cuts[self.confirmed]

    def compare(self) -> None:
        assert entries(self.tasks[0]) == entries(self.tasks[1])


def columns(kinds: dict[str, Any], rows: list[tuple[Any, ...]], timed: bool = False) -> Columns:
    lists = list(zip(*rows, strict=True)) or [()] * len(kinds)
    arrays = [pa.array(one, kind) for one, kind in zip(lists, kinds.values(), strict=True)]
    times = np.arange(len(rows), dtype=np.int64)[::-1] * 1_000 if timed else None
    return Columns(pa.RecordBatch.from_arrays(arrays, names=list(kinds)), times)


def live(twins: Twins, batch: Callable[[random.Random], Columns], steps: int) -> None:
    """Anything that may happen, many times."""
    chance = twins.random
    for _ in range(steps):
        roll = chance.random()
        if roll < 0.55:
            twins.give(batch(chance))
        elif roll < 0.65:
            twins.freeze()
        elif roll < 0.85:
            twins.encode(chance.choice([1, 40, 1_000]))
        elif roll < 0.95:
            twins.settle(chance.random() < 0.6)
        elif roll < 0.97:
            twins.restart(chance.random() < 0.5)
        elif roll < 0.98:
            twins.compare()
    twins.compare()


def batches(key: str, value: str, most: int, nulls: float, timed: bool) -> Callable[[random.Random], Columns]:
    (key_kind, key_of), (value_kind, value_of) = KEYS[key], VALUES[value]

    def one(chance: random.Random) -> Columns:
        missing = nulls if chance.random() < 0.5 else 0
        rows = [
            tuple(
                None if chance.random() < missing else made
                for made in (key_of(chance.randrange(most)), value_of(chance))
            )
            for _ in range(chance.choice([0, 1, 5, 60]))
        ]
        return columns({"k": key_kind, "x": value_kind}, rows, timed)

    return one


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """State counts as large, so that checkpoints are incremental; and what is frozen in columns comes out in bits."""
    monkeypatch.setattr(layers, "SMALL", 10)
    monkeypatch.setattr(layers, "_UNPACKED", 7)


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_all_kinds_have_the_state_that_they_have_without(key: str) -> None:
    for seed in range(2):
        twins = Twins("k", {"n": tr.Count(), "s": tr.Sum("x")}, seed)
        live(twins, batches(key, "integers", 120, 0.1, timed=seed == 0), 60)
        twins.give(columns({"k": KEYS[key][0], "x": pa.int64()}, [(KEYS[key][1](1), 1)], timed=seed == 0))
        assert twins.in_columns == (key != "decimals")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["small integers", "texts"])
def test_values_of_all_kinds_are_aggregated_as_they_are_without(key: str, value: str) -> None:
    every = {"n": tr.Count(), "least": tr.Min("x"), "most": tr.Max("x")}
    summed = {"s": tr.Sum("x"), "mean": tr.Mean("x")} if value in SUMMED else {}
    for seed, nulls in enumerate((0.3, 0)):
        for aggregates in (every, summed):
            if aggregates:
                live(Twins("k", aggregates, seed), batches(key, value, 40, nulls, timed=seed == 0), 40)


def test_keys_of_several_columns() -> None:
    kinds = {"a": pa.string(), "b": pa.int32(), "c": pa.date32(), "x": pa.float64()}

    def batch(chance: random.Random) -> Columns:
        rows = [
            (
                chance.choice(["x", "yy", None]),
                chance.choice([1, 2, None]),
                chance.choice([DAY, None]),
                chance.choice([0.5, 2.25, None]),
            )
            for _ in range(chance.choice([1, 30]))
        ]
        return columns(kinds, rows)

    for seed in range(5):
        twins = Twins(("a", "b", "c"), {"n": tr.Count(), "mean": tr.Mean("x")}, seed)
        live(twins, batch, 60)


def test_a_sum_above_64_bits_is_refused_as_it_is_without() -> None:
    kinds, most = {"k": pa.int64(), "x": pa.int64()}, 2**63 - 1
    for times in (1, 3):
        errors = []
        for in_columns in (True, False):
            task = made("k", {"s": tr.Sum("x")}, in_columns)
            task.process(columns(kinds, [(1, most - 5)]), 0)
            task.process(columns(kinds, [(1, 5)]), 0)
            with pytest.raises(UserCodeError, match="does not fit its column") as error:
                task.process(columns(kinds, [(1, most)] * times), 0)
            errors.append(str(error.value))
        assert errors[0] == errors[1]


def test_the_mean_of_a_sum_above_64_bits_goes_on_exactly() -> None:
    kinds, most = {"k": pa.int64(), "x": pa.int64()}, 2**63 - 1
    twins = Twins("k", {"mean": tr.Mean("x")}, 1)
    for x in (most, 1, most, most - 7, 3):
        twins.give(columns(kinds, [(1, x), (2, 1)]))
    twins.compare()
    assert not twins.in_columns


def test_state_of_rows_that_arrays_cannot_hold_goes_on_as_it_is() -> None:
    """An extreme that is a truth value, a sum above 64 bits, a fraction where whole numbers come."""
    kinds = {"k": pa.int64(), "x": pa.int64()}
    for value in (True, 2**70, Decimal("1.5"), 2.0, np.int64(3)):
        twins = Twins("k", {"most": tr.Max("x"), "s": tr.Mean("x")}, 1)
        for task in twins.tasks:
            task.table[1] = (1, value, (1, value))
        twins.give(columns(kinds, [(2, 5)]))
        assert twins.in_columns
        if value != 2**70:
            twins.give(columns(kinds, [(1, 5), (2, 7)]))
            assert not twins.in_columns
            twins.compare()


def test_keys_that_rows_hold_in_another_type_are_the_same_keys() -> None:
    twins = Twins("k", {"n": tr.Count()}, 1)
    for task in twins.tasks:
        task.table.top.update({True: (True, 5), 2.0: (2.0, 6), Decimal(3): (Decimal(3), 7)})
    [found] = twins.give(columns({"k": pa.int64()}, [(1,), (2,), (3,), (4,)]))
    assert found.data.column("n").to_pylist() == [6, 7, 8, 1]
    twins.freeze()
    twins.encode(10**9)
    twins.settle(True)
    twins.restart(False)
    assert twins.tasks[0].state_entries() == 4


def test_rows_in_between_see_the_state_and_end_the_columns() -> None:
    twins = Twins("k", {"n": tr.Count(), "s": tr.Sum("x")}, 1)
    twins.give(columns({"k": pa.int64(), "x": pa.int64()}, [(1, 10), (2, 20)]))
    twins.freeze()
    twins.encode(1)
    twins.give(columns({"k": pa.int64(), "x": pa.int64()}, [(1, 10), (3, 20)]))
    [found] = twins.give(Rows([{"k": 1, "x": 1}, {"k": 2, "x": 1}, {"k": 4, "x": 1}]))
    assert found.values == [(1, 3, 21), (2, 2, 21), (4, 1, 1)]
    twins.encode(10**9)
    twins.settle(True)
    twins.compare()
    twins.restart(True)


def test_a_million_changed_keys_are_frozen_without_looking_at_each() -> None:
    """The cut is on the way of records: it may copy arrays, and make no object for a key."""
    task = made("k", {"n": tr.Count(), "s": tr.Sum("x")})
    numbers = np.arange(50_000)
    task.process(Columns(pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(numbers)], names=["k", "x"])), 0)
    task.backend.freeze(layers.CutRequest(1))
    frozen = task.table.frozen
    assert frozen is not None and not frozen.entries and len(frozen) == task.state_entries() == 50_000


# The tests of chance prove themselves: each of these faults is found.


def _no_take_back(self: ColumnState, columns: Any, taken: int) -> None:
    self._frozen = None


def _no_look_below(self: ColumnState) -> None:
    get, self.table = self.table.get, SimpleNamespace(get=lambda key: None)  # type: ignore[assignment]
    fill(self)
    self.table = get.__self__


fill = ColumnState._fill
PLANTS: dict[str, Any] = {
    "what is written after the cut is frozen, too": mock.patch.object(Frozen, "keep", lambda self, slots: None),
    "what an aborted checkpoint left is forgotten": mock.patch.object(ColumnState, "take_back", _no_take_back),
    "restored state is not looked for": mock.patch.object(ColumnState, "_fill", _no_look_below),
    "what is in columns stays there when they end": mock.patch.object(Table, "settle", lambda self: None),
    "texts are told by their hash, and that is their length": mock.patch.multiple(
        TextTable,
        hashes=lambda self, asked: asked.lengths.view(np.uint64) % np.uint64(2),
        _equal=lambda self, asked, which, slots: asked.lengths[which] == self.texts().lengths[slots],
    ),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: str) -> None:
    with PLANTS[plant], pytest.raises((AssertionError, UserCodeError)):
        for seed in range(12):
            twins = Twins("k", {"n": tr.Count(), "s": tr.Sum("x")}, seed)
            live(twins, batches("texts", "integers", 120, 0.1, timed=False), 60)
