"""The firing of timers of a keyed process function, on both clocks, and the turn of its keys at the end of a round."""

from __future__ import annotations

from typing import Any

from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import UserCodeError, short_repr
from tailrace.graph.graph import Node
from tailrace.graph.operators import AtEnd
from tailrace.state.tables import StateTable
from tailrace.task.contract.usercode import raised_text
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.calls import GuardedCalls
from tailrace.task.operators.functions import FunctionTask
from tailrace.task.operators.timer_heap import Keyed, Timers, timers_of


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
        ctx.current_time = ctx.round_time
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
        self._emit_of_round(out)
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


def _key_of(entry: tuple[Any, int]) -> Any:
    return entry[0]
