"""Joins with versions in columns: each record has the newest version that is not later, wherever it goes on."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.batches import Columns
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import IncompatibleState
from tailrace.graph.graph import Node
from tailrace.graph.operators import AsOfJoin, How, Operator
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.versions import RECORDS, ColumnVersionsTask
from tailrace.task.operators.stores.segments import GONE, VersionSegment
from tailrace.testing.backends import Files
from tests.task.operators.joins.driven import (
    SCHEMA,
    SECOND,
    Driven,
    Event,
    events,
    numbered,
    run_on_disk,
)
from tests.task.operators.joins.driven import small_segments as small_segments  # a fixture of all tests here
from tests.task.operators.joins.test_columns import KEYS

HOWS: list[How] = ["inner", "left", "semi", "anti"]
Options = tuple[int | None, int | None]
"""`keep` and `load_until`, in seconds."""
OPTIONS: list[Options] = [(None, None), (3, None), (0, None), (None, 6), (2, 7), (None, 40)]


class Versions(Driven):
    """A join with versions that is driven by hand."""

    kind = ColumnVersionsTask

    def operator(self, how: How, within: Options) -> Operator:
        keep, until = (None if time is None else time * SECOND for time in within)
        return AsOfJoin(("key", "key"), how, ("_x", "_y"), keep, until)

    def check_index(self, one: Any) -> None:
        if isinstance(one, VersionSegment):
            hashes, times, seqs, rows = one.index()
            places = list(zip(hashes.tolist(), times.tolist(), seqs.tolist(), strict=True))
            assert places == sorted(places) and sorted(rows.tolist()) == [*range(len(one))], "T28"
            assert (one.records.hashes[rows] == hashes).all() and (one.records.times[rows] == times).all(), "T28"

    def comes_out(self, port: int) -> bool:
        return port == RECORDS

    def advance(self, time: int, limit: int = 1_000) -> None:
        super().advance(time, limit)
        passed: Counter[str] = Counter()
        for one in self.task.sides[1].segments:
            there = (one.records.marks & GONE == 0) & (one.records.times <= time)
            passed.update(one.records.data.column("key").filter(pa.array(there)).to_pylist())
            if self.task.keep is not None:
                assert (one.records.times[there] > time - self.task.keep).all(), "T29"
        assert all(count == 1 for count in passed.values()), "T29"


def model(how: How, options: Options, first: list[Event], second: list[Event]) -> Counter[Any]:
    """The results with their times, by a look at all versions for each record."""
    keep, until = options
    found: Counter[Any] = Counter()
    for a in first:
        time = a[1] if until is None else max(a[1], until)
        known = [(b[1], i) for i, b in enumerate(second) if b[0] == a[0] and b[1] <= time]
        b = second[max(known)[1]] if known else None
        if b is not None and keep is not None and time - b[1] > keep:
            b = None
        if how in ("semi", "anti"):
            if (b is None) is (how == "anti"):
                found[a, time] += 1
        elif b is not None or how == "left":
            found[(a, b), time] += 1
    return found


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(HOWS), st.sampled_from(OPTIONS), events, events, st.randoms(use_true_random=False))
def test_each_record_that_is_not_late_has_the_newest_version_that_is_not_later(
    how: How, options: Options, first: Any, second: Any, chance: random.Random
) -> None:
    one, *_ = Versions(how, options).run_by_chance(first, second, chance)
    assert Counter(one.found) == model(how, options, *one.taken)
    left_over = 0 if options[0] is not None else len({b[0] for b in one.taken[1]})
    assert one.task.next_event() is None and one.task.state_entries() == left_over


@pytest.mark.parametrize("how", HOWS)
def test_results_come_in_one_order_wherever_it_goes_on(how: How) -> None:
    Versions(how, (None, None)).check_one_order(("a", 10, 603))


@pytest.mark.parametrize("how", HOWS)
def test_results_are_the_same_with_state_on_disk(how: How, tmp_path: Path) -> None:
    one = run_on_disk(lambda make: Versions(how, (4, None), make_backend=make), tmp_path)
    assert Counter(one.found) == model(how, (4, None), *one.taken)


@pytest.mark.parametrize("options", [(None, None), (3, None), (None, 9)])
def test_a_start_at_another_parallelism_deals_out_what_is_kept_by_key_groups(options: Options) -> None:
    """Of the two subtasks in between, each is at an event time of its own."""
    one = Versions("left", options).run_on_parallelisms((4, 6), [(64, 128, 6 * SECOND)])
    assert Counter(one.found) == model("left", options, *one.taken) != Counter()


def test_only_the_newest_version_of_each_key_is_kept_beside_what_waits() -> None:
    one = Versions("inner", (None, None))
    for time in range(1, 400):
        one.push([(f"k{time % 5}", time, time)], 0)
        one.push([(f"k{time % 5}", time, 1_000 + time)], 1)
        one.advance(time * SECOND - 1)
        kept = [side.kept for side in one.task.sides]
        assert kept[0] <= 1 and kept[1] <= 6
        assert sum(len(segment) for side in one.task.sides for segment in side.segments) <= 40
    metrics = one.task.ctx.metrics.gauges
    assert [metrics["kept_first"], metrics["kept_second"]] == kept


def test_a_checkpoint_writes_what_has_come_since_the_last_one() -> None:
    one, files, sizes = Versions("inner", (None, None)), Files(), []
    one.push(numbered([(f"k{j}", 5) for j in range(1_000)], 100_000), 1)
    for i in range(1, 5):
        one.push(numbered([(f"k{j}", 10 * i) for j in range(50)], 1_000 * i), 0)
        one.push(numbered([(f"k{j}", 10 * i) for j in range(10)], 1_000 * i), 1)
        one.advance(10 * i * SECOND)
        sizes.append(files.take(one.task.backend, i).size)
        files.confirm(one.task.backend, i)
    assert max(sizes[1:]) < sizes[0] / 3, sizes


def test_a_change_of_keep_or_load_until_holds_for_what_is_kept() -> None:
    some = [("a", 5, 1), ("a", 20, 2)]
    for old, new, expected in (
        ((2, None), (9, None), [(1, 10, 5), (2, None, 20)]),
        ((9, None), (2, None), [(1, None, 5), (2, None, 20)]),
        ((None, None), (None, 12), [(1, 11, 12), (2, 11, 20)]),
        ((None, 12), (None, None), [(1, 11, 12), (2, 11, 20)]),
    ):
        one = Versions("left", old)
        one.push(some, 0)
        one.push([("a", 1, 10), ("a", 11, 11)] if None in old[:1] else [("a", 1, 10)], 1)
        files, data = Files(), one.task.snapshot(1)
        files.take(one.task.backend, 1)
        other = Versions("left", new)
        other.task.restore([MetaPart(0, 1, False, data)])
        files.restore(other.task.backend, 1, False)
        other.advance(MAX_TIME)
        assert [(a[2], b and b[2], time) for (a, b), time in other.found] == expected, (old, new)


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_equal_as_in_rows(name: str) -> None:
    first, second, a, b = KEYS[name]
    pairs, keys = Versions("inner", (None, None), schema=None).pairs_of(((first, a), (second, b)))
    expected = {(i, max(j for j, y in enumerate(keys[1]) if x == y)) for i, x in enumerate(keys[0]) if x in keys[1]}
    assert sorted(pairs) == sorted(expected) != []


def test_null_in_a_version_is_a_value() -> None:
    one = Versions("left", (None, None), schema=SCHEMA)
    found: list[Any] = []
    one.task.out = lambda batch: found.extend(batch.data.to_pylist())
    for port, keys, numbers in ((1, ["a", "a", None], [1, None, 7]), (0, ["a", "b", None], [5, 6, 8])):
        data = pa.RecordBatch.from_pydict({"key": keys, "at": [1, 1, 1], "n": numbers}, SCHEMA)
        one.task.process(Columns(data, np.array([10, 11, 12])), port)
    one.task.advance(12, 10)
    assert [(row["key"], row["n_x"], row["at_y"], row["n_y"]) for row in found] == [
        ("a", 5, 1, 1), ("b", 6, None, None), (None, 8, 1, 7),
    ]  # fmt: skip


def test_versions_that_are_far_apart_in_time_are_found() -> None:
    year = 365 * 24 * 3_600
    times = [1, 2 * year, 3_000 * year, 3_000 * year + 1, 200_000 * year]
    one = Versions("left", (None, None))
    one.push(numbered([("a", time) for time in times], 0), 0)
    one.push(numbered([("a", time) for time in reversed(times)], 10), 1)
    one.advance(MAX_TIME)
    assert Counter(one.found) == model("left", (None, None), *one.taken)


def test_it_does_not_go_on_from_an_interval_join() -> None:
    one = Driven("inner", (0, 1))
    one.push([("a", 1, 1)], 0)
    data = one.task.snapshot(1)
    with pytest.raises(IncompatibleState, match=r"inner join within 0.0 s and 1.0 s in columns.*join with versions"):
        Versions("left", (None, None)).task.restore([MetaPart(0, 1, False, data)])


def test_keys_of_several_columns_have_versions() -> None:
    operator = AsOfJoin((("a", "b"), ("b", "a")), "inner", ("", "_right"))
    node = Node(0, operator, "join", "u", True, 1, "columns", ())
    task = ColumnVersionsTask(node, OperatorContext("join", "u", 0, 1, 0, Services(random_factory=random.Random)))
    found: list[Any] = []
    task.out = lambda batch: found.extend(batch.data.to_pylist())
    for port in (0, 1):
        data = pa.record_batch({"a": [1, 2, None], "b": [2, None, 2], "n": [10 + port, 20 + port, 30 + port]})
        task.process(Columns(data, np.full(3, 5)), port)
    task.advance(5, 10)
    assert [(row["n"], row["n_right"]) for row in found] == [(20, 31), (30, 21)]
