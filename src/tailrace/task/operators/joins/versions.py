"""Joins of records with the version of their key as of their time, in columns. The results and their times are those of the
join in rows; they are found for all records at once that event time has come to.

The order of results is that of their times, then that in which the records came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import AsOfJoin
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.joinkeys import are_equal
from tailrace.task.operators.joins.kept import KeptColumnsTask
from tailrace.task.operators.stores.places import KeptPlaces
from tailrace.task.operators.stores.segments import GONE, JoinRecords, KeptSegment, VersionSegment

Array = np.ndarray[Any, Any]
RECORDS, VERSIONS = 0, 1
"""Inputs."""
_ANY = np.iinfo(np.int64).max
"""A number that is above those of all records."""


class ColumnVersionsTask(KeptColumnsTask):
    """A join with versions in columns.

    Invariant T29: a record of the first input is kept until the watermark has reached its time, and it has come out. A
    version is kept until the watermark has reached the next one of its key, or the last time at which it counts, and all
    records up to there have come out.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        operator = node.operator
        assert isinstance(operator, AsOfJoin)
        super().__init__(node, ctx, (0, 0))
        self.keep, self.load_until = operator.keep, operator.load_until

    def _keep(self, records: JoinRecords, port: int) -> None:
        self.sides[port].add(self._segments(records, port))

    def _segments(self, records: JoinRecords, port: int) -> list[KeptSegment]:
        if port == VERSIONS:
            return [VersionSegment(records)]
        if self.load_until is not None:
            records.times = np.maximum(records.times, self.load_until)
        return [KeptSegment(records)]

    # Event time.

    def next_event(self) -> int | None:
        return self.store.next_time(self.spans, MAX_TIME)

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self._floors.pass_by(time)
        self._pass(time)
        for _, some, times in self.store.unmatched.take(limit):
            self._emit(some, times)
            self.store.let_out(RECORDS, some)
        over = not len(self.store.unmatched)
        if over:
            self._forget_versions(time)
            self.store.tidy()
        self.backend.relieve()
        self._report()
        return over

    def _pass(self, time: int) -> None:
        for one in self.sides[RECORDS].segments:
            rows = one.pass_by(time)
            self.store.let_wait(RECORDS, one, rows[one.records.marks[rows] & GONE == 0])

    def _forget_versions(self, time: int) -> None:
        """Lets go of versions that no record needs any more: the next one of their key has come, or they are too old."""
        segments = self.sides[VERSIONS].segments
        found = []
        for number, one in enumerate(segments):
            rows = one.pass_by(time)
            if len(rows):
                found.append((np.full(len(rows), number), rows))
        if found:
            passed = KeptPlaces(segments, *map(np.concatenate, zip(*found, strict=True)))
            hashes = passed.hashes()
            order = np.argsort(hashes)
            passed = passed.some(order)
            data = None if all(self.keys.exact) else passed.data()
            before = self._newest(VERSIONS, data, hashes[order], passed.times(), passed.seqs())
            there = np.flatnonzero(before.parts >= 0)
            if len(there):
                for one, _, rows in before.some(there).by_segment():
                    self._forget(one, rows)
        if self.keep is not None:
            for one in segments:
                assert isinstance(one, VersionSegment)
                self._forget(one, one.expire(max(time - self.keep, MIN_TIME)))

    def _forget(self, one: KeptSegment, rows: Array) -> None:
        rows = rows[one.records.marks[rows] & GONE == 0]
        if len(rows):
            one.alive -= len(rows)
            self.front.mark(VERSIONS, one, rows, GONE, True)

    # Results.

    def _emit(self, some: KeptPlaces, times: Array) -> None:
        """Emits the results of records, of which none comes out before its time."""
        data, hashes = some.data(), some.hashes()
        order = np.argsort(hashes)
        ordered = None if all(self.keys.exact) else data.take(pa.array(order))
        found = self._newest(RECORDS, ordered, hashes[order], times[order], np.full(len(times), _ANY))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        versions = found.some(back)
        has = versions.parts >= 0
        if self.keep is not None and has.any():
            at = np.flatnonzero(has)
            has[at] = times[at] - versions.some(at).times() <= self.keep
        if self.filters or self.how == "inner":
            chosen = np.flatnonzero(~has if self.how == "anti" else has)
            if len(chosen) < len(times):
                data, times, versions, has = (
                    data.take(pa.array(chosen)),
                    times[chosen],
                    versions.some(chosen),
                    has[chosen],
                )
        if not len(times):
            return
        if not self.filters:
            data = self.rows_of(data, self._data_of(versions, has))
        self.send(data, times)

    def _data_of(self, versions: KeptPlaces, has: Array) -> pa.RecordBatch | None:
        """Versions of records, with null for those that have none; None if none has one."""
        if has.all():
            return versions.data()
        if not has.any():
            return None
        found = versions.some(np.flatnonzero(has)).data()
        return found.take(pa.array(np.cumsum(has) - 1, mask=~has))

    def _newest(self, port: int, data: pa.RecordBatch | None, hashes: Array, times: Array, seqs: Array) -> KeptPlaces:
        """For each record of an input the newest version of its key that is before its time, or of this time with a smaller
        number. The number of its segment is -1 where there is none. `data` has the records; None if hashes say enough."""
        keys = None if data is None else self.keys.columns(data, port)
        segments = self.sides[VERSIONS].segments
        parts, rows = np.full(len(hashes), -1, np.int64), np.zeros(len(hashes), np.int64)
        best_times, best_seqs = np.full(len(hashes), MIN_TIME), np.full(len(hashes), -1, np.int64)
        latest = times.max()
        for number, one in enumerate(segments):
            if one.base > latest:
                continue
            assert isinstance(one, VersionSegment)
            found = self._newest_of(one, keys, hashes, times, seqs)
            which = np.flatnonzero(found >= 0)
            if not len(which):
                continue
            found = found[which]
            time, seq = one.records.times[found], one.records.seqs[found]
            better = (time > best_times[which]) | ((time == best_times[which]) & (seq > best_seqs[which]))
            which = which[better]
            parts[which], rows[which] = number, found[better]
            best_times[which], best_seqs[which] = time[better], seq[better]
        return KeptPlaces(segments, parts, rows)

    def _newest_of(
        self, one: VersionSegment, keys: list[pa.Array] | None, hashes: Array, times: Array, seqs: Array
    ) -> Array:
        """The places of these versions in one segment; -1 where there is none."""
        found = one.newest(hashes, times, seqs)
        which = np.flatnonzero(found >= 0)
        while keys is not None and len(which):
            ours = [column.take(pa.array(which)) for column in keys]
            theirs = self.keys.columns(one.records.data.take(pa.array(found[which])), VERSIONS)
            which = which[~are_equal(ours, theirs)]  # other keys with equal hashes: the next older ones
            at = found[which]
            found[which] = one.newest(hashes[which], one.records.times[at], one.records.seqs[at])
            which = which[found[which] >= 0]
        return found
