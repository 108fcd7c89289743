"""The runtime half of each kind of windows."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.graph.graph import Node
from tailrace.graph.operators import DropDuplicates, Operator, SessionWindow, Window
from tailrace.task.operators.aggregates.running import StatefulTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.duplicates.duplicates import DuplicatesTask
from tailrace.task.operators.windows.aggregates import WindowTask
from tailrace.task.operators.windows.columnsessions import ColumnSessionTask
from tailrace.task.operators.windows.triggered import TriggeredWindowTask


def window_task(node: Node, ctx: OperatorContext) -> WindowTask:
    """The runtime half of tumbling and sliding windows."""
    assert isinstance(node.operator, Window)
    return WindowTask(node, ctx) if node.operator.triggers is None else TriggeredWindowTask(node, ctx)


WINDOW_TASKS: dict[type[Operator], Callable[[Node, OperatorContext], StatefulTask]] = {
    Window: window_task,
    SessionWindow: ColumnSessionTask,
    DropDuplicates: DuplicatesTask,
}
