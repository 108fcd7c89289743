"""The runtime halves of joins in rows and in columns."""

from __future__ import annotations

from tailrace.graph.graph import Node
from tailrace.graph.operators import AsOfJoin, IntervalJoin, SessionSpec, WindowJoin
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.columns import ColumnJoinTask
from tailrace.task.operators.joins.groups import ColumnCoGroupTask, ColumnSessionJoinTask
from tailrace.task.operators.joins.interval import IntervalJoinTask
from tailrace.task.operators.joins.kept import KeptColumnsTask
from tailrace.task.operators.joins.versions import ColumnVersionsTask
from tailrace.task.operators.joins.windowed import ColumnWindowJoinTask


def interval_join_task(node: Node, ctx: OperatorContext) -> IntervalJoinTask | ColumnJoinTask:
    """The runtime half of an interval join."""
    assert isinstance(node.operator, IntervalJoin)
    return IntervalJoinTask(node, ctx) if node.operator.suffixes is None else ColumnJoinTask(node, ctx)


def window_join_task(node: Node, ctx: OperatorContext) -> KeptColumnsTask:
    """The runtime half of a join by windows."""
    assert isinstance(node.operator, WindowJoin)
    if isinstance(node.operator.windows, SessionSpec):
        return ColumnSessionJoinTask(node, ctx)
    return ColumnCoGroupTask(node, ctx) if node.operator.how == "group" else ColumnWindowJoinTask(node, ctx)


JOIN_TASKS = {IntervalJoin: interval_join_task, WindowJoin: window_join_task, AsOfJoin: ColumnVersionsTask}
"""The runtime half of each kind of join."""
