"""Process functions that are called in the order of event time."""

from __future__ import annotations

from typing import Any

from tailrace.api.restore.kinds import takes_timers
from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.timestamps import is_late
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import BroadcastProcess, CoProcess, KeyedProcess
from tailrace.task.channels.key_readers import FieldReader, key_reader, settled_keys
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.late_records import Floors, columns_on_time, set_aside, timed_part
from tailrace.task.operators.ordering.buffer import RecordBuffer
from tailrace.task.operators.ordering.columnbuffer import ColumnBuffer
from tailrace.task.operators.process import CoProcessTask, KeyedProcessTask, as_process_function
from tailrace.task.operators.timer_firing import TimedTask


class InOrderTask(TimedTask):
    """A keyed process function, or one on two keyed inputs, that is given records and timers in the order of their times.

    Invariant T6: a call for a record of time *t* comes when the watermark has reached *t*, behind all records and timers of
    its key before *t*, and in front of its timers for *t*. A timer that a call sets for a time that has passed fires next.
    Invariant T7: no call depends on what the watermark is beyond its time: the context's is just below the time of a
    record, and at that of a timer (T4).
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        operator = node.operator
        assert isinstance(operator, KeyedProcess | CoProcess | BroadcastProcess)
        super().__init__(node, ctx, as_process_function(operator.fn), operator.at_end)
        two = isinstance(operator, CoProcess)
        self.selectors: list[Any] = [*operator.keys] if isinstance(operator, CoProcess) else [operator.key]
        self.readers: list[FieldReader] = [
            key_reader(node, key, ctx.subtask, port) for port, key in enumerate(self.selectors)
        ]
        self._calls = [getattr(self.gives, name) for name in (("process1", "process2") if two else ("process",))]
        self.waiting: RecordBuffer | ColumnBuffer = (
            ColumnBuffer(node, ctx, self.backend, self.selectors)
            if operator.in_order == "columns"
            else RecordBuffer(self.backend)
        )
        self._floors = Floors(node, ctx)
        if not takes_timers(self.fn):  # refused when one is set, not when it fires and nothing takes it
            ctx.event_timers = ctx.processing_timers = None

    def open(self) -> None:
        if any(port >= len(self.readers) for port in self.waiting.inputs()):
            raise IncompatibleState(
                f"operator {self.node.name!r} (uid {self.ctx.uid!r}): records of a second input wait in the checkpoint, and "
                f"it has one input; give it another uid, and leave the old state behind: "
                f"allow_dropped_state=[{self.ctx.uid!r}]"
            )
        super().open()

    def restore_floors(self, floors: list[tuple[int, int, int]]) -> None:
        self._floors.ranges = floors

    def floors(self) -> list[tuple[int, int, int]]:
        return self._floors.ranges

    def process(self, batch: Batch, port: int) -> None:
        timed = timed_part(self, batch, "process(..., in_order=True)") if len(batch) else None
        if timed is not None:
            self._floors.take(timed, self.selectors[port], lambda part: self._take(part, port))
            self.backend.relieve()

    def _take(self, batch: Batch, port: int) -> None:
        """Keeps the records of a batch until event time has come to them; late ones go aside."""
        if isinstance(self.waiting, ColumnBuffer):
            assert isinstance(batch, Columns)
            kept = columns_on_time(self, batch)
            if kept is not None:
                self.waiting.add(kept, port)
            return
        rows = batch.to_rows()
        assert rows.times is not None
        left = set_aside(self, rows, is_late(rows.times, self.ctx.watermark_time))
        if left is not None:
            assert isinstance(left, Rows) and left.times is not None
            self.waiting.add(settled_keys(self.readers[port].values(left)), left.times.tolist(), left.values, port)

    def next_event(self) -> int | None:
        record, timer = self.waiting.next_time(), self.event_timers.next_time()
        return timer if record is None else record if timer is None else min(record, timer)

    def advance(self, time: int, limit: int) -> bool:
        self._hand_over(time, limit)
        due = self.next_event()
        if due is not None and due <= time:
            return False
        self._arrive_at(time)
        self._floors.pass_by(time)
        return True

    def _hand_over(self, until: int, limit: int) -> int:
        """Calls the function for records and timers up to a time, at most `limit` times. Returns how often it may still be
        called."""
        waiting, timers = self.waiting, self.event_timers
        while limit > 0:
            record, timer = waiting.next_time(), timers.next_time()
            if record is not None and record <= until and (timer is None or record <= timer):
                limit -= self._call(until, limit)
            elif timer is not None and timer <= until:
                limit -= self._fire(timers, until if record is None else min(until, record - 1), limit, "event")
            else:
                break
        return limit

    def _call(self, until: int, limit: int) -> int:
        """Calls the function for records up to a time, or up to its next timer; returns their number."""
        ctx, waiting, calls, timers = self.ctx, self.waiting, self._calls, self.event_timers
        out: list[Any] = []
        out_times: list[int] = []
        value: Any = None
        called = 0
        self._before_calls()
        waiting.prepare(until, limit)
        try:
            while called < limit and (at := waiting.next_time()) is not None and at <= until:
                timer = timers.next_time()
                if timer is not None and timer < at:
                    break
                key, time, port, value = waiting.pop()
                called += 1
                self.input = port
                ctx.current_key, ctx.current_time = key, time
                ctx.watermark_time = max(ctx.watermark_time, time - 1)  # T7
                self.call_once(calls[port], value, out)
                out_times.extend([time] * (len(out) - len(out_times)))
        except UserCodeError:
            raise
        except Exception as error:
            raise self.user_error(error, value) from error
        finally:
            ctx.without_key()
        waiting.settle()
        self._after_calls("process", called)
        if self.policy is not None:
            self.policy.count(called)
        self._emit(out, out_times)
        return called


def keyed_process_task(node: Node, ctx: OperatorContext) -> TimedTask:
    """The runtime half of a process function on a keyed stream."""
    assert isinstance(node.operator, KeyedProcess)
    return InOrderTask(node, ctx) if node.operator.in_order else KeyedProcessTask(node, ctx)


def co_process_task(node: Node, ctx: OperatorContext) -> TimedTask:
    """The runtime half of a process function on two inputs."""
    assert isinstance(node.operator, CoProcess)
    return InOrderTask(node, ctx) if node.operator.in_order else CoProcessTask(node, ctx)
