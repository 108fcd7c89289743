"""The base of all process functions: calls of user code record by record, and the records that it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from types import GeneratorType, SimpleNamespace
from typing import Any

import numpy as np

from tailrace.api.restore.kinds import ends_rounds, takes_many
from tailrace.elements.batches import Rows
from tailrace.elements.callables import followed_by, not_one_value, one_for_several, run_to_its_end
from tailrace.elements.timestamps import NO_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import AtEnd
from tailrace.state.backend import Backend, MetaPart
from tailrace.state.format import TableInfo
from tailrace.state.handles import bind_all, check_bound
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.operator_state import OperatorStates
from tailrace.state.sharing import Sharing, UsedEntry, entry_of
from tailrace.state.tables import StateTable
from tailrace.state.ttl_handles import Lifetimes
from tailrace.state.ttl_lifetimes import Expiry
from tailrace.task.channels.copies import own_copy
from tailrace.task.operators.base import OperatorTask, new_journal
from tailrace.task.operators.context import OperatorContext, Stamped
from tailrace.task.operators.failures.calls import GuardedCalls

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
        if takes_many(fn):
            self.gives.process_many = run_to_its_end(fn.process_many)
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
            self.ctx.current_time = self.ctx.round_time
            self.call_user(lambda: self._collect(self.gives.on_round_end(number, self.ctx), out), what="on_round_end")
            self.ctx.without_key()
            self._emit_of_round(out)
        return True

    def _emit_of_round(self, out: list[Any]) -> None:
        """Emits records of the end of a round, in rounds by spans of event time with the time of the end of the span."""
        time = self.ctx.round_time
        self._emit(out, None if time == NO_TIME else [time] * len(out))

    def end_span(self, limit: int) -> bool:
        for handle in self._handles.values():
            keys = list(islice(handle._table.keys(), limit))
            for self.ctx.current_key in keys:
                handle.clear()
            self.ctx.without_key()
            if keys:
                return False
        for state in self.own_state.handles:
            state.clear()
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
        if (many := getattr(self.gives, "process_many", None)) is not None:
            self._run_many(many, rows, keys or [])
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

    def _run_many(self, call: Callable[[Any, Any], Any], rows: Rows, keys: list[Any]) -> None:
        """Calls `call(values, ctx)` for the records that follow each other with one key and one timestamp."""
        ctx, values = self.ctx, rows.values
        times = rows.times.tolist() if rows.times is not None else [NO_TIME] * len(values)
        out: list[Any] = []
        out_times: list[int] = []
        some: list[Any] = []
        try:
            for (key, time), entries in groupby(zip(keys, times, values, strict=True), itemgetter(0, 1)):
                some = [value for _, _, value in entries]
                ctx.current_key, ctx.current_time = key, time
                self._collect(call(some, ctx), out)
                out_times.extend([time] * (len(out) - len(out_times)))
        except Exception as error:
            made = self.user_error(error, *some) if len(some) == 1 else self.user_error(error)
            made.call.batch = Rows(some, None if rows.times is None else np.full(len(some), ctx.current_time))
            raise made from error
        finally:
            ctx.without_key()
        self._after_calls("process_many", len(values))
        self._emit(out, None if rows.times is None else out_times, rows.split)

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
