"""Assignment of timestamps, and the watermarks that follow from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.batches import Batch, Columns, Rows, Times
from tailrace.elements.timestamps import FAR_AHEAD, MIN_TIME, NO_TIME, floor_micros, floor_of_floats, isoformat, seconds
from tailrace.errors import message_of
from tailrace.graph.graph import Node
from tailrace.graph.operators import AHEAD, AssignTimestamps, describe_selector
from tailrace.state.backend import MetaPart
from tailrace.task.channels.key_readers import FieldReader, column_of
from tailrace.task.contract.cut_state import CutState
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.zonetimes import column_in, instant_in

_Standing = tuple[dict[int, int], int]
"""The largest timestamp per split, and the watermark."""
INPUT = -1
"""Number of the one split of a task without a source in its chain: all of its input."""
FORMER = -2
"""Number under which split 0 holds event time when it has ended, where other splits follow; for split n it is n less."""
LOOKS = 4
"""Least number of looks at an input until its silence has lasted long enough."""
SHORTEST_MOVE, LONGEST_MOVE = 10_000, 1_000_000
"""Limits of the time from one move of event time by the clock to the next (int64 microseconds)."""


@dataclass(eq=False)
class TimestampsCutState(CutState):
    """State of an assignment of timestamps at a cut. A checkpoint holds a part of it."""

    largest: dict[int, int] = field(default_factory=lambda: {INPUT: MIN_TIME})
    empty: dict[int, int] = field(default_factory=dict)
    """Time since which each split that is not silent was found empty (int64 microseconds)."""
    looked: int = 0
    """Time at which the input was last found empty, if no source is in the chain (int64 microseconds)."""
    silent: set[int] = field(default_factory=set)
    """Splits that have given nothing for `idle_after`."""
    idle: bool = False
    """True if all splits are silent."""
    idle_since: int | None = None
    """Time of the clock at which all splits were found silent (int64 microseconds); None unless event time goes on by the
    clock."""
    idle_from: int = MIN_TIME
    """Event time at that time: that of the split that was farthest ahead."""
    moved_at: int = 0
    """Time of the clock at which it was last moved on (int64 microseconds)."""
    behind: bool = False
    """True if the watermark has yet to follow what the splits had come to at the restored cut."""
    held: bool = False
    """True if the watermark stays where it is, because records come that were in flight to several old subtasks. The
    records of each old subtask are in order, but the subtasks had not come equally far."""
    _watermark: int = MIN_TIME
    _restored: dict[int, int] = field(default_factory=dict)
    """Largest timestamp of each split at the restored cut."""


class TimestampsTask(OperatorTask, TimestampsCutState):
    """Gives each record a timestamp, and makes watermarks. The watermark is the minimum over the splits that feed the
    task (one, if no source is in its chain) of the largest timestamp seen less the out-of-orderness and one microsecond.

    Invariant W1: the watermark never decreases. A split that ended, or that was silent for `idle_after`, does not count;
    with all of them silent the output is idle and the watermark stays where it is, or goes on as the clock does.
    Invariant W4: silence is what was looked at and found empty: it begins with an empty read of that very split, and a
    split falls silent while it is known to have nothing. Records that the task had no time to read are no silence.
    Invariant W8: where splits follow one another, the ended ones hold the watermark until the next ones are open, or until
    the task is silent.
    Invariant W10: behind a restore, once all splits are open, the watermark is not below what they had come to, in whatever
    subtasks they were read; no split needs a record for that.
    """

    generates_watermarks = True

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        TimestampsCutState.__init__(self)
        assert isinstance(node.operator, AssignTimestamps)
        self.spec = node.operator
        self.reader = FieldReader(self.spec.fn, node.name, ctx.subtask, node.written)
        self.zone = None if self.spec.zone is None else ZoneInfo(self.spec.zone)

    def snapshot(self, checkpoint: int) -> bytes | None:
        return msgspec.msgpack.encode([self.largest, self._watermark])

    def restore(self, parts: list[MetaPart]) -> None:
        """Restores splits by their index, in whatever subtask they are read now. The watermark is that of this subtask.
        At another parallelism it is the lowest watermark of the old subtasks that had not finished: it never goes back,
        and none may be promised too early."""
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
        self.largest = {INPUT: min((largest.get(INPUT, MIN_TIME) for largest, _ in own), default=MIN_TIME)}
        for largest, _ in own:
            self._restored.update((split, time) for split, time in largest.items() if split <= FORMER)

    def splits_opened(self, splits: list[int]) -> None:
        """Adds splits that the source of the chain reads from now on. They take the place of those that have ended."""
        self.largest.pop(INPUT, None)
        for split in self.former() if splits else ():
            del self.largest[split]
            self._note_records(split)
        for split in [split for split in self._restored if split <= FORMER]:
            self.largest[split] = self._restored.pop(split)
        for split in splits:
            self.largest.setdefault(split, self._restored.pop(split, MIN_TIME))
        if splits:  # a split counts from its opening, also if it never has a record
            self.idle, self.idle_since, self.behind = False, None, True

    def all_opened(self) -> None:
        """Moves the watermark on to what the splits had come to at the restored cut, once all of them are open. At another
        parallelism the watermark itself may be that of a subtask which had no split; and a split may have no record for
        long."""
        if self.behind:
            self.behind = False
            self._update()

    def split_ended(self, split: int, follows: bool = False) -> None:
        """Removes a split of the chain's source that has ended. If other splits follow, it holds event time (W8)."""
        time = self.largest.pop(split, MIN_TIME)
        if follows and time != MIN_TIME:
            self.largest[FORMER - split] = time
        self._note_records(split)
        self._update()

    def former(self) -> list[int]:
        """The numbers of splits that have ended and hold event time."""
        return [split for split in self.largest if split <= FORMER]

    def hold(self, held: bool) -> None:
        """Keeps the watermark where it is, or lets it go on."""
        if held != self.held:
            self.held = held
            self._update()

    def own_watermark(self) -> int:
        return self._watermark

    def process(self, batch: Batch, port: int) -> None:
        times = self._times(batch)
        if self.spec.most_ahead is not None and len(times):
            batch, times = self._limit(batch, times, self.ctx.services.now + self.spec.most_ahead)
            if not len(times):
                self._note_records(self._split_of(batch))
                return
        if isinstance(batch, Columns):
            made: Batch = Columns(batch.data, times, batch.groups, batch.split)
        else:
            made = Rows(batch.values, times, batch.groups, batch.split)
        self.out(made)
        if len(times):
            split, counted = self._split_of(batch), times[self._marks(batch)]
            if len(counted):
                self.largest[split] = max(self.largest.get(split, MIN_TIME), int(counted.max()))
            self._note_records(split)
            self._update()

    def _marks(self, batch: Batch) -> Any:
        """The records of a batch that the watermark follows: a mask, or a slice of all."""
        if self.spec.marks is None:
            return slice(None)
        assert isinstance(batch, Columns)
        return batch.data.column(self.spec.marks).to_numpy(zero_copy_only=False)

    def _limit(self, batch: Batch, times: Times, limit: int) -> tuple[Batch, Times]:
        """The records and their timestamps, none of them behind `limit`."""
        ahead = times > limit
        if not ahead.any():
            return batch, times
        self.ctx.services.clock_read = True
        if self.spec.if_ahead == "fail":
            at = int(np.flatnonzero(ahead)[0])
            time, clock = int(times[at]), self.ctx.services.now
            wrong = OverflowError(
                f"its timestamp, {isoformat(time)}, is {seconds(time - clock):,.6g} s ahead of the clock of the job, and "
                f"most_ahead is {seconds(limit - clock):,.6g} s"
            )
            raise self.user_error(wrong, *batch.slice(at, at + 1).to_rows().values)
        self.ctx.metrics.inc("ahead_records", int(ahead.sum()))
        if self.spec.if_ahead == "clamp":
            return batch, np.minimum(times, limit)
        target, split = self.side_out.get(AHEAD), batch.split
        kept: Batch = batch.slice(0, 0)
        for which, part in batch.partition(ahead.astype(np.int64), 2):
            part.split = split
            if not which:
                kept = part
            elif target is not None:
                target(part)
        return kept, times[~ahead]

    def _split_of(self, batch: Batch) -> int:
        """The split that a batch counts for."""
        return batch.split if batch.split in self.largest else next(iter(self.largest), INPUT)

    def too_far(self) -> set[int]:
        """Splits that are so far ahead of the slowest one that they are not read on.

        Invariant W9: the newest time of a split that is read on is ahead of that of no other one by more than `max_drift`;
        ended and silent splits do not count."""
        most = self.spec.max_drift
        counted = {split: time for split, time in self.largest.items() if split not in self.silent and split > FORMER}
        if most is None or len(counted) < 2:
            return set()
        bound = min(counted.values()) + most
        return {split for split, time in counted.items() if time > bound}

    def figures(self) -> dict[str, float]:
        """The split that holds event time back, where another one is far ahead of it."""
        counted = {split: time for split, time in self.largest.items() if split not in self.silent and split >= 0}
        if len(counted) < 2:
            return {}
        slowest = min(counted, key=lambda split: counted[split])
        far = max(counted.values()) - counted[slowest] >= FAR_AHEAD
        return {f"{self.node.name}.held_by_split": float(slowest)} if far else {}

    def _note_records(self, split: int) -> None:
        self.empty.pop(split, None)
        self.silent.discard(split)

    def _update(self) -> None:
        counted = [time for split, time in self.largest.items() if split not in self.silent]
        self.idle = bool(self.largest) and not counted
        if not self.idle:
            self.idle_since = None
        if counted and not self.held:
            reached = max(min(counted) - self.spec.out_of_orderness - 1, MIN_TIME)
            self._watermark = max(self._watermark, reached)
            self.ctx.watermark_time = self._watermark

    # Silence (W4).

    @property
    def listens(self) -> bool:
        """True if splits fall silent at all."""
        return self.spec.idle_after is not None

    def found_empty(self, split: int, now: int) -> None:
        """Notes that a split of the chain's source was read, and has nothing at the moment."""
        if self.listens and split in self.largest and split not in self.silent:
            self.empty.setdefault(split, now)

    def next_silence(self) -> int | None:
        """Time at which the silence of a split will have lasted long enough (int64 microseconds); None if no split is
        empty."""
        after = self.spec.idle_after
        return min(self.empty.values()) + after if self.empty and after is not None else None

    def fall_silent(self, known_empty: Collection[int], now: int) -> bool:
        """Silences the splits that have had nothing for long enough; the watermark goes on without them. `known_empty`:
        splits of the chain's source that are known to have nothing now. True if there were any."""
        after = self.spec.idle_after
        if after is None:
            return False
        found = [split for split, since in self.empty.items() if split in known_empty and since + after <= now]
        self._silence(found, now)
        return bool(found)

    def look(self, now: int) -> int | None:
        """Notes that the task has found its input empty, if no source is in the chain; returns when to look again (int64
        microseconds). Of the time between two looks only the planned pause counts: a longer time, for which the task or
        its worker was busy, proves nothing about the input."""
        if self.spec.idle_after is None or self.silent:
            return self.next_move()
        self.empty[INPUT], self.looked = self._since(now), now
        return min(self.empty[INPUT] + self.spec.idle_after, now + self._pause)

    @property
    def _pause(self) -> int:
        """Time from one look at the input to the next (int64 microseconds)."""
        return max(1, (self.spec.idle_after or 0) // LOOKS)

    def _since(self, now: int) -> int:
        """Time since which the input has been empty, without busy times (int64 microseconds)."""
        since = self.empty.get(INPUT)
        return now if since is None else since + max(0, now - self.looked - self._pause)

    def input_is_silent(self, now: int) -> bool:
        """True if the input, which is empty now, has been so for long enough."""
        after = self.spec.idle_after
        return after is not None and INPUT in self.empty and self._since(now) + after <= now

    def input_falls_silent(self, now: int) -> None:
        """Silences the input if it has been empty for long enough. That is a decision: no event implies when the input was
        looked at."""
        if self.ctx.services.decision(self.input_is_silent(now)):
            self._silence([INPUT], now)
        elif self.spec.when_all_idle == "advance" and self.ctx.services.decision(self.is_to_move(now)):
            self.move_by_the_clock(now)

    def next_move(self) -> int | None:
        """Time of the clock at which event time is moved on by it (int64 microseconds); None while it is not."""
        if self.idle_since is None or self.idle_from == MIN_TIME or self.held:
            return None
        return self.moved_at + self._move

    @property
    def _move(self) -> int:
        """Time from one move of event time by the clock to the next (int64 microseconds)."""
        return max(SHORTEST_MOVE, min(self._pause, LONGEST_MOVE))

    def is_to_move(self, now: int) -> bool:
        """True if event time is to be moved on by the clock now."""
        due = self.next_move()
        return due is not None and due <= now

    def move_by_the_clock(self, now: int) -> bool:
        """Moves event time on by as much as the clock has gone on since all was silent. True if it has moved."""
        if not self.is_to_move(now):
            return False
        assert self.idle_since is not None
        self.moved_at = now
        self._watermark = self.ctx.watermark_time = max(self._watermark, self.idle_from + now - self.idle_since)
        return True

    def _silence(self, splits: list[int], now: int) -> None:
        for split in splits:
            self.empty.pop(split, None)
            self.silent.add(split)
        if splits:
            self._update()
        if self.idle and self.idle_since is None and self.spec.when_all_idle == "advance":
            newest = max(self.largest.values()) - self.spec.out_of_orderness - 1
            self.idle_since, self.idle_from = now, max(self._watermark, newest)
            self.moved_at = now - self._move

    def _times(self, batch: Batch) -> Times:
        if isinstance(batch, Columns) and isinstance(self.spec.fn, str):
            return self._arrow_times(batch, self.spec.fn)
        rows = batch.to_rows()
        values = self.reader.values(rows)
        if self.zone is not None:
            values = [self._instant(one, value) for one, value in zip(values, rows.values, strict=True)]
        try:
            return in_seconds(times_of(values))
        except (TypeError, OverflowError):
            raise self._record_error(rows, values) from None

    def _instant(self, time: Any, value: Any) -> Any:
        """The time of a record as the instant that it is in the zone."""
        assert self.zone is not None
        try:
            return instant_in(time, self.zone)
        except OverflowError as error:
            what = f"the timestamp from {describe_selector(self.spec.fn)!r} cannot be used: {message_of(error)}"
            raise self.user_error(error, value, what=what) from error

    def _arrow_times(self, batch: Columns, name: str) -> Times:
        column = column_of(batch, name, self.node.name, self.ctx.subtask)
        try:
            return in_seconds(arrow_times(column if self.zone is None else column_in(column, self.zone)))
        except (TypeError, OverflowError, pa.ArrowInvalid) as error:
            what = f"the timestamps in column {name!r} cannot be used: {message_of(error)}"
            raise self.user_error(error.with_traceback(None), what=what) from error

    def _record_error(self, rows: Rows, values: list[Any]) -> Exception:
        for time, value in zip(values, rows.values, strict=True):
            try:
                in_seconds(times_of([time]))
            except (TypeError, OverflowError) as error:
                what = f"the timestamp from {describe_selector(self.spec.fn)!r} cannot be used: {message_of(error)}"
                return self.user_error(error, value, what=what)
        raise AssertionError("a batch of timestamps failed but each of them is good")


YEAR_10000 = 253_402_300_800_000_000
"""First microsecond after the year 9999. Every time since 1978 in milliseconds, taken as seconds, lies behind it."""


def times_of(values: list[Any]) -> Times:
    """Timestamps as the user gives them (seconds, datetimes, None) as int64 microseconds."""
    kinds = set(map(type, values))
    if kinds <= {float}:
        return floor_of_floats(np.array(values, np.float64))
    if len(kinds) == 1 and kinds <= {datetime, date, timedelta, int}:
        return np.array(list(map(floor_micros, values)), np.int64)
    return np.array([NO_TIME if value is None else floor_micros(value) for value in values], np.int64)


def in_seconds(times: Times) -> Times:
    """Times as they are. Raises `OverflowError` for one behind the year 9999: a number of milliseconds, most likely."""
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
    elif pa.types.is_decimal(kind):
        return times_of(column.to_pylist())  # as float64 Arrow gives a neighbour of some
    elif pa.types.is_floating(kind):
        if not column.null_count:
            return floor_of_floats(column.cast(pa.float64()).to_numpy())
        floats = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        whole = pa.array(floor_of_floats(floats), mask=column.is_null().to_numpy(zero_copy_only=False))
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        whole = _instants(column).cast(pa.int64())
    else:
        raise TypeError(f"a column of {kind} holds no timestamps; use a timestamp, a date or a number of seconds")
    return np.asarray(pc.fill_null(whole, NO_TIME).to_numpy(zero_copy_only=False), np.int64)


def _instants(column: pa.Array) -> pa.Array:
    kind = column.type
    type_ = pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us", getattr(kind, "tz", None))
    if getattr(kind, "unit", None) == "ns":
        # What is below a microsecond is dropped, downwards: a cast would go towards 1970.
        nanos = column.cast(pa.int64())
        whole = np.asarray(pc.fill_null(nanos, 0).to_numpy(zero_copy_only=False), np.int64) // 1_000
        return pa.array(whole, mask=nanos.is_null().to_numpy(zero_copy_only=False)).cast(type_)
    return pc.cast(column, type_)
