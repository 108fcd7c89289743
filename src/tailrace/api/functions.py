"""Classes of functions with `prepare`, `open` and `close`. Where none of these is needed, a plain callable is enough.

A function object is pickled to every subtask, prepared and opened there; each subtask works on its own copy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from tailrace.elements.durations import Duration

if TYPE_CHECKING:
    from random import Random

    from tailrace.graph.scope import StreamScope

T = TypeVar("T")
Instant = float | int | datetime
Span = Duration


class Context(Protocol):
    """The context of a call of a function: key, time, timers, side outputs. Instants are given as seconds since 1970 or as
    a `datetime`, and returned as float seconds since 1970."""

    @property
    def key(self) -> Any:
        """The key at hand. Raises `StateAccessError` if there is none."""

    @property
    def timestamp(self) -> float | None:
        """The timestamp of the record at hand, or None if it has none. In `on_timer` it is the time of the timer. In
        seconds since 1970."""

    @property
    def watermark(self) -> float:
        """The current watermark in seconds since 1970; -inf before the first, +inf at the end. In `on_timer` of event time
        it is the time of the timer, and no less than it was before: later timers that are due as well have not fired
        yet."""

    @property
    def time_domain(self) -> Literal["event", "processing"]:
        """The clock that the timer was set on, in `on_timer`."""

    @property
    def round(self) -> int | None:
        """The number of the current round in a loop in rounds, from 0; None outside of one."""

    @property
    def scope(self) -> StreamScope:
        """The loops that this operator is in, as `stream.scope` has them."""

    @property
    def loop(self) -> str | None:
        """The name of the innermost loop that this operator is in; None outside of loops."""

    def emit(self, tag: str, value: Any, timestamp: Instant | None = None) -> None:
        """Sends a value to the side output `tag`, with the timestamp of the record at hand if none is given. In
        `map_batches` the value is a batch, whose records keep their timestamps as the records of a returned batch do."""

    def stamped(self, value: Any, timestamp: Instant | None) -> Any:
        """A record to yield or return with a timestamp of its own: `yield ctx.stamped(order, order.time)`. With None it has
        no timestamp. Other records get the timestamp of the current record (or timer), which is wrong for earlier records
        that a function releases."""

    def set_timer(self, *, event_time: Instant | None = None, processing_time: Instant | None = None) -> None:
        """Sets a timer for the key at hand. Its time is rounded up to a microsecond, so it never fires early. To set an
        equal timer again changes nothing. However late its time, a timer of event time fires at the end of the input at the
        latest. A timer of processing time may be a thousand years ahead. Raises `OverflowError` for one that is farther
        away, and `StateAccessError` if there is no key."""

    def delete_timer(self, *, event_time: Instant | None = None, processing_time: Instant | None = None) -> None:
        """Deletes a timer of the key at hand, if it is set."""

    def keys(self, *states: Any) -> Iterator[Any]:
        """The keys of this subtask that have a value in one of these keyed states (`ctx.keys(self.total)`), or without
        arguments in any, in the order of their bytes. While the loop is at a key, that is the key at hand: its state and
        timers are as in `process`. Only in `process_broadcast`; raises `StateAccessError` elsewhere."""

    def at(self, key: Any) -> AbstractContextManager[None]:
        """A block in which another key is the key at hand: `with ctx.at("ann"): self.total.value += 1`. Its state and timers
        are as in a call for it. Raises `StateAccessError` where not all keys are in one subtask: give the operator
        `parallelism=1`."""

    def now(self) -> float:
        """The processing time in seconds since 1970. All calls in one step return one value. Virtual in
        `tailrace.testing`."""

    @property
    def random(self) -> Random:
        """The seeded `random.Random` of this subtask. It is seeded anew at each checkpoint."""

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function whose result may differ from call to call, such as a service, and returns its result."""

    @property
    def subtask(self) -> int:
        """The index of this subtask, from 0."""

    @property
    def parallelism(self) -> int:
        """The number of subtasks of this operator."""

    @property
    def attempt(self) -> int:
        """The number of times that this subtask was started before. What a replacement of a lost worker repeats sees the
        number that it saw the first time."""

    @property
    def checkpoint(self) -> int:
        """The number of the last checkpoint whose cut this subtask has made in this attempt, 0 before the first. The effects
        of a call are in every complete checkpoint with a higher number, and in no other one."""

    @property
    def metrics(self) -> Any:
        """Counters, gauges and histograms of this operator: `ctx.metrics.inc("name", 1)`, `ctx.metrics.set("name", 2.5)`,
        `ctx.metrics.observe("name", seconds)`."""


class Function:
    """Base class of functions with `prepare`, `open` and `close`."""

    def prepare(self) -> None:
        """Called once for each copy of the function, before `open`: in a worker when the job is sent to it, in a standby as
        soon as that is ready. It sets in `self` what takes long to make and does not change, such as a model that is
        loaded. It knows no subtask, no state and no time, and does the same in each process. After a restart of the job
        there is another copy, which is prepared as well. `close` follows also where the copy was never opened."""

    def open(self, ctx: Context) -> None:
        """Called once in each subtask before the first record."""

    def checkpoint_complete(self, number: int) -> None:
        """Called in each subtask behind a complete checkpoint, between two records: no restart goes back behind it, so what
        was done while `ctx.checkpoint` was below `number` may be acknowledged or committed elsewhere. Numbers grow, and none
        comes twice to a copy of the function; where checkpoints come faster, some are left out. The first call behind
        a restart, or in a job that starts from a checkpoint, is for that checkpoint. At a stop and at the end of the job the
        last call comes before `close`. It may use operator state, but no keyed state, and emits nothing. The records of its
        subtask wait for it. An error is a warning, and the next call makes up for it. A worker that does the work of a lost
        one again repeats its calls, so reach the world by `ctx.call`, with the `ctx` of `open`."""

    def close(self) -> None:
        """Called once in each subtask at its end, also if it failed or was cancelled."""


class Wrapper(Function):
    """Base of functions of this library that call functions of the user."""

    @property
    def wrapped(self) -> list[Function]:
        """The functions of the user that are objects."""
        raise NotImplementedError

    def prepare(self) -> None:
        for one in self.wrapped:
            one.prepare()

    def open(self, ctx: Context) -> None:
        for one in self.wrapped:
            one.open(ctx)

    def close(self) -> None:
        for one in self.wrapped:
            one.close()


class MapFunction(Function):
    """A function of one record that returns one record."""

    def map(self, value: Any) -> Any:
        """The record that takes the place of `value`."""
        raise NotImplementedError


class FilterFunction(Function):
    """A function that keeps the records for which it returns true."""

    def filter(self, value: Any) -> bool:
        """True if the record `value` is kept."""
        raise NotImplementedError


class FlatMapFunction(Function):
    """A function of one record that emits any number of records: it yields, returns an iterable, or returns None."""

    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """The records that take the place of `value`."""
        raise NotImplementedError


class MapBatchesFunction(Function):
    """A function of one `pyarrow.RecordBatch` that emits one or several. It keeps values in a `tr.OperatorState`, which
    checkpoints hold. It may emit batches to side outputs, `ctx.emit("late", batch)`, with the context of `open` or of
    `map_batches(self, batch, ctx)`."""

    def map_batches(self, batch: Any) -> Any:
        """The output for `batch`: a `pyarrow.RecordBatch`, a `pyarrow.Table`, several of them, or None."""
        raise NotImplementedError

    def on_round_end(self, round: int) -> Any:
        """Called when a round of a loop in rounds has ended, once in each subtask. It may return batches to emit."""
        return None

    def finish(self) -> Any:
        """Called when the input has ended. It may return batches to emit. In a loop it is called when the loop has come to
        rest, and again each time that its output has gone into the feedback and the loop has come to rest again."""
        return None


class AsyncFunction(Function):
    """An asynchronous function of one record, with what its calls share: a session, a pool of connections. All of its
    methods run in one event loop of `asyncio`, in a thread of the worker; `open` and `close` may be `async def`, too."""

    async def call(self, value: Any) -> Any:
        """The result for the record `value`; with `batch=` a list of results for the list of records `value`."""
        raise NotImplementedError


class ReduceFunction(Function):
    """A function that merges two values of one key into one."""

    def reduce(self, a: Any, b: Any) -> Any:
        """The merged value of `a`, which was merged so far, and the new value `b`."""
        raise NotImplementedError


class AggregateFunction(Function):
    """An incremental aggregate. It must not change accumulators in place: `add` and `merge` return new ones."""

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
        """The accumulator of the values of both accumulators."""
        raise NotImplementedError


class WindowFunction(Function):
    """A function of all records of a window."""

    def process(self, key: Any, window: Any, records: list[Any], ctx: Context) -> Iterable[Any] | None:
        """Called once for each result of a window, with its records in the order in which they came; of
        sessions that have become one, those of the earlier session are first. `window` has `start`
        and `end` in seconds since 1970. It yields the records to emit, returns an iterable of them, or returns None."""
        raise NotImplementedError


class ProcessFunction(Function):
    """A function that works on a stream record by record. Each method yields the records to emit, returns an iterable of
    them, or returns None."""

    def process(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Called for each record. It yields or returns the records to emit."""
        raise NotImplementedError

    def finish(self, ctx: Context) -> Iterable[Any] | None:
        """Called once when the input has ended, before `close`. It may emit. In a loop it is called when the loop has come
        to rest, and again each time that its output has gone into the feedback and the loop has come to rest again."""
        return None

    def on_round_end(self, round: int, ctx: Context) -> Iterable[Any] | None:
        """Called when a round of a loop in rounds has ended, once in each subtask. It may emit."""
        return None


class KeyedProcessFunction(ProcessFunction):
    """A process function for a keyed stream, with state and timers."""

    def process_many(self, values: list[Any], ctx: Context) -> Iterable[Any] | None:
        """Called in place of `process`, where a subclass defines it, for records that have come together: they follow each
        other in one batch, and have one key and one timestamp. Where each record is a call of its own, with `on_error=` or
        `in_order=True`, `process` is called."""
        raise NotImplementedError

    def on_round_end(self, round: int, ctx: Context) -> Iterable[Any] | None:
        """Called when a round of a loop in rounds has ended: once for each key that had a record in that round, under that
        key. It may emit."""
        return None

    def on_timer(self, timestamp: float, ctx: Context) -> Iterable[Any] | None:
        """Called when a timer of `ctx.key` is due; `ctx.time_domain` is its clock. It may emit. `timestamp` is the time that
        the timer was set for, in seconds since 1970, rounded up to a whole microsecond."""
        return None


class CoProcessFunction(Function):
    """A function that works on two connected streams. If both are keyed, it has state and timers."""

    def process1(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Called for each record of the first stream. It yields or returns the records to emit."""
        raise NotImplementedError

    def process2(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Called for each record of the second stream. It yields or returns the records to emit."""
        raise NotImplementedError

    def on_timer(self, timestamp: float, ctx: Context) -> Iterable[Any] | None:
        """Called when a timer of `ctx.key` is due. It may emit. See `KeyedProcessFunction.on_timer`."""
        return None

    def finish(self, ctx: Context) -> Iterable[Any] | None:
        """Called once when both inputs have ended, before `close`. It may emit. In a loop it is called when the loop has
        come to rest, and again each time that its output has gone into the feedback and the loop has come to rest again."""
        return None

    def on_round_end(self, round: int, ctx: Context) -> Iterable[Any] | None:
        """Called when a round of a loop in rounds has ended. If both streams are keyed, it is called once for each key that
        had a record in that round, under that key; else once in each subtask. It may emit."""
        return None


class BroadcastProcessFunction(Function):
    """A function that works on a stream and on a broadcast stream, of which every subtask processes all records, in one
    order. It keeps what it needs of them in a `tr.BroadcastState`. If the first stream is keyed, it has state and timers as
    well."""

    def process(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Called for each record of the first stream. It reads broadcast state. It yields or returns the records to emit."""
        raise NotImplementedError

    def process_broadcast(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Called in every subtask for each record of the broadcast stream. It may change broadcast state, which must follow
        from the records of that stream alone. It has no key; `ctx.keys()` goes through all keys of the subtask. What it
        yields each subtask emits."""
        raise NotImplementedError

    def on_timer(self, timestamp: float, ctx: Context) -> Iterable[Any] | None:
        """Called when a timer of `ctx.key` is due. It may emit. See `KeyedProcessFunction.on_timer`."""
        return None

    def finish(self, ctx: Context) -> Iterable[Any] | None:
        """Called once when both inputs have ended, before `close`. It may emit. In a loop it is called when the loop has
        come to rest, and again each time that its output has gone into the feedback and the loop has come to rest again."""
        return None

    def on_round_end(self, round: int, ctx: Context) -> Iterable[Any] | None:
        """Called when a round of a loop in rounds has ended. If the first stream is keyed, it is called once for each key
        that had a record in that round, under that key; else once in each subtask. It may emit."""
        return None


DECLARE_STATE = (ProcessFunction, CoProcessFunction, BroadcastProcessFunction)
"""The classes of functions that may declare keyed state."""

METHODS: dict[type[Function], str] = {
    MapFunction: "map",
    FilterFunction: "filter",
    FlatMapFunction: "flat_map",
    MapBatchesFunction: "map_batches",
    ReduceFunction: "reduce",
}
"""Class of functions -> the method that stands for a plain callable."""


def as_callable(fn: Any) -> Callable[..., Any]:
    """The callable that does the work: a rich function's method, or the function itself."""
    for kind, method in METHODS.items():
        if isinstance(fn, kind):
            return getattr(fn, method)  # type: ignore[no-any-return]
    return fn  # type: ignore[no-any-return]


def takes_context(fn: Any) -> bool:
    """True if a function of batches is called with the context as well: it requires two arguments, not one."""
    work = as_callable(fn)
    return not _accepts(work, 1) and _accepts(work, 2)


def _accepts(work: Any, arguments: int) -> bool:
    try:
        inspect.signature(work).bind(*([None] * arguments))
    except TypeError:
        return False
    except ValueError:
        return arguments == 1  # some built-in functions have no signature
    return True
