"""Pickles of batches of records, which share picklers."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from tailrace.elements import valuepickling
from tailrace.elements.valuepickling import pickle_values


@dataclass
class Point:
    x: int


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("no")


class Outer:
    """An object that pickles a batch while its own batch is pickled."""

    def __init__(self, inner: int) -> None:
        self.inner = inner

    def __reduce__(self) -> Any:
        data, _ = pickle_values([self.inner])
        return Outer, tuple(pickle.loads(data))


def shape_names(values: list[Any]) -> list[str]:
    data, shapes = pickle_values(values)
    pickle.loads(data)
    return [shape.name for shape in shapes]


@pytest.fixture(autouse=True)
def _no_spare_picklers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valuepickling, "_spare", [])


def test_a_batch_has_the_shapes_of_its_own_objects_only() -> None:
    assert [len(shape_names(batch)) for batch in ([1], [Point(1)], [2], [Point(2), Point(3)], ["x"])] == [0, 1, 0, 1, 0]


def test_a_batch_refers_to_no_object_of_the_batch_before() -> None:
    shared = ["seen"]
    for _ in range(3):
        [first, second] = pickle.loads(pickle_values([shared, shared])[0])
        assert first is second and first == shared


def test_a_batch_that_cannot_be_pickled_leaves_nothing_to_the_next_one() -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            pickle_values(["before", Refuses()])
        assert pickle.loads(pickle_values(["behind"])[0]) == ["behind"]


def test_a_batch_may_be_pickled_within_another_one() -> None:
    pickle_values([0])
    data, _ = pickle_values([(1,), Outer(7), (2,)])
    one, outer, two = pickle.loads(data)
    assert (one, outer.inner, two) == ((1,), 7, (2,))


def test_the_pickler_of_a_large_batch_is_not_used_again() -> None:
    pickle_values([["x" * 1000 + str(n) for n in range(1000)]])
    assert valuepickling._spare == []
    pickle_values([1])
    assert len(valuepickling._spare) == 1
