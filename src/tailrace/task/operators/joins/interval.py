"""Interval joins: pairs of records of one key whose times differ by so much.

A pair comes out when its second record arrives: event time cannot change it any more. It has the later time of the two.
What only event time can decide, that a record has no partner, comes out when the watermark has passed all times at which
one could still come, and has that time: `max(time, time + span)`, where `span` is how far behind its own time its latest
partner may be. So no result is late, and its time does not depend on which stream was faster.

A record is kept exactly until then: the state of a key is what came in the last `span` of event time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from typing import Any

import msgspec
import numpy as np

from tailrace.api.restore.compatibility import check_shape
from tailrace.api.restore.kinds import shape_of
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.timestamps import LAST_TIME, is_late
from tailrace.graph.graph import Node
from tailrace.graph.operators import IntervalJoin
from tailrace.state.backend import Backend, MetaPart
from tailrace.state.format import JOINING
from tailrace.task.channels.copies import own_copy
from tailrace.task.channels.key_readers import key_reader, settled_keys
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.functions import backend_of
from tailrace.task.operators.late_records import Floors, least_time, set_aside
from tailrace.task.operators.timer_heap import Keyed

Held = list[Any]
"""State of a key: the order in which it came, and for each input three lists, by the times of its records: these times, the
records, and whether each had a partner. A tuple without elements stands for a list without any. The third is empty where
that does not matter."""
TIMES = (1, 4)
"""Places of the times of each input in the state of a key; the records and their partners are behind them."""
Due = tuple[int, int, int, Keyed]
"""A record that has to go: the time, the order of its key, its input and the key."""


class IntervalJoinTask(OperatorTask):
    """An interval join in rows.

    Invariant T11: a key has state exactly while it has records that are kept. For each of them there is an entry for the
    time at which it has to go; an entry of a record that has gone before is dropped when it comes up. Entries come up by
    time, then by the order of keys, then by input.
    Invariant T12: a record is kept from its arrival until the watermark has reached the time of its latest possible
    partner, or its own, if that is later; of a semi or an anti join a record of the first input until its first partner.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        operator = node.operator
        assert isinstance(operator, IntervalJoin)
        self.how = operator.how
        self.bounds = (
            (operator.before, operator.after),
            (-operator.after, -operator.before),
        )
        """For each input: the least and the largest difference of a partner's time from that of a record."""
        self.spans = (max(0, operator.after), max(0, -operator.before))
        """For each input: how long behind its own time a record is kept."""
        self.alone = (
            self.how in ("left", "full", "anti"),
            self.how in ("right", "full"),
        )
        """For each input: whether records without a partner come out."""
        self.marks = (self.alone[0] and self.how != "anti", self.alone[1])
        """For each input: whether records are marked that had a partner."""
        self.selectors = operator.keys
        self.readers = [key_reader(node, key, ctx.subtask, port) for port, key in enumerate(operator.keys)]
        self.backend: Backend = backend_of(ctx)
        self.table = self.backend.table(JOINING.name, kind=JOINING.kind)
        self._floors = Floors(node, ctx)
        self._runs: tuple[deque[Due], deque[Due]] = (deque(), deque())
        """For each input: entries in their order, as records come by time."""
        self._heap: list[Due] = []
        """Entries that came out of order."""
        self.order = 0
        """Number of keys that ever had state; after a restore, the highest order of one that has."""
        self.kept = [0, 0]
        """Number of records of each input that are kept."""
        self.copies = ctx.services.copy_records
        self.backend.after_restore.append(self.rebuild)

    def rebuild(self) -> None:
        """Makes the entries from the table, after a restore."""
        self.kept = [0, 0]
        found: list[Due] = []
        for key, held in self.table.items():
            keyed, self.order = Keyed(key), max(self.order, held[0])
            for port, (at, span) in enumerate(zip(TIMES, self.spans, strict=True)):
                found += [(time + span, held[0], port, keyed) for time in held[at]]
                self.kept[port] += len(held[at])
        found.sort()
        self._heap = []
        self._runs = (
            deque(one for one in found if not one[2]),
            deque(one for one in found if one[2]),
        )

    # State beside the keys.

    def state_entries(self) -> int:
        return sum(self.kept)

    def snapshot(self, checkpoint: int) -> bytes | None:
        return msgspec.msgpack.encode(shape_of(self.node.operator)) if self.backend.entries() else None

    def restore(self, parts: list[MetaPart]) -> None:
        for part in parts:
            if part.data is not None:
                check_shape(self.node, msgspec.msgpack.decode(part.data, type=list[str]))

    def restore_floors(self, floors: list[tuple[int, int, int]]) -> None:
        self._floors.ranges = floors

    def floors(self) -> list[tuple[int, int, int]]:
        return self._floors.ranges

    def close(self) -> None:
        self.backend.close()

    # Records in.

    def process(self, batch: Batch, port: int) -> None:
        if len(batch):
            least_time(self, batch, "join")
            self._floors.take(batch, self.selectors[port], lambda part: self._take(part, port))
            self._report()

    def _take(self, batch: Batch, port: int) -> None:
        """Joins the records of a batch with those that are kept, and keeps them; late ones go aside."""
        rows = batch.to_rows()
        assert rows.times is not None
        kept = set_aside(self, rows, is_late(rows.times, self.ctx.watermark_time))
        if kept is None:
            return
        assert isinstance(kept, Rows) and kept.times is not None
        keys = settled_keys(self.readers[port].values(kept))
        out: list[Any] = []
        times: list[int] = []
        if self.how in ("semi", "anti") and not port:
            self._filter(keys, kept.times.tolist(), kept.values, out, times)
        else:
            self._join(keys, kept.times.tolist(), kept.values, port, out, times)
        self.backend.relieve()
        self._emit(out, times)

    def _join(
        self,
        keys: list[Any],
        times: list[int],
        values: list[Any],
        port: int,
        out: list[Any],
        out_times: list[int],
    ) -> None:
        """Adds the results of records with those of the other input that are kept, and keeps the records."""
        own, other = TIMES[port], TIMES[1 - port]
        low, high = self.bounds[port]
        marks, marks_other = self.marks[port], self.marks[1 - port]
        filters = self.how in ("semi", "anti")
        top, find, keep, create = (
            self.table.top,
            self.table.find,
            self._keep,
            self._create,
        )
        for key, time, value in zip(keys, times, values, strict=True):
            held = top.get(key)
            if held is None and (held := find(key)) is None:
                held = create(key)
            partner_times = held[other]
            matched = False
            if partner_times:
                first = bisect_left(partner_times, time + low)
                last = bisect_right(partner_times, time + high, first)
                matched = first < last
                if matched and filters:
                    self._release(held, first, last, out, out_times)
                elif matched:
                    partners = held[other + 1][first:last]
                    out.extend([(one, value) for one in partners] if port else [(value, one) for one in partners])
                    out_times.extend([time if one < time else one for one in partner_times[first:last]])
                    if marks_other:
                        held[other + 2][first:last] = [True] * (last - first)
            keep(key, held, own, port, time, value, matched if marks else None)

    def _filter(
        self,
        keys: list[Any],
        times: list[int],
        values: list[Any],
        out: list[Any],
        out_times: list[int],
    ) -> None:
        """Takes records of the first input of a semi or an anti join. One with a partner is decided, and not kept."""
        (low, high), span = self.bounds[0], self.spans[0]
        top, find = self.table.top, self.table.find
        for key, time, value in zip(keys, times, values, strict=True):
            held = top.get(key)
            if held is None and (held := find(key)) is None:
                held = self._create(key)
            partners = held[TIMES[1]]
            at = bisect_left(partners, time + low) if partners else 0
            if at < len(partners) and partners[at] <= time + high:
                if self.how == "semi":
                    out.append(value)
                    out_times.append(min(time + span, LAST_TIME))
                continue
            self._keep(key, held, TIMES[0], 0, time, value, None)

    def _create(self, key: Any) -> Held:
        """State of a key that has none."""
        self.order += 1
        held = self.table.top[key] = [self.order, (), (), (), (), (), ()]
        return held

    def _keep(
        self,
        key: Any,
        held: Held,
        own: int,
        port: int,
        time: int,
        value: Any,
        matched: bool | None,
    ) -> None:
        """Keeps a record of an input, in its place by time; of one time the first one to come is first."""
        times = held[own]
        if not times:
            held[own : own + 3] = [time], [value], () if matched is None else [matched]
        elif times[-1] <= time:
            times.append(time)
            held[own + 1].append(value)
            if matched is not None:
                held[own + 2].append(matched)
        else:
            at = bisect_right(times, time)
            times.insert(at, time)
            held[own + 1].insert(at, value)
            if matched is not None:
                held[own + 2].insert(at, matched)
        self.kept[port] += 1
        due, order, run = time + self.spans[port], held[0], self._runs[port]
        if not run or (last := run[-1])[0] < due or (last[0] == due and last[1] <= order):
            run.append((due, order, port, Keyed(key)))
        else:
            heapq.heappush(self._heap, (due, order, port, Keyed(key)))

    def _release(self, held: Held, first: int, last: int, out: list[Any], out_times: list[int]) -> None:
        """Lets go of records of the first input of a semi or an anti join, which have a partner."""
        own, span = TIMES[0], self.spans[0]
        if self.how == "semi":
            out.extend(held[own + 1][first:last])
            out_times.extend([min(time + span, LAST_TIME) for time in held[own][first:last]])
        del held[own][first:last], held[own + 1][first:last]
        self.kept[0] -= last - first

    # Event time.

    def _next(self) -> Any:
        """The run or the heap that has the next entry; None if there is none."""
        first, second = self._runs
        found: Any = first if first and (not second or first[0] < second[0]) else second
        return self._heap if self._heap and (not found or self._heap[0] < found[0]) else found or None

    def next_event(self) -> int | None:
        # The record may have gone before; `advance` finds that out when the time comes.
        entries = self._next()
        return None if entries is None else min(entries[0][0], LAST_TIME)

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self._floors.pass_by(time)
        out: list[Any] = []
        times: list[int] = []
        get = self.table.get
        while (entries := self._next()) is not None and min(entries[0][0], LAST_TIME) <= time:
            if limit <= 0:
                break
            due, order, port, keyed = heapq.heappop(entries) if entries is self._heap else entries.popleft()
            held = get(keyed.key)
            if (
                held is not None
                and held[0] == order
                and (there := held[TIMES[port]])
                and there[0] + self.spans[port] <= due
            ):
                limit -= self._expire(keyed.key, held, port, due, out, times)
        self.backend.relieve()
        self._report()
        self._emit(out, times)
        return entries is None or min(entries[0][0], LAST_TIME) > time

    def _expire(
        self,
        key: Any,
        held: Held,
        port: int,
        due: int,
        out: list[Any],
        out_times: list[int],
    ) -> int:
        """Lets go of the records of one input of a key that can have no more partners; those without one come out. Returns
        the number of records."""
        at, span = TIMES[port], self.spans[port]
        times = held[at]
        count = 1 if len(times) == 1 else bisect_right(times, due - span)
        if self.alone[port]:
            marked = held[at + 2][:count] if self.marks[port] else [False] * count
            for one, value, matched in zip(times[:count], held[at + 1][:count], marked, strict=True):
                if not matched:
                    out.append(value if self.how == "anti" else (None, value) if port else (value, None))
                    out_times.append(min(one + span, LAST_TIME))
        if count == len(times):
            held[at : at + 3] = (), (), ()
            if not held[TIMES[1 - port]]:
                self.table.pop(key)
        else:
            del times[:count], held[at + 1][:count]
            if self.marks[port]:
                del held[at + 2][:count]
        self.kept[port] -= count
        return count

    # Results out.

    def _emit(self, out: list[Any], times: list[int]) -> None:
        if out:
            values = list(map(own_copy, out)) if self.copies else out
            self.out(Rows(values, np.array(times, np.int64)))

    def _report(self) -> None:
        """Reports how many records of each input are kept."""
        self.ctx.metrics.set("kept_first", self.kept[0])
        self.ctx.metrics.set("kept_second", self.kept[1])
