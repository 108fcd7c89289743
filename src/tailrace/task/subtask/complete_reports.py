"""Reports to functions of the user that a checkpoint is complete (`Function.checkpoint_complete`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.api.functions import Function, Wrapper
from tailrace.errors import StateAccessError, error_text
from tailrace.task.contract.cut_state import CutState
from tailrace.task.contract.functions import functions_of
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.sources.completions import FAILED
from tailrace.task.operators.stateless import FusedRows


class _Called(NamedTuple):
    operator: OperatorTask
    fn: Function
    ctx: OperatorContext


@dataclass(eq=False)
class ReportsCutState(CutState):
    """State of the reports of a subtask at a cut that no checkpoint holds."""

    due: int = 0
    """The newest complete checkpoint that the functions are not informed of yet; 0: none."""
    reported: int = 0
    """The checkpoint of the last calls."""


class CompleteReports(ReportsCutState):
    """The functions of a subtask that are informed of complete checkpoints, and how far they are.

    Invariant A6: the calls of a function come for complete checkpoints only, in growing order, each once; the first one is
    for the restored checkpoint, if there is one. They are a step of the task, before any other that follows, or come before
    its functions are closed. A replay makes them where the lost worker made them.
    """

    def __init__(self, operators: Sequence[OperatorTask]) -> None:
        super().__init__()
        self.opened = False
        """True once the functions are open."""
        self.called = [
            _Called(operator, fn, ctx)
            for operator in operators
            for node, ctx in zip(
                operator.nodes if isinstance(operator, FusedRows) else [operator.node], operator.contexts(), strict=True
            )
            for given in functions_of(node)
            for fn in (given.wrapped if isinstance(given, Wrapper) else [given])
            if type(fn).checkpoint_complete is not Function.checkpoint_complete
        ]
        for one in self.called:
            one.ctx.metrics.counters.setdefault(FAILED, 0)

    def note(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete."""
        if self.called and checkpoint > self.reported:
            self.due = max(self.due, checkpoint)

    def call(self) -> None:
        """Calls the functions for the newest complete checkpoint. What they raise is a warning, but for what Tailrace
        refuses."""
        checkpoint, self.due = self.due, 0
        self.reported = max(self.reported, checkpoint)
        for one in self.called if checkpoint else ():
            self._call(one, checkpoint)

    def end(self) -> list[BaseException]:
        """Makes the calls that are due, before the functions are closed. Returns what must not be a warning."""
        if not (self.due and self.opened) or self.called[0].ctx.services.outside.repeats:
            return []
        try:
            self.call()
        except Exception as error:
            return [error]
        return []

    def _call(self, called: _Called, checkpoint: int) -> None:
        operator, fn, ctx = called
        ctx.without_key()
        try:
            fn.checkpoint_complete(checkpoint)
        except StateAccessError as error:
            raise operator.user_error(error, what=f"checkpoint_complete raised {error_text(error)}") from error
        except Exception as error:
            ctx.metrics.inc(FAILED)
            if not ctx.services.outside.repeats:
                ctx.services.outside.beside.warn(
                    f"operator {ctx.name!r}, subtask {ctx.subtask}: checkpoint_complete({checkpoint}) raised "
                    f"{error_text(error)}. The job goes on; the next complete checkpoint makes up for it"
                )
        if ctx.side:
            ctx.side.clear()
            what = "checkpoint_complete emitted to a side output; it is called between records, and emits nothing"
            raise operator.user_error(ValueError(what), what=what)
