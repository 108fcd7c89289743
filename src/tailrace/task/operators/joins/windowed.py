"""Joins by windows of two inputs in columns. A record is kept once for each of its windows, with its last microsecond as the
time: then the join is one of records with equal times.

Results and their times are those of the join in rows. But a pair comes out as soon as both of its records are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.elements.batches import Batch, Columns
from tailrace.elements.timestamps import is_late
from tailrace.graph.graph import Node
from tailrace.graph.operators import WindowJoin, WindowSpec
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.columns import ColumnJoinTask
from tailrace.task.operators.late_records import set_rows_aside, some_of
from tailrace.task.operators.windows.windowtimes import WindowTimes, check_room

Array = np.ndarray[Any, Any]
PAIRS = 1 << 18
"""Number of pairs of a record and a window of it that are taken together, but for those of one record."""


class ColumnWindowJoinTask(ColumnJoinTask):
    """A join by windows in columns."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        operator = node.operator
        assert isinstance(operator, WindowJoin) and isinstance(operator.windows, WindowSpec)
        super().__init__(node, ctx)
        self._room = operator.windows.size + operator.windows.slide
        self._windows = WindowTimes(operator.windows)
        self._several = -(-operator.windows.size // operator.windows.slide)
        """Number of windows of a record at most."""

    def _take(self, batch: Batch, port: int) -> None:
        width = max(1, PAIRS // self._several)
        for begin in range(0, len(batch), width):
            super()._take(batch.slice(begin, begin + width), port)

    def _on_time(self, batch: Columns, port: int) -> Columns | None:
        times = batch.times
        assert times is not None
        try:
            ends = int(times.min()), int(times.max())
            check_room(self._room, *ends)
            self._windows.check_calendar(*ends)
        except OverflowError as error:
            raise self.user_error(error) from error
        starts = self._windows.starts(times)[::-1]
        last = np.stack([self._windows.ends(one) - 1 for one in starts], axis=1)
        open_ = (last >= times[:, None]) & ~is_late(last, self.ctx.watermark_time)
        accepted: Array = np.any(open_, axis=1)
        set_rows_aside(self, batch, ~accepted)
        if len(starts) == 1 and accepted.all():
            return Columns(batch.data, last[:, 0], batch.groups)
        rows, windows = np.nonzero(open_)  # in the order in which the records came
        return some_of(batch, rows, last[rows, windows]) if len(rows) else None
