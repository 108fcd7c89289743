"""Interval joins of two inputs in columns. The results, their times, and what is kept how long are those of the join in rows
(`interval`), and are found a batch at a time.

The order of results follows from the order in which records came: a pair is put by the record that came last, then by its
partner; what event time decides is put by its time, its input, and the order in which it came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.slottables import places_by_slot
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import IntervalJoin
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.joinkeys import are_equal
from tailrace.task.operators.joins.kept import KeptColumnsTask
from tailrace.task.operators.stores.places import KeptPlaces, shift
from tailrace.task.operators.stores.segments import (
    GONE,
    MATCHED,
    JoinRecords,
    JoinSegment,
    KeptSegment,
    Sought,
    index_of,
    segments_of,
)

Array = np.ndarray[Any, Any]
_RESULTS = 1 << 16
"""Number of results of a batch at most."""
_NONE = np.empty(0, np.int64)


class ColumnJoinTask(KeptColumnsTask):
    """An interval join in columns.

    Invariant T27: a record is kept from its arrival until the watermark has reached the time of its latest possible partner,
    or its own, if that is later, and it has come out, if it has to; of a semi or an anti join a record of the first input
    until its first partner.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        operator = node.operator
        before, after = (operator.before, operator.after) if isinstance(operator, IntervalJoin) else (0, 0)
        super().__init__(node, ctx, (max(0, after), max(0, -before)))
        self.bounds = ((before, after), (-after, -before))
        """For each input: the least and the largest difference of a partner's time from that of a record."""
        self.alone = (self.how in ("left", "full", "anti"), self.how in ("right", "full"))
        """For each input: whether records without a partner come out."""

    # Records in.

    def _keep(self, records: JoinRecords, port: int) -> None:
        index = index_of(records)
        order: Array = np.argsort(records.hashes) if index is None else index[3]
        which, partners = self._pairs(records, order, port)
        if self.filters and not port:
            records = self._decide(records, which)
            if not len(records):
                return
            index = index_of(records)
        elif self.filters:
            self._release(which, partners)
        else:
            self._emit_pairs(records, port, which, partners)
            if self.alone[port]:
                records.marks[which] = MATCHED
        self.sides[port].add(segments_of(records, index))

    def _segments(self, records: JoinRecords, port: int) -> list[KeptSegment]:
        return segments_of(records, index_of(records))

    def _pairs(self, records: JoinRecords, order: Array, port: int) -> tuple[Array, KeptPlaces]:
        """The partners of records: the places of the records, in order, and where their partners are, in the order in which
        they came. `order` has the places of the records in the order of their hashes."""
        low, high = self.bounds[port]
        hashes, times = records.hashes[order], records.times[order]
        sought = Sought(hashes, shift(times, low), shift(times, high))
        segments = self.sides[1 - port].segments
        found: list[tuple[Array, Array, Array]] = []
        for number, one in enumerate(segments):
            assert isinstance(one, JoinSegment)
            which, rows = one.find(sought)
            if len(which):
                which = order[which]
                there = self._are_partners(records, which, one.records, rows, port)
                which, rows = (which, rows) if there is None else (which[there], rows[there])
                found.append((which, np.full(len(rows), number), rows))
        if not found:
            return _NONE, KeptPlaces(segments, _NONE, _NONE)
        which, parts, rows = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        partners = KeptPlaces(segments, parts, rows)
        sequence = _sequence(which, len(records), partners)
        return which[sequence], partners.some(sequence)

    def _are_partners(
        self, records: JoinRecords, which: Array, others: JoinRecords, rows: Array, port: int
    ) -> Array | None:
        """Mask of the records whose possible partners are kept and have an equal key; None if all of them do."""
        there: Array | None = None
        if self.filters and port:
            there = others.marks[rows] & GONE == 0
        if not all(self.keys.exact):
            ours = self.keys.columns(records.data.take(pa.array(which)), port)
            same = are_equal(ours, self.keys.columns(others.data.take(pa.array(rows)), 1 - port))
            there = same if there is None else there & same
        return there

    def _decide(self, records: JoinRecords, which: Array) -> JoinRecords:
        """Takes records of the first input of a semi or an anti join; returns those without a partner."""
        has = np.zeros(len(records), np.bool_)
        has[which] = True
        if not has.any():
            return records
        if self.how == "semi":
            some = np.flatnonzero(has)
            self.send(records.data.take(pa.array(some)), shift(records.times[some], self.spans[0]))
        return records.some(np.flatnonzero(~has))

    def _release(self, which: Array, partners: KeptPlaces) -> None:
        """Lets go of records of the first input of a semi or an anti join, which have a partner."""
        if not len(which):
            return
        _, first = np.unique(partners.seqs(), return_index=True)
        some = partners.some(np.sort(first))
        if self.how == "semi":
            self.send(some.data(), shift(some.times(), self.spans[0]))
        self.store.let_go(0, some)

    def _emit_pairs(self, records: JoinRecords, port: int, which: Array, partners: KeptPlaces) -> None:
        if not len(which):
            return
        if self.alone[1 - port]:
            for one, _, rows in partners.by_segment():
                fresh = rows[one.records.marks[rows] & MATCHED == 0]
                if len(fresh):
                    self.front.mark(1 - port, one, np.unique(fresh), MATCHED, True)
        for begin in range(0, len(which), _RESULTS):
            part, mine = partners.some(slice(begin, begin + _RESULTS)), which[begin : begin + _RESULTS]
            own, other = records.data.take(pa.array(mine)), part.data()
            pair = (other, own) if port else (own, other)
            self.send(self.rows_of(*pair), np.maximum(records.times[mine], part.times()))

    # Event time.

    def next_event(self) -> int | None:
        return self.store.next_time(self.spans, LAST_TIME)

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self._floors.pass_by(time)
        self._pass(time)
        for port, some, times in self.store.unmatched.take(limit):
            data = some.data()
            pair = (None, data) if port else (data, None)
            self.send(data if self.filters else self.rows_of(*pair), times)
            self.store.let_out(port, some)
        over = not len(self.store.unmatched)
        if over:
            self.store.tidy()
        self.backend.relieve()
        self._report()
        return over

    def _pass(self, time: int) -> None:
        """Lets go of records that can have no more partners. Those that have to come out wait for that."""
        for port, (side, span) in enumerate(zip(self.sides, self.spans, strict=True)):
            for one in side.segments:
                # At the last time no record can come any more, however long the interval.
                rows = one.pass_by(MAX_TIME if time >= LAST_TIME else max(time - span, MIN_TIME))
                marks = one.records.marks[rows]
                rows, marks = rows[marks & GONE == 0], marks[marks & GONE == 0]
                if not len(rows):
                    continue
                waits = (marks & MATCHED == 0) if self.alone[port] else np.zeros(len(rows), np.bool_)
                one.alive -= len(rows) - int(waits.sum())
                self.front.mark(port, one, rows[~waits], GONE, False)
                self.store.let_wait(port, one, rows[waits])


def _sequence(which: Array, count: int, partners: KeptPlaces) -> Array:
    """The order by `which`, below `count`, then by the order in which the partners came."""
    if len(which) <= count:
        place = np.full(count, -1, np.int64)
        place[which] = np.arange(len(which))
        found = place[place != -1]
        if len(found) == len(which):  # each has one partner
            return np.asarray(found)
    return places_by_slot(which, partners.seqs())
