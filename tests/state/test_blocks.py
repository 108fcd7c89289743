"""Blocks of entries end where they are large enough, however the entries come."""

from __future__ import annotations

import pytest

from tailrace.elements.keygroups import KeyGroups
from tailrace.state.backend import Block
from tailrace.state.blocks import BLOCK_BYTES, BLOCK_ENTRIES, Blocks, Encoder
from tailrace.state.memory_backend import MemoryBackend


def made_of(sizes: list[int], portion: int | None) -> list[Block]:
    """The blocks of encoded values of these sizes: put one by one, or so many at once."""
    table = MemoryBackend().table("t")
    blocks = Blocks(Encoder("op", 0, KeyGroups(128)))
    keys, encoded = list(range(len(sizes))), [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    if portion is None:
        for key, data in zip(keys, encoded, strict=True):
            blocks.put(table, 5, key, None, data)
    else:
        for i in range(0, len(keys), portion):
            blocks.put_all(table, 5, keys[i : i + portion], encoded[i : i + portion])
    for _ in blocks.close():
        pass
    return blocks.take()


@pytest.mark.parametrize("portion", [1, 7, 32, 5_000])
@pytest.mark.parametrize("size", [0, 10, 1_000, 60_000, BLOCK_BYTES])
def test_a_portion_at_once_makes_the_blocks_that_its_entries_make(portion: int, size: int) -> None:
    sizes = [size + i % 13 for i in range(5_000 if size < 1_000 else 600 if size == 1_000 else 40)]
    one_by_one = made_of(sizes, None)
    assert made_of(sizes, portion) == one_by_one
    assert len(one_by_one) > 1
    assert sum(block.count for block in one_by_one) == len(sizes)
    assert max(block.count for block in one_by_one) <= BLOCK_ENTRIES
