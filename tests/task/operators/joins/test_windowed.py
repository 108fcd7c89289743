"""Joins by windows in columns: pairs of records that are in one window, wherever it goes on."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.batches import Columns
from tailrace.elements.calendars import CalendarWindows
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.operators import How, Operator, WindowJoin, WindowSpec
from tailrace.state.backend import MetaPart
from tailrace.task.operators.joins import windowed
from tailrace.task.operators.joins.windowed import ColumnWindowJoinTask
from tailrace.testing.backends import Files
from tests.task.operators.joins.driven import HOWS, SCHEMA, SECOND, Driven, Event, events, numbered
from tests.task.operators.joins.driven import small_segments as small_segments  # a fixture of all tests here

Sizes = tuple[int, int, int]
"""Size, slide and offset of windows, in seconds."""
SIZES: list[Sizes] = [(4, 4, 0), (1, 1, 0), (6, 2, 1), (5, 2, 0), (3, 3, -1)]


class Windowed(Driven):
    """A join by windows that is driven by hand."""

    kind = ColumnWindowJoinTask

    def operator(self, how: How, within: Sizes) -> Operator:
        return WindowJoin(("key", "key"), WindowSpec(*(time * SECOND for time in within)), how, ("_x", "_y"))

    def note(self, batch: Any) -> None:
        assert batch.times.min() > self.before, "a result is late"
        assert ((batch.times + 1) % SECOND == 0).all()
        values = [self.pair(row) for row in batch.data.to_pylist()]
        self.found += zip(values, ((batch.times + 1) // SECOND).tolist(), strict=True)


def model(how: How, sizes: Sizes, first: list[Event], second: list[Event]) -> Counter[Any]:
    """The results with the ends of their windows, by a look at each window."""
    size, slide, offset = sizes
    found: Counter[Any] = Counter()
    for start in range(-20 * slide + offset % slide, 40, slide):
        for key in {event[0] for event in first + second}:
            ours, theirs = (
                [e for e in some if e[0] == key and start <= e[1] < start + size] for some in (first, second)
            )
            results: list[Any] = [(a, b) for a in ours for b in theirs]
            if how in ("semi", "anti"):
                results = [a for a in ours if bool(theirs) is (how == "semi")]
            if not theirs and how in ("left", "full"):
                results = [(a, None) for a in ours]
            if not ours and how in ("right", "full"):
                results = [(None, b) for b in theirs]
            found.update((one, start + size) for one in results)
    return found


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(HOWS), st.sampled_from(SIZES), events, events, st.randoms(use_true_random=False))
def test_results_are_those_of_each_window(
    how: How, sizes: Sizes, first: Any, second: Any, chance: random.Random
) -> None:
    """However the records are mixed and cut into batches, and wherever it goes on. Event time goes from window to window, so
    that a record is late for all of its windows or for none."""
    one = Windowed(how, sizes)
    files, taken, reached = Files(), 0, 0
    left = [sorted(numbered(some, n), key=lambda e: e[1]) for some, n in ((first, 0), (second, 1_000))]
    while any(left):
        port = chance.randrange(2)
        count = chance.randint(1, 5)
        one.push(left[port][:count], port)
        del left[port][:count]
        if chance.random() < 0.4:
            reached = max(reached, min((some[0][1] for some in left if some), default=12) - 1)
            one.advance(max(0, reached * SECOND), chance.randint(1, 3))
        if chance.random() < 0.4:
            taken += 1
            one.task.snapshot(taken)
            files.take(one.task.backend, taken)
            files.confirm(one.task.backend, taken)
            if chance.random() < 0.5:
                one, files = one.restored(files, taken), Files()
    one.advance(MAX_TIME, chance.randint(1, 9))
    assert not one.late
    assert Counter(one.found) == model(how, sizes, *one.taken)
    assert one.task.next_event() is None and one.task.state_entries() == 0


def test_records_in_many_windows_are_taken_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """With results in the order in which their records came."""
    monkeypatch.setattr(windowed, "PAIRS", 1_000)
    one, sizes = Windowed("inner", (3_600, 10, 0)), list[int]()
    keep = one.task._keep
    monkeypatch.setattr(one.task, "_keep", lambda records, port: [sizes.append(len(records)), keep(records, port)])
    one.push([("a", 5_000 + i, i) for i in range(9)], 0)
    one.push([("a", 5_003, 10), ("a", 5_004, 11)], 1)
    assert max(sizes) <= 1_000 and sum(sizes) == 360 * 11
    seen = [b[2] for (_, b), _ in one.found]
    assert seen == sorted(seen) and len(seen) == 360 * 18


def test_a_record_is_late_when_all_its_windows_are_over() -> None:
    one = Windowed("full", (6, 2, 0))
    one.advance(8 * SECOND - 1)
    one.push([("a", 1, 1), ("a", 2, 2), ("a", 5, 3), ("a", 9, 4)], 0)
    assert one.late == [("a", 1, 1), ("a", 2, 2)]
    one.advance(MAX_TIME)
    ends = {(a[2], end) for (a, _), end in one.found}
    assert ends == {(3, 10), (4, 10), (4, 12), (4, 14)} and len(one.found) == 4


def test_a_window_of_the_calendar_is_a_day_there() -> None:
    class Days(Windowed):
        def operator(self, how: How, within: Any) -> Operator:
            day = 25 * 3_600 * SECOND
            windows = WindowSpec(day, day, 0, CalendarWindows("day", 1, "Europe/Berlin"))
            return WindowJoin(("key", "key"), windows, how, ("_x", "_y"))

    midnight = 1_729_980_000  # 2024-10-27 in Berlin, a day of 25 hours
    one = Days("inner", None)
    one.push([("a", midnight, 1), ("a", midnight + 25 * 3_600, 2)], 0)
    one.push([("a", midnight + 25 * 3_600 - 1, 3), ("a", midnight - 1, 4)], 1)
    assert [(a[2], b[2], time - midnight) for (a, b), time in one.found] == [(1, 3, 25 * 3_600)]
    with pytest.raises(UserCodeError, match="not in the years from 2 to 9997"):
        one.push([("a", -62_135_596_800, 5)], 0)


def test_a_time_whose_windows_are_beyond_time_fails() -> None:
    one = Windowed("inner", (4, 4, 0))
    data = pa.RecordBatch.from_pydict({"key": ["a"], "at": [1], "n": [1]}, SCHEMA)
    with pytest.raises(UserCodeError, match="too near the end of the range of timestamps"):
        one.task.process(Columns(data, np.array([MAX_TIME - 2])), 0)


def test_it_does_not_go_on_from_other_windows() -> None:
    one = Windowed("inner", (4, 4, 0))
    one.push([("a", 1, 1)], 0)
    data = one.task.snapshot(1)
    with pytest.raises(
        IncompatibleState, match=r"windows of 4 s every 4 s from 0 s.*windows of 6 s every 2 s from 1 s"
    ):
        Windowed("inner", (6, 2, 1)).task.restore([MetaPart(0, 1, False, data)])
