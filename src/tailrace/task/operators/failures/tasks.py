"""The runtime half of an operator, with its policy for records that fail if it has one."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.api.failure_options import FAIL
from tailrace.graph.graph import Node
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.halving import Halving
from tailrace.task.operators.failures.rows import GuardedRows
from tailrace.task.operators.stateless import FUSIBLE, FusedRows, is_fusible


def operator_task(
    make: Callable[[Node, OperatorContext], OperatorTask] | None, nodes: list[Node], ctxs: list[OperatorContext]
) -> OperatorTask:
    """The runtime half of an operator, or of several fused ones. `make` makes that of a kind that is not fusible."""
    if make is None:
        assert isinstance(nodes[0].operator, FUSIBLE)
        return FusedRows(nodes, ctxs) if is_fusible(nodes[0]) else GuardedRows(nodes[0], ctxs[0])
    task = make(nodes[0], ctxs[0])
    if nodes[0].on_error != FAIL and task.policy is None:
        task.process = Halving(task).process  # type: ignore[method-assign]
    return task
