"""Sessions per key: records between which event time has no gap.

A record at time t opens the session [t, t + gap]. Sessions of a key that overlap or touch become one. A session is over when
the watermark reaches its end: a record at that very moment would still belong to it, and every later one is the next
session's.

A record behind the watermark joins a session that is open at its time. Else it opens one if that is not over, and if it
touches no session that was emitted. The end of an emitted session is kept until no record can touch it any more. Where each
record has its own gap there is no such moment, so there a record behind the watermark opens no session. Records of a
batch that are in time are taken first, so which others are late does not depend on the order in the batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np

from tailrace.api.windows.windows import LARGEST
from tailrace.elements.batches import Rows
from tailrace.elements.durations import span_micros
from tailrace.elements.timestamps import is_late
from tailrace.graph.graph import Node
from tailrace.graph.operators import SessionWindow
from tailrace.task.channels.key_readers import FieldReader, settled_keys
from tailrace.task.contract.usercode import raised_text
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.late_records import set_aside
from tailrace.task.operators.timer_heap import Keyed
from tailrace.task.operators.windows.firing import Fired, WindowedTask

Session = tuple[int, int, Any]
"""(end, order, state). The order follows from the first record; that of an emitted session is negative."""
_Heap = list[tuple[int, int, Keyed, int]]
"""(time, order, key, start) of sessions, for each session at or before the time at which it is due."""


class SessionTask(WindowedTask):
    """Session windows. The state of a key is a dictionary from the starts of its sessions.

    Invariant W5: the open sessions of a key, and the newest emitted one, neither overlap nor touch each other.
    """

    before_end = 0

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, SessionWindow)
        super().__init__(node, ctx, node.operator, "session")
        self.gap = node.operator.gap
        selector = node.operator.gap_of
        self.gap_of = None if selector is None else FieldReader(selector, node.name, ctx.subtask, node.written)
        self.reach = self.gap or 0
        """How long behind its end an emitted session may be touched."""
        self._open: _Heap = []
        """Open sessions, by their ends."""
        self._emitted: _Heap = []
        """Emitted sessions, by the times at which they are forgotten."""
        self.order = 0
        """Number of records that have come; after a restore, the highest order of a session."""
        self.backend.after_restore.append(self.rebuild)

    def rebuild(self) -> None:
        """Makes the heaps from the table."""
        self._open, self._emitted = [], []
        for key, sessions in self.table.items():
            for start, (end, order, _) in sessions.items():
                self._put(Keyed(key), start, end, order)
                self.order = max(self.order, abs(order))

    def _put(self, keyed: Keyed, start: int, end: int, order: int) -> None:
        if order > 0:
            heapq.heappush(self._open, (end, order, keyed, start))
        else:
            heapq.heappush(self._emitted, (end + self.reach, -order, keyed, start))

    # Records in.

    @property
    def room(self) -> int:
        return 2 * (self.gap or 0)

    def take_rows(self, rows: Rows) -> None:
        set_aside(self, rows, self.add(rows, self.keys.values(rows), np.zeros(len(rows), np.bool_)))

    def add(self, rows: Rows, keys: list[Any], merged: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Adds the records that are not late; returns the mask of those that are. `merged`: mask of records that were added
        already."""
        assert rows.times is not None
        keys, values, times = settled_keys(keys), rows.values, rows.times.tolist()
        gaps = [self.reach] * len(values) if self.gap_of is None else self.gaps_of(rows)
        late = ~merged & (is_late(rows.times, self.ctx.watermark_time))
        readers = [reader.getter(values) for reader in self.inputs]
        at = 0
        try:
            top = self.table.top
            for at in np.flatnonzero(~merged & ~late).tolist():
                if self._extend(top.get(keys[at]), times[at], gaps[at], values[at], readers):
                    continue
                self._add(at, keys[at], times[at], times[at] + gaps[at], values[at], readers)
            behind = np.flatnonzero(late).tolist()
            while behind:
                waiting, behind = behind, []
                for at in waiting:
                    if self._is_welcome(keys[at], times[at]):
                        self._add(at, keys[at], times[at], times[at] + gaps[at], values[at], readers)
                        late[at] = False
                    else:
                        behind.append(at)
                if len(behind) == len(waiting):
                    break
        except Exception as error:
            raise self.user_error(error, values[at]) from error
        self.order += len(values)
        self.backend.relieve()
        return late

    def gaps_of(self, rows: Rows) -> list[int]:
        """The gap of each record in microseconds. Raises `UserCodeError` for what is no span above zero."""
        assert self.gap_of is not None and rows.times is not None
        found = gaps_of_records(self, self.gap_of, rows)
        for gap, time in zip(found, rows.times.tolist(), strict=True):
            self.check_range(gap, time)
        return found

    def _is_welcome(self, key: Any, time: int) -> bool:
        """True if a record behind the watermark is not late."""
        opens = time > self.ctx.watermark_time - self.reach  # its own session is not over
        for start, (end, order, _) in (self.table.get(key) or {}).items():
            if order > 0 and start <= time <= end:
                return True
            opens = opens and (order > 0 or time > end)
        return opens

    def _extend(self, sessions: dict[int, Session] | None, time: int, gap: int, value: Any, readers: list[Any]) -> bool:
        """Adds a record to the only session of its key, if that is open at its time. What most records need is here."""
        if sessions is None or len(sessions) != 1:
            return False
        [(start, (end, order, state))] = sessions.items()
        if order < 0 or not start <= time <= end:
            return False
        state = self.reduce(state, value) if self.reduce else self._add_value(state, value, readers)
        sessions[start] = (end if time + gap < end else time + gap, order, state)
        return True

    def _add(self, at: int, key: Any, start: int, end: int, value: Any, readers: list[Any]) -> None:
        """Adds a record, the one at place `at` of its batch, to the session that it opens or touches. Sessions between which
        it lies become one."""
        table = self.table
        sessions: dict[int, Session] | None = table.top.get(key)
        if sessions is None:
            sessions = table.find(key)
            if sessions is None:
                sessions = table.top[key] = {}
        touched = [s for s, (e, order, _) in sessions.items() if order > 0 and s <= end and start <= e]
        if not touched:
            order, state = self.order + at + 1, value
            if self.reduce is None:
                state = self._add_value([f.create_accumulator() for f in self.functions], value, readers)
            sessions[start] = (end, order, state)
            self._put(Keyed(key), start, end, order)
            return
        first = touched[0] if len(touched) == 1 else self._merge(sessions, sorted(touched))
        last, order, state = sessions[first]
        state = self.reduce(state, value) if self.reduce else self._add_value(state, value, readers)
        last = max(last, end)
        if start < first or len(touched) > 1:
            del sessions[first]
            first = min(start, first)
            self._put(Keyed(key), first, last, order)
        sessions[first] = (last, order, state)

    def _add_value(self, state: Any, value: Any, readers: list[Any]) -> Any:
        return tuple([f.add(g(value), a) for f, g, a in zip(self.functions, readers, state, strict=True)])

    def _merge(self, sessions: dict[int, Session], starts: list[int]) -> int:
        """Merges several sessions, given in their order, into the first one; returns its start."""
        end, order, state = sessions[starts[0]]
        for start in starts[1:]:
            other_end, other_order, other = sessions.pop(start)
            end, order = max(end, other_end), min(order, other_order)
            if self.reduce is not None:
                state = self.reduce(state, other)
            else:
                state = tuple([f.merge(a, b) for f, a, b in zip(self.functions, state, other, strict=True)])
        sessions[starts[0]] = (end, order, state)
        return starts[0]

    # Sessions out.

    def next_event(self) -> int | None:
        # A session may have gone on since; `advance` finds that out when the time comes.
        return min((heap[0][0] for heap in (self._open, self._emitted) if heap), default=None)

    def _next(self, heap: _Heap, time: int) -> tuple[int, int, Keyed, int] | None:
        """The first session of a heap that is due at `time`. Entries before it that are not true any more go."""
        while heap and heap[0][0] <= time:
            at, order, keyed, start = heap[0]
            end, held, _ = (self.table.get(keyed.key) or {}).get(start, (0, 0, None))
            if abs(held) != order or (held > 0) != (heap is self._open):
                heapq.heappop(heap)
            elif held > 0 and end != at:
                heapq.heapreplace(heap, (end, order, keyed, start))
            else:
                return heap[0]
        return None

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self.reached.pass_by(time)
        fired = [self._emit(keyed, start) for keyed, start in self._due(self._open, time, limit)]
        over = self._next(self._open, time) is None
        if over:
            for keyed, start in self._due(self._emitted, time, limit):
                self._forget(keyed.key, start)
        self.backend.relieve()
        self.fire(fired)
        return over and self._next(self._emitted, time) is None

    def _due(self, heap: _Heap, time: int, limit: int) -> Iterator[tuple[Keyed, int]]:
        """Takes sessions that are due from a heap, at most `limit`: (key, start). The caller ends each before the next."""
        for _ in range(limit):
            due = self._next(heap, time)
            if due is None:
                return
            heapq.heappop(heap)
            yield due[2], due[3]

    def done_until(self) -> int | None:
        due = self.next_event()
        return None if due is None else due - 1

    def _emit(self, keyed: Keyed, start: int) -> Fired:
        sessions = self.table.get(keyed.key)
        end, order, state = sessions[start]
        for old in [s for s, (_, order, _) in sessions.items() if order < 0]:
            del sessions[old]
        sessions[start] = (end, -order, None)
        if self.reach:
            self._put(keyed, start, end, -order)
        else:
            self._forget(keyed.key, start)
        return keyed.key, start, end, state

    def _forget(self, key: Any, start: int) -> None:
        sessions = self.table.get(key)
        del sessions[start]
        if not sessions:
            self.table.pop(key)


def gaps_of_records(task: OperatorTask, gap_of: FieldReader, rows: Rows) -> list[int]:
    """The gap of each record in microseconds. Raises `UserCodeError`, with the record, for what is no span above zero."""
    found = []
    for gap, value in zip(gap_of.values(rows), rows.values, strict=True):
        try:
            found.append(gap * 1_000_000 if type(gap) is int else span_micros(gap))
        except (TypeError, OverflowError) as error:
            raise task.user_error(error, value, what=f"the gap of a session: {raised_text(error)}") from error
        if not 0 < found[-1] <= LARGEST:
            what = f"the gap of a session must be above zero and at most {timedelta(microseconds=LARGEST)}, not {gap!r}"
            raise task.user_error(ValueError(what), value, what=what)
    return found
