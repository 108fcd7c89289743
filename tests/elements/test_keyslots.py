"""Keys in columns have the slots that a dictionary of their Python values would give them, and come back as these values."""

from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tailrace.elements.keyslots import key_slots

DAY = date(2026, 1, 1)
COLUMNS = {
    "int64": pa.array([5, -7, None, 2**63 - 1, -(2**63), 0, 5]),
    "int8": pa.array([5, -7, None, 127, -128, 0, 5], pa.int8()),
    "uint64": pa.array([5, 2**64 - 1, None, 0, 1, 2**63, 5], pa.uint64()),
    "bool": pa.array([True, False, None, True, False, True, True]),
    "double": pa.array([1.5, float("inf"), None, -1.5, 0.0, 1e300, 1.5]),
    "float": pa.array([1.5, float("inf"), None, -1.5, 0.0, 0.1, 1.5], pa.float32()),
    "string": pa.array(["a", "", None, "ä" * 30, "b", "a\0", "a"]),
    "large string": pa.array(["a", "", None, "ä" * 30, "b", "a\0", "a"], pa.large_string()),
    "binary": pa.array([b"a", b"", None, b"\0" * 8, b"\0" * 9, b"a\0", b"a"]),
    "date": pa.array([DAY, DAY + timedelta(1), None, date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), DAY]),
    "time": pa.array([datetime(2026, 1, 1, 0, 0, i) if i != 2 else None for i in (0, 1, 2, 3, 4, 5, 0)]),
    "zoned": pa.array([0, 10**12, None, 5, -5, 7, 0]).cast(pa.timestamp("us", "Europe/Berlin")),
    "null of a kind": pa.array([None] * 7, pa.int32()),
}


def numbered(columns):
    """The slots, checked against a dictionary; and the index."""
    index = key_slots(columns, "abc")
    assert index.takes(columns)
    keys = list(zip(*(column.to_pylist() for column in columns), strict=True))
    slots, named = index.slots(columns), {}
    for key, slot in zip(keys, slots.tolist(), strict=True):
        assert named.setdefault(key, slot) == slot
    assert sorted(named.values()) == list(range(index.count)) == list(range(len(set(keys))))
    back = [key if len(columns) > 1 else (key,) for key in index.keys(slots)]
    assert back == keys
    assert [list(map(type, key)) for key in back] == [list(map(type, key)) for key in keys]
    assert [column.type for column in index.columns(slots)] == [column.type for column in columns]
    return slots, index


@pytest.mark.parametrize("name", COLUMNS)
def test_keys_of_one_column(name):
    numbered([COLUMNS[name]])
    numbered([COLUMNS[name].slice(3, 3)])
    numbered([COLUMNS[name].slice(2, 0)])


@pytest.mark.parametrize("name", COLUMNS)
def test_keys_of_several_columns(name):
    numbers = pa.array([1, 1, 1, 2, None, 2, 1])
    numbered([COLUMNS[name], numbers, COLUMNS["string"]])
    numbered([COLUMNS[name].slice(3, 2), numbers.slice(3, 2)])


def test_a_key_keeps_its_slot_from_batch_to_batch():
    slots, index = numbered([COLUMNS["string"], COLUMNS["int64"]])
    turned = [column.take(pa.array([4, 2, 0])) for column in (COLUMNS["string"], COLUMNS["int64"])]
    assert index.slots(turned).tolist() == slots[[4, 2, 0]].tolist()


def test_other_columns_are_not_for_the_same_index():
    index = key_slots([pa.array([1, 2])], "a")
    assert not index.takes([pa.array([1, 2], pa.int32())])
    assert not index.takes([pa.array([1, None])])
    assert key_slots([pa.array([1, 2])], "a", nulls=True).takes([pa.array([1, None])])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal("1.5")]),
        pa.array([1], pa.timestamp("ns")),
        pa.array([[1]]),
        pa.array([np.float16(1)], pa.float16()),
        pa.array([1], pa.duration("us")),
    ],
    ids=lambda column: str(column.type),
)
def test_types_without_an_index_are_known(column):
    assert key_slots([column], "a") is None
    assert key_slots([pa.array([1]), column], "ab") is None


def test_small_integers_have_the_same_slots_record_by_record():
    index, rng = key_slots([pa.array([1])], "a"), np.random.default_rng(4)
    for size, most in ((1, 5), (500, 100), (3_000, 5_000), (10, 1 << 20)):
        column = pa.array(rng.integers(0, most, size))
        slots = index.of_records([column])
        assert slots.tolist() == index.slots([column]).tolist()
        assert index.keys(slots.astype(np.int64)) == column.to_pylist()
    assert index.of_records([pa.array([-1])]) is index.of_records([pa.array([1 << 20])]) is None
    assert index.of_records([pa.array([1, None])]) is None
