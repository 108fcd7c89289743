"""Integer columns get the very groups that their numbers get one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.intkeys import hashes
from tailrace.elements.keycolumns import groups_of_arrow
from tailrace.elements.keygroups import KeyGroups, key_group
from tailrace.elements.keys import key_hash

EDGES = sorted({sign * (1 << bits) + by for bits in range(63) for by in (-1, 0, 1) for sign in (1, -1)})


def test_hashes_at_every_length_of_an_integer() -> None:
    assert hashes(np.array(EDGES, np.int64)).tolist() == [key_hash(number) for number in EDGES]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.sampled_from([1, 2, 128, 32_768]))
def test_groups_of_any_integers(numbers: list[int], groups: int) -> None:
    found = KeyGroups(groups).groups_of_integers(np.array(numbers, np.int64))
    assert found.tolist() == [key_group(number, groups) for number in numbers]
    assert found.dtype == np.uint16


@settings(deadline=None)
@given(st.lists(st.integers(0, 3_000)), st.lists(st.integers(0, 2**21)))
def test_the_table_of_small_ones_grows_with_what_is_requested(first: list[int], then: list[int]) -> None:
    cache = KeyGroups(128)
    for numbers in (first, then, first):
        assert cache.groups_of_integers(np.array(numbers, np.int64)).tolist() == [key_group(n, 128) for n in numbers]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()])
def test_columns_of_every_integer_type_sliced_or_with_nulls(kind: pa.DataType) -> None:
    numbers = [0, 1, 7, 100, 127, 3]
    whole = pa.array([*numbers, None], kind)
    cache = KeyGroups(128)
    assert groups_of_arrow(whole, cache).tolist() == [key_group(number, 128) for number in [*numbers, None]]
    assert groups_of_arrow(whole.slice(2, 3), cache).tolist() == [key_group(number, 128) for number in numbers[2:5]]


@pytest.mark.parametrize(
    "few", [[0], [1 << 20], [-1, 5], [-(2**63), 2**63 - 1], [2**64, -(2**70)], [True, 1], [7, "7"]]
)
@pytest.mark.parametrize("crowded", [False, True])
def test_many_at_once_get_the_groups_that_each_gets(few: list[object], crowded: bool) -> None:
    """Many keys go through an array where that is quicker. Among others, or beyond 64 bits, each is looked up."""
    cache = KeyGroups(128)
    if crowded:
        cache.groups_of([str(n) for n in range(40_000)])
    keys = [*range(1000), *few, *range(0, 10**9, 10**6)]
    assert cache.groups_of(keys).tolist() == [key_group(key, 128) for key in keys]
    assert cache.groups_of(keys[::-1]).tolist() == [key_group(key, 128) for key in keys[::-1]]
