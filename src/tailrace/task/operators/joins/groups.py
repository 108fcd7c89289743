"""Joins of two inputs in columns whose windows come out whole: lists of the records of each window, and joins by sessions.

Results and their times are those in rows. Windows come out in the order of the times of their results, and the records of
a window in the order in which they came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.batches import Columns
from tailrace.elements.keyslots import key_slots
from tailrace.errors import IncompatibleState
from tailrace.graph.graph import Node
from tailrace.graph.operators import SessionSpec, WindowJoin
from tailrace.task.channels.key_readers import FieldReader, column_of
from tailrace.task.operators.aggregates.accumulators import NotInArrays
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.gathered import Gathered, GatheredSide, emit
from tailrace.task.operators.joins.joinkeys import are_equal
from tailrace.task.operators.joins.kept import INPUTS, KeptColumnsTask
from tailrace.task.operators.joins.windowed import ColumnWindowJoinTask
from tailrace.task.operators.late_records import set_rows_aside, some_of
from tailrace.task.operators.stores.places import KeptPlaces
from tailrace.task.operators.stores.segments import (
    GONE,
    JoinRecords,
    JoinSegment,
    KeptSegment,
    Sought,
    index_of,
    segments_of,
)
from tailrace.task.operators.windows.sessionbounds import SessionBounds, gaps_in
from tailrace.task.operators.windows.sessions import gaps_of_records
from tailrace.task.operators.windows.windowtimes import check_room

Array = np.ndarray[Any, Any]


class ColumnCoGroupTask(ColumnWindowJoinTask):
    """Lists of the records of each tumbling or sliding window of two inputs in columns.

    Invariant T14: a record is kept from its arrival until its window has come out, which event time has passed.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        self._due: Gathered | None = None
        """Windows that are over, and have to come out."""

    def _keep(self, records: JoinRecords, port: int) -> None:
        self.sides[port].add(self._segments(records, port))

    def _segments(self, records: JoinRecords, port: int) -> list[KeptSegment]:
        return [KeptSegment(records)]

    def _pass(self, time: int) -> None:
        """Does nothing: windows that are over come out with the next event time."""

    def next_event(self) -> int | None:
        times = [one.next_time() for side in self.sides for one in side.segments]
        due = [] if self._due is None else [int(self._due.times[0])]
        return min([*due, *(time for time in times if time is not None)], default=None)

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self._floors.pass_by(time)
        if self._due is None:
            self._due = self._gather(time)
        if self._due is not None:
            some, self._due = self._due.split(limit)
            emit(self, some)
            for port, side in enumerate(some.sides):
                if side.places is not None:
                    self.store.let_out(port, side.places)
        if self._due is None:
            self.store.tidy()
        self.backend.relieve()
        self._report()
        return self._due is None

    def _gather(self, time: int) -> Gathered | None:
        """The windows that are over at a time, in the order of their ends, then of their first records."""
        sides = [self.store.take(port, time) for port in (0, 1)]
        if all(one is None for one in sides):
            return None
        columns = [None if one is None else self.keys.columns(one.data(), port) for port, one in enumerate(sides)]
        example = next(one for one in columns if one is not None)
        keys = key_slots(example, list(self.keys.names[0]), True, True)
        assert keys is not None
        none = np.empty(0, np.int64)
        codes = [none if one is None else keys.slots(one) for one in columns]
        times = [none if one is None else one.times() for one in sides]
        seqs = np.concatenate([none if one is None else one.seqs() for one in sides])
        all_codes, all_times = np.concatenate(codes), np.concatenate(times)
        order = np.lexsort((seqs, all_codes, all_times))
        fresh = np.ones(len(order), np.bool_)
        sorted_codes, sorted_times = all_codes[order], all_times[order]
        fresh[1:] = (sorted_codes[1:] != sorted_codes[:-1]) | (sorted_times[1:] != sorted_times[:-1])
        heads = order[fresh]  # the first record of each window
        by_arrival = np.lexsort((seqs[heads], all_times[heads]))
        rank = np.empty(len(heads), np.int64)
        rank[by_arrival] = np.arange(len(heads))
        numbers = np.empty(len(order), np.int64)
        numbers[order] = rank[np.cumsum(fresh) - 1]
        first = len(codes[0])
        parts = numbers[:first], numbers[first:]
        made = [
            GatheredSide.of(places or KeptPlaces([], none, none), of, len(heads))
            for places, of in zip(sides, parts, strict=True)
        ]
        return Gathered((made[0], made[1]), all_times[heads[by_arrival]])


class ColumnSessionJoinTask(KeptColumnsTask):
    """A join by sessions over two inputs in columns, or the lists of the records of each session.

    Invariant T15: a record is kept exactly while the session that it belongs to is open.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        operator = node.operator
        assert isinstance(operator, WindowJoin) and isinstance(operator.windows, SessionSpec)
        super().__init__(node, ctx, (0, 0))
        self._gap, gap_of = operator.windows.gap, operator.windows.gap_of
        self._gap_of = None if gap_of is None else FieldReader(gap_of, node.name, ctx.subtask, node.written)
        names, tupled = self.keys.names[0], isinstance(operator.keys[0], tuple)
        self._sessions = SessionBounds(self.backend, names, tupled, self._gap or 0)

    # Records in.

    def _on_time(self, batch: Columns, port: int) -> Columns | None:
        assert batch.times is not None
        gaps = self._gaps(batch)
        keys = self.keys.columns(self._fit(batch.data, port), port)
        taken = self._bounds(keys).add(keys, batch.times, gaps, self.ctx.watermark_time)
        set_rows_aside(self, batch, ~taken)
        if taken.all():
            return batch
        rows = np.flatnonzero(taken)
        return some_of(batch, rows, batch.times[rows]) if len(rows) else None

    def _gaps(self, batch: Columns) -> Any:
        """The gap of all records, or of each, in microseconds. Raises `UserCodeError` for what is no span above zero."""
        assert batch.times is not None
        gaps: Any = self._gap
        if self._gap_of is not None:
            gaps = gaps_in(column_of(batch, str(self._gap_of.selector), self.node.name, self.ctx.subtask))
            if gaps is None:  # this names the record that is wrong
                gaps = np.array(gaps_of_records(self, self._gap_of, batch.to_rows()), np.int64)
        try:
            check_room(2 * int(np.max(gaps)), int(batch.times.min()), int(batch.times.max()))
        except OverflowError as error:
            raise self.user_error(error) from error
        return gaps

    def _bounds(self, keys: list[pa.Array]) -> SessionBounds:
        """The sessions, loaded for keys like these."""
        try:
            self._sessions.load(keys)
        except NotInArrays:
            raise IncompatibleState(
                f"operator {self.node.name!r} (uid {self.node.uid!r}): the sessions that the checkpoint has are of keys of "
                f"other types than those that come now: {', '.join(str(one.type) for one in keys)}"
            ) from None
        return self._sessions

    def _keep(self, records: JoinRecords, port: int) -> None:
        self.sides[port].add(self._segments(records, port))

    def _segments(self, records: JoinRecords, port: int) -> list[KeptSegment]:
        return segments_of(records, index_of(records))

    def rebuild(self) -> None:
        super().rebuild()
        for port, name in enumerate(INPUTS):
            schema = self.schemas[name].schema
            if schema is not None:  # else the first record tells of which types keys are
                self._bounds(self.keys.columns(pa.RecordBatch.from_pylist([], schema), port))

    def _pass(self, time: int) -> None:
        """Does nothing: sessions that are over come out with the next event time."""

    # Event time.

    def next_event(self) -> int | None:
        return self._sessions.next_time()

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self._floors.pass_by(time)
        due = self._sessions.take(time, limit)
        if due is not None:
            windows = self._gather(*due)
            emit(self, windows)
            for port, side in enumerate(windows.sides):
                if side.places is not None:
                    self.store.let_go(port, side.places)
        over = self._sessions.forget(time, limit)
        if over:
            self.store.tidy()
        self.backend.relieve()
        self._report()
        return over

    def _gather(self, keys: list[pa.Array], starts: Array, ends: Array) -> Gathered:
        """The records of sessions."""
        hashes = self.keys.hashes(keys)
        order: Array = np.argsort(hashes)
        sought = Sought(hashes[order], starts[order], ends[order])
        sides = []
        for port in (0, 1):
            segments = [*self.sides[port].segments]
            none = np.empty(0, np.int64)
            found: list[tuple[Array, Array, Array]] = []
            for number, one in enumerate(segments):
                assert isinstance(one, JoinSegment)
                which, rows = one.find(sought)
                which = order[which]
                there = one.records.marks[rows] & GONE == 0
                if not all(self.keys.exact) and len(rows):
                    ours = [column.take(pa.array(which)) for column in keys]
                    theirs = self.keys.columns(one.records.data.take(pa.array(rows)), port)
                    there &= are_equal(ours, theirs)
                found.append((which[there], np.full(int(there.sum()), number), rows[there]))
            windows, parts, rows = map(np.concatenate, zip(*found, strict=True)) if found else (none, none, none)
            sides.append(GatheredSide.of(KeptPlaces(segments, parts, rows), windows, len(starts)))
        return Gathered((sides[0], sides[1]), ends)
