"""Slots of distinct things: the same as a dictionary would number them, whatever the hash does."""

import numpy as np
import pytest

from tailrace.elements.slottables import Texts, TextTable, WordTable, places_by_slot


class Named:
    """What a table promises, beside a dictionary."""

    def __init__(self):
        self.slots = {}

    def check(self, things, slots):
        for thing, slot in zip(things, slots.tolist(), strict=True):
            assert self.slots.setdefault(thing, slot) == slot
        assert sorted(self.slots.values()) == list(range(len(self.slots)))


def words(rows):
    return [np.array(column, np.int64) for column in zip(*rows, strict=True)]


def texts(values):
    encoded = [b"" if value is None else value for value in values]
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
    data = np.frombuffer(b"".join(encoded) + bytes(8), np.uint8)
    return Texts(data, np.cumsum([0, *map(len, encoded)][:-1]).astype(np.int64), lengths)


class AllCollide(WordTable):
    def hashes(self, requested):
        return np.full(len(requested[0]), 2**64 - 1, np.uint64)


class TextsCollide(TextTable):
    def hashes(self, requested):
        return requested.lengths.view(np.uint64) % np.uint64(2)


@pytest.mark.parametrize("make", [WordTable, AllCollide])
@pytest.mark.parametrize("width", [1, 2])
def test_things_keep_their_slots(make, width):
    rng, table, named = np.random.default_rng(1), make(width), Named()
    for size in (1, 5, 400, 0, 300):
        rows = [tuple(row) for row in rng.integers(-150, 150, (size, width)).tolist()]
        named.check(rows, table.slots(words(rows) or [np.empty(0, np.int64)] * width))
    assert table.count == len(named.slots)


def test_a_table_grows_by_many_at_once_and_finds_all_again():
    table, many = WordTable(1), np.random.default_rng(2).permutation(100_000) * 7919
    first = table.slots([many])
    assert np.array_equal(table.slots([many]), first)
    assert np.array_equal(table.words[0][first], many)


@pytest.mark.parametrize("make", [TextTable, TextsCollide])
def test_texts_keep_their_slots(make):
    rng, table, named = np.random.default_rng(3), make(), Named()
    for size in (1, 7, 600, 0, 500):
        lengths = rng.integers(-1, 20, size).tolist()
        values = [None if n < 0 else bytes(rng.integers(97, 99, n).astype(np.uint8)) for n in lengths]
        named.check(values, table.slots(texts(values)))
    held = table.texts()
    for value, slot in named.slots.items():
        start, length = int(held.starts[slot]), int(held.lengths[slot])
        assert length == -1 if value is None else table.data[start : start + length].tobytes() == value


def test_a_null_is_not_the_empty_text_and_zeros_are_bytes():
    values = [b"", None, b"\0", b"\0\0", b"12345678", b"12345678\0", b"123456789"]
    assert sorted(TextTable().slots(texts(values)).tolist()) == list(range(7))


@pytest.mark.parametrize("most", [1, 50, 2**16, 2**16 + 1, 2**31])
def test_slots_of_any_size_are_put_in_order(most):
    chance = np.random.default_rng(most)
    slots, within = chance.integers(0, most, 500), chance.integers(-3, 3, 500)
    assert places_by_slot(slots).tolist() == sorted(range(500), key=lambda at: slots[at])
    assert places_by_slot(slots, within).tolist() == sorted(range(500), key=lambda at: (slots[at], within[at]))
    assert places_by_slot(slots[:0]).tolist() == []
