"""The runtime half of each kind of windows, and of `drop_duplicates`."""

from __future__ import annotations

from tailrace.graph.operators import DropDuplicates, Operator, SessionWindow, Window
from tailrace.task.operators.aggregate import StatefulTask
from tailrace.task.operators.duplicates.duplicates import DuplicatesTask
from tailrace.task.operators.window import WindowTask
from tailrace.task.operators.windows.columnsessions import ColumnSessionTask

WINDOW_TASKS: dict[type[Operator], type[StatefulTask]] = {
    Window: WindowTask,
    SessionWindow: ColumnSessionTask,
    DropDuplicates: DuplicatesTask,
}
