"""Feedback that waits, merged by key: where a merged record stands, and what it keeps of its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailrace.elements.batches import Rows
from tailrace.elements.timestamps import NO_TIME
from tailrace.task.channels.combining import Combined, Combiner


def waiting(*batches: Rows, key: Any = lambda record: record[0]) -> Combined:
    combiner = Combiner(lambda rows: [key(one) for one in rows.values], lambda a, b: (a[0], min(a[1], b[1])))
    combined = Combined(combiner, "loop", 0)
    for batch in batches:
        combined.add(batch)
    return combined


def rows(*values: Any, times: list[int] | None = None, groups: list[int] | None = None) -> Rows:
    at = None if times is None else np.array(times, np.int64)
    return Rows(list(values), at, None if groups is None else np.array(groups, np.uint16))


def seen(taken: Rows) -> tuple[list[Any], Any, Any]:
    return taken.values, *(None if one is None else one.tolist() for one in (taken.times, taken.groups))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_records_are_taken_in_the_order_in_which_their_keys_came(limit: int) -> None:
    combined = waiting(rows(("b", 5), ("a", 3)), rows(("c", 9), ("b", 1), ("a", 4)))
    taken: list[Any] = []
    while len(combined):
        taken += combined.take(limit).values
    assert taken == [("b", 1), ("a", 3), ("c", 9)]


def test_a_key_that_was_taken_comes_behind_those_that_wait() -> None:
    combined = waiting(rows(("a", 3), ("b", 5), groups=[1, 2]))
    assert seen(combined.take(1)) == ([("a", 3)], None, [1])
    combined.add(rows(("a", 7), ("b", 4), groups=[1, 2]))
    assert seen(combined.take(5)) == ([("b", 4), ("a", 7)], None, [2, 1])
    assert seen(combined.take(5)) == ([], None, [])


def test_a_merged_record_has_the_latest_timestamp_of_its_parts() -> None:
    first = rows(("a", 1), ("b", 1), ("c", 1), times=[7, NO_TIME, 3])
    combined = waiting(first, rows(("a", 2), ("b", 2)), rows(("c", 2), ("a", 0), times=[9, 5]))
    assert seen(combined.take(2))[1] == [7, NO_TIME]
    assert seen(combined.take(2))[1] == [9]
    combined.add(rows(("a", 1)))
    assert combined.take(1).times is None


def test_nan_is_one_key() -> None:
    combined = waiting(rows((float("nan"), 3), (-float("nan"), 2), (0.0, 1), (-0.0, 0)), key=lambda record: record[0])
    assert [one[1] for one in combined.take(4).values] == [2, 0]
