"""Windows with early and late firings beside the final one.

A window fires early and late when so many records have come since its last result, or so long after the first of them by
the clock. When the watermark reaches its last microsecond it fires the final time, once, whether anything is new or not.
What has come since the last late firing is fired when the window goes. So each record is in a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from tailrace.api.aggregates import Count
from tailrace.elements.batches import Columns, Rows, Times
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import FIRING_COLUMNS, FiringInterval
from tailrace.state.tables import StateTable
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.timer_heap import timers_of
from tailrace.task.operators.windows.aggregates import NOTHING, WindowTask, window_key
from tailrace.task.operators.windows.firing import Fired

Firing = Literal["early", "final", "late"]
EACH = FiringInterval(1, None)
_NEVER = (0, 0, 0)
FIRING_TYPES = (pa.string(), pa.int64())


class TriggeredWindowTask(WindowTask):
    """Tumbling and sliding windows with early or late firings.

    The state of a firing is (number of results so far, records since the last one, time of the clock at which the window
    is to fire or 0). A window without it has never fired and has no new record.

    Invariant W7: an open window has a timer of the clock exactly if the state of its firings has that time; a window that
    is not open has neither.
    """

    labels = MappingProxyType(dict(zip(FIRING_COLUMNS, FIRING_TYPES, strict=True)))

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert self.spec.triggers is not None
        self.triggers = self.spec.triggers
        self.firings = self.backend.table("firings", kind="firings")
        self.clock = timers_of(self.backend, "processing", window_key, self.journal)
        self._ready: list[tuple[Fired, tuple[Any, ...]]] = []
        """Windows that have fired, with their results, which are still to be sent."""

    def key_tables(self) -> list[StateTable]:
        return [self.table, self.firings]

    # Records in.

    def take_rows(self, rows: Rows) -> None:
        try:
            super().take_rows(rows)
        except Exception:
            self._ready = []  # the batch is undone, or the job fails
            raise
        self._send()

    def take_columns(self, batch: Columns) -> None:
        super().take_columns(batch)
        self._send()

    def add_rows(self, values: list[Any], keys: list[Any], starts: list[int], updated: list[Any]) -> None:
        value: Any = None
        readers = [reader.getter(values) for reader in self.inputs]
        ended = self.newest_over(self.ctx.watermark_time)
        try:
            for value, key, start in zip(values, keys, starts, strict=True):
                windows = self.windows_of(key, start)
                windows[start] = self.add_value(self._base(windows[start], key, start), value, readers)
                self._count(key, start, 1, ended)
        except UserCodeError:
            raise
        except Exception as error:
            raise self.user_error(error, value) from error

    def _base(self, state: Any, key: Any, start: int) -> Any:
        """The state of a window to which a record is added."""
        if self.reduce is None or not self.triggers.discarding:
            return state
        return state if self._firings_of(key).get(start, _NEVER)[1] else NOTHING

    def merged_one_by_one(self, part: Columns, starts: Times) -> Iterator[tuple[Any, int]]:
        """Adds records to windows, and fires those that are to fire behind the batch."""
        ended = self.newest_over(self.ctx.watermark_time)
        for key, start, *partials, count in self.groups_of(part, starts, [*self.functions, Count()]):
            windows = self.windows_of(key, start)
            pairs = zip(self.functions, windows[start], partials, strict=True)
            windows[start] = tuple([f.merge(a, p) for f, a, p in pairs])
            self._count(key, start, count, ended)
        return iter(())

    def _count(self, key: Any, start: int, records: int, ended: int) -> None:
        """Counts records that a window has got, and fires it if that is due. Windows up to the start `ended` are over."""
        firings = self._firings_of(key)
        number, new, due = firings.get(start, _NEVER)
        new += records
        firings[start] = (number, new, due)
        kind: Firing = "early"
        interval = self.triggers.early
        if start <= ended:
            end = ((key, start), self.end_of(start) - 1)
            if end in self.timers.table:  # its first record is late
                self.timers.delete(*end)
                self._fire_one(key, start, "final")
                return
            kind, interval = "late", self.triggers.late or EACH
        if interval is None:
            return
        if interval.records is not None and new >= interval.records:
            self._fire_one(key, start, kind)
        elif interval.span is not None and not due:
            self.ctx.services.clock_read = True
            due = self.ctx.services.now + interval.span
            self.clock.set((key, start), due)
            firings[start] = (number, new, due)

    def _firings_of(self, key: Any) -> dict[int, tuple[int, int, int]]:
        """The firings of the windows of a key, by start."""
        table = self.firings
        found: dict[int, tuple[int, int, int]] | None = table.top.get(key)
        if found is None:
            found = table.find(key)
            if found is None:
                found = table.top[key] = {}
        return found

    # Windows out.

    def advance_entries(self, time: int, limit: int) -> None:
        for _ in range(limit):
            due = self.timers.pop_due(time)
            if due is None:
                break
            (key, start), at = due
            last = self.end_of(start) - 1
            if start not in (self.table.get(key) or {}):
                continue  # the clean-up of a window that was restored from a job with more allowed lateness
            if at == last:
                self._fire_one(key, start, "final")
            if at < last + self.spec.allowed_lateness:
                self.timers.set((key, start), last + self.spec.allowed_lateness)
                continue
            if self._firings_of(key).get(start, _NEVER)[1]:
                self._fire_one(key, start, "late")
            self.drop(key, start)
        self.backend.relieve()
        self._send()

    def next_processing(self) -> int | None:
        return self.clock.next_time()

    def awaits_timers(self) -> bool:
        return False  # at the end of the input all windows fire

    def fire_processing(self, now: int, limit: int) -> int:
        fired = 0
        ended = self.newest_over(self.ctx.watermark_time)
        while fired < limit and (due := self.clock.pop_due(now)) is not None:
            self.ctx.services.clock_read = True
            fired += 1
            key, start = due[0]
            # Event time may have come, and the final result be still to come: `advance` is given so many at once.
            over = start <= ended and ((key, start), self.end_of(start) - 1) not in self.timers.table
            self._fire_one(key, start, "late" if over else "early")
        self.backend.relieve()
        self._send()
        return fired

    def _fire_one(self, key: Any, start: int, kind: Firing) -> None:
        """Computes the result of a window, and begins what its next result has."""
        windows, firings = self.table[key], self._firings_of(key)
        number, new, due = firings.get(start, _NEVER)
        discarding = self.triggers.discarding
        state = None if discarding and not new and self.reduce is not None else windows[start]
        fired = (key, start, self.end_of(start), state)
        self._ready.append((fired, (*self.results_of(fired), kind, number + 1)))
        firings[start] = (number + 1, 0, 0)
        if due:
            self.clock.delete((key, start), due)
        if discarding:
            windows[start] = (
                None if self.reduce is not None else tuple([f.create_accumulator() for f in self.functions])
            )

    def _send(self) -> None:
        ready, self._ready = self._ready, []
        self.send([fired for fired, _ in ready], [results for _, results in ready])

    def drop(self, key: Any, start: int) -> None:
        super().drop(key, start)
        firings = self._firings_of(key)
        _, _, due = firings.pop(start, _NEVER)
        if due:
            self.clock.delete((key, start), due)
        if not firings:
            self.firings.pop(key)
