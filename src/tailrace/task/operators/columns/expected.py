"""Schema of a stream in columns to which no record came, from what operators make of a batch without records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.batches import Columns
from tailrace.graph.declared import declared_before
from tailrace.graph.graph import Graph, Node
from tailrace.graph.operators import FIRING_COLUMNS, Aggregate, SessionWindow, Source, Window
from tailrace.task.operators.aggregates.arrow import GroupedBatch
from tailrace.task.operators.windows.firing import bound_type
from tailrace.task.operators.windows.triggered import FIRING_TYPES


def expected_schema(graph: Graph, node: Node) -> pa.Schema | None:
    """Columns that come to a node, if the dataflow and its sources determine them; None behind `map_batches`, whose
    columns depend on its function. Raises an error of Arrow for columns that do not fit their operators."""
    nodes = {one.id: one for one in graph.nodes}
    return declared_before(nodes.__getitem__, node.inputs, _make)


def _make(node: Node, given: pa.Schema | None) -> pa.Schema | None:
    operator = node.operator
    if isinstance(operator, Source):
        found = getattr(operator.source, "expected_schema", None)
        return found if isinstance(found, pa.Schema) else None
    if given is None or node.form != "columns" or not isinstance(operator, Aggregate | Window | SessionWindow):
        return None
    nothing = Columns(pa.RecordBatch.from_arrays([pa.array([], kind) for kind in given.types], schema=given))
    windows = None if isinstance(operator, Aggregate) else np.empty(0, np.int64)
    nobody: Any = SimpleNamespace(node=node, ctx=SimpleNamespace(subtask=0), user_error=_error_of)
    grouped = GroupedBatch.of(nobody, nothing, operator.key, [one for _, one in operator.aggregates], windows)
    fields = [pa.field(name, one.type) for name, one in zip(grouped.key_names, grouped.key_columns, strict=True)]
    if windows is not None:
        assert isinstance(operator, Window | SessionWindow)
        fields += [pa.field(name, bound_type(operator.bounds)) for name in ("start", "end")]
    names = [name for name, _ in operator.aggregates]
    fields += [pa.field(name, kind) for name, kind in zip(names, grouped.result_types, strict=True)]
    if isinstance(operator, Window) and operator.triggers is not None:
        fields += [pa.field(*one) for one in zip(FIRING_COLUMNS, FIRING_TYPES, strict=True)]
    return pa.schema(fields)


def _error_of(error: Exception, what: str = "") -> Exception:
    return error
