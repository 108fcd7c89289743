"""Both forms of a batch answer to one interface, and nothing is lost or reordered in it."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.elements.batches import Columns, Rows, concat, joinable
from tailrace.elements.timestamps import NO_TIME

FORMS = ["rows", "columns"]


def batch(form: str, values: list[int], times: list[int] | None = None, groups: list[int] | None = None) -> Any:
    when = None if times is None else np.array(times, np.int64)
    group = None if groups is None else np.array(groups, np.uint16)
    if form == "rows":
        return Rows([(value,) for value in values], when, group)
    return Columns(pa.record_batch({"x": pa.array(values, pa.int64())}), when, group)


def content(part: Any) -> list[tuple[int, int | None, int | None]]:
    """Each record with its timestamp and its key group."""
    rows = part.to_rows()
    times = [None] * len(rows) if rows.times is None else rows.times.tolist()
    groups = [None] * len(rows) if rows.groups is None else rows.groups.tolist()
    return [(value[0], time, group) for value, time, group in zip(rows.values, times, groups, strict=True)]


@pytest.mark.parametrize("form", FORMS)
def test_a_slice_takes_timestamps_and_groups_along(form: str) -> None:
    part = batch(form, [1, 2, 3, 4], [10, 20, 30, 40], [1, 2, 3, 4]).slice(1, 3)
    assert len(part) == 2
    assert content(part) == [(2, 20, 2), (3, 30, 3)]


@pytest.mark.parametrize("form", FORMS)
@given(targets=st.lists(st.integers(0, 9), max_size=50), count=st.sampled_from([1, 2, 4, 5, 10]))
def test_a_partition_holds_each_record_once_and_in_order(form: str, targets: list[int], count: int) -> None:
    where = np.array([target % count for target in targets], np.int64)
    numbers = list(range(len(targets)))
    whole = batch(form, numbers, [n * 10 for n in numbers], [n % 7 for n in numbers])
    parts = whole.partition(where, count)
    assert [target for target, _ in parts] == sorted({int(t) for t in where})
    for target, part in parts:
        assert content(part) == [(n, n * 10, n % 7) for n in numbers if where[n] == target]


@pytest.mark.parametrize("count", [2, 5])
def test_a_partition_of_rows_holds_the_records_themselves(count: int) -> None:
    """Whatever they are: an array would take some of them apart, or make others of them."""
    records = [
        (1, 2),
        [3, 4],
        np.arange(2),
        np.array(5),
        np.int64(6),
        np.datetime64("2026-01-01"),
        None,
        "ab",
        {},
        1 << 70,
    ]
    targets = np.arange(len(records)) % count
    found = {target: part.values for target, part in Rows(records).partition(targets, count)}
    for target in range(count):
        assert list(map(id, found[target])) == list(map(id, records[target::count]))


@pytest.mark.parametrize("form", FORMS)
def test_concat_is_the_records_of_all_in_order(form: str) -> None:
    whole = concat([batch(form, [1], [5], [1]), batch(form, [2, 3], [6, 7], [2, 3])])
    assert content(whole) == [(1, 5, 1), (2, 6, 2), (3, 7, 3)]


@pytest.mark.parametrize("form", FORMS)
def test_concat_marks_the_records_that_had_no_timestamp(form: str) -> None:
    whole = concat([batch(form, [1]), batch(form, [2], [6]), batch(form, [3])])
    assert content(whole) == [(1, NO_TIME, None), (2, 6, None), (3, NO_TIME, None)]
    assert concat([batch(form, [1]), batch(form, [2])]).times is None


def test_one_batch_is_joined_with_nothing_and_stays_itself() -> None:
    only = batch("rows", [1])
    assert concat([only]) is only


def test_columns_join_only_where_their_schema_is_one() -> None:
    numbers, texts = Columns(pa.record_batch({"x": [1]})), Columns(pa.record_batch({"x": ["a"]}))
    assert joinable(numbers, Columns(pa.record_batch({"x": [2]})))
    assert not joinable(numbers, texts)
    assert not joinable(numbers, Rows([1]))
    assert joinable(Rows([1]), Rows(["a"]))


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch_can_be_asked_everything(form: str) -> None:
    empty = batch(form, [], [], [])
    assert len(empty) == 0
    assert content(empty.slice(0, 0)) == []
    for count in (1, 3, 8):
        assert [part for _, part in empty.partition(np.empty(0, np.int64), count) if len(part)] == []
    assert content(concat([empty, batch(form, [1], [2], [3])])) == [(1, 2, 3)]
