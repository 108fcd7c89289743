"""Functions of a broadcast stream that are called in the order of time, through starts at other parallelisms."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.keygroups import group_range, key_group, owner
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import BroadcastProcess
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.broadcasts.ordered import OrderedBroadcastTask
from tailrace.task.operators.broadcasts.process import BroadcastTask
from tailrace.task.operators.context import OperatorContext
from tailrace.testing.backends import Files

GROUPS, KEYS, SPAN, LIVES = 8, "abcdefgh", 6, 4
Event = tuple[int, str, int]
"""(time, key, number); a rule has no key."""


class AsOf(tr.BroadcastProcessFunction):
    """What each record sees of the rules, and each rule of the keys, with what it emits of itself."""

    rules = tr.BroadcastState(int, int)
    count = tr.ValueState(int, default=0)

    def process(self, value: Event, ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 1
        ctx.set_timer(event_time=value[0] + 2)
        yield "record", value[2], tuple(self.rules)

    def process_broadcast(self, value: Event, ctx: tr.Context) -> Iterator[Any]:
        self.rules[value[2]] = len(self.rules)
        yield "itself", ctx.subtask, value[2]
        ctx.emit("told", ("aside", ctx.subtask, value[2]))
        for key in ctx.keys(self.count):
            yield "on a key", value[2], key, self.count.value
            ctx.emit("told", ("aside on a key", value[2], key))

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "timer", ctx.key, timestamp, len(self.rules)


def model(records: list[Event], rules: list[Event]) -> Counter[Any]:
    """What must come out on keys, by a look at all events at once."""
    timers = {(record[0] + 2, record[1]) for record in records}
    events: list[Any] = [(rule[0], 0, i, rule) for i, rule in enumerate(rules)]
    events += [(record[0], 1, i, record) for i, record in enumerate(records)]
    events += [(time, 2, i, key) for i, (time, key) in enumerate(sorted(timers))]
    found, counts, come = Counter[Any](), Counter[str](), list[int]()
    for time, kind, _, what in sorted(events, key=lambda one: one[:3]):
        if kind == 0:
            come.append(what[2])
            for key in counts:
                found[("on a key", what[2], key, counts[key])] += 1
                found[("aside on a key", what[2], key)] += 1
        elif kind == 1:
            counts[what[1]] += 1
            found[("record", what[2], tuple(come))] += 1
        else:
            found[("timer", what, float(time), len(come))] += 1
    return found


class Life:
    """The subtasks of one start."""

    def __init__(self, parallelism: int, lines: list[Any], before: Life | None) -> None:
        self.parallelism = parallelism
        self.tasks: list[OrderedBroadcastTask] = []
        self.reached = [MIN_TIME] * parallelism
        for subtask in range(parallelism):
            services = Services(random_factory=random.Random, max_parallelism=GROUPS)
            operator = BroadcastProcess(AsOf(), lambda event: event[1], "wait", True)
            node = Node(0, operator, "op", "u", True, parallelism, "rows", ())
            task = OrderedBroadcastTask(node, OperatorContext("op", "u", subtask, parallelism, 0, services))
            task.out = lambda batch: lines.extend(batch.to_rows().values)
            task.side_out = {"told": task.out}
            self.tasks.append(task)
        if before is not None:
            self.restore(before)
        for task in self.tasks:
            task.open()

    def restore(self, before: Life) -> None:
        parts, files = [], [Files() for _ in before.tasks]
        for subtask, task in enumerate(before.tasks):
            parts.append(MetaPart(subtask, before.parallelism, False, task.snapshot(1)))
        taken = [one.take(task.backend, 1) for one, task in zip(files, before.tasks, strict=True)]
        for subtask, task in enumerate(self.tasks):
            for group in group_range(subtask, self.parallelism, GROUPS):
                for info, data in taken[owner(group, before.parallelism, GROUPS)].blocks.get(group, ()):
                    task.backend.apply(info, group, data)
            same = before.parallelism == self.parallelism
            self.reached[subtask] = before.reached[subtask] if same else min(before.reached)
            task.ctx.watermark_time = self.reached[subtask]
            task.restore(parts)
            task.backend.end_restore(False)

    def push(self, records: list[Event], rules: list[Event]) -> None:
        for task in self.tasks:
            mine = [one for one in records if self._owner(one[1]) == task.ctx.subtask]
            if mine:
                task.process(Rows(mine, np.array([one[0] * 1_000_000 for one in mine], np.int64)), 0)
            if rules:
                times = np.array([one[0] * 1_000_000 for one in rules], np.int64)
                task.process(Rows([(False, one) for one in rules], times), 1)

    def _owner(self, key: str) -> int:
        return owner(key_group(key, GROUPS), self.parallelism, GROUPS)

    def advance(self, subtask: int, time: int, limit: int) -> bool:
        over = self.tasks[subtask].advance(time, limit)
        if over:
            self.reached[subtask] = time
        return over


@pytest.mark.parametrize("seed", range(60))
def test_every_call_is_made_once_though_subtasks_stop_at_different_times(seed: int) -> None:
    rng, lines = random.Random(seed), list[Any]()
    records: list[Event] = []
    rules: list[Event] = []
    life = None
    for number in range(LIVES):
        life = Life(rng.choice([1, 2, 3, 3]), lines, life)
        first, last = number * SPAN + 1, (number + 1) * SPAN
        more = [(rng.randint(first, last), rng.choice(KEYS), len(records) + i) for i in range(8)]
        some = [(rng.randint(first, last), "", len(rules) + i) for i in range(5)]
        life.push(more, some)
        records, rules = records + more, rules + some
        for subtask in range(life.parallelism):
            life.advance(subtask, rng.randint(first - 1, last) * 1_000_000, rng.choice([1, 3, 6, 1_000]))
    assert life is not None
    for subtask in range(life.parallelism):
        while not life.advance(subtask, MAX_TIME, rng.choice([1, 3, 1_000])):
            pass
    found = Counter(lines)
    of_itself = {one: count for one, count in found.items() if one[0] in ("itself", "aside")}
    expected = model(records, rules)
    assert {one: count for one, count in found.items() if one not in of_itself} == expected
    assert set(of_itself.values()) == {1}
    assert {(what, 0, rule[2]) for rule in rules for what in ("itself", "aside")} <= of_itself.keys()


def test_a_function_that_is_not_called_in_order_any_more_leaves_no_records_waiting() -> None:
    life = Life(1, [], None)
    life.push([], [(5, "", 1)])
    operator = BroadcastProcess(AsOf(), lambda event: event[1], "wait")
    services = Services(random_factory=random.Random, max_parallelism=GROUPS)
    node = Node(0, operator, "op", "u", True, 1, "rows", ())
    task = BroadcastTask(node, OperatorContext("op", "u", 0, 1, 0, services))
    with pytest.raises(IncompatibleState, match="broadcast records wait for event time in the checkpoint"):
        task.restore([MetaPart(0, 1, False, life.tasks[0].snapshot(1))])
    life.advance(0, 9_000_000, 10)
    task.restore([MetaPart(0, 1, False, life.tasks[0].snapshot(2))])
    assert task.fn.rules.value == {1: 0}


def test_a_broadcast_record_behind_event_time_fails_the_job_and_a_late_one_goes_aside_once() -> None:
    late: list[Any] = []
    life = Life(2, [], None)
    for subtask, task in enumerate(life.tasks):
        task.side_out = {"late": lambda batch: late.extend(batch.to_rows().values)}
        life.advance(subtask, 5_000_000, 10)
        task.process(Rows([(True, (3, "", 1))], np.array([3_000_000], np.int64)), 1)
    assert late == [(3, "", 1)]
    with pytest.raises(UserCodeError, match="let no stream with ordered=True fall idle"):
        life.push([], [(4, "", 2)])


def test_the_harness_hands_over_in_order() -> None:
    h = tr.testing.harness(AsOf(), key=lambda event: event[1], in_order=True)
    h.push((5, "a", 0), timestamp=5)
    h.push((4, "", 7), timestamp=4, input=2)
    assert h.advance_watermark(4) == [("itself", 0, 7)]
    assert h.advance_watermark(9) == [("record", 0, (7,)), ("timer", "a", 7.0, 1)]
