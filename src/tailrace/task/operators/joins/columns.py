"""Interval joins of two inputs in columns. The results, their times, and what is kept how long are those of the join in rows
(`interval`), and are found a batch at a time.

The order of results follows from the order in which records came: a pair is put by the record that came last, then by its
partner; what event time decides is put by its time, its input, and the order in which it came.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.api.compat import other_shape
from tailrace.api.kinds import shape_of
from tailrace.elements.batches import Batch, Columns
from tailrace.elements.columns.common import widen
from tailrace.elements.columns.joined import joined_columns, joined_schema
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import OneSchema, batch_as
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME, is_late
from tailrace.errors import IncompatibleState
from tailrace.graph.declared import declared_before
from tailrace.graph.graph import Node
from tailrace.graph.operators import IntervalJoin
from tailrace.graph.plan import Plan
from tailrace.state.backend import Backend, MetaPart
from tailrace.state.format import JOINED
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.columns import fit
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins.chunks import ChunkFront, KeptBlock, key_of_block, restore_blocks
from tailrace.task.operators.joins.joinkeys import JoinKeys, are_equal
from tailrace.task.operators.joins.places import KeptPlaces, shift
from tailrace.task.operators.joins.segments import (
    GONE,
    MATCHED,
    UNWRITTEN,
    JoinRecords,
    Side,
    index_of,
    segments_of,
)
from tailrace.task.operators.joins.unmatched import Unmatched
from tailrace.task.operators.ordering.late import Floors, least_time, set_aside
from tailrace.task.operators.process import backend_of

Array = np.ndarray[Any, Any]
INPUTS = ("first", "second")
"""Names of the inputs, by which checkpoints have their schemas."""
_SUBTASKS = 16
"""Bits for the subtask in the number of a record."""
_RESULTS = 1 << 16
"""Number of results of a batch at most."""
_NONE = np.empty(0, np.int64)


class _Meta(msgspec.Struct, array_like=True):
    """State that is not keyed."""

    shape: list[str]
    came: int
    """Number of records that came, or more."""
    chunk: int
    """Number of the next chunk."""


class ColumnJoinTask(OperatorTask):
    """An interval join in columns.

    Invariant T27: a record is kept from its arrival until the watermark has reached the time of its latest possible partner,
    or its own, if that is later, and it has come out, if it has to; of a semi or an anti join a record of the first input
    until its first partner.
    """

    side_noun = "stream"

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        operator = node.operator
        assert isinstance(operator, IntervalJoin) and operator.suffixes is not None
        self.how, self.suffixes = operator.how, operator.suffixes
        self.bounds = ((operator.before, operator.after), (-operator.after, -operator.before))
        """For each input: the least and the largest difference of a partner's time from that of a record."""
        self.spans = (max(0, operator.after), max(0, -operator.before))
        """For each input: how long behind its own time a record is kept."""
        self.filters = self.how in ("semi", "anti")
        self.alone = (self.how in ("left", "full", "anti"), self.how in ("right", "full"))
        """For each input: whether records without a partner come out."""
        self.keys = JoinKeys(node.name, ctx, operator.keys)
        self.schemas = {name: OneSchema() for name in INPUTS}
        """Schemas of the inputs, which checkpoints have."""
        self.side_schemas = self.schemas
        self.sides = (Side(), Side())
        self.backend: Backend = backend_of(ctx)
        self.backend.small = 0  # few entries have many records
        self.table = self.backend.table(JOINED.name, kind=JOINED.kind, group_by=key_of_block)
        self.came = 0
        """Number that is above those of all records that came."""
        self._floors = Floors(node, ctx)
        self.unmatched = Unmatched(self.spans)
        self.front = ChunkFront(self.sides, self.keys)
        self.table.front = self.front
        self.backend.after_restore.append(self.rebuild)

    def take_plan(self, plan: Plan) -> None:
        for port, name in enumerate(INPUTS):
            edges = [edge for edge in self.node.inputs if edge.port == port]
            declared = declared_before(plan.graph.node, edges)
            if declared is not None:
                self.schemas[name] = OneSchema(declared)

    # Checkpoints.

    def state_entries(self) -> int:
        return sum(side.kept for side in self.sides)

    def snapshot(self, checkpoint: int) -> bytes | None:
        if not self.came:
            return None
        return msgspec.msgpack.encode(_Meta(shape_of(self.node.operator), self.came, self.front.next))

    def restore(self, parts: list[MetaPart]) -> None:
        for part in parts:
            if part.data is not None:
                old = msgspec.msgpack.decode(part.data, type=_Meta)
                if old.shape != shape_of(self.node.operator):
                    raise IncompatibleState(
                        f"operator {self.node.name!r} (uid {self.node.uid!r}): {other_shape(self.node, old.shape)}"
                    )
                self.came = max(self.came, old.came)
                self.front.next = max(self.front.next, old.chunk)

    def restore_floors(self, floors: list[tuple[int, int, int]]) -> None:
        self._floors.ranges = floors

    def floors(self) -> list[tuple[int, int, int]]:
        return self._floors.ranges

    def close(self) -> None:
        self.backend.close()

    def rebuild(self) -> None:
        """Makes the segments from the table, after a restore."""
        self.table.front = None
        entries = dict(self.table.items())
        self.table.front = self.front
        found: tuple[list[tuple[int, KeptBlock]], list[tuple[int, KeptBlock]]] = ([], [])
        for port, number, block in restore_blocks(self.front, entries, self.keys.groups.group_of):
            if len(block.seqs):
                found[port].append((number, block))
        for port, blocks in enumerate(found):
            if blocks:
                self._restore_side(port, blocks)
        self._pass(self.ctx.watermark_time)
        self._report()

    def _restore_side(self, port: int, blocks: list[tuple[int, KeptBlock]]) -> None:
        one = self.schemas[INPUTS[port]]
        schema = one.schema
        for _, block in blocks:
            wide = block.data.schema if schema is None else widen(schema, block.data.schema)
            if wide is None:
                raise IncompatibleState(
                    f"operator {self.node.name!r} (uid {self.node.uid!r}): the columns of the {INPUTS[port]} stream have "
                    f"other types than the records that the checkpoint has: {block.data.schema} and {schema}"
                )
            schema = schema if one.declared else wide
        assert schema is not None
        one.go_on_with(schema)
        data = pa.concat_batches([self._as(block.data, schema) for _, block in blocks])
        seqs, times, marks = (
            np.concatenate([getattr(block, name) for _, block in blocks]) for name in ("seqs", "times", "marks")
        )
        chunks = np.concatenate([np.full(len(block.seqs), number, np.int64) for number, block in blocks])
        self.came = max(self.came, 1 + (int(seqs.max()) >> _SUBTASKS))
        hashes, groups = self.keys.take(data, None, port)
        records = JoinRecords(data, seqs, times, hashes, groups, chunks, marks)
        records = records.some(np.argsort(seqs, kind="stable"))
        self.sides[port].add(segments_of(records, index_of(records)))

    def _as(self, data: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return batch_as(data, schema)
        except Misfit as error:
            raise IncompatibleState(
                f"operator {self.node.name!r} (uid {self.node.uid!r}): a record that the checkpoint has does not fit the "
                f"schema of its stream: {error}"
            ) from error

    # Records in.

    def process(self, batch: Batch, port: int) -> None:
        if len(batch):
            least_time(self, batch, "join")
            self._floors.take(batch, self.keys.selectors[port], lambda part: self._take(part, port))
            self._report()

    def _take(self, batch: Batch, port: int) -> None:
        """Joins the records of a batch with those that are kept, and keeps them; late ones go aside, in rows."""
        assert isinstance(batch, Columns) and batch.times is not None
        late = is_late(batch.times, self.ctx.watermark_time)
        if late.any():
            for is_aside, part in batch.partition(late.astype(np.int64), 2):
                if is_aside:
                    set_aside(self, part.to_rows(), np.ones(len(part), np.bool_))
            if late.all():
                return
            some = np.flatnonzero(~late)
            groups = None if batch.groups is None else batch.groups[some]
            batch = Columns(batch.data.take(pa.array(some)), batch.times[some], groups)
        records = self._records(batch, port)
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

    def _records(self, batch: Columns, port: int) -> JoinRecords:
        """The records of a batch with their numbers."""
        assert batch.times is not None
        count, data = len(batch), self._fit(batch.data, port)
        hashes, groups = self.keys.take(data, batch.groups, port)
        seqs = (np.arange(self.came, self.came + count) << _SUBTASKS) + self.ctx.subtask
        self.came += count
        chunks = np.full(count, UNWRITTEN, np.int64)
        return JoinRecords(data, seqs, batch.times, hashes, groups, chunks, np.zeros(count, np.uint8))

    def _fit(self, data: pa.RecordBatch, port: int) -> pa.RecordBatch:
        """A batch in the schema of its input. What is kept follows where a column has got its type by now."""
        one = self.schemas[INPUTS[port]]
        before = one.schema
        data = fit(self, data, INPUTS[port])
        if before is not None and one.schema is not before and not before.equals(one.schema):
            for segment in self.sides[port].segments:
                segment.records = replace(segment.records, data=self._as(segment.records.data, data.schema))
        return data

    def _pairs(self, records: JoinRecords, order: Array, port: int) -> tuple[Array, KeptPlaces]:
        """The partners of records: the places of the records, in order, and where their partners are, in the order in which
        they came. `order` has the places of the records in the order of their hashes."""
        low, high = self.bounds[port]
        hashes, times = records.hashes[order], records.times[order]
        below, above = shift(times, low), shift(times, high)
        segments = self.sides[1 - port].segments
        found: list[tuple[Array, Array, Array]] = []
        for number, one in enumerate(segments):
            which, rows = one.find(hashes, below, above)
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
            self._send(records.data.take(pa.array(some)), shift(records.times[some], self.spans[0]))
        return records.some(np.flatnonzero(~has))

    def _release(self, which: Array, partners: KeptPlaces) -> None:
        """Lets go of records of the first input of a semi or an anti join, which have a partner."""
        if not len(which):
            return
        _, first = np.unique(partners.seqs(), return_index=True)
        some = partners.some(np.sort(first))
        if self.how == "semi":
            self._send(some.data(), shift(some.times(), self.spans[0]))
        for one, _, rows in some.by_segment():
            one.alive -= len(rows)
            self.front.mark(0, one, rows, GONE, True)

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
            self._send(self._rows_of(*pair), np.maximum(records.times[mine], part.times()))

    # Event time.

    def next_event(self) -> int | None:
        times = [
            min(time + span, LAST_TIME)
            for side, span in zip(self.sides, self.spans, strict=True)
            for one in side.segments
            if (time := one.next_time()) is not None
        ]
        waits = self.unmatched.next_time()
        return min(times if waits is None else [*times, waits], default=None)

    def advance(self, time: int, limit: int) -> bool:
        self.ctx.watermark_time = time
        self._floors.pass_by(time)
        self._pass(time)
        for port, some, times in self.unmatched.take(limit):
            data = some.data()
            pair = (None, data) if port else (data, None)
            self._send(data if self.filters else self._rows_of(*pair), times)
            for one, _, rows in some.by_segment():
                one.waiting -= len(rows)
                self.sides[port].waiting -= len(rows)
                self.front.mark(port, one, rows, GONE, True)
        over = not len(self.unmatched)
        if over:
            for side in self.sides:
                side.tidy()
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
                one.alive -= len(rows)
                waits = (marks & MATCHED == 0) if self.alone[port] else np.zeros(len(rows), np.bool_)
                self.front.mark(port, one, rows[~waits], GONE, False)
                if waits.any():
                    count = self.unmatched.add(port, one, rows[waits])
                    one.waiting += count
                    side.waiting += count

    # Results out.

    def _schema(self, port: int) -> pa.Schema:
        schema = self.schemas[INPUTS[port]].schema
        assert schema is not None
        return schema

    def _rows_of(self, first: pa.RecordBatch | None, second: pa.RecordBatch | None) -> pa.RecordBatch:
        """Rows of the results of pairs; None stands for records that are not there."""
        schemas = self._schema(0), self._schema(1)
        try:
            columns = joined_columns(schemas[0].names, schemas[1].names, self.keys.names, self.suffixes)
        except ValueError as error:
            raise self.keys.refusal(str(error)) from None
        schema = joined_schema(columns, *schemas)
        one = second if first is None else first
        assert one is not None
        count = one.num_rows
        arrays = []
        for column, field in zip(columns, schema, strict=True):
            if first is not None and column.first is not None:
                array = first.column(column.first)
            elif second is not None and column.second is not None:
                array = second.column(column.second)
            else:
                array = pa.nulls(count, field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _send(self, data: pa.RecordBatch, times: Array) -> None:
        self.out(Columns(data, np.minimum(times, LAST_TIME)))

    def _report(self) -> None:
        """Reports how many records of each input are kept."""
        self.ctx.metrics.set("kept_first", self.sides[0].kept)
        self.ctx.metrics.set("kept_second", self.sides[1].kept)


def _sequence(which: Array, count: int, partners: KeptPlaces) -> Array:
    """The order by `which`, below `count`, then by the order in which the partners came."""
    if len(which) <= count:
        place = np.full(count, -1, np.int64)
        place[which] = np.arange(len(which))
        found = place[place != -1]
        if len(found) == len(which):  # each has one partner
            return np.asarray(found)
    order: Array = np.lexsort((partners.seqs(), which))
    return order
