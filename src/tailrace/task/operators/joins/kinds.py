"""The runtime halves of joins in rows and in columns."""

from __future__ import annotations

from tailrace.graph.graph import Node
from tailrace.graph.operators import AsOfJoin, IntervalJoin, WindowJoin
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.columns import ColumnJoinTask
from tailrace.task.operators.joins.interval import IntervalJoinTask
from tailrace.task.operators.joins.versions import ColumnVersionsTask
from tailrace.task.operators.joins.windowed import ColumnWindowJoinTask


def interval_join_task(node: Node, ctx: OperatorContext) -> IntervalJoinTask | ColumnJoinTask:
    """The runtime half of an interval join."""
    assert isinstance(node.operator, IntervalJoin)
    return IntervalJoinTask(node, ctx) if node.operator.suffixes is None else ColumnJoinTask(node, ctx)


JOIN_TASKS = {IntervalJoin: interval_join_task, WindowJoin: ColumnWindowJoinTask, AsOfJoin: ColumnVersionsTask}
"""The runtime half of each kind of join."""
