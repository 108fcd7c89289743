"""Assigning timestamps, and the watermarks that follow from them."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.batches import Batch, Columns, Rows, Times
from tailrace.elements.timestamps import MIN_TIME, NO_TIME, micros
from tailrace.graph.graph import Node
from tailrace.graph.operators import AssignTimestamps, describe_selector
from tailrace.state.backend import MetaPart
from tailrace.task.context import OperatorContext
from tailrace.task.keys import FieldReader, column_of
from tailrace.task.operators.base import OperatorTask

_Standing = tuple[dict[int, int], int]
"""The largest timestamp per split, and the watermark."""


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
        self.reader = FieldReader(self.spec.fn, node.name, ctx.subtask, node.written)
        self.largest: dict[int, int] = {-1: MIN_TIME}
        self.heard: dict[int, int] = {}
        """When each split gave its last record, or was first looked at (int64 microseconds)."""
        self.silent: set[int] = set()
        """Splits that have given nothing for `idle_after`."""
        self.idle = False
        """Whether all splits that there are are silent."""
        self.held = False
        """Whether the watermark stays where it is: records come that were in flight to several old subtasks. Each of them is
        in order for itself, but they are not all as far."""
        self._watermark = MIN_TIME
        self._restored: dict[int, int] = {}
        """What was the largest timestamp of each split at the cut that this was restored from."""

    def snapshot(self, checkpoint: int) -> bytes | None:
        return msgspec.msgpack.encode([self.largest, self._watermark])

    def restore(self, parts: list[MetaPart]) -> None:
        """Splits are known by their index, in whatever subtask they are read now. The watermark is that of this subtask, or
        at another parallelism the lowest of those that had not finished: it never goes back, and none may be promised
        too early."""
        read = [(part, msgspec.msgpack.decode(part.data, type=_Standing)) for part in parts if part.data is not None]
        same = all(part.parallelism == self.ctx.parallelism for part, _ in read)
        going = [standing for part, standing in read if not part.finished] or [standing for _, standing in read]
        own = [standing for part, standing in read if same and part.subtask == self.ctx.subtask] or going
        self._watermark = min((watermark for _, watermark in own), default=MIN_TIME)
        self.ctx.watermark_time = self._watermark
        for largest, _ in going + own:
            for split, time in largest.items():
                if split >= 0:
                    self._restored[split] = max(time, self._restored.get(split, MIN_TIME))
        self.largest = {-1: min((largest.get(-1, MIN_TIME) for largest, _ in own), default=MIN_TIME)}

    def splits_opened(self, splits: list[int]) -> None:
        """The chain starts at a source that reads these splits, from now on."""
        self.largest.pop(-1, None)
        for split in splits:
            self.largest.setdefault(split, self._restored.pop(split, MIN_TIME))

    def split_ended(self, split: int) -> None:
        """A split of the chain's source gives nothing any more."""
        self.largest.pop(split, None)
        self.silent.discard(split)
        self._update()

    def hold(self, held: bool) -> None:
        """Lets the watermark stay where it is, or go on."""
        if held != self.held:
            self.held = held
            self._update()

    def own_watermark(self) -> int:
        return self._watermark

    def process(self, batch: Batch, port: int) -> None:
        times = self._times(batch)
        if isinstance(batch, Columns):
            made: Batch = Columns(batch.data, times, batch.groups, batch.split)
        else:
            made = Rows(batch.values, times, batch.groups, batch.split)
        self.out(made)
        if len(times):
            split = batch.split if batch.split in self.largest else next(iter(self.largest), -1)
            self.largest[split] = max(self.largest.get(split, MIN_TIME), int(times.max()))
            self.heard[split] = self.ctx.services.now
            self.silent.discard(split)
            self._update()

    def _update(self) -> None:
        counted = [time for split, time in self.largest.items() if split not in self.silent]
        self.idle = bool(self.largest) and not counted
        if counted and not self.held:
            reached = max(min(counted) - self.spec.out_of_orderness - 1, MIN_TIME)
            self._watermark = max(self._watermark, reached)
            self.ctx.watermark_time = self._watermark

    def _silent_at(self, split: int) -> int:
        """When a split's silence will have lasted long enough."""
        assert self.spec.idle_after is not None
        return self.heard.setdefault(split, self.ctx.services.now) + self.spec.idle_after

    def next_processing(self) -> int | None:
        if self.spec.idle_after is None:
            return None
        return min((self._silent_at(split) for split in self.largest if split not in self.silent), default=None)

    def fire_processing(self, now: int, limit: int) -> int:
        """The silence of some splits has lasted long enough: the others may go on without them."""
        facts = self.ctx.services.facts
        for split in self.largest:
            silent = self._silent_at(split) <= now
            # Since when a split is silent is found out by looking at it, and not in steps only.
            if silent if facts is None else facts.of(silent):
                self.silent.add(split)
        self._update()
        return 1

    def _times(self, batch: Batch) -> Times:
        if isinstance(batch, Columns) and isinstance(self.spec.fn, str):
            return self._arrow_times(batch, self.spec.fn)
        rows = batch.to_rows()
        values = self.reader.values(rows)
        try:
            return in_seconds(times_of(values))
        except (TypeError, OverflowError):
            raise self._named(rows, values) from None

    def _arrow_times(self, batch: Columns, name: str) -> Times:
        column = column_of(batch, name, self.node.name, self.ctx.subtask)
        try:
            return in_seconds(arrow_times(column))
        except (TypeError, OverflowError, pa.ArrowInvalid) as error:
            what = f"the timestamps in column {name!r} cannot be used: {error}"
            raise self.user_error(error.with_traceback(None), what=what) from error

    def _named(self, rows: Rows, values: list[Any]) -> Exception:
        for time, value in zip(values, rows.values, strict=True):
            try:
                in_seconds(times_of([time]))
            except (TypeError, OverflowError) as error:
                what = f"the timestamp from {describe_selector(self.spec.fn)!r} cannot be used: {error}"
                return self.user_error(error, value, what=what)
        raise AssertionError("a batch of timestamps failed but each of them is good")


YEAR_10000 = 253_402_300_800_000_000
"""The first microsecond after the year 9999. Every time since 1978 in milliseconds, taken as seconds, lies behind it."""


def times_of(values: list[Any]) -> Times:
    """Timestamps as the user gives them (seconds, datetimes, None) as int64 microseconds."""
    kinds = set(map(type, values))
    if kinds <= {float}:
        array = np.array(values, np.float64) * 1e6
        if not np.isfinite(array).all() or (np.abs(array) >= 2.0**63).any():
            raise OverflowError("a timestamp is not finite or outside the range of int64 microseconds")
        return np.rint(array).astype(np.int64)
    if len(kinds) == 1 and kinds <= {datetime, date, timedelta, int}:
        return np.array(list(map(micros, values)), np.int64)
    return np.array([NO_TIME if value is None else micros(value) for value in values], np.int64)


def in_seconds(times: Times) -> Times:
    """The times as they are. Raises `OverflowError` for one behind the year 9999: a number of milliseconds, most likely."""
    if len(times) and (latest := int(times.max())) >= YEAR_10000:
        raise OverflowError(
            f"{latest // 1_000_000:,} seconds since 1970 lie after the year 9999; numbers are seconds: divide milliseconds "
            f"by 1,000"
        )
    return times


def arrow_times(column: pa.Array) -> Times:
    """A column of timestamps (any unit; without a zone taken as UTC), dates, durations or numbers of seconds as int64
    microseconds; null is `NO_TIME`. Raises `TypeError` for another column, and `OverflowError` or `ArrowInvalid` for a
    time outside the range of int64."""
    kind = column.type
    if pa.types.is_integer(kind):
        whole = pc.multiply_checked(column.cast(pa.int64()), 1_000_000)
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        scaled = pc.round(pc.multiply(column.cast(pa.float64()), 1e6), round_mode="half_to_even")
        if pc.any(pc.greater_equal(pc.abs(scaled), 2.0**63)).as_py() or pc.any(pc.is_nan(scaled)).as_py():
            raise OverflowError("a timestamp is not finite or outside the range of int64 microseconds")
        whole = scaled.cast(pa.int64())
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        whole = _instants(column).cast(pa.int64())
    else:
        raise TypeError(f"a column of {kind} holds no timestamps; use a timestamp, a date or a number of seconds")
    return np.asarray(pc.fill_null(whole, NO_TIME).to_numpy(zero_copy_only=False), np.int64)


def _instants(column: pa.Array) -> pa.Array:
    kind = column.type
    wanted = pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us", getattr(kind, "tz", None))
    if getattr(kind, "unit", None) == "ns":
        # What is below a microsecond is dropped, downwards: a cast would go towards 1970.
        nanos = column.cast(pa.int64())
        whole = np.asarray(pc.fill_null(nanos, 0).to_numpy(zero_copy_only=False), np.int64) // 1_000
        return pa.array(whole, mask=nanos.is_null().to_numpy(zero_copy_only=False)).cast(wanted)
    return pc.cast(column, wanted)
