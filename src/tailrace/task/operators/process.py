"""Process functions at run time: plain, keyed and on two inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import GeneratorType, SimpleNamespace
from typing import Any

import numpy as np

from tailrace.api.functions import DECLARE_STATE, ProcessFunction
from tailrace.api.restore.kinds import ends_rounds, takes_timers
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.callables import followed_by, not_one_value, one_for_several, run_to_its_end
from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import UserCodeError, short_repr
from tailrace.graph.graph import Node
from tailrace.graph.operators import AtEnd, CoProcess, KeyedProcess, Process, Selector
from tailrace.state.backend import Backend, MetaPart
from tailrace.state.expiry import Expiry
from tailrace.state.format import TableInfo
from tailrace.state.handles import bind_all, check_bound
from tailrace.state.journal import Journal
from tailrace.state.livinghandles import Lifetimes
from tailrace.state.memory import MemoryBackend
from tailrace.state.operator_state import OperatorStates
from tailrace.state.sharing import Sharing, UsedEntry, entry_of
from tailrace.state.tables import StateTable
from tailrace.task.channels.copies import own_copy
from tailrace.task.channels.keys import FieldReader, key_reader, settled_keys
from tailrace.task.contract.usercode import raised_text
from tailrace.task.operators.base import OperatorTask, new_journal
from tailrace.task.operators.context import OperatorContext, Stamped
from tailrace.task.operators.failures.calls import GuardedCalls
from tailrace.task.operators.timer_heap import JournaledTimers, Keyed, Timers

_GIVING = ("process", "process1", "process2", "process_broadcast", "on_timer", "on_round_end", "finish")
"""Names of the methods that give any number of records."""


class FunctionTask(OperatorTask):
    """Base of all process functions: calls user code record by record, and collects what it yields."""

    def __init__(self, node: Node, ctx: OperatorContext, fn: Any, at_end: AtEnd) -> None:
        super().__init__(node, ctx)
        self.fn = fn
        self.gives = SimpleNamespace(
            **{name: run_to_its_end(getattr(fn, name)) for name in _GIVING if hasattr(fn, name)}
        )
        """Methods of the function that give records, each wrapped so that it runs to its end."""
        self._tried = False
        """True if records have come out. The first ones are checked."""
        self.input = 0
        """The input port of the call under way."""
        ctx.side = {}
        self.at_end = at_end
        self.backend: Backend = backend_of(ctx)
        self.copies = ctx.services.copy_records
        self._handles = bind_all(fn, self.backend, ctx)
        dropped = bool(getattr(self.backend, "allow_dropped", False))
        self.lifetimes = self._lifetimes()
        """Lifetimes of the states that declare a time to live; None if none does."""
        self.own_state = OperatorStates(fn, ctx, dropped, ctx.services.exact)
        self.journal = new_journal(node)
        self.guard: GuardedCalls | None = None
        """The calls of the function; None if its first failed record fails the job."""
        if self.journal is not None:
            own = [one for one in self.own_state.handles if not one.copied]
            self.guard = GuardedCalls(node, ctx, self.journal, self._handles, own)
            self.policy = self.guard.policy
            self.policy.note_call = self.note_call
        if ctx.services.debug or ctx.services.tuning.watches_state:
            check = partial(Sharing().check, self._entries)
            self.gives = SimpleNamespace(**{name: followed_by(one, check) for name, one in vars(self.gives).items()})

    def note_call(self, call: Any) -> None:
        super().note_call(call)
        call.input_port = self.input

    def _entries(self) -> Iterator[UsedEntry]:
        """The entries of state that user code may use at this time."""
        key = self.ctx.current_key
        if key is not self.ctx.no_key:
            for name, handle in self._handles.items():
                yield entry_of(name, handle._table, key)
        yield from self.own_state.entries()

    def _lifetimes(self) -> Lifetimes | None:
        if all(handle.ttl is None for handle in self._handles.values()):
            return None
        return Lifetimes(self._handles, self.ctx, self.ctx.services.max_parallelism, self.ctx.metrics.inc)

    def visible(self, table: StateTable) -> Iterator[tuple[Any, Any]]:
        """The entries of a table as user code would be given them now."""
        lifetime = None if self.lifetimes is None else self.lifetimes.by_table.get(table.name)
        return iter(table.items()) if lifetime is None else lifetime.visible(table.kind, table.items())

    def open(self) -> None:
        self.call_user(self.fn.open, self.ctx, what="open")
        self.call_user(check_bound, self.fn, self._handles, what="open")

    def finish(self) -> None:
        if not self.rested:
            self._last_words()

    def at_rest(self) -> None:
        super().at_rest()
        self.input_ended()
        self._last_words()

    def _last_words(self) -> None:
        out: list[Any] = []
        self.ctx.without_key()
        self.call_user(lambda: self._collect(self.gives.finish(self.ctx), out), what="finish")
        self._emit(out, None)

    @property
    def ends_rounds(self) -> bool:
        """True if the user's function handles the end of a round."""
        return ends_rounds(self.fn)

    def end_round(self, number: int, limit: int) -> bool:
        if self.ends_rounds:
            out: list[Any] = []
            self.ctx.without_key()
            self.call_user(lambda: self._collect(self.gives.on_round_end(number, self.ctx), out), what="on_round_end")
            self._emit(out, None)
        return True

    def close(self) -> None:
        self.ctx.without_key()
        if self.lifetimes is not None:
            self.lifetimes.close()
        try:
            self.fn.close()
        finally:
            self.backend.close()

    def snapshot(self, checkpoint: int) -> bytes | None:
        return self.own_state.snapshot()

    def own_tables(self) -> list[TableInfo]:
        return self.own_state.tables()

    def expiries(self) -> dict[str, Expiry]:
        return {} if self.lifetimes is None else self.lifetimes.save()

    def restore(self, parts: list[MetaPart]) -> None:
        self.own_state.restore(parts, self.finished)
        if self.lifetimes is not None:
            self.lifetimes.restore(self._expiries_of(parts), self.backend.restamped)

    def _expiries_of(self, parts: list[MetaPart]) -> list[tuple[tuple[int, int], dict[str, Expiry]]]:
        """Lifetimes of entries in the checkpoint, by key groups; of this subtask alone if it was there."""
        ctx = self.ctx
        own = [one for one in parts if (one.subtask, one.parallelism) == (ctx.subtask, ctx.parallelism)]
        return [(one.groups(ctx.services.max_parallelism), one.expiries) for one in own or parts]

    def state_entries(self) -> int:
        return self.backend.entries()

    def _before_calls(self) -> None:
        if self.lifetimes is not None:
            self.lifetimes.begin()

    def _after_calls(self, what: str, calls: int = 0) -> None:
        """Checks the state handles of the function, and relieves the backend, after a run of calls of user code."""
        self.call_user(check_bound, self.fn, self._handles, what=what)
        if self.lifetimes is not None:
            self.lifetimes.sweep(calls)
        self.backend.relieve()

    def _collect(self, result: Any, out: list[Any]) -> None:
        """Adds the result of a call to the output. Raises `TypeError` for a result that is one record."""
        if result is None:
            return
        if result.__class__ is not GeneratorType and result.__class__ is not list:
            self._check_several(result)
        # A generator is copied from as it yields: it may change afterwards what it has yielded.
        out.extend(map(own_copy, result) if self.copies else result)

    def _check_several(self, result: Any) -> None:
        """Raises `TypeError` for a result that is one record, and would be taken apart."""
        wrong = type(result).__name__ if isinstance(result, tuple) and result else one_for_several(result)
        if wrong is not None:
            raise TypeError(
                f"a process function must yield its records or return a list of them, and it returned one {wrong}, which "
                f"would be taken apart; yield the value instead, or return [value]"
            )

    def _emit(self, out: list[Any], times: list[int] | None, split: int = -1) -> None:
        if self.ctx.stamping:
            self.ctx.stamping = False
            times = unstamp(out, times)
        if not self._tried:
            self._look_at([*out, *(one for values, _ in (self.ctx.side or {}).values() for one in values)])
        self.flush_side(split)
        if out:
            self.out(Rows(out, None if times is None else np.array(times, np.int64), None, split))

    def _look_at(self, out: list[Any]) -> None:
        """Raises `UserCodeError` if one of the first records that come out is no value: `yield` in place of `yield from`,
        for example."""
        self._tried = bool(out)
        wrong = next((one for one in out if not_one_value(one) is not None), None)
        if wrong is not None:
            what = f"the function gave a {type(wrong).__name__}, and no record; give its values, with yield from"
            raise self.user_error(TypeError(what), wrong)

    def run(self, call: Callable[[Any, Any], Any], rows: Rows, keys: list[Any] | None) -> None:
        """Calls `call(value, ctx)` for each record, under its key if there are keys."""
        self._before_calls()
        if self.guard is not None:
            self._run_guarded(self.guard, call, rows, keys)
            return
        ctx, values, copies = self.ctx, rows.values, self.copies
        out: list[Any] = []
        all_keys = keys if keys is not None else [ctx.no_key] * len(values)
        times = rows.times.tolist() if rows.times is not None else None
        out_times: list[int] | None = None if times is None else []
        value: Any = None
        try:
            if times is None:
                ctx.current_time = NO_TIME
                for value, ctx.current_key in zip(values, all_keys, strict=True):
                    result = call(value, ctx)
                    kind = result.__class__
                    if (kind is GeneratorType or kind is list) and not copies:
                        out.extend(result)  # what most functions give back: looked for first
                    elif result is not None:
                        self._collect(result, out)
            else:
                for value, ctx.current_key, ctx.current_time in zip(values, all_keys, times, strict=True):
                    self._collect(call(value, ctx), out)
                    missing = len(out) - len(out_times)  # type: ignore[arg-type]
                    if missing:
                        out_times.extend([ctx.current_time] * missing)  # type: ignore[union-attr]
        except Exception as error:
            raise self.user_error(error, value) from error
        finally:
            ctx.without_key()
        self._after_calls("process", len(values))
        self._emit(out, out_times, rows.split)

    def call_once(self, call: Callable[[Any, Any], Any], value: Any, out: list[Any]) -> None:
        """Calls `call(value, ctx)` for a record, by the policy of the operator if it has one."""
        if self.guard is None:
            self._collect(call(value, self.ctx), out)
        else:
            self.guard.call(lambda record: self._collect(call(record, self.ctx), out), out, value)

    def _run_guarded(
        self, guard: GuardedCalls, call: Callable[[Any, Any], Any], rows: Rows, keys: list[Any] | None
    ) -> None:
        ctx, count = self.ctx, len(rows.values)
        out: list[Any] = []
        out_times: list[int] = []
        all_keys = keys if keys is not None else [ctx.no_key] * count
        times = rows.times.tolist() if rows.times is not None else [NO_TIME] * count
        try:
            for value, ctx.current_key, ctx.current_time in zip(rows.values, all_keys, times, strict=True):
                self.call_once(call, value, out)
                out_times.extend([ctx.current_time] * (len(out) - len(out_times)))
        finally:
            ctx.without_key()
        self._after_calls("process", count)
        guard.policy.count(count)
        self._emit(out, None if rows.times is None else out_times, rows.split)


class ProcessTask(FunctionTask):
    """A process function without keys: a `ProcessFunction` or a plain `f(value, ctx)`."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, Process)
        super().__init__(node, ctx, as_process_function(node.operator.fn), node.operator.at_end)

    def process(self, batch: Batch, port: int) -> None:
        self.run(self.gives.process, batch.to_rows(), None)


class TimedTask(FunctionTask):
    """Base of keyed process functions: timers on both clocks.

    Invariant T4: to its user code event time comes to each timer in turn: while one fires, no later one counts as due,
    and the watermark never goes back.
    """

    sees_each_timer = True

    def __init__(self, node: Node, ctx: OperatorContext, fn: Any, at_end: AtEnd) -> None:
        super().__init__(node, ctx, fn, at_end)
        self.event_timers = ctx.event_timers = timers_of(self.backend, "event", _key_of, self.journal)
        self.processing_timers = ctx.processing_timers = timers_of(self.backend, "processing", _key_of, self.journal)
        self.keyed = True
        self.touched: StateTable | None = None
        """In rounds, if the user's function handles their end: the keys that had a record in the current round, each with
        the order of its first record."""
        self._touches = 0
        self._round_keys: list[Any] | None = None
        """Keys whose turn is still to come while a round ends, the next one last."""
        self.dropping = False
        """True if processing-time timers are of no more use: the input has ended, and the user does not await them."""

    def advance(self, time: int, limit: int) -> bool:
        self._fire(self.event_timers, time, limit, "event")
        due = self.event_timers.next_time()
        over = due is None or due > time
        if over:
            self._arrive_at(time)
        return over

    def _arrive_at(self, time: int) -> None:
        """Notes that event time has come to `time`, and all timers up to it have fired."""
        self.ctx.watermark_time = time
        if self.lifetimes is not None:
            self.lifetimes.sweep(0)

    def next_event(self) -> int | None:
        return self.event_timers.next_time()

    def awaits_timers(self) -> bool:
        return self.at_end == "wait" and self.next_processing() is not None

    def next_processing(self) -> int | None:
        if self.dropping:
            self.processing_timers.clear()
        return self.processing_timers.next_time()

    def fire_processing(self, now: int, limit: int) -> int:
        return self._fire(self.processing_timers, now, limit, "processing")

    def enter_rounds(self) -> None:
        super().enter_rounds()
        if self.keyed and self.ends_rounds:
            self.touched = self.backend.table("rounds:touched", kind="rounds", in_memory=True)
            self.backend.after_restore.append(self._count_touches)

    def _count_touches(self) -> None:
        assert self.touched is not None
        self._touches = max((order for _, order in self.touched.items()), default=0)

    def touch(self, keys: list[Any] | None) -> None:
        """Notes keys that have records in the current round."""
        touched = self.touched
        if touched is not None and keys is not None:
            top = touched.top
            for key in keys:
                if key not in top and key not in touched:
                    self._touches += 1
                    top[key] = self._touches

    def end_round(self, number: int, limit: int) -> bool:
        touched, ctx = self.touched, self.ctx
        if touched is None:
            return self.keyed or super().end_round(number, limit)
        if self._round_keys is None:
            in_order = sorted(touched.items(), key=lambda one: (one[1], Keyed(one[0])), reverse=True)
            self._round_keys = [key for key, _ in in_order]
        out: list[Any] = []
        key: Any = None
        try:
            for _ in range(min(limit, len(self._round_keys))):
                key = ctx.current_key = self._round_keys.pop()
                touched.pop(key)
                self._collect(self.gives.on_round_end(number, ctx), out)
        except Exception as error:
            what = f"on_round_end for key {short_repr(key)} raised {raised_text(error)}"
            made = self.user_error(error, what=what)
            made.call.what = "on_round_end"
            raise made from error
        finally:
            ctx.without_key()
        self._after_calls("on_round_end")
        self._emit(out, None)
        if self._round_keys:
            return False
        self._round_keys = None
        return True

    def input_ended(self) -> None:
        self.dropping = self.at_end == "drop"

    def _fire(self, timers: Timers, until: int, limit: int, domain: Any) -> int:
        ctx, fired = self.ctx, 0
        out: list[Any] = []
        out_times: list[int] = []
        ctx.time_domain = domain
        key = time = None
        self._before_calls()
        try:
            while fired < limit and (due := timers.pop_due(until)) is not None:
                key, time = due
                fired += 1
                ctx.services.clock_read = True
                ctx.current_key = key
                ctx.current_time = NO_TIME
                if domain == "event":
                    ctx.current_time = time
                    ctx.watermark_time = max(ctx.watermark_time, time)  # T4
                if self.guard is None:
                    self._collect(self.gives.on_timer(time / 1_000_000, ctx), out)
                else:
                    self._fire_guarded(self.guard, time / 1_000_000, out)
                out_times.extend([ctx.current_time] * (len(out) - len(out_times)))
        except UserCodeError as error:
            if error.call is not None:
                error.call.timer, error.call.domain, error.call.what = time, domain, "timer"
            raise
        except Exception as error:
            what = f"on_timer for key {short_repr(key)} raised {raised_text(error)}"
            made = self.user_error(error, what=what)
            made.call.timer, made.call.domain, made.call.what = time, domain, "timer"
            raise made from error
        finally:
            ctx.without_key()
            ctx.time_domain = "event"
        self._after_calls("on_timer", fired)
        self._emit(out, None if all(t == NO_TIME for t in out_times) else out_times)
        return fired

    def _fire_guarded(self, guard: GuardedCalls, time: float, out: list[Any]) -> None:
        guard.call(lambda _: self._collect(self.gives.on_timer(time, self.ctx), out), out, None, time)


class KeyedProcessTask(TimedTask):
    """A `KeyedProcessFunction`, or a plain `f(value, ctx)` on a keyed stream."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, KeyedProcess)
        super().__init__(node, ctx, as_process_function(node.operator.fn), node.operator.at_end)
        self.keys = key_reader(node, node.operator.key, ctx.subtask)
        if not takes_timers(self.fn):  # refused when one is set, not when it fires and nothing takes it
            ctx.event_timers = ctx.processing_timers = None

    def process(self, batch: Batch, port: int) -> None:
        rows = batch.to_rows()
        keys = settled_keys(self.keys.values(rows))
        self.touch(keys)
        self.run(self.gives.process, rows, keys)


class CoProcessTask(TimedTask):
    """A `CoProcessFunction`: two inputs, with one key space where both are keyed."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, CoProcess)
        super().__init__(node, ctx, node.operator.fn, node.operator.at_end)
        self.keys = [self._reader(port, selector) for port, selector in enumerate(node.operator.keys)]
        self.keyed = self.keys[0] is not None and self.keys[1] is not None
        if not (self.keyed and takes_timers(self.fn)):
            ctx.event_timers = ctx.processing_timers = None

    def _reader(self, port: int, selector: Selector | None) -> FieldReader | None:
        return None if selector is None else key_reader(self.node, selector, self.ctx.subtask, port)

    def process(self, batch: Batch, port: int) -> None:
        rows, reader = batch.to_rows(), self.keys[port]
        self.input = port
        keys = None if reader is None else settled_keys(reader.values(rows))
        self.touch(keys)
        self.run(self.gives.process2 if port else self.gives.process1, rows, keys)


def as_process_function(fn: Any) -> Any:
    """A process function with one or two inputs, or an object around a plain `f(value, ctx)`."""
    return fn if isinstance(fn, DECLARE_STATE) else _Plain(fn)


class _Plain(ProcessFunction):
    """Plain callable in the place of a process function."""

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.process = fn  # type: ignore[method-assign, assignment]


def unstamp(out: list[Any], times: list[int] | None) -> list[int]:
    """Puts the values of `Stamped` records in their places, and returns the timestamps of all."""
    found = [NO_TIME] * len(out) if times is None else times
    for i, record in enumerate(out):
        if record.__class__ is Stamped:
            out[i], found[i] = record.value, record.time
    return found


def backend_of(ctx: OperatorContext) -> Backend:
    """State backend of an operator in a subtask."""
    make, services = ctx.services.make_backend, ctx.services
    made: Backend
    if make is None:
        made = MemoryBackend(services.max_parallelism, ctx.uid, ctx.subtask, operator=ctx.name)
    else:
        made = make(ctx.uid, ctx.subtask)
        made.operator = ctx.name
    made.on_inexact = services.note_inexact if services.exact else None
    return made


def timers_of(backend: Backend, clock: str, key_of: Callable[[Any], Any], journal: Journal | None = None) -> Timers:
    """Timers of an operator on one clock, as a table of its state. `key_of` finds the key of the state in an entry of the
    table: a pair of what the timers are kept by, and the time. A `journal` notes what calls change."""
    table = backend.table(f"timers:{clock}", kind="timers", group_by=key_of, in_memory=True)
    timers = Timers(table) if journal is None else JournaledTimers(table, journal)
    backend.after_restore.append(timers.rebuild)
    return timers


def _key_of(entry: tuple[Any, int]) -> Any:
    return entry[0]
