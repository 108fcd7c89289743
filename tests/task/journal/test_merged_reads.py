"""What several steps have read of several channels comes as few batches, in the order in which it was read."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.timestamps import NO_TIME
from tailrace.task.journal.merged_reads import in_order, totals


def batches(chance: random.Random, number: int, count: int, timed: bool, form: str = "rows") -> list[Batch]:
    """The records of a channel in batches of one to five: (the number of the channel, how many were before)."""
    made: list[Batch] = []
    at = 0
    while at < count:
        stop = min(count, at + chance.randint(1, 5))
        groups = np.arange(at, stop).astype(np.uint16) + 100 * number
        times = np.arange(at, stop, dtype=np.int64) if timed else None
        if form == "rows":
            made.append(Rows([(number, i) for i in range(at, stop)], times, groups))
        else:
            made.append(Columns(pa.record_batch({"n": [100 * number + i for i in range(at, stop)]}), times, groups))
        at = stop
    return made


def drawn(chance: random.Random, channels: int) -> list[int]:
    return [n for _ in range(chance.randint(1, 40)) for n in (chance.randrange(channels), chance.randint(1, 4))]


def one_by_one(pieces: list[int]) -> list[tuple[int, int]]:
    """The records that these steps have read."""
    before, found = dict[int, int](), list[tuple[int, int]]()
    for number, count in zip(pieces[::2], pieces[1::2], strict=True):
        start = before.get(number, 0)
        before[number] = start + count
        found += [(number, i) for i in range(start, start + count)]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_records_of_several_channels_are_one_batch_in_the_order_of_the_steps(seed: int) -> None:
    chance = random.Random(seed)
    pieces, timed = drawn(chance, chance.randint(1, 3)), {0: seed % 2 == 0, 1: False, 2: seed % 3 == 0}
    read = {n: batches(chance, n, count, timed[n]) for n, count in totals(pieces).items()}
    ((port, batch),) = in_order(pieces, read, dict.fromkeys(read, 7))
    expected = one_by_one(pieces)
    assert port == 7 and isinstance(batch, Rows) and batch.values == expected
    assert batch.groups is not None and batch.groups.tolist() == [100 * n + i for n, i in expected]
    if any(timed[n] for n in read):
        assert batch.times is not None and batch.times.tolist() == [i if timed[n] else NO_TIME for n, i in expected]
    else:
        assert batch.times is None


@pytest.mark.parametrize("seed", range(10))
def test_records_of_two_ports_take_turns_as_they_did(seed: int) -> None:
    chance = random.Random(seed)
    pieces = drawn(chance, 3)
    read = {n: batches(chance, n, count, timed=False) for n, count in totals(pieces).items()}
    found = in_order(pieces, read, {0: 0, 1: 1, 2: 1})
    assert [record for _, batch in found for record in batch.to_rows().values] == one_by_one(pieces)
    assert all(port == min(record[0], 1) for port, batch in found for record in batch.to_rows().values)
    assert all(a[0] != b[0] for a, b in itertools.pairwise(found)), "as few as that takes"


def test_batches_of_columns_are_those_that_the_steps_have_read() -> None:
    chance = random.Random(3)
    pieces = [0, 3, 1, 2, 0, 4, 1, 1]
    read = {n: batches(chance, n, count, timed=False, form="columns") for n, count in totals(pieces).items()}
    found = [batch for _, batch in in_order(pieces, read, {0: 0, 1: 0})]
    assert [batch.data["n"].to_pylist() for batch in found if isinstance(batch, Columns)] == [
        [0, 1, 2], [100, 101], [3, 4, 5, 6], [102],
    ]  # fmt: skip
