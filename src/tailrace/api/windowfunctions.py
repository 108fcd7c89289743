"""Functions that windows are made of: one that is called with all records of a window, which a window in front of it has
gathered; and the one that keeps windows that do not depend on time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tailrace.api.checks import check_callable, check_methods
from tailrace.api.functions import (
    AggregateFunction,
    Context,
    Function,
    KeyedProcessFunction,
    ProcessFunction,
    WindowFunction,
    as_callable,
)
from tailrace.api.windows import CountSpec
from tailrace.elements.callables import run_to_its_end
from tailrace.elements.convert import field_getter, made_rows
from tailrace.errors import GraphError
from tailrace.graph.operators import Selector
from tailrace.state.handles import ValueState, states_of


class WindowBounds(NamedTuple):
    """The start and the end of a window in seconds since 1970; None for a window that does not depend on time."""

    start: float | None
    end: float | None


class Gather(AggregateFunction):
    """The list of all records, in the order in which they came."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)  # each window has a list of its own
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return list(accumulator)

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a + b


class WindowCall(ProcessFunction):
    """Calls of the user's function with the results of a window that gathers records."""

    def __init__(self, fn: Any, columns: int | None, timed: bool) -> None:
        self.fn = fn
        self.columns = columns
        """Number of columns of a key that is a tuple; None for any other key."""
        self.timed = timed
        """True if results have the bounds of their window."""
        self._call: Callable[..., Any] | None = None

    def open(self, ctx: Context) -> None:
        if isinstance(self.fn, Function):
            self.fn.open(ctx)

    def close(self) -> None:
        if isinstance(self.fn, Function):
            self.fn.close()

    def process(self, row: Any, ctx: Context) -> Any:
        if self._call is None:
            self._call = run_to_its_end(self.fn.process if isinstance(self.fn, WindowFunction) else self.fn)
        key = row[0] if self.columns is None else tuple(row[: self.columns])
        bounds = WindowBounds(*row[-3:-1]) if self.timed else WindowBounds(None, None)
        return self._call(key, bounds, row[-1], ctx)


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
    if states_of(fn):
        raise GraphError(
            f"{verb}: a tr.WindowFunction has all records of its window and no state; keep state in a "
            f"tr.KeyedProcessFunction behind it"
        )


AT_THE_END = 9e12
"""Time of a timer in seconds that fires when the input ends."""


class CountedWindows(KeyedProcessFunction):
    """Windows of one operator that do not depend on time. Its state of a key is (number of records, accumulators, time of
    the timeout)."""

    held = ValueState(object, default=None)

    def __init__(
        self,
        spec: CountSpec,
        aggregates: tuple[tuple[str, AggregateFunction], ...],
        reduce: Any,
        names: tuple[str, ...],
        several: bool,
    ) -> None:
        self.spec = spec
        self.reducer = reduce
        self.reduce = None if reduce is None else as_callable(reduce)
        self.functions = [one for _, one in aggregates]
        self.fields = [Field(getattr(one, "of", None)) for one in self.functions]
        self.names = names
        self.several = several
        """True if keys are tuples of columns, each of which a result has."""

    def open(self, ctx: Context) -> None:
        for one in (*self.functions, self.reducer):
            if isinstance(one, Function):
                one.open(ctx)

    def close(self) -> None:
        for one in (*self.functions, self.reducer):
            if isinstance(one, Function):
                one.close()

    def process(self, record: Any, ctx: Context) -> Iterator[Any]:
        held = self.held.value
        count, state, due = (0, None, None) if held is None else held
        if not count:
            if self.reduce is None:
                state = [one.create_accumulator() for one in self.functions]
            if self.spec.timeout is not None:
                due = ctx.now() + self.spec.timeout / 1e6
                ctx.set_timer(processing_time=due)
            if self.spec.partial_at_end:
                ctx.set_timer(event_time=AT_THE_END)
        count, state = count + 1, self._add(record, state, count)
        if count == self.spec.size:
            yield self._result(ctx.key, state)
            self._end(ctx, due)
        else:
            self.held.value = (count, state, due)

    def on_timer(self, timestamp: float, ctx: Context) -> Iterator[Any]:
        held = self.held.value
        if held is not None:
            # The time of the timer is that of no record, and lies at the end of all time where the input has ended.
            yield ctx.stamped(self._result(ctx.key, held[1]), None)
            self._end(ctx, held[2])

    def _add(self, record: Any, state: Any, count: int) -> Any:
        if self.reduce is not None:
            return self.reduce(state, record) if count else record
        parts = zip(self.functions, self.fields, state, strict=True)
        return tuple([one.add(field(record), a) for one, field, a in parts])

    def _result(self, key: Any, state: Any) -> Any:
        values = (
            [state]
            if self.reduce is not None
            else [one.get_result(a) for one, a in zip(self.functions, state, strict=True)]
        )
        keys = key if self.several else (key,)
        return made_rows(self.names, [(*keys, *values)])[0]

    def _end(self, ctx: Context, due: float | None) -> None:
        self.held.clear()
        if due is not None:
            ctx.delete_timer(processing_time=due)
        if self.spec.partial_at_end:
            ctx.delete_timer(event_time=AT_THE_END)


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
