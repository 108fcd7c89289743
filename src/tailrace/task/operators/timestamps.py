"""Assigning timestamps, and the watermarks that follow from them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.batches import Columns, Rows, Times
from tailrace.elements.timestamps import MIN_TIME, NO_TIME, micros
from tailrace.graph.graph import Node
from tailrace.graph.operators import AssignTimestamps, describe_selector
from tailrace.task.context import OperatorContext
from tailrace.task.keys import FieldReader
from tailrace.task.operators.base import OperatorTask


class TimestampsTask(OperatorTask):
    """Gives each record a timestamp. Its watermark is the minimum over the splits that feed it (one, where it does not
    run in the chain of a source) of the largest timestamp seen less the out-of-orderness and one microsecond.

    Invariant W1: the watermark never decreases. A split that ended, or that was silent for `idle_after`, does not count;
    with all of them silent the output is idle and the watermark stays where it is.
    """

    generates_watermarks = True

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, AssignTimestamps)
        self.spec = node.operator
        self.reader = FieldReader(self.spec.fn, node.name, ctx.subtask)
        self.largest: dict[int, int] = {-1: MIN_TIME}
        self.heard: dict[int, int] = {}
        self.idle = False
        self._watermark = MIN_TIME

    def splits_opened(self, splits: list[int]) -> None:
        """The chain starts at a source with these splits."""
        self.largest = dict.fromkeys(splits, MIN_TIME)

    def split_ended(self, split: int) -> None:
        """A split of the chain's source gives nothing any more."""
        self.largest.pop(split, None)
        self._update()

    def own_watermark(self) -> int:
        return self._watermark

    def process(self, batch: Any, port: int) -> None:
        times = self._times(batch)
        if isinstance(batch, Columns):
            made: Any = Columns(batch.data, times, batch.groups, batch.split)
        else:
            made = Rows(batch.values, times, batch.groups, batch.split)
        self.out(made)
        if len(times):
            split = batch.split if batch.split in self.largest else next(iter(self.largest), -1)
            self.largest[split] = max(self.largest.get(split, MIN_TIME), int(times.max()))
            self.heard[split] = self.ctx.services.now
            self.idle = False
            self._update()

    def _update(self) -> None:
        counted = [time for split, time in self.largest.items() if not self._silent(split)]
        if counted:
            reached = max(min(counted) - self.spec.out_of_orderness - 1, MIN_TIME)
            self._watermark = max(self._watermark, reached)
            self.ctx.watermark_time = self._watermark

    def _silent(self, split: int) -> bool:
        if self.spec.idle_after is None:
            return False
        heard = self.heard.setdefault(split, self.ctx.services.now)
        return self.ctx.services.now - heard >= self.spec.idle_after

    def next_processing(self) -> int | None:
        if self.spec.idle_after is None or self.idle:
            return None
        now = self.ctx.services.now
        due = [self.heard.setdefault(s, now) + self.spec.idle_after for s in self.largest if not self._silent(s)]
        return min(due, default=None)

    def fire_processing(self, now: int, limit: int) -> int:
        """A split's silence has lasted long enough: the others may go on without it."""
        if self.spec.idle_after is None or self.idle:
            return 0
        self._update()
        self.idle = bool(self.largest) and all(self._silent(split) for split in self.largest)
        return 1

    def _times(self, batch: Any) -> Times:
        if isinstance(batch, Columns) and isinstance(self.spec.fn, str):
            if self.spec.fn not in batch.data.schema.names:
                raise self.user_error(KeyError(self.spec.fn), what=f"there is no column {self.spec.fn!r}")
            return arrow_times(batch.data.column(self.spec.fn))
        rows = batch.to_rows()
        values = self.reader.values(rows)
        try:
            return times_of(values)
        except (TypeError, OverflowError):
            raise self._named(rows, values) from None

    def _named(self, rows: Rows, values: list[Any]) -> Exception:
        for time, value in zip(values, rows.values, strict=True):
            try:
                times_of([time])
            except (TypeError, OverflowError) as error:
                what = f"the timestamp from {describe_selector(self.spec.fn)!r} cannot be used: {error}"
                return self.user_error(error, value, what=what)
        raise AssertionError("a batch of timestamps failed but each of them is good")


def times_of(values: list[Any]) -> Times:
    """Timestamps as the user gives them (seconds, datetimes, None) as int64 microseconds."""
    kinds = set(map(type, values))
    if kinds <= {float}:
        array = np.array(values, np.float64) * 1e6
        if not np.isfinite(array).all() or (np.abs(array) >= 2.0**63).any():
            raise OverflowError("a timestamp is not finite or outside the range of int64 microseconds")
        return np.rint(array).astype(np.int64)
    if kinds == {datetime} or kinds == {timedelta} or kinds == {int}:
        return np.array(list(map(micros, values)), np.int64)
    return np.array([NO_TIME if value is None else micros(value) for value in values], np.int64)


def arrow_times(column: pa.Array) -> Times:
    """A column of timestamps (any unit; without a zone taken as UTC), dates or numbers of seconds as int64
    microseconds; null is `NO_TIME`."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        zone = getattr(column.type, "tz", None)
        whole = pc.cast(column, pa.timestamp("us", zone), safe=False).cast(pa.int64())
        return np.asarray(pc.fill_null(whole, NO_TIME).to_numpy(zero_copy_only=False), np.int64)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        if pa.types.is_integer(column.type):
            whole = pc.multiply(column.cast(pa.int64()), 1_000_000)
        else:
            whole = pc.round(pc.multiply(column.cast(pa.float64()), 1e6)).cast(pa.int64(), safe=False)
        return np.asarray(pc.fill_null(whole, NO_TIME).to_numpy(zero_copy_only=False), np.int64)
    raise TypeError(f"a column of {column.type} holds no timestamps; use a timestamp, a date or a number of seconds")
