"""The context with which an asynchronous function is opened."""

from __future__ import annotations

from typing import Any

from tailrace.errors import GraphError
from tailrace.task.operators.context import OperatorContext

_THERE = ("subtask", "parallelism", "attempt", "metrics")


class CallContext:
    """The part of an operator's context that is safe in another thread: where the function runs, and its metrics."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        if name in _THERE:
            return getattr(self._ctx, name)
        raise GraphError(
            f"operator {self._ctx.name!r}: an asynchronous function has no ctx.{name}; it has {', '.join(_THERE)}. Its "
            f"calls run beside the dataflow, and their results are kept as they came"
        )
