"""The runtime half of each kind of windows."""

from __future__ import annotations

from tailrace.graph.operators import Operator, SessionWindow, Window
from tailrace.task.operators.window import WindowTask
from tailrace.task.operators.windows.columnsessions import ColumnSessionTask
from tailrace.task.operators.windows.firing import WindowedTask

WINDOW_TASKS: dict[type[Operator], type[WindowedTask]] = {Window: WindowTask, SessionWindow: ColumnSessionTask}
