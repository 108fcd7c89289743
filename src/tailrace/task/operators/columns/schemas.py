"""The one schema of a stream in columns, for the operators that hold a stream to it: where the dataflow declares it, and
how it goes on behind a restore.

One rule applies to all of them. An operator that finds a schema out, by its first batch, puts it into every checkpoint.
Behind a restore a subtask goes on with its own schema. If it had none, or the parallelism has changed, it goes on with
the schema that the schemas of all old subtasks come to.
"""

from __future__ import annotations

import pyarrow as pa

from tailrace.elements.columns.common_schema import agreement, widen
from tailrace.elements.columns.schemas import OneSchema, text_of
from tailrace.errors import IncompatibleState
from tailrace.graph.declared import declared_before, declared_behind, selected_schema
from tailrace.graph.graph import Graph
from tailrace.graph.operators import MapBatches, Select
from tailrace.state.backend import MetaPart
from tailrace.task.operators.base import OperatorTask


def learn_schema(operator: OperatorTask, graph: Graph) -> None:
    """Gives an operator the schema that the dataflow declares for the columns that it takes or makes."""
    node, one = operator.node, operator.one_schema
    if operator.one_schema_of == "input":
        declared = declared_before(graph.node, node.inputs)
        if declared is not None:
            operator.one_schema = OneSchema(declared)
    elif operator.one_schema_of == "output" and not (one is None or one.declared):
        declared = declared_before(graph.node, node.inputs) if isinstance(node.operator, Select) else None
        if declared is not None and isinstance(node.operator, Select):
            operator.one_schema = OneSchema(selected_schema(node.operator, declared))
        elif declared_behind(graph, node.id):
            # `to_columns` behind it casts its output to a schema, whatever types it has here.
            operator.one_schema = None
    if isinstance(node.operator, MapBatches):
        tags = sorted({edge.tag for one in graph.nodes for edge in one.inputs if edge.source == node.id and edge.tag})
        operator.side_schemas = {tag: OneSchema() for tag in tags if not declared_behind(graph, node.id, tag)}


def restore_schema(operator: OperatorTask, parts: list[MetaPart]) -> None:
    """Restores the schema of an operator, and the schemas of its side outputs. Called before its `restore`, with the same
    parts. Raises `IncompatibleState` if its old subtasks had several schemas that come to none."""
    if operator.one_schema is not None:
        _restore(operator, operator.one_schema, [(part, part.schema) for part in parts], "the stream")
    for tag, one in operator.side_schemas.items():
        _restore(operator, one, [(part, part.sides.get(tag)) for part in parts], f"{operator.side_noun} {tag!r}")


def _restore(operator: OperatorTask, one: OneSchema, parts: list[tuple[MetaPart, bytes | None]], stream: str) -> None:
    where = operator.ctx
    if one.declared:
        return
    found = [(part, pa.ipc.read_schema(pa.py_buffer(schema))) for part, schema in parts if schema is not None]
    own = [schema for part, schema in found if part.subtask == where.subtask and part.parallelism == where.parallelism]
    schemas = own if own and operator.widens else [schema for _, schema in found]
    so_far: pa.Schema | None = None
    for schema in schemas:
        before, so_far = so_far, schema if so_far is None else _come_to(operator, so_far, schema)
        if so_far is not None:
            continue
        if operator.widens and all(part.parallelism == where.parallelism for part, _ in parts):
            return  # no batch has come here yet: each subtask goes on as it was
        raise IncompatibleState(_difference_text(operator, before, schema, stream))
    if so_far is not None:
        one.go_on_with(so_far)
        if not operator.widens:
            one.close()


def _come_to(operator: OperatorTask, one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    return (widen if operator.widens else agreement)(one, other)


def _difference_text(operator: OperatorTask, one: pa.Schema | None, other: pa.Schema, stream: str) -> str:
    where = operator.ctx
    if operator.widens:
        place = "behind" if operator.one_schema_of == "output" else "in front of"
        advice = f"declare one, with to_columns(schema) {place} it, or keep the parallelism"
    else:
        advice = "start from a checkpoint before that, with to_columns(schema) before the sink"
    return (
        f"operator {where.name!r} (uid {where.uid!r}): in its subtasks {stream} had columns of different types, "
        f"({text_of(one)}) and ({text_of(other)}), and it is unknown which go on here: {advice}"
    )
