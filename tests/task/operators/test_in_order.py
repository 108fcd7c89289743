"""Process functions that are called in the order of time: what they are called for, and what does not change it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import CoProcess, KeyedProcess
from tailrace.state.memory_backend import MemoryBackend
from tailrace.storage.disk_backend import DiskBackend
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.ordering.buffer import RecordBuffer
from tailrace.task.operators.ordering.columnbuffer import ColumnBuffer
from tailrace.task.operators.ordering.process import InOrderTask
from tailrace.testing.backends import Files

Event = tuple[str, int, int]
"""(key, time, number)."""
SECOND = 1_000_000


class Ledger(tr.KeyedProcessFunction):
    """Reports all that it is called for. Each record sets a timer before, at or behind its time; some timers set others."""

    def process(self, value: Event, ctx: tr.Context) -> Iterator[Any]:
        ctx.set_timer(event_time=ctx.timestamp + value[2] % 5 - 2)
        yield ctx.key, "record", value[2], ctx.timestamp, ctx.watermark

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        if timestamp % 4 == 1:
            ctx.set_timer(event_time=timestamp + 3)
        yield ctx.key, "timer", timestamp, ctx.timestamp, ctx.watermark


class TwoLedgers(tr.CoProcessFunction):
    """`Ledger` of two streams."""

    def process1(self, value: Event, ctx: tr.Context) -> Iterator[Any]:
        return Ledger.process(self, value, ctx)  # type: ignore[arg-type]

    def process2(self, value: Event, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, "second", value[2], ctx.timestamp, ctx.watermark

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        return Ledger.on_timer(self, timestamp, ctx)  # type: ignore[arg-type]


def model(first: list[Event], second: list[Event] = []) -> dict[str, list[Any]]:  # noqa: B006
    """What the ledgers report of each key, by a look at all records at once."""
    found: dict[str, list[Any]] = {}
    for key in {event[0] for event in first + second}:
        inputs = enumerate((first, second))
        every = [(time, port, n, i, k) for port, some in inputs for n, (k, time, i) in enumerate(some)]
        waiting = [place[:4] for place in every if place[4] == key]
        heapq.heapify(waiting)
        timers: set[int] = set()
        reached, lines = -float("inf"), found.setdefault(key, [])
        while waiting or timers:
            if waiting and (not timers or waiting[0][0] <= min(timers)):
                time, port, _, i = heapq.heappop(waiting)
                reached = max(reached, time - 1e-6)
                lines.append((key, "second" if port else "record", i, time, reached))
                if not port:
                    timers.add(time + i % 5 - 2)
            else:
                time = min(timers)
                timers.remove(time)
                reached = max(reached, time)
                lines.append((key, "timer", time, time, reached))
                if time % 4 == 1:
                    timers.add(time + 3)
    return found


def by_key(lines: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in lines:
        found.setdefault(line[0], []).append(line)
    return found


events = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.integers(0, 99)), max_size=40)


class Driven:
    """An operator that is driven by hand, with backends that are cut and restored."""

    def __init__(self, operator: Any, watermark: int | None = None, schemas: tuple[pa.Schema, ...] = ()) -> None:
        self.schemas = schemas
        self.lines: list[Any] = []
        self.late: list[Any] = []
        node = Node(0, operator, "op", "u", True, 1, "rows", ())
        self.task = InOrderTask(node, OperatorContext("op", "u", 0, 1, 0, Services(random_factory=random.Random)))
        self.task.out = lambda batch: self.lines.extend(batch.to_rows().values)
        self.task.side_out = {"late": lambda batch: self.late.extend(batch.to_rows().values)}
        if watermark is not None:
            self.task.ctx.watermark_time = watermark

    def push(self, some: list[Event], port: int = 0) -> None:
        if not some:
            return
        times = np.array([event[1] * SECOND for event in some], np.int64)
        batch: Batch = Rows(some, times)
        if self.schemas:
            schema = self.schemas[len(some) % len(self.schemas)]
            arrays = [pa.array(one).cast(kind) for one, kind in zip(zip(*some, strict=True), schema.types, strict=True)]
            batch = Columns(pa.RecordBatch.from_arrays(arrays, schema=schema), times)
        self.task.process(batch, port)

    def restored(self) -> Driven:
        """Another operator that goes on from a checkpoint of this one."""
        files = Files()
        files.take(self.task.backend, 1)
        other = Driven(self.task.node.operator, self.task.ctx.watermark_time, self.schemas)
        files.restore(other.task.backend, 1, False)
        other.task.open()
        other.lines, other.late = [*self.lines], [*self.late]
        other.task.out = lambda batch: other.lines.extend(batch.to_rows().values)
        return other


def key_of(event: Event) -> str:
    return event[0]


COLUMNS = [
    pa.schema([("key", kind), ("time", pa.int64()), ("i", pa.int32())]) for kind in (pa.string(), pa.large_string())
]


@pytest.mark.parametrize("form", ["rows", "columns"])
@settings(deadline=None)
@given(first=events, second=events, chance=st.randoms(use_true_random=False))
def test_the_calls_of_a_key_depend_on_times_alone(
    form: str, first: list[Event], second: list[Event], chance: random.Random
) -> None:
    """However the records of two inputs are mixed and cut into batches, however far event time leaps, in whatever portions
    the calls are made, and wherever the operator goes on from a checkpoint. Batches in columns may have several schemas."""
    if form == "rows":
        one = Driven(CoProcess(TwoLedgers(), (key_of, key_of), "wait", True))
    else:
        one = Driven(CoProcess(TwoLedgers(), ("key", "key"), "wait", "columns"), None, tuple(COLUMNS))
    one.task.open()
    left = [[*first], [*second]]
    while any(left):
        port = chance.randrange(2)
        count = chance.randint(1, 5)
        one.push(left[port][:count], port)
        del left[port][:count]
        bound = min((event[1] for some in left for event in some), default=13)
        reached = max(one.task.ctx.watermark_time, (bound - chance.randint(1, 4)) * SECOND)
        while not one.task.advance(reached, chance.randint(1, 3)):
            pass
        if chance.random() < 0.2:
            one = one.restored()
    while not one.task.advance(MAX_TIME, 2):
        if chance.random() < 0.1:
            one = one.restored()
    assert by_key(one.lines) == model(first, second) and not one.late and not len(one.task.waiting)


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_calls_a_function_in_order_at_any_parallelism(parallelism: int, form: str) -> None:
    chance = random.Random(f"{parallelism}{form}")
    events = [(chance.choice("abcdefg"), i + chance.randrange(9), i) for i in range(300)]
    events = [(key, 8 * time + i % 8, i) for key, time, i in events]  # no two of one time in a key, whatever the split
    env = tr.Environment(parallelism=parallelism)
    stream = env.from_collection(events, parallelism=parallelism).assign_timestamps(lambda e: e[1], 80)
    keyed: Any = stream.key_by(key_of)
    if form == "columns":
        keyed = stream.to_columns("key string, time long, number long").key_by("key")
    out = keyed.process(Ledger(), in_order=True)
    late, sink = out.side_output("late").sink_to(tr.sinks.Collect()), out.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert by_key(sink.result()) == model(events) and late.result() == []


def test_ties_come_by_input_and_then_in_the_order_of_arrival() -> None:
    one = Driven(CoProcess(TwoLedgers(), (key_of, key_of), "wait", True))
    one.push([("a", 5, 1)], 1)
    one.push([("a", 5, 12), ("a", 4, 17)], 0)
    one.push([("a", 5, 2)], 0)
    one.task.advance(5 * SECOND, 100)
    assert [line[1:3] for line in one.lines if line[1] != "timer"] == [
        ("record", 17), ("record", 12), ("record", 2), ("second", 1),
    ]  # fmt: skip


def test_a_record_that_event_time_has_passed_goes_aside() -> None:
    """A record of the time of the watermark is late, as for windows."""
    one = Driven(KeyedProcess(Ledger(), key_of, "wait", True))
    one.task.advance(5 * SECOND, 100)
    one.push([("a", 5, 1), ("a", 6, 2), ("b", 4, 3)])
    one.task.advance(9 * SECOND, 100)
    assert one.late == [("a", 5, 1), ("b", 4, 3)]
    assert one.task.ctx.metrics.counters["late_records"] == 2
    assert [line[:3] for line in one.lines if line[1] == "record"] == [("a", "record", 2)]


def test_what_was_late_for_an_old_subtask_is_late_until_event_time_is_there() -> None:
    one = Driven(KeyedProcess(Ledger(), key_of, "wait", True), watermark=2 * SECOND)
    one.task.restore_floors([(0, 128, 8 * SECOND)])
    one.push([("a", 7, 1), ("a", 9, 2)])
    assert one.late == [("a", 7, 1)] and one.task.floors()
    one.task.advance(8 * SECOND, 100)
    assert not one.task.floors()


def test_records_come_out_when_the_watermark_has_passed_them_and_not_before() -> None:
    h = tr.testing.harness(Ledger(), key=key_of, in_order=True)
    assert h.push(("a", 3, 1), timestamp=3) == [] and h.push(("a", 1, 2), timestamp=1) == []
    assert [line[1:3] for line in h.advance_watermark(2)] == [("record", 2), ("timer", 1.0)]
    assert [line[1:3] for line in h.end_input()] == [("record", 1), ("timer", 2.0), ("timer", 4.0)]


def test_records_wait_as_columns_where_the_stream_is_in_columns() -> None:
    """Each has a place in a block of its key group; a checkpoint writes what came since the last one."""
    one = Driven(KeyedProcess(lambda r, ctx: [tuple(r)], "key", "wait", "columns"), None, tuple(COLUMNS[:1]))
    one.push([("a", 5, 1), ("b", 3, 2), ("a", 4, 3)])
    files = Files()
    files.take(one.task.backend, 1)
    files.confirm(one.task.backend, 1)
    assert isinstance(one.task.waiting, ColumnBuffer) and one.task.backend.entries() == 3
    assert not one.task.advance(4 * SECOND, 1) and one.lines == [("b", 3, 2)]
    one.push([("c", 9, 4)])
    files.take(one.task.backend, 2)
    other = Driven(one.task.node.operator, 3 * SECOND, tuple(COLUMNS[:1]))
    files.restore(other.task.backend, 2, False)
    while not other.task.advance(MAX_TIME, 1):
        pass
    assert other.lines == [("a", 4, 3), ("a", 5, 1), ("c", 9, 4)] and not len(other.task.waiting)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_records_that_wait_are_state_in_either_backend(kind: str, tmp_path: Path) -> None:
    def made(name: str) -> tuple[Any, RecordBuffer]:
        backend: Any = MemoryBackend(128) if kind == "memory" else DiskBackend(tmp_path / name, 128)
        return backend, RecordBuffer(backend)

    (backend, buffer), files = made("first"), Files()
    buffer.add(["a", "b", "a"], [5, 3, 4], [["five"], ["three"], None], 0)
    files.take(backend, 1)
    files.confirm(backend, 1)
    assert buffer.pop() == ("b", 3, 0, ["three"])
    buffer.add(["c"], [4], ["four"], 0)
    files.take(backend, 2)
    other, restored = made("second")
    files.restore(other, 2, False)
    restored.add(["d"], [4], ["behind them"], 0)
    expected = [("a", 4, 0, None), ("c", 4, 0, "four"), ("d", 4, 0, "behind them"), ("a", 5, 0, ["five"])]
    assert [restored.pop() for _ in range(4)] == expected and restored.next_time() is None and not len(restored)
    for one in (backend, other):
        one.close()


def test_a_record_without_a_timestamp_is_refused() -> None:
    one = Driven(KeyedProcess(Ledger(), key_of, "wait", True))
    with pytest.raises(UserCodeError, match=r"a record without a timestamp reached process\(..., in_order=True\)"):
        one.task.process(Rows([("a", 1, 1)]), 0)


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_a_record_without_a_timestamp_goes_aside_as_in_front_of_a_window(form: str) -> None:
    env = tr.Environment(parallelism=1)
    rows = [("a", 1.0), ("a", None), ("b", 2.0), ("b", None)]
    table = env.from_collection(rows).to_columns("k string, at double")
    timed = (table if form == "columns" else table.to_rows()).assign_timestamps("at").key_by(lambda r: r[0])
    policy = tr.Aside("errors", at_most=0.5)
    ordered = timed.process(lambda r, ctx: [tuple(r)], in_order=True, on_error=policy)
    counted = timed.window(tr.Tumbling(10)).sum(lambda r: 1, on_error=policy)
    sinks = [one.map(tuple).sink_to(tr.sinks.Collect()) for one in (ordered, counted)]
    aside = [one.side_output("errors").sink_to(tr.sinks.Collect()) for one in (ordered, counted)]
    tr.testing.run(env)
    assert sinks[0].result() == [("a", 1.0), ("b", 2.0)]
    assert sinks[1].result() == [("a", 0.0, 10.0, 1), ("b", 0.0, 10.0, 1)]
    found = [[(tuple(one.record), "without a timestamp" in one.error) for one in sink.result()] for sink in aside]
    assert found == [[(("a", None), True), (("b", None), True)]] * 2


def test_an_error_in_a_call_names_the_record() -> None:
    def bad(value: Any, ctx: tr.Context) -> None:
        raise ValueError("no")

    one = Driven(KeyedProcess(bad, key_of, "wait", True))
    one.push([("a", 2, 2), ("a", 1, 1)])
    with pytest.raises(UserCodeError, match=r"\('a', 1, 1\)"):
        one.task.advance(5 * SECOND, 10)


def test_records_of_a_second_input_need_one() -> None:
    two = Driven(CoProcess(TwoLedgers(), (key_of, key_of), "wait", True))
    two.push([("a", 1, 1)], 1)
    two.task.node = Node(0, KeyedProcess(Ledger(), key_of, "wait", True), "op", "u", True, 1, "rows", ())
    with pytest.raises(IncompatibleState, match="records of a second input wait"):
        two.restored()
