"""Functions of a keyed stream and a broadcast stream that are called in the order of event time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import numpy as np

from tailrace.elements.batches import Batch, Rows
from tailrace.elements.keygroups import group_range, key_group
from tailrace.elements.timestamps import is_late
from tailrace.errors import StateAccessError
from tailrace.graph.graph import Node
from tailrace.state.backend import MetaPart
from tailrace.task.operators.broadcasts.process import BroadcastCalls
from tailrace.task.operators.broadcasts.waiting import Waiting, values_of, waiting_of, without_waiting, write_waiting
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.late_records import LATE, least_time
from tailrace.task.operators.ordering.process import InOrderTask


class OrderedBroadcastTask(InOrderTask, BroadcastCalls):
    """A `BroadcastProcessFunction` that is given the records of both streams, and timers, in the order of their times. Of
    one time broadcast records come first, in the order in which they came.

    Invariant T10: a subtask has called the function for exactly the broadcast records that came and are not in `_coming`:
    all up to some time, of that time the first ones. Every subtask numbers them alike.

    Subtasks may be at different times, and so may their copies: each saves its own. At another parallelism all go on with
    the copy of the one that was farthest behind. The function is called again for records that others had, but not on their
    keys (`_done`), and what it emits outside of keys is dropped (`_emitted`).
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        for one in self.shared:
            one.each = True
        self._received = 0
        self._coming: list[tuple[int, int, Any]] = []
        """A heap of (time, number, record)."""
        self._done: list[tuple[int, int, set[int]]] = []
        self._emitted: set[int] = set()
        self._elsewhere: set[int] = set()
        self._at = 0
        """Number of the broadcast record at hand."""
        self._side = ctx.side
        """Side outputs that take what is emitted on keys."""
        self._looped = False
        """True if the call under way has gone through keys."""

    # Records.

    def process(self, batch: Batch, port: int) -> None:
        if not port:
            super().process(batch, port)
        elif len(batch):
            least_time(self, batch, "process(..., ordered=True)")
            rows = batch.to_rows()
            assert rows.times is not None
            for (late, value), time in zip(rows.values, rows.times.tolist(), strict=True):
                self._take_broadcast(late, value, time)

    def _take_broadcast(self, late: bool, value: Any, time: int) -> None:
        """Keeps a broadcast record until event time has come to it. One that was late in its stream goes aside, once."""
        if late:
            target = self.side_out.get(LATE)
            if self.ctx.subtask == 0:
                self.ctx.metrics.inc("late_records", 1)
                if target is not None:
                    target(Rows([value], np.array([time], np.int64), None, -1))
            return
        if is_late(np.array([time], np.int64), self.ctx.watermark_time).any():
            why = StateAccessError(
                "a broadcast record has come behind event time that has gone on without its stream: some subtasks would see "
                "it earlier than others; let no stream with ordered=True fall idle: give the broadcast stream "
                'assign_timestamps(..., when_all_idle="advance")'
            )
            raise self.user_error(why, value)
        heapq.heappush(self._coming, (time, self._received, value))
        self._received += 1

    def next_event(self) -> int | None:
        due = super().next_event()
        if not self._coming:
            return due
        return self._coming[0][0] if due is None else min(due, self._coming[0][0])

    def _hand_over(self, until: int, limit: int) -> int:
        while limit > 0 and self._coming and self._coming[0][0] <= until:
            limit = super()._hand_over(self._coming[0][0] - 1, limit)
            if limit > 0:
                self._call_next()
                limit -= 1
        return super()._hand_over(until, limit) if limit > 0 else limit

    def _call(self, until: int, limit: int) -> int:
        before = self.digests()
        called = super()._call(until, limit)
        self.check_unchanged(before, "process")
        return called

    def _call_next(self) -> None:
        """Calls the function for the next broadcast record."""
        time, self._at, value = heapq.heappop(self._coming)
        ctx = self.ctx
        ctx.watermark_time = max(ctx.watermark_time, time - 1)  # T7
        out: list[Any] = []
        before = self._side, self._looped = ctx.side, False
        if self._at in self._emitted:
            ctx.side = {}
        try:
            self.call_broadcast(value, time, out)
        finally:
            ctx.side = before[0]
        self._emitted.discard(self._at)
        self._elsewhere.discard(self._at)
        self._done = [one for one in self._done if one[2] - {self._at}]
        self._after_calls("process_broadcast")
        self._emit(out, [time] * len(out))

    def _collect(self, result: Any, out: list[Any]) -> None:
        """Adds what a call gives. If it was emitted before, only what the call gives on keys: of a list all, if it went
        through keys."""
        ctx = self.ctx
        if ctx.all_keys is None or result is None or self._at not in self._emitted:
            super()._collect(result, out)
        elif not isinstance(result, GeneratorType):
            super()._collect(result if self._looped else [], out)
        else:
            for one in result:
                if ctx.current_key is not ctx.no_key:
                    super()._collect([one], out)

    def _all_keys(self, states: tuple[Any, ...]) -> Iterator[Any]:
        ctx, self._looped = self.ctx, True
        for key in super()._all_keys(states):
            outside, ctx.side = ctx.side, self._side
            try:
                yield key
            finally:
                ctx.side = outside

    def is_done(self, key: Any) -> bool:
        """True if another subtask has called the function for the record at hand on a key."""
        if not self._done:
            return False
        group = key_group(key, self.ctx.services.max_parallelism)
        return any(first <= group < last and self._at in numbers for first, last, numbers in self._done)

    # Checkpoints.

    def snapshot(self, checkpoint: int) -> bytes | None:
        coming = sorted(self._coming, key=lambda one: one[:2])
        done = [(first, last, sorted(numbers)) for first, last, numbers in self._done]
        places = [(time, number) for time, number, _ in coming]
        own = super().snapshot(checkpoint)
        waiting = Waiting(self._received, places, done=done, emitted=sorted(self._emitted), own=own)
        waiting.elsewhere = sorted(self._elsewhere)
        return write_waiting(waiting, [value for _, _, value in coming])

    def restore(self, parts: list[MetaPart]) -> None:
        found = [(part, waiting) for part in parts if (waiting := waiting_of(part)) is not None]
        if not found:
            BroadcastCalls.restore(self, parts)
            return
        ctx = self.ctx
        own = [one for one in found if (one[0].subtask, one[0].parallelism) == (ctx.subtask, ctx.parallelism)]
        part, waiting = own[0] if own else max(found, key=lambda one: len(one[1].coming))
        bare = without_waiting(part)
        self.own_state.restore([MetaPart(ctx.subtask, ctx.parallelism, part.finished, bare.data)], self.finished)
        self._received = waiting.received
        values = values_of(waiting, f"the broadcast records of {self.node.name!r}")
        self._coming = [(time, number, value) for (time, number), value in zip(waiting.coming, values, strict=True)]
        if own:
            self._done = [(first, last, set(numbers)) for first, last, numbers in waiting.done]
            self._emitted, self._elsewhere = set(waiting.emitted), set(waiting.elsewhere)
        else:
            self._note_done(found)

    def _note_done(self, found: list[tuple[MetaPart, Waiting]]) -> None:
        """Notes what the old subtasks have done of the records that come again."""
        ctx = self.ctx
        again = {number for _, number, _ in self._coming}
        left = {part.subtask: {number for _, number in waiting.coming} for part, waiting in found}
        for part, waiting in found:
            owned = group_range(part.subtask, part.parallelism, ctx.services.max_parallelism)
            self._done.append((owned.start, owned.stop, again - left[part.subtask]))
            self._done += [(first, last, again & set(numbers)) for first, last, numbers in waiting.done]
            emitted = (again - left[part.subtask]) | set(waiting.emitted)
            self._elsewhere |= emitted | set(waiting.elsewhere)
            if part.subtask == ctx.subtask:
                self._emitted = emitted
        if ctx.subtask not in left:
            self._emitted = set(self._elsewhere)
        self._done = [one for one in self._done if one[2]]
