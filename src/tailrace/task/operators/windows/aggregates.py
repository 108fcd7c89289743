"""Aggregates per key and event-time window.

A window [start, end) fires when the watermark passes its last microsecond, and again for every record that comes within
the allowed lateness after that; then its state goes. A record later than that goes to the side output `late` and is
counted (`late_records`).

Built-in aggregates over columns keep their windows in arrays (`state`), if their types allow it.

In a loop no record is late, because feedback is not: a record whose window is over opens it anew, and the window fires at
once, with what came in the same batch. So one window may have several results there, each of other records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.batches import Batch, Columns, Rows, Times
from tailrace.elements.keygroups import group_range
from tailrace.elements.slottables import Slots
from tailrace.elements.timestamps import LAST_TIME, MIN_TIME, is_late
from tailrace.graph.graph import Node
from tailrace.graph.operators import Window
from tailrace.task.channels.key_readers import column_of, settled_keys
from tailrace.task.operators.aggregates.accumulators import NotInArrays
from tailrace.task.operators.aggregates.arrow import GroupedBatch
from tailrace.task.operators.aggregates.grouping import SlotGrouping, Windows
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.late_records import Floors, set_aside
from tailrace.task.operators.timer_heap import timers_of
from tailrace.task.operators.windows.firing import WindowedTask
from tailrace.task.operators.windows.load import into_arrays, into_entries
from tailrace.task.operators.windows.state import WindowState
from tailrace.task.operators.windows.windowtimes import WindowTimes

NOTHING: Any = object()
_Fired = tuple[Any, int, Any]
"""Window that fires: (key, start, current state)."""
PAIRS = 65_536
"""Number of pairs of a record and a window that are handled together."""


class WindowTask(WindowedTask):
    """Tumbling and sliding windows.

    Invariant W2: a window has an entry in the state exactly from its first record until its clean-up timer, and while it
    has one, a timer for its end (until it fired) and one for its clean-up are set.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, Window)
        super().__init__(node, ctx, node.operator, "window")
        self.spec = node.operator
        self._times = WindowTimes(self.spec)
        self._calendar = self._times.calendar
        self.timers = timers_of(self.backend, "event", window_key, self.journal)
        self._windows: WindowState | None = None
        """Windows in arrays; None while they are in entries."""
        self._grouping: SlotGrouping | None = None
        self._nulls = False
        """True if keys are known to be null now and then."""
        self._closed_before = Floors(node, ctx)
        """Windows that were closed before a start with a longer allowed lateness, by their last microsecond."""
        self._closed_until = MIN_TIME
        """The last microsecond up to which they were closed, in the key groups of the records at hand."""
        # Arrays must fit in memory, and a table on disk may be larger.
        possible = self._calendar is None and self.spec.triggers is None and self.table.base.mutable
        self._in_columns = self.is_vectorised() and node.form == "columns" and possible
        """True if arrays may be tried, or continued."""

    def closed_times(self) -> list[tuple[int, int, int]]:
        reached, groups = self.ctx.watermark_time, self.ctx.services.max_parallelism
        if self.in_loop or not MIN_TIME < reached < LAST_TIME:
            return []
        own = group_range(self.ctx.subtask, self.ctx.parallelism, groups)
        return [(own.start, own.stop, reached - self.spec.allowed_lateness), *self._closed_before.ranges]

    def restore_closed(self, closed: list[tuple[int, int, int]]) -> None:
        self._closed_before.ranges = closed
        self._closed_before.pass_by(self.ctx.watermark_time - self.spec.allowed_lateness)

    # Records in.

    def _take(self, batch: Batch) -> None:
        if not self._closed_before.ranges:
            super()._take(batch)
            return
        for until, part in self._closed_before.parts(batch, self.spec.key, MIN_TIME):
            self._closed_until = until
            super()._take(part)
        self._closed_until = MIN_TIME

    def check_range(self, room: int, *times: int) -> None:
        super().check_range(room, *times)
        try:
            self._times.check_calendar(*times)
        except OverflowError as error:
            raise self.user_error(error) from error

    @property
    def room(self) -> int:
        return self.spec.size + self.spec.slide + self.spec.allowed_lateness

    def _open(self, starts: Times, times: Times) -> np.ndarray[Any, Any]:
        """Mask of the records that still belong to the window that starts there: inside it, and not too late for it."""
        ends = self._times.ends(starts)
        inside = times < ends
        if self.in_loop:
            return inside
        if self._closed_until > MIN_TIME:
            inside &= ends > self._closed_until + 1
        return inside & ~is_late(ends + (self.spec.allowed_lateness - 1), self.ctx.watermark_time)

    def end_of(self, start: int) -> int:
        """End of the window that begins at a time."""
        if self._calendar is None:
            return start + self.spec.size
        return int(self._calendar.ends(np.array([start], np.int64))[0])

    def newest_over(self, time: int) -> int:
        """Start of the newest window whose last microsecond is not after a time."""
        return time - self.spec.size + 1 if self._calendar is None else self._calendar.newest_over(time)

    @property
    def _closed(self) -> int:
        """Start of the newest window that is over, its allowed lateness included."""
        return self.newest_over(self.ctx.watermark_time - self.spec.allowed_lateness)

    def take_rows(self, rows: Rows) -> None:
        assert rows.times is not None
        self._leave_columns()
        keys = settled_keys(self.keys.values(rows))
        accepted = np.zeros(len(rows), bool)
        updated: list[_Fired] = []
        for at, starts in self._pairs(rows.times, accepted):
            values, theirs = rows.values, keys
            if at is not None:
                places = at.tolist()
                values, theirs = [values[place] for place in places], [keys[place] for place in places]
            self.add_rows(values, theirs, starts.tolist(), updated)
        self.backend.relieve()
        set_aside(self, rows, ~accepted)
        self._refire(updated)

    def _pairs(self, times: Times, accepted: np.ndarray[Any, Any]) -> Iterator[tuple[Slots | None, Times]]:
        """Portions of the pairs of a record and a window of it that is open: places of the records (None: all of them), and
        starts of the windows. Pairs are in the order of the records, so each window gets its records in the order in which
        they came. Marks records as accepted."""
        starts = self._times.starts(times)[::-1]
        several = len(starts)
        if several == 1:  # the two orders are one
            yield from self._passes(times, accepted)
            return
        width = max(1, PAIRS // several)
        for first in range(0, len(times), width):
            ours = np.stack([one[first : first + width] for one in starts], axis=1).ravel()
            at = np.repeat(np.arange(first, min(first + width, len(times))), several)
            good = self._open(ours, times[at])
            at = at[good]
            accepted[at] = True
            if len(at):
                yield at, ours[good]

    def _passes(self, times: Times, accepted: np.ndarray[Any, Any]) -> Iterator[tuple[Slots | None, Times]]:
        """Pairs as `_pairs` gives them, but all records with their first window, then all with their second one, and so on:
        for aggregates that do not depend on the order of records."""
        for starts in reversed(self._times.starts(times)):
            good = self._open(starts, times)
            accepted |= good
            if good.all():
                yield None, starts
            elif good.any():
                yield np.flatnonzero(good), starts[good]

    def add_rows(self, values: list[Any], keys: list[Any], starts: list[int], updated: list[_Fired]) -> None:
        value: Any = None
        readers = [reader.getter(values) for reader in self.inputs]
        closed, ended = self._closed, self.newest_over(self.ctx.watermark_time)
        try:
            for value, key, start in zip(values, keys, starts, strict=True):
                windows = self.windows_of(key, start)
                windows[start] = self.add_value(windows[start], value, readers)
                if closed < start <= ended:
                    updated.append((key, start, windows[start]))
        except Exception as error:
            raise self.user_error(error, value) from error

    def add_value(self, state: Any, value: Any, readers: list[Any]) -> Any:
        if self.reduce is not None:
            return value if state is NOTHING else self.reduce(state, value)
        return tuple([f.add(g(value), a) for f, g, a in zip(self.functions, readers, state, strict=True)])

    def windows_of(self, key: Any, start: int) -> dict[int, Any]:
        """Open windows of a key. Makes the one that starts at `start`, with its timers, if it is new."""
        table = self.table
        windows: dict[int, Any] | None = table.top.get(key)
        if windows is None:
            windows = table.find(key)
            if windows is None:
                windows = table.top[key] = {}
        if start not in windows:
            windows[start] = NOTHING if self.reduce else tuple([f.create_accumulator() for f in self.functions])
            last = self.end_of(start) - 1
            self.timers.set((key, start), last)
            if self.spec.allowed_lateness:
                self.timers.set((key, start), last + self.spec.allowed_lateness)
        return windows

    def take_columns(self, batch: Columns) -> None:
        assert batch.times is not None
        accepted = np.zeros(len(batch), bool)
        updated: dict[tuple[Any, int], None] = {}
        slots: list[Slots] = []
        if self._in_columns:
            self._check_types(batch)
        pairs = self._passes if self.is_vectorised() else self._pairs
        for at, starts in pairs(batch.times, accepted):
            part = Columns(batch.data if at is None else batch.data.take(pa.array(at)), None)
            try:
                slots += self._merge_part(part, starts)
            except NotInArrays:
                updated |= dict.fromkeys(self._leave_columns(slots))
                slots = []
                updated |= dict.fromkeys(self.merged_one_by_one(part, starts))
        self.backend.relieve()
        set_aside(self, batch, ~accepted)
        if slots:
            self._refire_slots(np.concatenate(slots))
        self._refire([(key, start, self.table[key][start]) for key, start in updated])

    def merged_one_by_one(self, part: Columns, starts: Times) -> Iterator[tuple[Any, int]]:
        """Adds records to windows in entries; yields the windows that had fired before."""
        closed, ended = self._closed, self.newest_over(self.ctx.watermark_time)
        for key, start, *partials in self.groups_of(part, starts, self.functions):
            windows = self.windows_of(key, start)
            pairs = zip(self.functions, windows[start], partials, strict=True)
            windows[start] = tuple([f.merge(a, p) for f, a, p in pairs])
            if closed < start <= ended:
                yield key, start

    def groups_of(self, part: Columns, starts: Times, functions: list[Any]) -> Iterator[Any]:
        """Key, start and partial accumulators of each window of a batch, in the order of their first records."""
        grouped = GroupedBatch.of(self, part, self.keys.selector, functions, starts)
        assert grouped.windows is not None and grouped.first is not None
        held = settled_keys(grouped.keys())
        groups = list(zip(held, grouped.windows.tolist(), *grouped.partials(), strict=True))
        return (groups[place] for place in np.argsort(grouped.first).tolist())

    # Windows in arrays.

    def _merge_part(self, part: Columns, starts: Times) -> list[Slots]:
        """Adds records to windows in arrays; returns the slots of the windows that had fired before. Raises `NotInArrays`
        before anything is changed."""
        if not self._in_columns:
            raise NotInArrays
        found = None
        if self._windows is not None and self._grouping is not None:
            found = self._grouping.group(part, self._windows.keys, Windows(starts, self.spec.slide))
        if found is None:
            grouped = GroupedBatch.of(self, part, self.keys.selector, self.functions, starts)
            if self._grouping is None or self._grouping.schema != part.data.schema:
                self._grouping = SlotGrouping(part.data.schema, grouped)
            state = self._state_for(grouped)
            keys = state.keys.slots(grouped.key_columns)
        else:
            assert self._windows is not None
            (grouped, keys), state = found, self._windows
        of_groups = grouped.windows
        assert of_groups is not None and grouped.first is not None
        slots = state.merge(keys, of_groups, grouped.answers, grouped.first)
        ended = self.ctx.watermark_time - self.spec.size + 1
        if int(of_groups.min()) > ended:
            return []
        again = (of_groups > self._closed) & (of_groups <= ended)
        return [slots[again][np.argsort(grouped.first[again])]]

    def _state_for(self, grouped: GroupedBatch) -> WindowState:
        """Windows in arrays, made from entries if they are not there yet. Raises `NotInArrays`."""
        if self._windows is None:
            spec = self.spec
            self._windows = into_arrays(self.table, self.timers, grouped, self._nulls, spec.size, spec.allowed_lateness)
        return self._windows

    def _check_types(self, batch: Columns) -> None:
        """Moves windows in arrays into entries if the arrays were made for other types than those of this batch. The
        windows come back into arrays of the new types."""
        selector: Any = self.keys.selector
        columns = [self._column(batch, name) for name in ([selector] if isinstance(selector, str) else selector)]
        self._nulls = self._nulls or any(column.null_count for column in columns)
        state = self._windows
        if state is not None:
            inputs = [None if f.of is None else self._column(batch, f.of).type for f in state.aggregates]
            if not state.keys.takes(columns) or inputs != state.kinds:
                into_entries(state, self.table, self.timers)
                self._windows = None

    def _column(self, batch: Columns, name: str) -> pa.Array:
        return column_of(batch, name, self.node.name, self.ctx.subtask)

    def _leave_columns(self, slots: Sequence[Slots] = ()) -> list[tuple[Any, int]]:
        """Moves the windows from arrays into entries until the next start, because a batch came that arrays cannot hold.
        Returns the windows in some slots."""
        state, self._windows, self._in_columns = self._windows, None, False
        if state is None:
            return []
        into_entries(state, self.table, self.timers)
        if not slots:
            return []
        some = np.concatenate(slots)
        return list(zip(settled_keys(state.keys.keys(state.keys_of(some))), state.starts(some).tolist(), strict=True))

    def _refire_slots(self, slots: Slots) -> None:
        """Fires windows again, each once, that had fired and got another record within the allowed lateness."""
        state = self._windows
        assert state is not None
        _, first = np.unique(slots, return_index=True)
        slots = slots[np.sort(first)]
        state.ends.delete(slots, state.starts(slots))
        self._fire_slots(state, slots)

    def _advance_columns(self, state: WindowState, time: int, limit: int) -> None:
        due = state.due(time, limit)
        self._fire_slots(state, due.ended)
        state.drop(due.over)
        if state.sparse and self.table.frozen is None and self.timers.table.frozen is None:
            state.tidy()

    def _fire_slots(self, state: WindowState, slots: Slots) -> None:
        if not len(slots):
            return
        starts, keys = state.starts(slots), state.keys.columns(state.keys_of(slots))
        ends, values = starts + self.spec.size, state.results(slots, self.grouped_nothing().result_types)
        self.out(Columns(self.batch_of(keys, starts, ends, values), ends - 1))

    # Windows out.

    def _refire(self, updated: list[_Fired]) -> None:
        """Fires windows again that had fired and got another record within the allowed lateness."""
        for key, start, _ in updated:
            self.timers.delete((key, start), self.end_of(start) - 1)
        self._fire(updated)

    def next_event(self) -> int | None:
        return self.timers.next_time() if self._windows is None else self._windows.next_time()

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self.reached.pass_by(time)
        self._closed_before.pass_by(time - self.spec.allowed_lateness)
        if self._windows is not None:
            self._advance_columns(self._windows, time, limit)
        else:
            self.advance_entries(time, limit)
        next_time = self.next_event()
        return next_time is None or next_time > time

    def advance_entries(self, time: int, limit: int) -> None:
        fired = []
        for _ in range(limit):
            due = self.timers.pop_due(time)
            if due is None:
                break
            (key, start), at = due
            last = self.end_of(start) - 1
            windows = self.table.get(key)
            if windows is None or start not in windows:
                continue  # the clean-up of a window that was restored from a job with more allowed lateness
            if at == last:
                fired.append((key, start, windows[start]))
            if at >= last + self.spec.allowed_lateness:
                self.drop(key, start)
            else:
                # Set already, unless the window was restored from a job with less.
                self.timers.set((key, start), last + self.spec.allowed_lateness)
        self.backend.relieve()
        self._fire(fired)

    def done_until(self) -> int | None:
        next_time = self.next_event()
        return None if next_time is None or self.in_loop else next_time - 1

    def drop(self, key: Any, start: int) -> None:
        windows = self.table[key]
        del windows[start]
        if not windows:
            self.table.pop(key)

    def _fire(self, fired: list[_Fired]) -> None:
        self.fire([(key, start, self.end_of(start), state) for key, start, state in fired])


def window_key(entry: tuple[tuple[Any, int], int]) -> Any:
    """Key in a timer of a window: ((key, start), time)."""
    return entry[0][0]
