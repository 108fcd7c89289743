"""Functions with `open` and `close`. Where no class is needed, a plain callable is enough.

A function object is pickled to every subtask and opened there; each subtask works on its own copy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from tailrace.elements.durations import Duration

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")
Instant = float | int | datetime
Span = Duration


class Context(Protocol):
    """What a function may ask while it is called. Times go in as seconds, `timedelta` or `datetime` and come out as
    float seconds since 1970."""

    @property
    def key(self) -> Any:
        """The key at hand. Raises `StateAccessError` where there is none."""
        ...

    @property
    def timestamp(self) -> float | None:
        """The timestamp of the record at hand (of the timer, in `on_timer`), or None."""
        ...

    @property
    def watermark(self) -> float:
        """The current watermark; -inf before the first, +inf at the end. In `on_timer` of event time it is the time of the
        timer, and no less than it was before: later timers that are due as well have not fired yet."""
        ...

    @property
    def time_domain(self) -> Literal["event", "processing"]:
        """In `on_timer`: which clock the timer was set on."""
        ...

    @property
    def round(self) -> int | None:
        """The round at hand of a loop in rounds, from 0; None outside of one."""
        ...

    def emit(self, tag: str, value: Any, timestamp: Instant | None = None) -> None:
        """Sends a value to the side output `tag`, with the timestamp of the record at hand where none is given; in
        `map_batches` a batch, whose records keep their timestamps as those of a returned one do."""
        ...

    def stamped(self, value: Any, timestamp: Instant | None) -> Any:
        """A record to yield or return with a timestamp of its own: `yield ctx.stamped(order, order.time)`; None for none.
        Other records get the timestamp of the current record (or timer), which is wrong for earlier records that a
        function releases."""
        ...

    def set_timer(self, *, event_time: Instant | None = None, processing_time: Instant | None = None) -> None:
        """Sets a timer for the key at hand; its time is rounded up to a microsecond, so it never fires before. Setting the
        same one again changes nothing. However late its time, one in event time fires at the end of the input at the latest;
        one of the clock may be a thousand years ahead. Raises `OverflowError` for one that is farther away."""
        ...

    def delete_timer(self, *, event_time: Instant | None = None, processing_time: Instant | None = None) -> None:
        """Deletes a timer of the key at hand, if it is set."""
        ...

    def now(self) -> float:
        """The processing time, in seconds: the same in all calls of one step. Virtual in `tailrace.testing`."""
        ...

    @property
    def random(self) -> Random:
        """A seeded `random.Random` of this subtask. It is seeded anew at each checkpoint."""
        ...

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function whose answer may differ from time to time, and gives its answer."""
        ...

    @property
    def subtask(self) -> int:
        """The index of this subtask, from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """How many subtasks this operator has."""
        ...

    @property
    def attempt(self) -> int:
        """How often this subtask was started before."""
        ...

    @property
    def metrics(self) -> Any:
        """Counters and gauges of this operator: `ctx.metrics.inc("name", 1)`, `ctx.metrics.set("name", 2.5)`."""
        ...


class Function:
    """The root of rich functions."""

    def open(self, ctx: Context) -> None:
        """Called once in each subtask before the first record."""

    def close(self) -> None:
        """Called once in each subtask at its end, also when it failed or was cancelled."""


class MapFunction(Function):
    """One record in, one out."""

    def map(self, value: Any) -> Any:
        """The record that takes the place of `value`."""
        raise NotImplementedError


class FilterFunction(Function):
    """Keeps the records for which it returns true."""

    def filter(self, value: Any) -> bool:
        """Whether `value` stays."""
        raise NotImplementedError


class FlatMapFunction(Function):
    """One record in, any number out: yields, returns an iterable, or returns None."""

    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """The records that take the place of `value`."""
        raise NotImplementedError


class MapBatchesFunction(Function):
    """A `pyarrow.RecordBatch` in, one or several out. What it keeps belongs into a `tr.OperatorState`: then it is in
    checkpoints. With the context that `open` is given, or `map_batches(self, batch, ctx)`, it emits batches to side
    outputs: `ctx.emit("late", batch)`."""

    def map_batches(self, batch: Any) -> Any:
        """What takes the place of `batch`: a `pyarrow.RecordBatch`, a `pyarrow.Table`, several of them, or None."""
        raise NotImplementedError

    def on_round_end(self, round: int) -> Any:
        """Called when a round of a loop in rounds has ended, once in each subtask; what it returns goes on."""
        return None

    def finish(self) -> Any:
        """Called when the input has ended; what it returns goes on. In a loop it is called when the loop has come to rest,
        and again whenever what it emitted into the feedback has brought the loop to work again."""
        return None


class ReduceFunction(Function):
    """Merges two values of one key into one."""

    def reduce(self, a: Any, b: Any) -> Any:
        """`a`, what was merged so far, with the new value `b`."""
        raise NotImplementedError


class AggregateFunction(Function):
    """An incremental aggregate. Accumulators must not be changed in place: `add` and `merge` return the new one."""

    def create_accumulator(self) -> Any:
        """An accumulator to which nothing was added."""
        raise NotImplementedError

    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with one more value."""
        raise NotImplementedError

    def get_result(self, accumulator: Any) -> Any:
        """The result of the accumulator."""
        raise NotImplementedError

    def merge(self, a: Any, b: Any) -> Any:
        """Two accumulators in one."""
        raise NotImplementedError


class ProcessFunction(Function):
    """Works on a stream record by record: yields, returns an iterable, or returns None. `finish` is called at the end
    of the input and may still emit."""

    def process(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Called for each record; what it yields or returns goes on."""
        raise NotImplementedError

    def finish(self, ctx: Context) -> Iterable[Any] | None:
        """Called once when the input has ended, before `close`. In a loop it is called when the loop has come to rest, and
        again whenever what it emitted into the feedback has brought the loop to work again."""
        return None

    def on_round_end(self, round: int, ctx: Context) -> Iterable[Any] | None:
        """Called when a round of a loop in rounds has ended, once in each subtask; what it yields or returns goes on."""
        return None


class KeyedProcessFunction(ProcessFunction):
    """Works on a keyed stream with state and timers."""

    def on_round_end(self, round: int, ctx: Context) -> Iterable[Any] | None:
        """Called when a round of a loop in rounds has ended: once for each key that had a record in that round, under that
        key. What it yields or returns goes on."""
        return None

    def on_timer(self, timestamp: float, ctx: Context) -> Iterable[Any] | None:
        """Called when a timer of `ctx.key` is due; `ctx.time_domain` says on which clock. `timestamp` is the time that the
        timer was set for, in seconds; or, where that was no whole number of microseconds, less than one later."""
        return None


class CoProcessFunction(Function):
    """Works on two connected streams; with both keyed it has state and timers."""

    def process1(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Called for each record of the first stream."""
        raise NotImplementedError

    def process2(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Called for each record of the second stream."""
        raise NotImplementedError

    def on_timer(self, timestamp: float, ctx: Context) -> Iterable[Any] | None:
        """Called when a timer of `ctx.key` is due."""
        return None

    def finish(self, ctx: Context) -> Iterable[Any] | None:
        """Called once when both inputs have ended, before `close`. In a loop it is called when the loop has come to rest,
        and again whenever what it emitted into the feedback has brought the loop to work again."""
        return None

    def on_round_end(self, round: int, ctx: Context) -> Iterable[Any] | None:
        """Called when a round of a loop in rounds has ended: with both streams keyed once for each key that had a record in
        that round, under that key; else once in each subtask. What it yields or returns goes on."""
        return None


METHODS: dict[type[Function], str] = {
    MapFunction: "map",
    FilterFunction: "filter",
    FlatMapFunction: "flat_map",
    MapBatchesFunction: "map_batches",
    ReduceFunction: "reduce",
}
"""Which method of a rich function does the work of the plain callable in its place."""


def as_callable(fn: Any) -> Callable[..., Any]:
    """The callable that does the work: a rich function's method, or the function itself."""
    for kind, method in METHODS.items():
        if isinstance(fn, kind):
            return getattr(fn, method)  # type: ignore[no-any-return]
    return fn  # type: ignore[no-any-return]


def takes_context(fn: Any) -> bool:
    """Whether a function of batches is called with the context as well: it wants two arguments, and not one."""
    work = as_callable(fn)
    return not _accepts(work, 1) and _accepts(work, 2)


def _accepts(work: Any, arguments: int) -> bool:
    try:
        inspect.signature(work).bind(*([None] * arguments))
    except TypeError:
        return False
    except ValueError:
        return arguments == 1  # some built-in functions do not tell
    return True
