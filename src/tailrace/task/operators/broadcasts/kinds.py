"""The runtime half of each kind of process function."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.graph.graph import Node
from tailrace.graph.operators import BroadcastProcess, CoProcess, KeyedProcess, Operator, Process
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.broadcasts.process import BroadcastTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.ordering.process import co_process_task, keyed_process_task
from tailrace.task.operators.process import ProcessTask

PROCESS_TASKS: dict[type[Operator], Callable[[Node, OperatorContext], OperatorTask]] = {
    Process: ProcessTask,
    KeyedProcess: keyed_process_task,
    CoProcess: co_process_task,
    BroadcastProcess: BroadcastTask,
}
