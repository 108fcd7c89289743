"""Functions of a stream and a broadcast stream in one subtask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.api.restore.kinds import takes_timers
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import IncompatibleState, StateAccessError, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import AtEnd, BroadcastProcess
from tailrace.state.backend import MetaPart
from tailrace.state.broadcast_state import ON_A_KEY, BroadcastState, Permission
from tailrace.state.handles import State
from tailrace.task.channels.key_readers import key_reader, settled_keys
from tailrace.task.operators.broadcasts.waiting import waiting_of, without_waiting
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.timer_firing import TimedTask
from tailrace.task.operators.timer_heap import Keyed, Timers


class BroadcastCalls(TimedTask):
    """Base of functions of a broadcast stream: the calls for its records, and who may change broadcast state."""

    def __init__(self, node: Node, ctx: OperatorContext, fn: Any, at_end: AtEnd) -> None:
        super().__init__(node, ctx, fn, at_end)
        watched = ctx.services.debug or ctx.services.tuning.watches_state
        self.writing = Permission()
        self.shared = [one for one in self.own_state.handles if isinstance(one, BroadcastState)]
        for one in self.shared:
            one.bind_to(self.writing, watched)
        self._watched = self.shared if watched else []
        """The states whose copies must be, behind calls that may not change them, as they were."""

    def restore(self, parts: list[MetaPart]) -> None:
        """Takes the copies. Raises `IncompatibleState` for a checkpoint in which broadcast records wait for event time."""
        if any(waiting is not None and waiting.coming for waiting in map(waiting_of, parts)):
            raise IncompatibleState(
                f"operator {self.node.name!r} (uid {self.ctx.uid!r}): broadcast records wait for event time in the "
                f"checkpoint, and it is not called in order; give it process(..., ordered=True), or another uid"
            )
        super().restore([without_waiting(part) for part in parts])

    def _fire(self, timers: Timers, until: int, limit: int, domain: Any) -> int:
        before = self.digests()
        fired = super()._fire(timers, until, limit, domain)
        self.check_unchanged(before, "on_timer")
        return fired

    def digests(self) -> list[int]:
        """The digests of the copies, in debug runs."""
        return [one.digest() for one in self._watched]

    def check_unchanged(self, before: list[int], what: str) -> None:
        """Raises `UserCodeError` if calls have changed a value of a broadcast state in place."""
        for one, digest in zip(self._watched, before, strict=True):
            if one.digest() != digest:
                why = StateAccessError(
                    f"{what} has changed a value of broadcast state {one.name!r} in place; the other subtasks have it as "
                    f"it was; only process_broadcast may change it"
                )
                raise self.user_error(why, what=str(why))

    def call_broadcast(self, value: Any, time: int, out: list[Any]) -> None:
        """Calls `process_broadcast` for one record."""
        ctx = self.ctx
        ctx.current_time = time
        ctx.all_keys = self._all_keys
        self.writing.allow()
        try:
            self._collect(self.gives.process_broadcast(value, ctx), out)
        except UserCodeError:
            raise
        except Exception as error:
            raise self.user_error(error, value) from error
        finally:
            self.writing.forbid()
            ctx.all_keys = None
            ctx.without_key()

    def is_done(self, key: Any) -> bool:
        """True if the record at hand was processed for a key before."""
        return False

    def _all_keys(self, states: tuple[Any, ...]) -> Iterator[Any]:
        """The keys that have a value in one of these states, each as the key at hand."""
        ctx, writing = self.ctx, self.writing
        handles = self._handles_of(states)
        tables = [self.backend.tables[one.name] for one in handles]
        keys = {key for table in tables for key in table.keys()}  # noqa: SIM118
        outer = ctx.current_key, writing.refused
        try:
            for key in sorted(keys, key=Keyed):
                ctx.current_key, writing.refused = key, ON_A_KEY
                # The loop may have removed it, or its lifetime is over.
                if any(one.exists() for one in handles) and not self.is_done(key):
                    yield key
        finally:
            ctx.current_key, writing.refused = outer

    def _handles_of(self, states: tuple[Any, ...]) -> list[State]:
        """The handles of these states; of all where none is given."""
        if not self.keyed:
            raise StateAccessError(
                f"operator {self.node.name!r}: ctx.keys() goes through keyed state, and the first stream has no key; call "
                f"key_by on it"
            )
        for state in states:
            if not isinstance(state, State) or self._handles.get(state.name) is not state:
                raise StateAccessError(
                    f"operator {self.node.name!r}: ctx.keys(...) takes keyed states of the function, such as "
                    f"ctx.keys(self.total), and not {state!r}"
                )
        return [*states] or [*self._handles.values()]


class BroadcastTask(BroadcastCalls):
    """A `BroadcastProcessFunction`: port 0 has the records, port 1 those of the broadcast stream.

    Invariant B11: in a complete checkpoint all copies of a broadcast state are equal; so the one that it holds is that of
    every subtask. All broadcast records come from one subtask, and no barrier overtakes one: at a cut each subtask has
    processed the same of them, in the same order. Only they change the copies.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, BroadcastProcess)
        super().__init__(node, ctx, node.operator.fn, node.operator.at_end)
        key = node.operator.key
        self.reader = None if key is None else key_reader(node, key, ctx.subtask)
        self.keyed = key is not None
        if not (self.keyed and takes_timers(self.fn)):
            ctx.event_timers = ctx.processing_timers = None

    def process(self, batch: Batch, port: int) -> None:
        rows = batch.to_rows()
        if port:
            self._run_broadcast(rows)
            return
        keys = None if self.reader is None else settled_keys(self.reader.values(rows))
        self.touch(keys)
        before = self.digests()
        self.run(self.gives.process, rows, keys)
        self.check_unchanged(before, "process")

    def _run_broadcast(self, rows: Rows) -> None:
        """Calls `process_broadcast` for each record. One that fails fails the job, whatever the policy for failed records:
        it may fail in this subtask only, and without it the copies would differ."""
        times = [NO_TIME] * len(rows.values) if rows.times is None else rows.times.tolist()
        out: list[Any] = []
        out_times: list[int] = []
        self._before_calls()
        for value, time in zip(rows.values, times, strict=True):
            self.call_broadcast(value, time, out)
            out_times.extend([time] * (len(out) - len(out_times)))
        self._after_calls("process_broadcast", len(rows.values))
        self._emit(out, None if rows.times is None else out_times, rows.split)
