"""Interval joins in columns: their results are those of the join in rows, and what is kept comes back from checkpoints."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.batches import Columns
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import How, IntervalJoin
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.columns import ColumnJoinTask
from tailrace.testing.backends import Files
from tests.task.operators.joins.driven import HOWS, SECOND, Driven, events, numbered, run_on_disk
from tests.task.operators.joins.driven import small_segments as small_segments  # a fixture of all tests here
from tests.task.operators.joins.test_interval import WITHIN, model


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(HOWS), st.sampled_from(WITHIN), events, events, st.randoms(use_true_random=False))
def test_results_are_those_of_all_pairs_of_records_that_are_not_late(
    how: How, within: tuple[int, int], first: Any, second: Any, chance: random.Random
) -> None:
    one, files, taken = Driven(how, within).run_by_chance(first, second, chance)
    assert Counter(one.found) == model(how, within, *one.taken)
    assert one.task.next_event() is None and one.task.state_entries() == 0
    files.take(one.task.backend, taken + 1)
    assert not sum(table.base.count for table in one.task.backend.tables.values())


@pytest.mark.parametrize("how", HOWS)
def test_results_come_in_one_order_wherever_it_goes_on(how: How) -> None:
    Driven(how, (-2, 3)).check_one_order(("a", 11, 603))


@pytest.mark.parametrize("how", HOWS)
def test_results_are_the_same_with_state_on_disk(how: How, tmp_path: Path) -> None:
    one = run_on_disk(lambda make: Driven(how, (-2, 3), make_backend=make), tmp_path)
    assert Counter(one.found) == model(how, (-2, 3), *one.taken)


@pytest.mark.parametrize("how", HOWS)
def test_a_start_at_another_parallelism_deals_out_what_is_kept_by_key_groups(how: How) -> None:
    one = Driven(how, (-1, 2)).run_on_parallelisms((4, 4), [])
    assert Counter(one.found) == model(how, (-1, 2), *one.taken) != Counter()


def test_what_is_kept_is_bounded_by_the_interval() -> None:
    one = Driven("full", (0, 10))
    for time in range(1, 200):
        one.push([(f"k{time % 50}", time, time)], 0)
        one.push([(f"k{time % 50}", time, 1_000 + time)], 1)
        one.advance(time * SECOND - 1)
        kept = [side.kept for side in one.task.sides]
        assert kept[0] <= 11 and kept[1] <= 2
        assert sum(len(segment) for side in one.task.sides for segment in side.segments) <= 40
    metrics = one.task.ctx.metrics.gauges
    assert [metrics["kept_first"], metrics["kept_second"]] == kept
    one.advance(MAX_TIME)
    assert one.task.state_entries() == 0


def test_a_checkpoint_writes_what_has_come_since_the_last_one() -> None:
    one, files, sizes = Driven("inner", (0, 1_000)), Files(), []
    for i in range(1, 6):
        one.push(numbered([(f"k{j}", 10 * i) for j in range(200)], 1_000 * i), 0)
        sizes.append(files.take(one.task.backend, i).size)
        files.confirm(one.task.backend, i)
    assert max(sizes) < 3 * sizes[0], sizes


@pytest.mark.parametrize("how", HOWS)
def test_an_interval_longer_than_time_ends_at_the_last_time(how: How) -> None:
    """The results of unmatched records have the last time, and come when event time reaches it, not behind it."""
    end = LAST_TIME // SECOND
    for within in ((-2, end - 1), (1 - end, 3), (1 - end, end - 1)):
        one = Driven(how, within)
        one.push([("a", 10, 1), ("b", 11, 2)], 0)
        one.push([("b", 12, 3), ("c", 14, 4)], 1)
        one.advance(13 * SECOND)
        one = one.restored()
        one.advance(LAST_TIME - 1)
        one.task.advance(LAST_TIME, 1_000)
        expected = Counter({(found, min(time, end)): n for (found, time), n in model(how, within, *one.taken).items()})
        assert Counter(one.found) == expected
        assert one.task.next_event() is None and one.task.state_entries() == 0


def test_records_whose_times_are_far_apart_are_joined() -> None:
    """Times that no one index can have."""
    year = 365 * 24 * 3_600
    times = [1, 2 * year, 3_000 * year, 3_000 * year + 1, 200_000 * year]
    one = Driven("full", (-1, 1))
    one.push(numbered([("a", time) for time in times], 0), 0)
    one.push(numbered([("a", time) for time in reversed(times)], 10), 1)
    one.advance(MAX_TIME)
    assert Counter(one.found) == model("full", (-1, 1), *one.taken)
    assert len(one.found) == 7


KEYS: dict[str, tuple[Any, Any, list[Any], list[Any]]] = {
    "whole numbers": (pa.int16(), pa.int64(), [1, -2, 3, None], [3, 1, None, 7]),
    "floats": (pa.float32(), pa.float64(), [0.0, float("nan"), 1.5], [-0.0, float("nan"), 2.5]),
    "texts": (pa.string(), pa.large_string(), ["", "x" * 20, None, "é"], [None, "x" * 20, "x" * 19, ""]),
    "bytes": (pa.binary(), pa.binary(), [b"", b"a\0"], [b"a", b"a\0"]),
    "truth": (pa.bool_(), pa.bool_(), [True, False, None], [False]),
    "instants": (pa.timestamp("s", "UTC"), pa.timestamp("us", "Europe/Berlin"), [0, 1], [0, 1_000_000]),
    "days": (pa.date32(), pa.date32(), [0, 1], [1, 2]),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_equal_as_in_rows(name: str) -> None:
    first, second, a, b = KEYS[name]
    pairs, keys = Driven("inner", (0, 0), schema=None).pairs_of(((first, a), (second, b)))
    expected = {(i, j) for i, x in enumerate(keys[0]) for j, y in enumerate(keys[1]) if x == y}
    assert {*pairs} == expected != set() and len(pairs) == len(expected)


def test_keys_of_several_columns_are_joined() -> None:
    operator = IntervalJoin(("a", "b"), 0, 0, "inner", ("", "_right"))  # type: ignore[arg-type]
    operator = replace(operator, keys=(("a", "b"), ("b", "a")))
    node = Node(0, operator, "join", "u", True, 1, "columns", ())
    task = ColumnJoinTask(node, OperatorContext("join", "u", 0, 1, 0, Services(random_factory=random.Random)))
    found: list[Any] = []
    task.out = lambda batch: found.extend(batch.data.to_pylist())
    for port in (0, 1):
        data = pa.record_batch({"a": [1, 2, None], "b": [2, None, 2], "n": [10 + port, 20 + port, 30 + port]})
        task.process(Columns(data, np.full(3, 5)), port)
    assert found == [
        {"a": None, "b": 2, "n": 30, "a_right": 2, "b_right": None, "n_right": 21},
        {"a": 2, "b": None, "n": 20, "a_right": None, "b_right": 2, "n_right": 31},
    ]


def test_keys_that_are_never_compared_are_refused() -> None:
    one = Driven("inner", (0, 0), schema=None)
    one.task.process(Columns(pa.record_batch({"key": ["a"]}), np.array([1])), 0)
    with pytest.raises(UserCodeError, match=r"int64, those of the other of large_string, and are never compared"):
        one.task.process(Columns(pa.record_batch({"key": [1]}), np.array([1])), 1)
    one = Driven("inner", (0, 0), schema=None)
    with pytest.raises(UserCodeError, match=r"not of decimal128\(3, 1\); cast the column, or call to_rows"):
        one.task.process(Columns(pa.record_batch({"key": pa.array([1], pa.decimal128(3, 1))}), np.array([1])), 1)


def test_a_column_of_nulls_gets_its_type_when_one_comes() -> None:
    one = Driven("inner", (0, 9), schema=None)
    found: list[Any] = []
    one.task.out = lambda batch: found.extend(batch.data.to_pylist())
    one.task.process(Columns(pa.record_batch({"key": ["a"], "v": pa.nulls(1)}), np.array([1])), 0)
    one.task.process(Columns(pa.record_batch({"key": ["a"], "v": [7]}), np.array([2])), 0)
    one.task.process(Columns(pa.record_batch({"key": ["a"], "w": [1]}), np.array([3])), 1)
    assert found == [{"key": "a", "v": None, "w": 1}, {"key": "a", "v": 7, "w": 1}]


def test_it_does_not_go_on_from_another_interval_or_from_rows() -> None:
    one = Driven("inner", (0, 1))
    one.push([("a", 1, 1)], 0)
    data = one.task.snapshot(1)
    with pytest.raises(IncompatibleState, match=r"inner join within 0.0 s and 1.0 s in columns.*left join"):
        Driven("left", (0, 1)).task.restore([MetaPart(0, 1, False, data)])
    with pytest.raises(msgspec.MsgspecError):  # which the worker says to be of another kind of operator
        one.task.restore([MetaPart(0, 1, False, msgspec.msgpack.encode(["inner join"]))])
