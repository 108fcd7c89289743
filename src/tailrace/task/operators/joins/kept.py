"""Joins of two inputs in columns: what all of them have. Records are kept as columns (`segments`), with their numbers and
times, until event time lets go of them; checkpoints have them as blocks (`chunks`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.api.restore.compatibility import check_shape
from tailrace.api.restore.kinds import shape_of
from tailrace.elements.batches import Batch, Columns
from tailrace.elements.columns.common_schema import widen
from tailrace.elements.columns.joined import joined_columns, joined_schema
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import OneSchema, batch_as
from tailrace.elements.timestamps import LAST_TIME
from tailrace.errors import IncompatibleState
from tailrace.graph.declared import declared_before
from tailrace.graph.graph import Node
from tailrace.graph.operators import JOINS
from tailrace.graph.plan import Plan
from tailrace.state.backend import Backend, MetaPart
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.columns.conversion import fit
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.functions import backend_of
from tailrace.task.operators.joins.joinkeys import JoinKeys
from tailrace.task.operators.late_records import Floors, columns_on_time, least_time
from tailrace.task.operators.stores.chunks import KeptBlock
from tailrace.task.operators.stores.segments import JoinRecords, KeptSegment
from tailrace.task.operators.stores.store import ColumnStore

Array = np.ndarray[Any, Any]
INPUTS = ("first", "second")
"""Names of the inputs, by which checkpoints have their schemas."""


class _Meta(msgspec.Struct, array_like=True):
    """State that is not keyed."""

    shape: list[str]
    came: int
    """Number of records that came, or more."""
    chunk: int
    """Number of the next chunk."""


class KeptColumnsTask(OperatorTask):
    """A join of two inputs in columns that keeps their records."""

    side_noun = "stream"

    def __init__(self, node: Node, ctx: OperatorContext, spans: tuple[int, int]) -> None:
        """`spans`: for each input how long behind its own time a record may have to wait until it comes out."""
        super().__init__(node, ctx)
        operator = node.operator
        assert isinstance(operator, JOINS) and operator.suffixes is not None
        self.how, self.suffixes, self.spans = operator.how, operator.suffixes, spans
        self.filters = self.how in ("semi", "anti")
        self.keys = JoinKeys(node.name, ctx, operator.keys)
        self.schemas = {name: OneSchema() for name in INPUTS}
        """Schemas of the inputs, which checkpoints have."""
        self.side_schemas = self.schemas
        self.backend: Backend = backend_of(ctx)
        self.store = ColumnStore(self.backend, self.keys, ctx, self.spans)
        self.sides, self.front = self.store.sides, self.store.front
        self._floors = Floors(node, ctx)
        self.backend.after_restore.append(self.rebuild)

    def take_plan(self, plan: Plan) -> None:
        for port, name in enumerate(INPUTS):
            edges = [edge for edge in self.node.inputs if edge.port == port]
            declared = declared_before(plan.graph.node, edges)
            if declared is not None:
                self.schemas[name] = OneSchema(declared)

    # Checkpoints.

    def state_entries(self) -> int:
        return len(self.store)

    def snapshot(self, checkpoint: int) -> bytes | None:
        if not self.store.came:
            return None
        return msgspec.msgpack.encode(_Meta(shape_of(self.node.operator), self.store.came, self.front.next))

    def restore(self, parts: list[MetaPart]) -> None:
        for part in parts:
            if part.data is not None:
                old = msgspec.msgpack.decode(part.data, type=_Meta)
                check_shape(self.node, old.shape)
                self.store.came = max(self.store.came, old.came)
                self.front.next = max(self.front.next, old.chunk)

    def restore_floors(self, floors: list[tuple[int, int, int]]) -> None:
        self._floors.ranges = floors

    def floors(self) -> list[tuple[int, int, int]]:
        return self._floors.ranges

    def close(self) -> None:
        self.backend.close()

    def rebuild(self) -> None:
        """Makes the segments from the table, after a restore."""
        for port, blocks in self.store.restored_blocks(self.keys.groups.group_of):
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
        records = self.store.records_of(data, blocks, *self.keys.take(data, None, port))
        self.sides[port].add(self._segments(records, port))

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
        """Takes the records of a batch; late ones go aside, in rows."""
        assert isinstance(batch, Columns)
        kept = self._on_time(batch, port)
        if kept is not None:
            self._keep(self._records(kept, port), port)

    def _on_time(self, batch: Columns, port: int) -> Columns | None:
        """The records of a batch that are not late, with the times by which they are kept; None if there are none. Late ones
        go aside."""
        return columns_on_time(self, batch)

    def _keep(self, records: JoinRecords, port: int) -> None:
        """Joins new records, of which none is late, as far as that is possible now, and keeps those that may still be
        needed."""
        raise NotImplementedError

    def _segments(self, records: JoinRecords, port: int) -> list[KeptSegment]:
        """Records that are to be kept, as segments."""
        raise NotImplementedError

    def _pass(self, time: int) -> None:
        """Lets go of records that are not needed behind a time. Those that have to come out wait for that."""
        raise NotImplementedError

    def _records(self, batch: Columns, port: int) -> JoinRecords:
        """The records of a batch with their numbers."""
        assert batch.times is not None
        data = self._fit(batch.data, port)
        return self.store.records(data, batch.times, *self.keys.take(data, batch.groups, port))

    def _fit(self, data: pa.RecordBatch, port: int) -> pa.RecordBatch:
        """A batch in the schema of its input. What is kept follows where a column has got its type by now."""
        one = self.schemas[INPUTS[port]]
        before = one.schema
        data = fit(self, data, INPUTS[port])
        if before is not None and one.schema is not before and not before.equals(one.schema):
            for segment in self.sides[port].segments:
                segment.records = replace(segment.records, data=self._as(segment.records.data, data.schema))
        return data

    # Results out.

    def schema(self, port: int) -> pa.Schema:
        schema = self.schemas[INPUTS[port]].schema
        assert schema is not None
        return schema

    def rows_of(self, first: pa.RecordBatch | None, second: pa.RecordBatch | None) -> pa.RecordBatch:
        """Rows of the results of pairs; None stands for records that are not there."""
        schemas = self.schema(0), self.schema(1)
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

    def send(self, data: pa.RecordBatch, times: Array) -> None:
        self.out(Columns(data, np.minimum(times, LAST_TIME)))

    def _report(self) -> None:
        """Reports how many records of each input are kept."""
        self.ctx.metrics.set("kept_first", self.sides[0].kept)
        self.ctx.metrics.set("kept_second", self.sides[1].kept)
