"""Conversion of an operator's records between rows and columns. A record that does not fit is the user's error; the error
names the operator, the column and the record."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from tailrace.elements.batches import Batch, Columns, Form, Rows
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import batch_as, columns_of, plain_batch
from tailrace.errors import IncompatibleState, UserCodeError, short_repr
from tailrace.graph.declared import NodeOf, declared_before, form_over
from tailrace.graph.graph import Edge
from tailrace.graph.operators import ToColumns
from tailrace.task.operators.base import OperatorTask


def columns_in(task: OperatorTask, batch: Batch, schema: pa.Schema, *, select: bool = False) -> Columns:
    """A batch of either form as columns of this schema."""
    if isinstance(batch, Columns):
        try:
            data = batch_as(batch.data, schema, select=select)
        except Misfit as error:
            raise _refusal(task, error, batch.data) from error
    else:
        try:
            data = columns_of(batch.values, schema)
        except Misfit as error:
            raise _refusal(task, _first(error, batch.values, schema), batch.values) from error
    return Columns(data, batch.times, batch.groups, batch.split)


class Today:
    """Form and schema in which records come to an operator over some edges. Records that a checkpoint held in flight,
    perhaps of another dataflow, are converted to them."""

    @classmethod
    def at(cls, node_of: NodeOf, task: OperatorTask, port: int) -> Today:
        """Form and schema over all edges into one input of an operator."""
        return cls(node_of, [edge for edge in task.entry.inputs if edge.port == port])

    def __init__(self, node_of: NodeOf, edges: Sequence[Edge]) -> None:
        self.form: Form = form_over(node_of, edges[0])
        self.schema = declared_before(node_of, edges) if self.form == "columns" else None

    def bring(self, task: OperatorTask, batch: Batch) -> Batch:
        """Records in the form and schema of today. Raises `UserCodeError` for a record that does not fit, and
        `IncompatibleState` if rows have become columns without a declared schema."""
        if self.form == "rows":
            return rows_in(task, batch)
        if self.schema is not None:
            return columns_in(task, batch, self.schema, select=True)
        node = task.node
        takes_rows = node.form == "rows" and getattr(node.operator, "in_order", False) != "columns"
        if isinstance(batch, Columns) or takes_rows or isinstance(node.operator, ToColumns):
            return batch
        raise IncompatibleState(
            f"operator {node.name!r} (uid {node.uid!r}): the checkpoint holds records on their way to it in rows, and they "
            f"come in columns now; declare their schema, with to_columns(schema) in front of it"
        )


def rows_in(task: OperatorTask, batch: Batch) -> Rows:
    """A batch of either form as rows."""
    try:
        rows: Rows = batch.to_rows()
    except Misfit as error:
        raise UserCodeError(str(error), operator=task.node.name, subtask=task.ctx.subtask) from error
    return rows


def fit(task: OperatorTask, data: pa.RecordBatch, side: str | None = None) -> pa.RecordBatch:
    """Batch in the one schema to which the operator holds its stream, or one of its side outputs; in plain columns if
    there is none. Raises `UserCodeError` for a record that does not fit."""
    one = task.one_schema if side is None else task.side_schemas.get(side)
    try:
        return plain_batch(data) if one is None else one.fit(data)
    except Misfit as error:
        raise _refusal(task, error, data, "" if side is None else f" of {task.side_noun} {side!r}") from error


def _first(error: Misfit, values: list[Any], schema: pa.Schema) -> Misfit:
    """Error with the position of the first record that causes it, if `error` does not have the position."""
    if error.row is not None:
        return error
    for at, value in enumerate(values):
        try:
            columns_of([value], schema)
        except Misfit as found:
            return Misfit(found.args[0], at)
    return error


def record_at(data: pa.RecordBatch, at: int) -> tuple[Any, ...]:
    """A record of a batch, for errors."""
    cells: Any = [column[at] for column in data.columns]
    with suppress(Exception):  # a value that Python cannot hold is shown as Arrow does
        cells = [cell.as_py() for cell in cells]
    return tuple(cells)


def _refusal(task: OperatorTask, error: Misfit, records: list[Any] | pa.RecordBatch, where: str = "") -> UserCodeError:
    record = None
    if error.row is not None and isinstance(records, list):
        record = short_repr(records[error.row])
    elif error.row is not None and isinstance(records, pa.RecordBatch):
        record = short_repr(record_at(records, error.row))
    what = f"a record does not fit the schema{where}: {error}"
    return UserCodeError(what, operator=task.node.name, subtask=task.ctx.subtask, record=record)
