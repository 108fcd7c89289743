"""The schema of a stream in columns, as far as the dataflow declares it before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from tailrace.elements.batches import Form
from tailrace.elements.columns.common_schema import has_nulls
from tailrace.elements.columns.expressions import Formula
from tailrace.elements.columns.joined import grouped_schema, joined_columns, joined_schema
from tailrace.elements.columns.kinds import plain_schema
from tailrace.graph.graph import Edge, Graph, Node
from tailrace.graph.operators import (
    AHEAD,
    FEEDBACK,
    JOINS,
    AssignTimestamps,
    DropDuplicates,
    EnterLoop,
    FilterColumns,
    Head,
    LeaveLoop,
    MapBatches,
    Operator,
    Select,
    Sink,
    Source,
    ToColumns,
    Windowed,
    key_columns,
)

PASSING: tuple[type[Operator], ...] = (AssignTimestamps, DropDuplicates, EnterLoop, FilterColumns, LeaveLoop)
"""Operators that emit the columns that they receive."""

NodeOf = Callable[[int], Node]


def form_over(node_of: NodeOf, edge: Edge) -> Form:
    """The form in which records come over this edge."""
    node = node_of(edge.source)
    if edge.tag is None:
        return node.form
    if isinstance(node.operator, Head) and edge.tag == FEEDBACK:
        return "rows" if node.operator.loop.feedback_schema is None else "columns"
    if isinstance(node.operator, Windowed) or (isinstance(node.operator, AssignTimestamps) and edge.tag == AHEAD):
        return form_over(node_of, node.inputs[0])  # records that it puts aside, in the form of its input
    return "columns" if isinstance(node.operator, MapBatches) else "rows"


Others = Callable[[Node, pa.Schema | None], pa.Schema | None]
"""Function from a node of another kind and the schema of its input to the schema of its output; None if it is not known."""


def _unknown(node: Node, given: pa.Schema | None) -> None:
    return None


def declared_before(node_of: NodeOf, inputs: Iterable[Edge], others: Others = _unknown) -> pa.Schema | None:
    """The schema of the columns that come over these edges; None unless one schema is declared for all of them. `others`
    finds the schema for kinds of nodes that this module does not know."""
    found = [_declared_by(node_of, edge, others) for edge in inputs]
    first = found[0] if found else None
    return first if all(schema is not None and schema.equals(first) for schema in found) else None


def _declared_by(node_of: NodeOf, edge: Edge, others: Others) -> pa.Schema | None:
    node = node_of(edge.source)
    if edge.tag is not None:
        loop = node.operator.loop if isinstance(node.operator, Head) and edge.tag == FEEDBACK else None
        schema = None if loop is None else loop.feedback_schema
    elif isinstance(node.operator, ToColumns):
        schema = node.operator.schema
    elif isinstance(node.operator, Source):
        schema = getattr(node.operator.source, "schema", None)
        if isinstance(schema, pa.Schema) and has_nulls(schema):
            return None  # a column of nulls in the first file may have a type in other files
        schema = schema or others(node, None)
    elif isinstance(node.operator, Select):
        given = declared_before(node_of, node.inputs, others)
        schema = None if given is None else selected_schema(node.operator, given)
        if schema is not None and has_nulls(schema) and not has_nulls(given):
            return None  # a constant None has no type yet
    elif isinstance(node.operator, JOINS):
        schema = _schema_of_join(node_of, node, others)
    elif isinstance(node.operator, PASSING):
        return declared_before(node_of, node.inputs, others)
    elif isinstance(node.operator, Head) and node.form == "columns":
        # Feedback is converted to this schema (`api.loops.loops`).
        return declared_before(node_of, [one for one in node.inputs if one.port == 0], others)
    else:
        schema = others(node, declared_before(node_of, node.inputs, others))
    return plain_schema(schema) if isinstance(schema, pa.Schema) else None


def _schema_of_join(node_of: NodeOf, node: Node, others: Others) -> pa.Schema | None:
    """The schema of the results of a join in columns."""
    operator = node.operator
    assert isinstance(operator, JOINS)
    if operator.suffixes is None:
        return None
    first, second = (
        declared_before(node_of, [edge for edge in node.inputs if edge.port == port], others) for port in (0, 1)
    )
    if first is None or operator.how in ("semi", "anti"):
        return first
    if second is None:
        return None
    keys = key_columns(operator.keys[0]), key_columns(operator.keys[1])
    if operator.how == "group":
        return grouped_schema(keys, first, second)
    columns = joined_columns(first.names, second.names, keys, operator.suffixes)
    return joined_schema(columns, first, second)


def selected_schema(operator: Select, schema: pa.Schema) -> pa.Schema:
    """The schema of the output of a `select` over batches of `schema`. Raises what its expressions raise."""
    fields = {field.name: field for field in schema} if operator.keeps else {}
    for name, expression in operator.columns:
        if isinstance(expression, str) and expression in schema.names:
            fields[name] = schema.field(expression).with_name(name)
        else:
            fields[name] = pa.field(name, Formula(expression).type_in(schema))
    return pa.schema(list(fields.values()))


def declared_behind(graph: Graph, ident: int, tag: str | None = None) -> bool:
    """True if every consumer of a node's output, or of its side output `tag`, converts it to a declared schema."""
    takers = [(node, edge) for node in graph.nodes for edge in node.inputs if (edge.source, edge.tag) == (ident, tag)]
    return all(
        isinstance(node.operator, ToColumns)
        or (isinstance(node.operator, Sink) and isinstance(getattr(node.operator.sink, "schema", None), pa.Schema))
        or (isinstance(node.operator, PASSING) and declared_behind(graph, node.id))
        for node, _ in takers
    )
