"""Functions that windows are made of: one that is called with all records of a window, which a window in front of it has
gathered; and the one that keeps windows that do not depend on time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from tailrace.api.checks.arguments import check_callable, check_methods
from tailrace.api.failure_options import ResultFailed
from tailrace.api.functions import (
    AggregateFunction,
    Context,
    Function,
    KeyedProcessFunction,
    ProcessFunction,
    WindowFunction,
    Wrapper,
    as_callable,
)
from tailrace.api.restore.kinds import Shaped, accumulators_of, discards
from tailrace.api.windows.windows import CountSpec
from tailrace.elements.calendars import Calendar
from tailrace.elements.callables import followed_by, run_to_its_end
from tailrace.elements.rows import field_getter, made_rows
from tailrace.errors import GraphError, error_text
from tailrace.graph.operators import KeyedProcess, Process, Selector, SessionSpec, Triggers, WindowSpec
from tailrace.state.handles import Delegate, ValueState, states_of


class WindowBounds(NamedTuple):
    """The start and the end of a window, in seconds since 1970 or as datetimes; None for a window that does not depend on
    time. `firing` is "early", "final" or "late", and `number` counts the firings of the window from 1."""

    start: Any
    end: Any
    firing: Literal["early", "final", "late"] = "final"
    number: int = 1


class Gather(AggregateFunction):
    """The list of all records, in the order in which they came. Where a record makes two sessions one, those of the earlier
    session are first."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)  # each window has a list of its own
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return list(accumulator)

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a + b


class WindowCall(Wrapper, ProcessFunction):
    """Calls of the user's function with the results of a window that gathers records."""

    def __init__(self, fn: Any, columns: int | None, timed: bool) -> None:
        self.fn = fn
        self.columns = columns
        """Number of columns of a key that is a tuple; None for any other key."""
        self.timed = timed
        """True if results have the bounds of their window."""
        self._call: Callable[..., Any] | None = None

    @property
    def wrapped(self) -> list[Function]:
        return [self.fn] if isinstance(self.fn, Function) else []

    def process(self, row: Any, ctx: Context) -> Any:
        return self.call(*parts_of(row, self.columns, self.timed), ctx)

    def call(self, key: Any, window: WindowBounds, records: list[Any], ctx: Context) -> Any:
        """What the user's function gives."""
        if self._call is None:
            self._call = run_to_its_end(self.fn.process if isinstance(self.fn, WindowFunction) else self.fn)
        return self._call(key, window, records, ctx)


def parts_of(row: Any, columns: int | None, timed: bool) -> tuple[Any, WindowBounds, list[Any]]:
    """Key, window and records of a result; see `WindowCall` for the arguments."""
    key = row[0] if columns is None else tuple(row[:columns])
    rest = row[1 if columns is None else columns :]
    start, end, records, *firing = rest if timed else (None, None, *rest)
    return key, WindowBounds(start, end, *firing), records


def state_key(columns: int | None, timed: bool, row: Any) -> Any:
    """The key of the state of a window: that of its records, with the start of the window if it has one."""
    key, window, _ = parts_of(row, columns, timed)
    start = window.start
    return (key, start.timestamp() if isinstance(start, datetime) else start) if timed else key


class StatefulWindowCall(WindowCall, KeyedProcessFunction, Delegate):
    """Calls of the user's function with the results of a window, and state of that window. The state is cleared behind the
    last result that the window can have."""

    def __init__(
        self, fn: Any, columns: int | None, timed: bool, lateness: int, windows: WindowSpec | CountSpec
    ) -> None:
        super().__init__(fn, columns, timed)
        self.lateness = lateness
        """Microseconds for which late results may follow the final one."""
        self.windows = windows

    def process(self, row: Any, ctx: Context) -> Any:
        key, window, records = parts_of(row, self.columns, self.timed)
        return followed_by(self.call, lambda: self._end_call(window, ctx))(key, window, records, ctx)

    def _end_call(self, window: WindowBounds, ctx: Context) -> None:
        if self.lateness and window.end is not None:
            if isinstance(window.end, datetime):  # in UTC: within a zone Python adds to the wall clock
                ctx.set_timer(event_time=window.end.astimezone(UTC) + timedelta(microseconds=self.lateness))
            else:
                ctx.set_timer(event_time=window.end + self.lateness / 1e6)
        elif window.firing == "final":
            self._clear()

    def on_timer(self, timestamp: float, ctx: Context) -> None:
        goes = (self._end_of(round(ctx.key[1] * 1e6)) + self.lateness) / 1e6
        if goes > timestamp:  # it was set in a job with less allowed lateness
            ctx.set_timer(event_time=goes)
        else:
            self._clear()

    def _end_of(self, start: int) -> int:
        """The end of the window that begins at a time, both in microseconds."""
        assert isinstance(self.windows, WindowSpec)
        if self.windows.calendar is None:
            return start + self.windows.size
        return int(Calendar(self.windows.calendar).ends(np.array([start]))[0])

    def _clear(self) -> None:
        for name in states_of(self):
            getattr(self.fn, name).clear()


def window_call(
    fn: Any, key: Selector, windows: WindowSpec | SessionSpec | CountSpec, lateness: int, level: int, verb: str
) -> Process | KeyedProcess:
    """The operator that calls a function for each result of windows, with state if the function declares some. Raises
    `GraphError` where it may have none."""
    columns, timed = len(key) if isinstance(key, tuple) else None, not isinstance(windows, CountSpec)
    if not states_of(fn):
        return Process(WindowCall(fn, columns, timed), "wait")
    check_window_state(windows, level, verb)
    assert not isinstance(windows, SessionSpec)
    call = StatefulWindowCall(fn, columns, timed, lateness, windows)
    return KeyedProcess(call, partial(state_key, columns, timed), "wait")


def check_window_state(windows: WindowSpec | SessionSpec | CountSpec, level: int, verb: str) -> None:
    """Raises `GraphError` where a function may keep no state of a window."""
    if isinstance(windows, SessionSpec):
        raise GraphError(
            f"{verb}: a session gives one result, so there is nothing to keep for another one; keep state of the key in a "
            f"tr.KeyedProcessFunction behind it"
        )
    if level and isinstance(windows, WindowSpec):
        raise GraphError(
            f"{verb}: a window in a loop may be opened anew at any time, so its state would never go; keep state in a "
            f"tr.KeyedProcessFunction behind it"
        )


def check_window_function(fn: Any, verb: str) -> None:
    """Raises `GraphError` unless `fn` is a `WindowFunction` or a function of key, window, records and context."""
    if isinstance(fn, WindowFunction):
        check_methods(fn, WindowFunction, {"process": 4}, verb)
    elif isinstance(fn, Function):
        raise GraphError(
            f"{verb}: expected a tr.WindowFunction or a function f(key, window, records, ctx), got a {type(fn).__name__}"
        )
    else:
        check_callable(fn, 4, verb, several=True)


AT_THE_END = 9e12
"""Time of a timer in seconds that fires when the input ends."""


class CountedWindows(Wrapper, KeyedProcessFunction, Shaped):
    """Windows of one operator that do not depend on time. Its state of a key is (number of records, accumulators, time of
    the timeout), and with early firings (number of results, records since the last one, time of the next one)."""

    held = ValueState(object, default=None)

    def __init__(
        self,
        spec: CountSpec,
        aggregates: tuple[tuple[str, AggregateFunction], ...],
        reduce: Any,
        names: tuple[str, ...],
        several: bool,
        triggers: Triggers | None,
    ) -> None:
        self.spec = spec
        self.reducer = reduce
        self.reduce = None if reduce is None else as_callable(reduce)
        self.aggregates = aggregates
        self.functions = [one for _, one in aggregates]
        self.fields = [Field(getattr(one, "of", None)) for one in self.functions]
        self.names = names
        self.several = several
        """True if keys are tuples of columns, each of which a result has."""
        self.triggers = triggers

    def shape(self) -> list[str]:
        windows = "windows of all records" if self.spec.size is None else "windows of a number of records"
        rest = "" if self.spec.partial_at_end else " without what is left at the end"
        return [f"{windows}{rest}", *discards(self.triggers), *accumulators_of(self.aggregates, self.reducer)]

    @property
    def wrapped(self) -> list[Function]:
        return [one for one in (*self.functions, self.reducer) if isinstance(one, Function)]

    def process(self, record: Any, ctx: Context) -> Iterator[Any]:
        count, state, due, fired = self._current()
        if due is None and self.spec.timeout is not None:
            due = ctx.now() + self.spec.timeout / 1e6
            ctx.set_timer(processing_time=due)
        if not count and self.spec.partial_at_end:
            ctx.set_timer(event_time=AT_THE_END)
        count, state = count + 1, self._add(record, state, self._is_empty(count, fired))
        fired.new += 1
        early = None if self.triggers is None else self.triggers.early
        if self.spec.size is not None and count >= self.spec.size:  # more where it was larger before a restore
            yield self._result(ctx.key, state, "final", fired)
            self._end(ctx, due, fired)
            return
        if early is not None and early.records is not None and fired.new >= early.records:
            yield self._fire_early(ctx, count, state, due, fired)
            return
        if early is not None and early.span is not None and fired.due is None:
            fired.due = ctx.now() + early.span / 1e6
            ctx.set_timer(processing_time=fired.due)
        self._hold(count, state, due, fired)

    def on_timer(self, timestamp: float, ctx: Context) -> Iterator[Any]:
        if self.held.value is None:
            return
        count, state, due, fired = self._current()
        # The time of the timer is that of no record, and lies at the end of all time where the input has ended.
        if ctx.timestamp is not None or (due is not None and timestamp >= due):
            yield ctx.stamped(self._result(ctx.key, state, "final", fired), None)
            self._end(ctx, due, fired)
        elif self.triggers is not None and fired.due is not None and timestamp >= fired.due:
            yield self._fire_early(ctx, count, state, due, fired)

    def _current(self) -> tuple[int, Any, float | None, _Fired]:
        held = self.held.value
        if held is None:
            return 0, None, None, _Fired()
        return *held[:3], _Fired(*held[3:])

    def _hold(self, count: int, state: Any, due: float | None, fired: _Fired) -> None:
        more = () if self.triggers is None else (fired.number, fired.new, fired.due)
        self.held.value = (count, state, due, *more)

    def _is_empty(self, count: int, fired: _Fired) -> bool:
        """True if a window has nothing that a next result would have."""
        return not count or (self.triggers is not None and self.triggers.discarding and not fired.new)

    def _add(self, record: Any, state: Any, empty: bool) -> Any:
        if self.reduce is not None:
            return record if empty else self.reduce(state, record)
        if empty:
            state = [one.create_accumulator() for one in self.functions]
        parts = zip(self.functions, self.fields, state, strict=True)
        return tuple([one.add(field(record), a) for one, field, a in parts])

    def _result(self, key: Any, state: Any, firing: str, fired: _Fired) -> Any:
        if state is None and self.reduce is None:
            state = [one.create_accumulator() for one in self.functions]
        try:
            values = (
                [state]
                if self.reduce is not None
                else [one.get_result(a) for one, a in zip(self.functions, state, strict=True)]
            )
        except Exception as error:
            raise ResultFailed(f"get_result raised {error_text(error)}") from error
        keys = key if self.several else (key,)
        labels = () if self.triggers is None else (firing, fired.number + 1)
        return made_rows(self.names, [(*keys, *values, *labels)])[0]

    def _fire_early(self, ctx: Context, count: int, state: Any, due: float | None, fired: _Fired) -> Any:
        assert self.triggers is not None
        result = self._result(ctx.key, state, "early", fired)
        if fired.due is not None:
            ctx.delete_timer(processing_time=fired.due)
            if due is not None:
                ctx.set_timer(processing_time=due)  # it is the same timer where both are due at one time
        self._hold(count, None if self.triggers.discarding else state, due, _Fired(fired.number + 1))
        return result

    def _end(self, ctx: Context, due: float | None, fired: _Fired) -> None:
        self.held.clear()
        for one in (due, fired.due):
            if one is not None:
                ctx.delete_timer(processing_time=one)
        if self.spec.partial_at_end:
            ctx.delete_timer(event_time=AT_THE_END)


@dataclass
class _Fired:
    """Early results of a window: how many there were (`number`), how many records came since the last one (`new`), and when
    the next one is due by the clock (`due`, in seconds)."""

    number: int = 0
    new: int = 0
    due: float | None = None


class Field:
    """Reader of the value that an aggregate takes of a record."""

    def __init__(self, of: Selector | None) -> None:
        self.of = of
        self._kind: type | None = None
        self._get: Any = of

    def __call__(self, record: Any) -> Any:
        if self.of is None:
            return record
        if not callable(self.of) and type(record) is not self._kind:
            self._kind = type(record)
            names = [self.of] if isinstance(self.of, str) else self.of
            getters = [field_getter(name, record) for name in names]
            self._get = getters[0] if isinstance(self.of, str) else lambda one: tuple([get(one) for get in getters])
        return self._get(record)

    def __getstate__(self) -> Any:
        return (self.of,)

    def __setstate__(self, state: Any) -> None:
        Field.__init__(self, *state)
