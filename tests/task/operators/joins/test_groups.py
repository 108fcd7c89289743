"""Windows of two inputs in columns that come out whole: lists of records, and joins by sessions."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.api.joins.functions import GatherSides, WindowPairs
from tailrace.elements.batches import Rows
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import IncompatibleState
from tailrace.graph.graph import Node
from tailrace.graph.operators import Operator, SessionSpec, SessionWindow, WindowJoin, WindowSpec
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.groups import ColumnCoGroupTask, ColumnSessionJoinTask
from tailrace.task.operators.windows.sessions import SessionTask
from tailrace.testing.backends import Files
from tests.task.operators.joins.driven import HOWS, SECOND, Driven, Event, events, numbered
from tests.task.operators.joins.driven import small_segments as small_segments  # a fixture of all tests here
from tests.task.operators.joins.test_windowed import SIZES

GAPS = [1, 2, None]
"""Gaps in seconds; None: each record has its own, the column `n` of it."""


class Grouped(Driven):
    """Lists of windows, driven by hand."""

    kind = ColumnCoGroupTask

    def operator(self, how: Any, within: Any) -> Operator:
        return WindowJoin(("key", "key"), WindowSpec(*(time * SECOND for time in within)), how, ("_x", "_y"))

    def note(self, batch: Any) -> None:
        assert batch.times.min() > self.before, "a result is late"
        for row, time in zip(batch.data.to_pylist(), batch.times.tolist(), strict=True):
            value = row if self.how == "group" else self.pair(row)
            if self.how == "group":
                value = (row["key"], *(tuple(tuple(one.values()) for one in row[side]) for side in ("first", "second")))
            self.found.append((value, time))

    def check_index(self, one: Any) -> None:
        if isinstance(self, Sessions):
            super().check_index(one)

    def comes_out(self, port: int) -> bool:
        return False


class Sessions(Grouped):
    """A join by sessions, driven by hand beside sessions in rows of the same records."""

    kind = ColumnSessionJoinTask

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        gap = None if self.within is None else self.within * SECOND
        windows = SessionWindow(
            lambda r: r[1], gap, (lambda r: r[2][2]) if gap is None else None, (("r", GatherSides()),)
        )
        node = Node(0, windows, "rows", "r", True, 1, "rows", ())
        self.rows = SessionTask(node, OperatorContext("rows", "r", 0, 1, 0, Services(random_factory=random.Random)))
        self.expected: list[tuple[Any, int]] = []
        self.expected_late: list[Event] = []
        self.rows.out = self.expect
        self.rows.side_out = {"late": lambda batch: self.expected_late.extend(one[2] for one in batch.to_rows().values)}
        self.rows.ctx.watermark_time = self.task.ctx.watermark_time

    def operator(self, how: Any, within: Any) -> Operator:
        spec = SessionSpec(None, "n") if within is None else SessionSpec(within * SECOND, None)
        return WindowJoin(("key", "key"), spec, how, ("_x", "_y"))

    def expect(self, batch: Any) -> None:
        how = None if self.how == "group" else self.how
        for row, time in zip(batch.to_rows().values, batch.times.tolist(), strict=True):
            if how is None:
                self.expected.append(((row[0], *map(tuple, row[-1])), time))
            else:
                self.expected += [(one, time) for one in WindowPairs(how)(row)]

    def push(self, some: list[Event], port: int) -> None:
        if some:
            times = np.array([event[1] * SECOND for event in some], np.int64)
            self.rows.process(Rows([(port, one[0], one) for one in some], times), 0)
        super().push(some, port)

    def advance(self, time: int, limit: int = 1_000) -> None:
        while not self.rows.advance(time, limit):
            pass
        super().advance(time, limit)

    def restored(self, files: Files | None = None, checkpoint: int = 1) -> Any:
        other: Any = super().restored(files, checkpoint)
        other.rows, other.expected, other.expected_late = self.rows, self.expected, self.expected_late
        other.rows.out = other.expect
        return other


def exactly(found: list[tuple[Any, int]]) -> Counter[Any]:
    """Results with their times; the order in lists of sessions that became one does not count."""
    return Counter((tuple(map(str, map(sorted_lists, value))) if value else value, time) for value, time in found)


def sorted_lists(part: Any) -> Any:
    return sorted(part) if isinstance(part, tuple) and part and isinstance(part[0], tuple) else part


def with_chance(one: Any, first: list[Event], second: list[Event], chance: random.Random, late: bool) -> Any:
    """Mixes records of two inputs, event time, checkpoints, and starts from them."""
    files, taken, reached = Files(), 0, 0
    left = [first, second]
    while any(left):
        port = chance.randrange(2)
        count = chance.randint(1, 5)
        one.push(left[port][:count], port)
        del left[port][:count]
        if chance.random() < 0.4:
            bound = min((some[0][1] for some in left if some), default=12) - 1
            reached = max(reached, chance.randint(0, 12) if late else bound)
            one.advance(max(0, reached * SECOND), chance.randint(1, 3))
        if chance.random() < 0.4:
            taken += 1
            one.task.snapshot(taken)
            files.take(one.task.backend, taken)
            if chance.random() < 0.7:
                files.confirm(one.task.backend, taken)
            else:
                one.task.backend.abort(taken)
                continue
            if chance.random() < 0.5:
                one, files = one.restored(files, taken), Files()
    one.advance(MAX_TIME, chance.randint(1, 9))
    assert one.task.next_event() is None and one.task.state_entries() == 0
    taken += 1
    files.take(one.task.backend, taken)
    assert not sum(table.base.count for table in one.task.backend.tables.values())
    return one


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SIZES), events, events, st.randoms(use_true_random=False))
def test_lists_are_those_of_each_window(sizes: Any, first: Any, second: Any, chance: random.Random) -> None:
    sides = [sorted(numbered(some, n), key=lambda e: e[1]) for some, n in ((first, 0), (second, 1_000))]
    one = with_chance(Grouped("group", sizes), *([*side] for side in sides), chance, False)
    size, slide, offset = sizes
    expected: Counter[Any] = Counter()
    for start in range(-20 * slide + offset % slide, 40, slide):
        for key in {event[0] for side in sides for event in side}:
            lists = [tuple(e for e in side if e[0] == key and start <= e[1] < start + size) for side in sides]
            if any(lists):
                expected[(key, *lists), (start + size) * SECOND - 1] += 1
    assert Counter(one.found) == expected and not one.late


@settings(deadline=None, max_examples=80)
@given(st.sampled_from([*HOWS, "group"]), st.sampled_from(GAPS), events, events, st.randoms(use_true_random=False))
def test_joins_by_sessions_are_those_of_sessions_in_rows(
    how: Any, gap: Any, first: Any, second: Any, chance: random.Random
) -> None:
    """However records are mixed, late, or cut into batches, and wherever it goes on."""
    sides = [
        [(key, at, 1 + i % 4 if gap is None else i + n) for i, (key, at, *_) in enumerate(some)]
        for some, n in ((first, 0), (second, 1_000))
    ]
    one = with_chance(Sessions(how, gap), *sides, chance, chance.random() < 0.5)
    assert exactly(one.found) == exactly(one.expected) and Counter(one.late) == Counter(one.expected_late)
    assert [time for _, time in one.found] == sorted(time for _, time in one.found) or len(one.late)


def test_it_does_not_go_on_from_another_gap() -> None:
    one = Sessions("inner", 2)
    one.push([("a", 1, 1)], 0)
    data = one.task.snapshot(1)
    with pytest.raises(IncompatibleState, match=r"sessions with a gap of 2 s.*sessions with a gap of 3 s"):
        Sessions("inner", 3).task.restore([MetaPart(0, 1, False, data)])
