"""Records of each key without duplicates: a record is kept unless one of its key was kept that is at most a span of time
before or behind it.

The state of a key is the tuple of the times of its kept records, mostly one, without the records. A time is of no more use
once event time has come to its end: what is near it then is late. So a key costs its entry and a place in a bucket, and no
timer; buckets are gone through a portion at a time.

In columns the distinct keys of a batch are found in arrays, and only they are looked up. A record that is near the time
which its key had, or got by the first record of the batch, needs no further look.
"""

from __future__ import annotations

import heapq
from itertools import compress
from typing import Any

import numpy as np

from tailrace.elements.batches import Batch, Columns
from tailrace.elements.timestamps import is_late
from tailrace.graph.graph import Node
from tailrace.graph.operators import DropDuplicates
from tailrace.task.channels.key_readers import column_of, settled_keys
from tailrace.task.operators.aggregates.running import StatefulTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.duplicates.firsts import DistinctKeys, distinct_keys
from tailrace.task.operators.late_records import Floors, least_time, set_aside

BUCKETS = 64
"""Number of buckets for the span in which a key is kept."""
_Mask = np.ndarray[Any, np.dtype[np.bool_]]
_Times = np.ndarray[Any, np.dtype[np.int64]]


class DuplicatesTask(StatefulTask):
    """Operator that drops records whose keys have been there.

    Invariant T9: each time in the table has its key in a bucket, which ends behind it by the span or more. No output depends
    on when a time that is over is forgotten.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, DropDuplicates)
        super().__init__(node, ctx, node.operator.key, "duplicates")
        self.spec = node.operator
        self.table.replaced = True
        selector: Any = self.keys.selector
        self._tupled = isinstance(selector, tuple)
        self._key_names: list[str] = list(selector) if self._tupled else [selector]
        self.reached = Floors(node, ctx)
        self._width = max(1, (self.spec.within or 0) // BUCKETS)
        self._buckets: dict[int, list[Any]] = {}
        """Number of a bucket -> the keys in it; a bucket ends where the next one begins."""
        self._heap: list[int] = []
        """Numbers of the buckets."""
        self.backend.after_restore.append(self.rebuild)

    def rebuild(self) -> None:
        """Makes the buckets from the table."""
        self._buckets, self._heap = {}, []
        if self.spec.within is not None:
            for key, times in self.table.items():
                for time in times:
                    self._put(key, time)

    def restore_floors(self, floors: list[tuple[int, int, int]]) -> None:
        self.reached.ranges = floors

    def floors(self) -> list[tuple[int, int, int]]:
        return self.reached.ranges

    # Records in.

    def process(self, batch: Batch, port: int) -> None:
        if not len(batch):
            return
        if self.spec.within is None:
            self._take(batch, np.zeros(len(batch), np.int64))
        elif self.spec.timed:
            least_time(self, batch, "drop_duplicates(within=...)")
            self.reached.take(batch, self.spec.key, self._take_timed)
        else:
            self.ctx.services.clock_read = True
            now = self.ctx.services.now
            self._take(batch, np.full(len(batch), now, np.int64))
            self._forget(now - 1, 2 * len(batch))  # a record at `now` may still come
        self.backend.relieve()

    def _take_timed(self, batch: Batch) -> None:
        assert batch.times is not None
        kept = set_aside(self, batch, is_late(batch.times, self.ctx.watermark_time))
        if kept is not None and kept.times is not None:
            self._take(kept, kept.times)

    def _take(self, batch: Batch, times: _Times) -> None:
        """Emits the records of a batch that are no duplicates."""
        distinct = None
        if isinstance(batch, Columns) and not callable(self.spec.key):
            where = self.node.name, self.ctx.subtask
            columns = [column_of(batch, name, *where) for name in self._key_names]
            distinct = distinct_keys(columns, self._key_names, self._tupled)
        if distinct is None:
            keys = settled_keys(self.keys.values(batch.to_rows()))
            kept = np.fromiter(map(self._is_new, keys, times.tolist()), np.bool_, len(keys))
        else:
            kept = self._kept_of(distinct, times)
        if kept.all():
            self.out(batch)
            return
        self.ctx.metrics.inc("duplicates", int(len(kept) - kept.sum()))
        for which, part in batch.partition(kept.astype(np.int64), 2):
            if which:
                part.split = batch.split
                self.out(part)

    def _kept_of(self, distinct: DistinctKeys, times: _Times) -> _Mask:
        """Mask of the records that are kept: the first one of each key is looked up, and those that are far from it."""
        kept = np.zeros(len(times), np.bool_)
        first = distinct.first
        is_new, near = self._first_of(distinct.keys, times[first])
        kept[first] = is_new
        if self.spec.within is None or len(first) == len(times):
            return kept
        far = np.abs(times - near[distinct.numbers]) > self.spec.within
        far[first] = False
        for at in np.flatnonzero(far).tolist():
            kept[at] = self._is_new(distinct.keys[distinct.numbers[at]], int(times[at]))
        return kept

    def _first_of(self, keys: list[Any], times: _Times) -> tuple[_Mask, _Times]:
        """Mask of the records that are no duplicates, one of each of these keys; and for each key a time that it has. Notes
        the times. Keys that are not there are put there together."""
        table, near = self.table, times
        held = list(map(table.top.get, keys))
        if table.layered:
            held = [table.find(key) if one is None else one for key, one in zip(keys, held, strict=True)]
        is_new = np.fromiter([one is None for one in held], np.bool_, len(held))
        old = np.flatnonzero(~is_new).tolist()
        if self.spec.within is not None and old:
            near = times.copy()
            is_new[old] = [self._is_new(keys[at], int(times[at])) for at in old]
            near[old] = [table.get(keys[at])[-1] for at in old]
        if len(old) < len(keys):
            some = keys if not old else [key for key, one in zip(keys, held, strict=True) if one is None]
            theirs = times if not old else times[[one is None for one in held]]
            if self.spec.within is None:
                table.top.update(dict.fromkeys(some, ()))
            else:
                table.top.update(zip(some, zip(theirs.tolist(), strict=True), strict=True))
                self._put_all(some, theirs)
        return is_new, near

    def _is_new(self, key: Any, time: int) -> bool:
        """True if a record is no duplicate. Notes its time."""
        held = self.table.get(key)
        within = self.spec.within
        if held is None:
            self.table.top[key] = () if within is None else (time,)
            if within is not None:
                self._put(key, time)
            return True
        if within is None or any(abs(time - one) <= within for one in held):
            return False
        self._put(key, time)
        self.table.top[key] = (*held, time)
        return True

    # Keys out.

    def _put(self, key: Any, time: int) -> None:
        """Puts a key in the bucket of the time at which this one of its times is over."""
        assert self.spec.within is not None
        place = (time + self.spec.within) // self._width
        bucket = self._buckets.get(place)
        if bucket is None:
            self._buckets[place] = [key]
            heapq.heappush(self._heap, place)
        else:
            bucket.append(key)

    def _put_all(self, keys: list[Any], times: _Times) -> None:
        """Puts keys in the buckets of their times."""
        assert self.spec.within is not None
        places = (times + self.spec.within) // self._width
        for place in np.unique(places).tolist():
            if place not in self._buckets:
                self._buckets[place] = []
                heapq.heappush(self._heap, place)
            self._buckets[place] += compress(keys, (places == place).tolist())

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self.reached.pass_by(time)
        if self.spec.timed:
            self._forget(time, limit)
        return True  # nothing is emitted: what is left of the buckets may wait

    def _forget(self, time: int, limit: int) -> None:
        """Forgets keys whose times are over, `limit` keys at most."""
        within = self.spec.within
        while limit > 0 and self._heap and (self._heap[0] + 1) * self._width <= time:
            assert within is not None
            bucket = self._buckets[self._heap[0]]
            some = bucket[-limit:]
            del bucket[-limit:]
            limit -= len(some)
            for key, held in zip(some, map(self.table.get, some), strict=True):
                if held is not None and held[-1] + within <= time and len(held) == 1:
                    self.table.pop(key)
                elif held is not None:
                    self._forget_some(key, held, time - within)
            if not bucket:
                del self._buckets[heapq.heappop(self._heap)]
        self.backend.relieve()

    def _forget_some(self, key: Any, held: tuple[int, ...], until: int) -> None:
        """Forgets the times of a key up to `until`."""
        left = tuple([one for one in held if one > until])
        if not left:
            self.table.pop(key)
        elif len(left) < len(held):
            self.table.top[key] = left
