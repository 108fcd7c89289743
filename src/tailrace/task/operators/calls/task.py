"""The operator of asynchronous calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tailrace.api.failure_options import Failed
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import TailraceError
from tailrace.graph.graph import Node
from tailrace.graph.operators import MapAsync
from tailrace.state.backend import Backend
from tailrace.task.channels.key_readers import key_reader, settled_keys
from tailrace.task.contract.actions import BeginCalls
from tailrace.task.contract.calls import Answer, AsyncCalls
from tailrace.task.contract.cut_state import CutState
from tailrace.task.contract.usercode import raised_text, user_error
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.calls.opening import CallContext
from tailrace.task.operators.calls.orders import KeysInTurn, OfInput, ResultOrder, UpToWatermarks
from tailrace.task.operators.calls.pending import Pending, PendingRecords
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.policy import policy_of
from tailrace.task.operators.functions import backend_of


@dataclass(eq=False)
class CallsCutState(CutState):
    """State of asynchronous calls at a cut that no checkpoint holds: a job that starts again makes all calls anew."""

    answers: dict[int, list[Any] | Failed] = field(default_factory=dict)
    """Results that have come and not gone on, by the numbers of their records: a list of one; or what goes aside for a
    record that has failed."""
    next_number: int = 0


class MapAsyncTask(OperatorTask, CallsCutState):
    """An operator whose results come later, as answers of the world outside. It is the root of its chain.

    Invariant T21: event time that goes on from here is at most that in front of the oldest record whose result has not gone
    on. So a result is late behind the operator if its record was late in front of it, and only then.
    Invariant T22: there are at most `capacity` records whose results have not gone on, but for those that a restore has
    brought together; and calls of as many at once.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        CallsCutState.__init__(self)
        assert isinstance(node.operator, MapAsync)
        self.spec = node.operator
        self.backend: Backend = backend_of(ctx)
        self._pending = PendingRecords(self.backend, ctx)
        self._reader = None if self.spec.key is None else key_reader(node, self.spec.key, ctx.subtask)
        self.policy = policy_of(node, ctx)
        if ctx.side is None:
            ctx.side = {}
        self._begin_anew()
        self.backend.after_restore.append(self._rebuild)
        self.reported = 0
        """Number of answers that have come and are not taken."""

    def _begin_anew(self) -> None:
        self._order: ResultOrder = OfInput() if self.spec.order == "input" else UpToWatermarks()
        self._turns = KeysInTurn() if self.spec.order == "key" else None
        self._to_begin: dict[int, None] = {}
        """Records whose calls are to begin."""
        self._under_way: dict[int, tuple[int, ...]] = {}
        """Calls that have begun and are not answered, by their first records."""

    def _rebuild(self) -> None:
        self._pending.rebuild()
        self.next_number = self._pending.number
        self._line_up()

    def _line_up(self) -> None:
        """Lines up all records as if they had come one after the other, those that are answered included."""
        self._begin_anew()
        pending = self._pending.by_number
        for number, one in pending.items():
            self._order.add((number,), one.mark)
        self._to_call([number for number in pending if number not in self.answers])

    def cut_state(self) -> dict[str, Any]:
        self.next_number = self._pending.number
        return super().cut_state()

    def set_cut_state(self, state: dict[str, Any]) -> None:
        super().set_cut_state(state)
        self._pending.number = self.next_number
        self._line_up()

    @property
    def _calls(self) -> AsyncCalls:
        calls = self.ctx.services.outside.calls
        assert calls is not None, "the worker makes no asynchronous calls"
        return calls

    def open(self) -> None:
        self.call_user(self._calls.open, self.ctx.uid, self.spec, CallContext(self.ctx), what="open")

    def close(self) -> None:
        try:
            self._calls.close(self.ctx.uid)
        finally:
            self.backend.close()

    def state_entries(self) -> int:
        return len(self._pending)

    # Input.

    @property
    def room(self) -> int:
        """Number of records that may come."""
        return self.spec.capacity - len(self._pending)

    @property
    def waits(self) -> bool:
        """True while results have not gone on."""
        return bool(self._pending.by_number)

    def process(self, batch: Batch, port: int) -> None:
        if not len(batch):
            return
        rows = batch.to_rows()
        assert isinstance(rows, Rows)
        times = [NO_TIME] * len(rows.values) if rows.times is None else rows.times.tolist()
        keys = None if self._reader is None else settled_keys(self._reader.values(rows))
        numbers = self._pending.add(keys, times, rows.values)
        self._order.add(numbers, self.ctx.watermark_time)
        self._to_call(numbers)
        if self.policy is not None:
            self.policy.count(len(numbers))
        self.backend.relieve()

    def _to_call(self, numbers: Iterable[int]) -> None:
        free = numbers if self._turns is None else self._turns.add(numbers, self._pending.by_number)
        self._to_begin.update(dict.fromkeys(free))

    def begin_calls(self) -> BeginCalls | None:
        """The calls that begin now; None if none does. A replay begins none: those that are not answered when it is over
        begin then."""
        to_begin, size = self._to_begin, self.spec.batch or 1
        free = max(1, self.spec.capacity // size) - len(self._under_way)
        if not to_begin or free <= 0:
            return None
        first = [*to_begin][: free * size]
        groups = [tuple(first[at : at + size]) for at in range(0, len(first), size)]
        for number in first:
            del to_begin[number]
        self._under_way.update((group[0], group) for group in groups)
        pending = self._pending.by_number
        return BeginCalls(self.ctx.uid, groups, [[pending[number].value for number in group] for group in groups])

    # Answers.

    def take_answers(self, limit: int) -> int:
        """Takes about `limit` answers, and sends on the results whose turn it is. Returns the number of answers."""
        calls, uid, outside = self._calls, self.ctx.uid, self.ctx.services.outside
        count = min(limit, self.reported)
        try:
            answers = outside.request(lambda: calls.take(uid, count))
        except TailraceError:
            raise
        except Exception as error:
            what = f"a result cannot be pickled, and jobs with standbys keep all results: {raised_text(error)}"
            raise user_error(error, self.node.name, self.ctx.subtask, what=what, written=self.node.written) from error
        self.reported = max(0, self.reported - len(answers))
        news: list[int] = []
        for answer in answers:
            self._under_way.pop(answer.numbers[0], None)
            for number in answer.numbers:
                self._to_begin.pop(number, None)  # in a replay
            if answer.where is None:
                self.answers.update((n, [result]) for n, result in zip(answer.numbers, answer.results, strict=True))
            else:
                self._handle_failure(answer)
            news += answer.numbers
        if self._turns is not None:
            self._to_begin.update(dict.fromkeys(self._turns.note_answers(news, self._pending.by_number)))
        self._send_on(self._order.ready(self.answers, news))
        return len(news)

    def _handle_failure(self, answer: Answer) -> None:
        """Handles the records of a call that has failed: the job fails, or they go aside when it is their turn. Before
        that a checkpoint still has them, and a job that starts from it would set them aside once more."""
        assert answer.where is not None
        calls, uid, pending = self._calls, self.ctx.uid, self._pending.by_number
        try:
            self.ctx.services.outside.request(lambda: calls.raise_error(uid, answer.numbers[0]))
        except Exception as error:
            for number in answer.numbers:
                self.answers[number] = self._failure(error, pending[number], answer.where)

    def _failure(self, error: Exception, one: Pending, where: str) -> Failed:
        key = None if self._reader is None else one.key
        if self.policy is not None:
            return self.policy.failure(error, one.value, one.timestamp, key, where=where)
        made = f" in each of {self.spec.attempts} calls" if self.spec.attempts > 1 else ""
        what = raised_text(error) if isinstance(error, TimeoutError) else f"{raised_text(error)}{made}"
        node, subtask = self.node, self.ctx.subtask
        raise user_error(error, node.name, subtask, one.value, what=what, written=node.written) from error

    def _send_on(self, numbers: list[int]) -> None:
        out: list[Any] = []
        times: list[int] = []
        for number in numbers:
            results = self.answers.pop(number)
            time = self._pending.pop(number).timestamp
            if isinstance(results, Failed):
                assert self.policy is not None
                self.policy.send_aside(results, time)
            else:
                out += results
                times.append(time)
        self.flush_side()
        if out:
            stamps = np.array(times, np.int64)
            self.out(Rows(out, None if (stamps == NO_TIME).all() else stamps))
        self.backend.relieve()

    # Event time.

    def hold(self, time: int) -> int:
        """Takes event time that has come. Returns how far it may go on (T21)."""
        self.ctx.watermark_time = max(time, self.ctx.watermark_time)
        mark = self._order.mark
        return time if mark is None else min(time, mark)

    def awaits_timers(self) -> bool:
        return self.waits
