"""Interval joins: which results there are, when, and what is kept meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.batches import Rows
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import How, IntervalJoin
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.interval import TIMES, IntervalJoinTask
from tailrace.testing.backends import Files
from tests.task.operators.joins.driven import HOWS, SECOND, Event, events, numbered, run_on_disk

WITHIN = [(-2, 3), (0, 0), (0, 4), (-4, 0), (1, 3), (-3, -1)]


def model(how: How, within: tuple[int, int], first: list[Event], second: list[Event]) -> Counter[Any]:
    """The results with their times, by a look at all pairs of records."""
    pairs = [(a, b) for a in first for b in second if a[0] == b[0] and within[0] <= b[1] - a[1] <= within[1]]
    partners = {a[2] for a, _ in pairs}, {b[2] for _, b in pairs}
    ends = max(0, within[1]), max(0, -within[0])
    found: list[Any] = []
    if how not in ("semi", "anti"):
        found += [((a, b), max(a[1], b[1])) for a, b in pairs]
    if how in ("left", "full"):
        found += [((a, None), a[1] + ends[0]) for a in first if a[2] not in partners[0]]
    if how in ("right", "full"):
        found += [((None, b), b[1] + ends[1]) for b in second if b[2] not in partners[1]]
    if how in ("semi", "anti"):
        found += [(a, a[1] + ends[0]) for a in first if (a[2] in partners[0]) is (how == "semi")]
    return Counter(found)


class Driven:
    """An operator that is driven by hand."""

    def __init__(
        self,
        how: How,
        within: tuple[int, int],
        reached: int | None = None,
        make_backend: Callable[..., Any] | None = None,
    ) -> None:
        operator = IntervalJoin((key_of, key_of), within[0] * SECOND, within[1] * SECOND, how)
        self.node = Node(0, operator, "join", "u", True, 1, "rows", ())
        services = Services(random_factory=random.Random, make_backend=make_backend)
        self.task = IntervalJoinTask(self.node, OperatorContext("join", "u", 0, 1, 0, services))
        self.found: list[tuple[Any, int]] = []
        self.late: list[Event] = []
        self.taken: tuple[list[Event], list[Event]] = ([], [])
        """Records of each input that were not late."""
        self.task.out = self.note
        self.task.side_out = {"late": lambda batch: self.late.extend(batch.to_rows().values)}
        self.before = 0 if reached is None else reached
        """Event time that has passed on behind the operator."""
        if reached is not None:
            self.task.ctx.watermark_time = reached

    def note(self, batch: Any) -> None:
        rows = batch.to_rows()
        assert rows.times.min() > self.before, "a result is late"
        self.found += zip(rows.values, (rows.times // SECOND).tolist(), strict=True)

    def push(self, some: list[Event], port: int) -> None:
        if some:
            known = len(self.late)
            self.task.process(Rows(some, np.array([event[1] * SECOND for event in some], np.int64)), port)
            self.taken[port].extend(one for one in some if one not in self.late[known:])
            self.check()

    def advance(self, time: int, limit: int = 1_000) -> None:
        while not self.task.advance(time, limit):
            pass
        self.before = time
        self.check()

    def check(self) -> None:
        """Checks the invariants."""
        task, reached = self.task, self.task.ctx.watermark_time
        entries = Counter(entry[:3] + (entry[3].key,) for some in (*task._runs, task._heap) for entry in some)
        kept = [0, 0]
        for key, held in task.table.items():
            assert held[1] or held[4], "T11"
            for port, at in enumerate(TIMES):
                ends = [time + task.spans[port] for time in held[at]]
                assert all(entries[end, held[0], port, key] for end in ends), "T11"
                assert not ends or min(ends) > reached, "T12"
                assert list(held[at]) == sorted(held[at])
                assert len(held[at + 2]) == (len(held[at]) if task.marks[port] else 0)
                kept[port] += len(held[at])
        assert kept == task.kept

    def restored(self) -> Driven:
        """Another operator that goes on from a checkpoint of this one."""
        files = Files()
        files.take(self.task.backend, 1)
        within = self.node.operator.before // SECOND, self.node.operator.after // SECOND  # type: ignore[attr-defined]
        other = Driven(self.task.how, within, self.task.ctx.watermark_time, self.task.ctx.services.make_backend)
        files.restore(other.task.backend, 1, False)
        other.found, other.late, other.taken = self.found, self.late, self.taken
        return other


def key_of(event: Event) -> str:
    return event[0]


@settings(deadline=None)
@given(st.sampled_from(HOWS), st.sampled_from(WITHIN), events, events, st.randoms(use_true_random=False))
def test_results_are_those_of_all_pairs_of_records_that_are_not_late(
    how: How, within: tuple[int, int], first: Any, second: Any, chance: random.Random
) -> None:
    """However the records of two inputs are mixed and cut into batches, however far event time leaps and in whatever
    portions, and wherever the operator goes on from a checkpoint."""
    one = Driven(how, within)
    left = [numbered(first, 0), numbered(second, 1_000)]
    while any(left):
        port = chance.randrange(2)
        count = chance.randint(1, 5)
        one.push(left[port][:count], port)
        del left[port][:count]
        if chance.random() < 0.4:
            one.advance(max(one.before, chance.randint(0, 12) * SECOND), chance.randint(1, 3))
        if chance.random() < 0.2:
            one = one.restored()
            one.check()
    one.advance(MAX_TIME, chance.randint(1, 9))
    assert Counter(one.found) == model(how, within, *one.taken)
    assert len(one.late) + len(one.taken[0]) + len(one.taken[1]) == len(first) + len(second)
    assert not len(one.task.table) and one.task.next_event() is None and one.task.kept == [0, 0]


def test_a_pair_does_not_wait_for_event_time_and_a_record_without_a_partner_does() -> None:
    one = Driven("left", (-1, 5))
    one.push([("a", 10, 1), ("b", 10, 2)], 0)
    one.push([("a", 15, 3)], 1)
    assert one.found == [((("a", 10, 1), ("a", 15, 3)), 15)]
    one.advance(15 * SECOND - 1)
    assert len(one.found) == 1
    one.advance(15 * SECOND)
    assert one.found[1:] == [((("b", 10, 2), None), 15)]


def test_the_bounds_belong_to_the_interval_and_late_is_what_event_time_has_reached() -> None:
    one = Driven("inner", (-2, 3))
    one.push([("a", 10, 1)], 0)
    one.push([("a", 7, 2), ("a", 8, 3), ("a", 13, 4), ("a", 14, 5)], 1)
    assert [b[2] for (_, b), _ in one.found] == [3, 4]
    one.advance(12 * SECOND)
    one.push([("a", 12, 6), ("a", 13, 7)], 1)
    assert [event[2] for event in one.late] == [6]
    assert [b[2] for (_, b), _ in one.found] == [3, 4, 7]


def test_what_is_kept_is_bounded_by_the_interval() -> None:
    """Of a record, until event time has passed its latest partner; of keys, nothing."""
    one = Driven("full", (0, 10))
    for time in range(1, 200):
        one.push([(f"k{time % 50}", time, time)], 0)
        one.push([(f"k{time % 50}", time, 1_000 + time)], 1)
        one.advance(time * SECOND - 1)
        assert one.task.kept[0] <= 11 and one.task.kept[1] <= 2
    assert one.task.state_entries() <= 13
    metrics = one.task.ctx.metrics.gauges
    assert [metrics["kept_first"], metrics["kept_second"]] == one.task.kept
    one.advance(MAX_TIME)
    assert not one.task.backend.entries()


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_a_record_with_a_partner_is_not_kept_where_only_that_matters(how: How) -> None:
    one = Driven(how, (0, 1_000))
    one.push([("a", 1, 1), ("a", 3, 2)], 0)
    one.push([("a", 2, 3)], 1)
    assert one.task.kept == [1, 1]
    one.push([("a", 1, 4)], 0)
    assert one.task.kept == [1, 1]
    assert [value[2] for value, _ in one.found] == ([1, 4] if how == "semi" else [])


@pytest.mark.parametrize("how", HOWS)
def test_results_are_the_same_with_state_on_disk(how: How, tmp_path: Path) -> None:
    one = run_on_disk(lambda make: Driven(how, (-2, 3), make_backend=make), tmp_path, goes_on=False)
    assert Counter(one.found) == model(how, (-2, 3), *one.taken)


def test_results_come_in_one_order_wherever_it_goes_on() -> None:
    """A worker that takes over from a checkpoint emits what the lost one would have."""
    chance = random.Random(5)
    one = Driven("full", (-2, 3))
    some = [(chance.choice("abcdef"), 5 + i // 8, i) for i in range(60)]
    one.push(some[:40], 0)
    one.push(some[20:], 1)
    other = one.restored()
    other.found = []
    one.found.clear()
    for task in (one, other):
        task.advance(7 * SECOND, 2)
        task.push([("a", 9, 500)], 0)
        task.advance(MAX_TIME, 2)
    assert one.found == other.found != []


def test_a_record_without_a_timestamp_is_refused() -> None:
    one = Driven("inner", (0, 1))
    with pytest.raises(UserCodeError, match="without a timestamp reached join"):
        one.task.process(Rows([("a", 1, 1)], None), 0)


def test_it_does_not_go_on_from_another_interval() -> None:
    one = Driven("inner", (0, 1))
    one.push([("a", 1, 1)], 0)
    data = one.task.snapshot(1)
    with pytest.raises(IncompatibleState, match=r"inner join within 0.0 s and 1.0 s.*left join within 0.0 s and 1.0 s"):
        Driven("left", (0, 1)).task.restore([MetaPart(0, 1, False, data)])


@pytest.mark.parametrize("how", HOWS)
def test_an_interval_longer_than_time_ends_at_the_last_time(how: How) -> None:
    """The results of unmatched records have the last time, and come when event time reaches it."""
    end = LAST_TIME // SECOND
    for within in ((-2, end - 1), (1 - end, 3), (1 - end, end - 1)):
        one = Driven(how, within)
        one.push([("a", 10, 1), ("b", 11, 2)], 0)
        one.push([("b", 12, 3), ("c", 14, 4)], 1)
        one.advance(13 * SECOND)
        one.task.advance(LAST_TIME, 1_000)
        expected = Counter({(found, min(time, end)): n for (found, time), n in model(how, within, *one.taken).items()})
        assert Counter(one.found) == expected
        assert one.task.next_event() is None and one.task.state_entries() == 0
