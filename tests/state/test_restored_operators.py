"""Operators that go on from a checkpoint, at the same or another parallelism, give what they would have given."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.elements.batches import Columns, Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.keygroups import group_range, key_group
from tailrace.elements.plainkeys import NAN
from tailrace.elements.timestamps import MAX_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import Aggregate, AssignTimestamps, KeyedProcess, Operator, Reduce, Window
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.aggregates.running import AggregateTask, ReduceTask
from tailrace.task.operators.columns.schemas import restore_schema
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.process import KeyedProcessTask
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.operators.windows.aggregates import WindowTask
from tailrace.testing.backends import Files

Record = tuple[Any, int]
SECOND = 1_000_000


class Sessions(tr.KeyedProcessFunction):
    """Counts per key, and emits the count three seconds after the last record."""

    count = tr.ValueState(int, default=0)
    until = tr.ValueState(float)
    items = tr.ListState(int)

    def process(self, value: Record, ctx: tr.Context) -> Iterator[Any]:
        assert ctx.timestamp is not None
        if self.until.value is not None:
            ctx.delete_timer(event_time=self.until.value)
        self.until.value = ctx.timestamp + 3
        ctx.set_timer(event_time=self.until.value)
        self.count.value += 1
        self.items.add(value[1])
        yield value[0], "at", self.count.value

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, "quiet", self.count.value, self.items.get()
        for state in (self.count, self.until, self.items):
            state.clear()


def of(name: str) -> tuple[Operator, type[Any]]:
    key, value = (lambda r: r[0]), (lambda r: r[1])
    builtins = (("n", tr.Count()), ("total", tr.Sum(value)), ("mean", tr.Mean(value)))
    size = {"size": 5 * SECOND, "slide": 5 * SECOND, "offset": 0, "allowed_lateness": 2 * SECOND}
    return {
        "sessions": (KeyedProcess(Sessions(), key, "wait"), KeyedProcessTask),
        "aggregate": (Aggregate(key, builtins), AggregateTask),
        "reduce": (Reduce(key, lambda a, b: (a[0], a[1] + b[1])), ReduceTask),
        "window": (Window(key, aggregates=builtins, **size), WindowTask),  # type: ignore[arg-type]
        "window_reduce": (Window(key, aggregates=(), reduce=later, **size), WindowTask),  # type: ignore[arg-type]
    }[name]


def later(a: Record, b: Record) -> Record:
    return max(a, b, key=lambda record: record[1])


class Running:
    """An operator in some subtasks."""

    def __init__(self, make: Callable[[], tuple[Operator, type[Any]]], parallelism: int) -> None:
        self.out: list[Any] = []
        self.tasks = []
        for subtask in range(parallelism):
            operator, runtime = make()
            node = Node(0, operator, "op", "u", True, parallelism, "rows", ())
            services = Services(random_factory=random.Random)
            task = runtime(node, OperatorContext("op", "u", subtask, parallelism, 0, services))
            task.out = lambda batch: self.out.extend(map(repr, batch.to_rows().values))
            self.tasks.append(task)

    def owner(self, key: Any) -> Any:
        group = key_group(key, 128)
        return next(t for t in self.tasks if group in group_range(t.ctx.subtask, len(self.tasks), 128))

    def feed(self, records: list[Record], watermark: int) -> None:
        for record in records:
            self.owner(record[0]).process(Rows([record], np.array([record[1] * SECOND], np.int64)), 0)
        self.advance(watermark)

    def advance(self, watermark: int) -> None:
        for task in self.tasks:
            while not task.advance(watermark, 3):
                pass


def moved(old: Running, make: Callable[[], tuple[Operator, type[Any]]], parallelism: int, watermark: int) -> Running:
    """An operator restored from the checkpoint of another one."""
    new = Running(make, parallelism)
    parts, files = [], []
    for task in old.tasks:
        one = Files()
        parts.append(MetaPart(task.ctx.subtask, len(old.tasks), False, task.snapshot(1)))
        one.take(task.backend, 1)
        files.append(one)
    for task in new.tasks:
        groups = group_range(task.ctx.subtask, parallelism, 128)
        infos = old.tasks[0].backend.tables_info()
        assert infos == task.backend.tables_info()
        for one in files:
            for group, blocks in one.snapshots[1].blocks.items():
                for info, data in blocks if group in groups else ():
                    task.backend.apply(info, group, data)
        task.ctx.watermark_time = watermark
        task.restore(parts)
        task.backend.end_restore(False)
        task.open()
    return new


@pytest.mark.parametrize("parallelisms", [(1, 1), (2, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("name", ["sessions", "aggregate", "reduce", "window", "window_reduce"])
def test_what_comes_out_is_the_same(name: str, parallelisms: tuple[int, int]) -> None:
    chance = random.Random(f"{name}{parallelisms}")
    keys = ["a", "b", NAN, None, 1, (2, "x"), 3.5, *range(10, 30)]
    portions = [[(chance.choice(keys), 2 * i + chance.randrange(3)) for _ in range(20)] for i in range(10)]
    through = Running(lambda: of(name), parallelisms[0])
    for task in through.tasks:
        task.open()
    stopped = Running(lambda: of(name), parallelisms[0])
    for task in stopped.tasks:
        task.open()
    out = []
    for i, portion in enumerate(portions):
        watermark = (2 * i - 2) * SECOND
        through.feed(portion, watermark)
        stopped.feed(portion, watermark)
        if i in (4, 7):
            out += stopped.out
            stopped = moved(stopped, lambda: of(name), parallelisms[1] if i == 4 else parallelisms[0], watermark)
    through.advance(MAX_TIME)
    stopped.advance(MAX_TIME)
    assert sorted(out + stopped.out) == sorted(through.out)
    if name != "aggregate" and name != "reduce":
        assert sum(task.backend.entries() for task in stopped.tasks) == 0


def test_an_operator_goes_on_while_its_checkpoints_fail_and_succeed() -> None:
    """State that is read and written through every layer, with checkpoints under way all the time."""
    chance = random.Random(5)
    plain, busy = Running(lambda: of("sessions"), 1), Running(lambda: of("sessions"), 1)
    for one in (plain, busy):
        one.tasks[0].open()
    backend, number = busy.tasks[0].backend, 0
    for i in range(300):
        records = [(chance.randrange(60), i + chance.randrange(2)) for _ in range(5)]
        for one in (plain, busy):
            one.feed(records, (i - 1) * SECOND)
        if backend.encode(7)[1]:
            if number:
                (backend.confirm if i % 3 else backend.abort)(number)
            number += 1
            backend.freeze(CutRequest(number))
        elif not i % 11:
            backend.abort(number)
    assert number > 5
    assert busy.out == plain.out
    assert len(busy.tasks[0].event_timers) == len(plain.tasks[0].event_timers)
    assert busy.tasks[0].backend.entries() == plain.tasks[0].backend.entries()


def test_windows_of_columns_come_out_in_the_same_columns() -> None:
    operator = Window("k", 5 * SECOND, 5 * SECOND, 0, 0, (("total", tr.Sum("x")),))
    schema = pa.schema([("k", pa.string()), ("x", pa.int32())])

    def made() -> WindowTask:
        node = Node(0, operator, "op", "u", True, 1, "columns", ())
        return WindowTask(node, OperatorContext("op", "u", 0, 1, 0, Services(random_factory=random.Random)))

    one, out = made(), []
    data = pa.RecordBatch.from_pylist([{"k": "a", "x": 1}, {"k": "b", "x": 2}], schema=schema)
    one.process(Columns(data, np.array([1, 2], np.int64)), 0)
    files, other = Files(), made()
    files.take(one.backend, 1)
    files.restore(other.backend, 1, True)
    assert one.one_schema is not None
    parts = [MetaPart(0, 1, False, one.snapshot(1), one.one_schema.to_bytes())]
    restore_schema(other, parts)
    other.restore(parts)
    other.out = out.append
    other.advance(MAX_TIME, 100)
    assert [field.type for field in out[0].data.schema] == [pa.string(), pa.float64(), pa.float64(), pa.int64()]
    assert out[0].data.column("total").to_pylist() == [1, 2]


# Watermarks.


def clock(subtask: int = 0, parallelism: int = 1) -> TimestampsTask:
    node = Node(0, AssignTimestamps(lambda r: r, 0, None), "op", "u", True, parallelism, "rows", ())
    return TimestampsTask(
        node, OperatorContext("op", "u", subtask, parallelism, 0, Services(random_factory=random.Random))
    )


def seen(task: TimestampsTask, split: int, time: int) -> None:
    task.process(Rows([time], None, None, split), 0)


def saved(task: TimestampsTask, finished: bool = False) -> MetaPart:
    return MetaPart(task.ctx.subtask, task.ctx.parallelism, finished, task.snapshot(1))


def test_splits_go_on_where_they_were() -> None:
    one = clock()
    one.splits_opened([4, 7])
    seen(one, 4, 10)
    seen(one, 7, 20)
    two = clock()
    two.restore([saved(one)])
    assert two.own_watermark() == one.own_watermark() == 10 * SECOND - 1
    two.splits_opened([4, 7])
    seen(two, 4, 30)
    assert two.own_watermark() == 20 * SECOND - 1


def test_the_watermark_never_goes_back_whatever_splits_there_are() -> None:
    one = clock()
    one.splits_opened([0])
    seen(one, 0, 10)
    two = clock()
    two.restore([saved(one)])
    two.splits_opened([5])
    assert two.own_watermark() == 10 * SECOND - 1
    seen(two, 5, 3)
    assert two.own_watermark() == 10 * SECOND - 1


def test_at_another_parallelism_it_is_the_lowest_of_those_that_had_not_finished() -> None:
    tasks = [clock(i, 3) for i in range(3)]
    for i, task in enumerate(tasks):
        task.splits_opened([i])
        seen(task, i, 10 * (i + 1))
    parts = [saved(task, finished=task is tasks[0]) for task in tasks]
    two = clock()
    two.restore(parts)
    assert two.own_watermark() == 20 * SECOND - 1
    same = clock(2, 3)
    same.restore(parts)
    assert same.own_watermark() == 30 * SECOND - 1
