"""State in columns is the state that entries would be: the same results, the same checkpoints, in whatever order things
happen. Each test drives an operator with its state in columns, and a twin without.
"""

from __future__ import annotations

import random
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from twins import DAY, KEYS, SUMMED, VALUES, Twins, batches, columns, live, made

import tailrace as tr
from tailrace.elements.batches import Columns, Rows
from tailrace.elements.slottables import TextTable
from tailrace.errors import UserCodeError
from tailrace.state import layers
from tailrace.state.tables import StateTable
from tailrace.task.operators.aggregates.state import ColumnState, Frozen


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


def test_the_key_of_a_list_of_one_column_is_a_tuple_as_it_is_in_rows() -> None:
    """Records with such a key went where the tuple belongs, and state went into checkpoints as that of the bare value."""
    data = columns({"k": pa.int64()}, [(n,) for n in range(50)])
    for batch in (data, data.to_rows()):
        for in_columns in (True, False):
            task = made(("k",), {"n": tr.Count()}, in_columns)
            task.process(batch, 0)
            assert sorted(task.table.keys()) == [(n,) for n in range(50)]
    batch = batches("integers", "integers", 60, 0.1, timed=False)
    live(Twins(("k",), {"n": tr.Count(), "s": tr.Sum("x")}, 1), batch, 60)


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
    "what is in columns stays there when they end": mock.patch.object(StateTable, "settle", lambda self: None),
    "texts are told by their hash, and that is their length": mock.patch.multiple(
        TextTable,
        hashes=lambda self, requested: requested.lengths.view(np.uint64) % np.uint64(2),
        _equal=lambda self, requested, which, slots: requested.lengths[which] == self.texts().lengths[slots],
    ),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(plant: str) -> None:
    with PLANTS[plant], pytest.raises((AssertionError, UserCodeError)):
        for seed in range(12):
            twins = Twins("k", {"n": tr.Count(), "s": tr.Sum("x")}, seed)
            live(twins, batches("texts", "integers", 120, 0.1, timed=False), 60)
