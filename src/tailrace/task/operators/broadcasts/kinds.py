"""The runtime half of each kind of process function."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.graph.graph import Node
from tailrace.graph.operators import BroadcastProcess, CoProcess, KeyedProcess, Operator, Process
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.broadcasts.ordered import OrderedBroadcastTask
from tailrace.task.operators.broadcasts.process import BroadcastTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.ordering.process import co_process_task, keyed_process_task
from tailrace.task.operators.process import ProcessTask


def broadcast_task(node: Node, ctx: OperatorContext) -> OperatorTask:
    """The runtime half of a function of a broadcast stream."""
    assert isinstance(node.operator, BroadcastProcess)
    return OrderedBroadcastTask(node, ctx) if node.operator.in_order else BroadcastTask(node, ctx)


PROCESS_TASKS: dict[type[Operator], Callable[[Node, OperatorContext], OperatorTask]] = {
    Process: ProcessTask,
    KeyedProcess: keyed_process_task,
    CoProcess: co_process_task,
    BroadcastProcess: broadcast_task,
}
