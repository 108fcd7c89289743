"""Functions that the everyday verbs of keyed streams are made of. They are process functions like those of a user, so their
state, timers and replays are those of every process function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.api.functions import AggregateFunction, Context, KeyedProcessFunction, ProcessFunction, WindowFunction
from tailrace.api.windowfunctions import AT_THE_END, Field
from tailrace.elements.convert import made_rows
from tailrace.elements.keygroups import KeyGroups, owner
from tailrace.graph.operators import Selector
from tailrace.state.handles import ValueState

Placed = tuple[tuple[Any, Any], ...]
"""Records with the values that they are placed by, (value, record), the first place first."""


class Placing:
    """The best `n` records by a value; None: all of them. Of equal ones that which came first is before the others."""

    def __init__(self, n: int | None, by: Selector, ascending: bool) -> None:
        self.n = n
        self.by = Field(by)
        self.ascending = ascending

    def place(self, value: Any, held: Placed) -> int | None:
        """The index at which a record with this value comes in; None if it does not. Raises `ValueError` for None and for
        NaN, which have no place among others."""
        if value is None or value != value:
            raise ValueError(f"{value!r} has no place in an order; leave such records out before, with filter(...)")
        at = len(held)
        while at and (value < held[at - 1][0] if self.ascending else value > held[at - 1][0]):
            at -= 1
        return at if self.n is None or at < self.n else None

    def with_record(self, record: Any, held: Placed) -> tuple[int | None, Placed]:
        """The index at which a record comes in, if it does, and the records with it."""
        value = self.by(record)
        at = self.place(value, held)
        return at, held if at is None else (*held[:at], (value, record), *held[at:])[: self.n]


class RunningTop(KeyedProcessFunction):
    """Changes of the best records of each key."""

    best = ValueState(object, default=())

    def __init__(self, places: Placing, names: tuple[str, ...], several: bool) -> None:
        self.places = places
        self.names = names
        self.several = several
        """True if keys are tuples of columns, each of which a result has."""

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        held = self.best.value
        at, best = self.places.with_record(value, held)
        if at is None:
            return
        self.best.value = best
        if len(held) == self.places.n:
            yield self._change(ctx.key, "-", len(held), held[-1][1])
        yield self._change(ctx.key, "+", at + 1, value)

    def _change(self, key: Any, op: str, rank: int, value: Any) -> Any:
        return made_rows(self.names, [(*(key if self.several else (key,)), op, rank, value)])[0]


class Best(AggregateFunction):
    """Aggregate of the best records of a window, with the values that they are placed by."""

    def __init__(self, places: Placing) -> None:
        self.places = places

    def create_accumulator(self) -> Placed:
        return ()

    def add(self, value: Any, accumulator: Placed) -> Placed:
        return self.places.with_record(value, accumulator)[1]

    def get_result(self, accumulator: Placed) -> list[Any]:
        return [record for _, record in accumulator]

    def merge(self, a: Placed, b: Placed) -> Placed:
        for _, record in b:
            a = self.add(record, a)
        return a


class Ranks(WindowFunction):
    """Rows of the records of a window in the order of a value, each with its rank."""

    def __init__(self, places: Placing, names: tuple[str, ...], several: bool, timed: bool, equal: bool) -> None:
        self.places = places
        self.names = names
        self.several = several
        self.timed = timed
        """True if the window has a start and an end."""
        self.equal = equal
        """True if equal records have one rank: the number of those before them and one."""

    def process(self, key: Any, window: Any, records: list[Any], ctx: Context) -> list[Any]:
        keys = key if self.several else (key,)
        bounds = (window.start, window.end) if self.timed else ()
        rows: list[Any] = []
        rank, before = 0, None
        values = map(self.places.by, records)
        for number, (value, record) in enumerate(zip(values, records, strict=True), 1):
            if not (self.equal and rank and value == before):
                rank = number
            before = value
            rows.append((*keys, *bounds, rank, record))
        return made_rows(self.names, rows)


class LastOfKey(KeyedProcessFunction):
    """The last record of each key in each span of time, which begins with a record that is in no other span."""

    last = ValueState(object, default=None)

    def __init__(self, within: float | None, timed: bool) -> None:
        self.within = within
        """Seconds; None: the span ends with the input."""
        self.timed = timed
        """True for a span of event time, False for one of the clock."""

    def process(self, value: Any, ctx: Context) -> None:
        held = self.last.value
        due = held[1] if held is not None else None
        if held is None:
            if self.within is None or not self.timed:
                ctx.set_timer(event_time=AT_THE_END)
            if self.within is not None:
                due = self._end(ctx)
        self.last.value = (value, due)

    def _end(self, ctx: Context) -> float:
        """Sets the timer for the end of a span that begins here; returns its time."""
        assert self.within is not None
        if self.timed:
            assert ctx.timestamp is not None
            due = round(ctx.timestamp + self.within, 6)  # the float of a whole microsecond
            ctx.set_timer(event_time=due)
            return due
        due = ctx.now() + self.within
        ctx.set_timer(processing_time=due)
        return due

    def on_timer(self, timestamp: float, ctx: Context) -> Iterator[Any]:
        held = self.last.value
        if held is None:
            return
        self.last.clear()
        if not self.timed:
            if ctx.time_domain == "event" and held[1] is not None:
                ctx.delete_timer(processing_time=held[1])
            elif ctx.time_domain == "processing":
                ctx.delete_timer(event_time=AT_THE_END)
        yield held[0] if self.timed and self.within is not None else ctx.stamped(held[0], None)


class OwnKey(ProcessFunction):
    """Pairs of a key and a record. All records of a subtask have one key, and the next subtask of that key is this one."""

    def __init__(self, max_parallelism: int) -> None:
        self.max_parallelism = max_parallelism
        self.key = 0

    def open(self, ctx: Context) -> None:
        groups = KeyGroups(self.max_parallelism)
        of_subtask = (owner(groups.group_of(key), ctx.parallelism, self.max_parallelism) for key in range(10**9))
        self.key = next(key for key, subtask in enumerate(of_subtask) if subtask == ctx.subtask)

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        yield self.key, value
