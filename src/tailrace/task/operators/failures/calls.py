"""Calls of process functions with a policy for records that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.graph.graph import Node
from tailrace.state.handles import Bound
from tailrace.state.operator_state import OperatorState
from tailrace.state.undo_log import Journal, keep_journal
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.policy import FailurePolicy, is_of_record
from tailrace.task.operators.failures.spare import Spare


class GuardedCalls:
    """The calls of one process function in one subtask. A call that fails leaves no trace in state, timers and emissions.

    What it has done to attributes of the function and to the world outside stays, and so do its metrics and the random
    numbers that it has drawn.
    """

    def __init__(
        self, node: Node, ctx: OperatorContext, journal: Journal, handles: Bound, states: list[OperatorState]
    ) -> None:
        self.ctx = ctx
        self.policy = FailurePolicy(node, ctx)
        self.journal = journal
        keep_journal(self.journal, handles, states)

    def call(self, work: Callable[[Any], object], out: list[Any], record: Any, timer: float | None = None) -> None:
        """Runs `work(record)`, which appends its records to `out`, for a record or, if there is a `timer`, for one. A call
        that fails is made again as often as the policy says; then the record goes aside. Raises `UserCodeError` if it goes
        nowhere."""
        ctx, policy, journal = self.ctx, self.policy, self.journal
        key = None if ctx.current_key is ctx.no_key else ctx.current_key
        emitted, stamping = len(out), ctx.stamping
        sides = {tag: len(values) for tag, (values, _) in (ctx.side or {}).items()}
        spare = Spare(record)
        for left in reversed(range(policy.attempts)):
            journal.begin()
            policy.begin()
            try:
                work(record)
                journal.end()
                return
            except Exception as error:
                journal.undo()
                policy.journal_gap = journal.gap
                del out[emitted:]
                ctx.stamping = stamping
                self._cut_sides(sides)
                record = spare.take()
                if not left or not is_of_record(error):
                    policy.fail(error, record, ctx.current_time, key, timer)

    def _cut_sides(self, sides: dict[str, int]) -> None:
        side = self.ctx.side or {}
        for tag, (values, times) in list(side.items()):
            length = sides.get(tag, 0)
            del values[length:], times[length:]
            if not values:
                del side[tag]
