"""State that became columns comes back from these as it was: no dictionary is taken for a tuple, and none for pairs."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.statedata.types import NoColumn, column_for
from tailrace.statedata.values import state_values

CASES: list[Any] = [
    {"_1": 5},
    {"_1": 5, "_2": 6},
    {(1, "x"): 2},
    {(1, "x"): {(2, "y"): (3, {"_1": "a"})}},
    [({"_1": 1}, 2), ({}, 3)],
    ({"_1": 1}, [{"_1": 1}], (1, (2,))),
    {"a": (1, [(2,)]), "b": (3, [])},
    [[{("a",): None}]],
    {1: {2: {3: "x"}}},
]


@pytest.mark.parametrize("value", CASES, ids=str)
def test_what_was_read_is_put_back_as_it_was(value: Any) -> None:
    column = column_of_values([value, None, value], pa.field("value", column_for([value])))
    found = state_values(column, "value")
    assert found == [value, None, value] and repr(found[0]) == repr(value)


def drawn(random: Random, depth: int = 3) -> Any:
    """A value of state; those of one list or dictionary are alike."""
    kind = random.randint(0, 4 if depth else 1)
    if kind < 2:
        return random.choice([random.randint(-9, 9), random.choice("ab_")])
    if kind == 2:
        return tuple(drawn(random, depth - 1) for _ in range(random.randint(1, 3)))
    one = drawn(random, depth - 1)
    if kind == 3:
        return [one] * random.randint(0, 3)
    key = drawn(random, depth - 1) if random.random() < 0.5 else random.choice(["_1", "_2", "a"])
    return {key: one} if _hashable(key) else {"_1": one, "_2": one}


def _hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("seed", range(200))
def test_any_value_comes_back(seed: int) -> None:
    value = drawn(Random(seed))
    assert repr(state_values(column_of_values([value], pa.field("v", column_for([value]))), "v")) == repr([value])


def test_a_dictionary_that_would_come_back_as_a_tuple_has_no_column() -> None:
    with pytest.raises(NoColumn):
        column_for([{"_1": 5, "_2": "x"}])


def test_a_map_with_a_key_twice_is_no_dictionary() -> None:
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(Misfit, match=r"column 'v' of map<string, int64> has a value .*a key is there twice"):
        state_values(twice, "v")
