"""Keys that are read again from their canonical bytes: the very same key, of the very same types, or it is not described."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from datetime import date
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.elements.keys import DescribedKeys, canonical_bytes


@dataclass(frozen=True)
class Place:
    town: str
    number: Any


@dataclass(frozen=True, slots=True)
class Route:
    start: Place
    end: Any


class Pair(NamedTuple):
    left: int
    right: int


class Colour(IntEnum):
    RED = 1


described = st.recursive(
    st.none() | st.integers() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.builds(Place, st.text(max_size=5), inner)
        | st.builds(Route, st.builds(Place, st.text(max_size=5), inner), inner)
    ),
    max_leaves=8,
)


def kinds(key: Any) -> Any:
    """The types of a key and of all its parts."""
    if isinstance(key, tuple):
        return type(key), *map(kinds, key)
    if isinstance(key, Place):
        return Place, kinds(key.town), kinds(key.number)
    return (Route, kinds(key.start), kinds(key.end)) if isinstance(key, Route) else type(key)


@given(described)
def test_a_described_key_comes_back_with_its_types(key: Any) -> None:
    keys = DescribedKeys()
    assert key in keys
    read = keys.read(b"in front" + canonical_bytes(key), 8)
    assert read == key
    assert kinds(read) == kinds(key)
    assert hash(read) == hash(key)


@pytest.mark.parametrize(
    "key",
    [True, 1.0, Decimal(1), np.int64(1), Colour.RED, float("nan"), Pair(1, 2), date(2026, 1, 1)],
    ids=repr,
)
def test_a_key_whose_bytes_are_those_of_another_type_is_not_described(key: Any) -> None:
    keys = DescribedKeys()
    assert key not in keys
    assert (1, key) not in keys
    assert Place("a", key) not in keys
    assert Route(Place("a", 1), (key,)) not in keys


def test_an_object_with_attributes_that_are_no_fields_is_not_described() -> None:
    place = Place("a", 1)
    place.__dict__["note"] = "which its bytes do not have"
    assert place not in DescribedKeys()


def test_of_two_classes_of_one_name_only_the_first_is_described() -> None:
    first, second = (make_dataclass("Again", ["n"], frozen=True) for _ in range(2))
    for each in (first, second):
        each.__module__ = __name__
    globals()["Again"] = first
    keys = DescribedKeys()
    assert first(1) in keys
    globals()["Again"] = second
    assert second(1) not in keys
    assert type(keys.read(canonical_bytes(first(1)))) is first
