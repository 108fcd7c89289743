"""Blocks of entries end where they are large enough, however the entries come."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.elements.keygroups import KeyGroups
from tailrace.state.backend import Block
from tailrace.state.blocks import BLOCK_BYTES, BLOCK_ENTRIES, Blocks, Encoder
from tailrace.state.codecs import all_immutable, unpack
from tailrace.state.memory_backend import MemoryBackend


def made_of(values: list[Any], portion: int | None, encoded: bool = False) -> list[Block]:
    """The blocks of these values, or of these encoded ones: put one by one, or so many at once."""
    table = MemoryBackend().table("t")
    blocks = Blocks(Encoder("op", 0, KeyGroups(128)))
    keys = list(range(len(values)))
    if portion is None:
        for key, value in zip(keys, values, strict=True):
            blocks.put(table, 5, key, None if encoded else value, value if encoded else None)
    else:
        put = blocks.put_all if encoded else blocks.put_values
        for i in range(0, len(keys), portion):
            put(table, 5, keys[i : i + portion], values[i : i + portion])
    for _ in blocks.close():
        pass
    return blocks.take()


def encoded_of(sizes: list[int], portion: int | None) -> list[Block]:
    """The blocks of encoded values of these sizes."""
    return made_of([bytes([i % 251]) * size for i, size in enumerate(sizes)], portion, encoded=True)


@pytest.mark.parametrize("portion", [1, 7, 32, 5_000])
@pytest.mark.parametrize("size", [0, 10, 1_000, 60_000, BLOCK_BYTES])
def test_a_portion_at_once_makes_the_blocks_that_its_entries_make(portion: int, size: int) -> None:
    sizes = [size + i % 13 for i in range(5_000 if size < 1_000 else 600 if size == 1_000 else 40)]
    one_by_one = encoded_of(sizes, None)
    assert encoded_of(sizes, portion) == one_by_one
    assert len(one_by_one) > 1
    assert sum(block.count for block in one_by_one) == len(sizes)
    assert max(block.count for block in one_by_one) <= BLOCK_ENTRIES


TEXT = "a text of thirty-two characters."
VALUES: dict[str, list[object]] = {
    "numbers": [*range(5_000)],
    "texts": [TEXT + str(i) for i in range(5_000)],
    "numbers and bytes": [i if i % 3 else bytes(i % 900) for i in range(5_000)],
    "tuples": [(i, TEXT, None, bytes(i % 100)) for i in range(5_000)],
    "tuples of numbers": [(i, 0.5) for i in range(5_000)],
    "long texts": [TEXT * 4_000 for _ in range(40)],
}


@pytest.mark.parametrize("portion", [1, 7, 32, 5_000])
@pytest.mark.parametrize("name", VALUES)
def test_values_that_come_at_once_are_in_blocks_as_large_as_one_by_one(portion: int, name: str) -> None:
    values = VALUES[name]
    assert all_immutable(values)
    made = made_of(values, portion)
    assert [entry for block in made for entry in zip(*unpack(block.data)[:2], strict=True)] == [*enumerate(values)]
    assert max(block.count for block in made) <= BLOCK_ENTRIES
    assert max(len(block.data) for block in made) < BLOCK_BYTES * 3 // 2
    assert len(made) <= len(made_of(values, None))


@pytest.mark.parametrize(
    "values",
    [[[1]], [1, [2]], [(1, [2])], [(1,), [2]], [1, (2, {})], [{1}], [(1, (2, [3]))], [bytearray(b"a")], [1, (2,)]],
    ids=repr,
)
def test_values_that_may_change_in_place_or_are_of_several_kinds_are_looked_at_one_by_one(values: list[object]) -> None:
    assert not all_immutable(values)


def test_a_value_of_a_class_that_extends_a_plain_one_may_change_in_place() -> None:
    class Text(str):
        note = ""

    class Pair(tuple[int, int]):
        pass

    assert not all_immutable(["a", Text("b")])
    assert not all_immutable([Pair((1, 2))])
    assert not all_immutable([("a", Text("b"))])
