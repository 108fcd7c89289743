"""Late records: what they are for the key groups of an operator, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.batches import Batch, Columns
from tailrace.elements.timestamps import NO_TIME, is_late
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Selector
from tailrace.task.channels.key_readers import KeyReader
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.context import OperatorContext

LATE = "late"
"""Side output of late records."""


class Floors:
    """Event time that old subtasks had reached, by their key groups, while an operator that began at the least of these
    times catches up: a record that was late for an old subtask is late."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        self._node, self._ctx = node, ctx
        self.ranges: list[tuple[int, int, int]] = []
        """(first, last, time): the event time that the key groups [first, last) had reached."""

    def pass_by(self, time: int) -> None:
        """Drops the floors that event time has reached."""
        if self.ranges:
            self.ranges = [one for one in self.ranges if one[2] > time]

    def take(self, batch: Batch, key: Selector, take: Callable[[Batch], None]) -> None:
        """Calls `take` with the records of a batch, in parts while key groups differ in event time. In each call
        `watermark_time` of the context is the event time of the part."""
        if not self.ranges:
            take(batch)
            return
        ctx, reached = self._ctx, self._ctx.watermark_time
        try:
            for time, part in self.parts(batch, key, reached):
                ctx.watermark_time = time
                take(part)
        finally:
            ctx.watermark_time = reached

    def parts(self, batch: Batch, key: Selector, least: int) -> Iterator[tuple[int, Batch]]:
        """The records of a batch, by the times of their key groups: that of a range, or `least` if it is later."""
        node, ctx = self._node, self._ctx
        groups = KeyReader(key, node.name, ctx.subtask, ctx.services.max_parallelism, node.written).groups(batch)
        times = np.full(len(batch), least, np.int64)
        for first, last, time in self.ranges:
            inside = (groups >= first) & (groups < last)
            times[inside] = np.maximum(times[inside], time)
        floors, which = np.unique(times, return_inverse=True)
        return ((int(floors[at]), part) for at, part in batch.partition(which.astype(np.int64), len(floors)))


def least_time(operator: OperatorTask, batch: Batch, what: str) -> int:
    """The least timestamp of a batch with records. Raises `UserCodeError` for a record without one; `what` says where it
    has come to."""
    least = NO_TIME if batch.times is None else int(batch.times.min())
    if least != NO_TIME:
        return least
    at = 0 if batch.times is None else int(np.flatnonzero(batch.times == NO_TIME)[0])
    missing = ValueError(
        f"a record without a timestamp reached {what}; use assign_timestamps before it (behind a map_batches that keeps no "
        f"column of its input, or give map_batches timestamps=)"
    )
    raise operator.user_error(missing, *batch.slice(at, at + 1).to_rows().values)


def timed_part(operator: OperatorTask, batch: Batch, what: str) -> Batch | None:
    """The records of a batch that have a timestamp; None if there are none. The others go aside by the policy of the
    operator. Raises `UserCodeError` for a record without one where there is no such policy; `what` says where it has come
    to."""
    policy = operator.policy
    has_time = np.zeros(len(batch), np.bool_) if batch.times is None else batch.times != NO_TIME
    if policy is None or has_time.all():
        least_time(operator, batch, what)
        return batch
    timed = None
    for with_time, part in batch.partition(has_time.astype(np.int64), 2):
        if with_time:
            timed = part
            continue
        for at, record in enumerate(part.to_rows().values):
            try:
                least_time(operator, part.slice(at, at + 1), what)
            except UserCodeError as error:
                policy.fail(error, record, NO_TIME)
        policy.count(len(part))
    operator.flush_side(batch.split)
    return timed


def set_aside(operator: OperatorTask, batch: Batch, late: np.ndarray[Any, Any]) -> Batch | None:
    """Sends the late records of a batch to the side output "late" of an operator, and counts them. Returns the others, or
    None if there are none."""
    if not late.any():
        return batch
    operator.ctx.metrics.inc("late_records", int(late.sum()))
    target, kept = operator.side_out.get(LATE), None
    for which, part in batch.partition(late.astype(np.int64), 2):
        if not which:
            kept = part
        elif target is not None:
            target(part)
    return kept


def columns_on_time(operator: OperatorTask, batch: Columns) -> Columns | None:
    """The records of a batch in columns that are not late; None if there are none. Late ones go aside, in rows."""
    assert batch.times is not None
    late = is_late(batch.times, operator.ctx.watermark_time)
    set_rows_aside(operator, batch, late)
    if late.all():
        return None
    return some_of(batch, np.flatnonzero(~late), batch.times[~late]) if late.any() else batch


def set_rows_aside(operator: OperatorTask, batch: Columns, late: np.ndarray[Any, Any]) -> None:
    """Sends late records of a batch in columns aside, in rows."""
    if late.any():
        rows = np.flatnonzero(late)
        times = None if batch.times is None else batch.times[rows]
        some = Columns(batch.data.take(pa.array(rows)), times).to_rows()
        set_aside(operator, some, np.ones(len(rows), np.bool_))


def some_of(batch: Columns, rows: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> Columns:
    """Records of a batch in columns, with these times."""
    return Columns(batch.data.take(pa.array(rows)), times, None if batch.groups is None else batch.groups[rows])
