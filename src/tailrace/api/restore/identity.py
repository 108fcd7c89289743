"""The identity of a dataflow, which distinguishes a repeated start of a job from another job of that name."""

from __future__ import annotations

from tailrace.api.restore.compatibility import declared_tables
from tailrace.api.restore.kinds import kind_of, shape_of
from tailrace.graph.graph import Graph, Node
from tailrace.graph.operators import Sink, Source
from tailrace.state.end_mark import OperatorIdentity
from tailrace.state.operator_state import declared_operator_states


def dataflow_of(graph: Graph) -> tuple[OperatorIdentity, ...]:
    """The identities of a dataflow's sources, sinks and operators with state."""
    return tuple(
        OperatorIdentity(node.uid if node.uid_given else "", kind_of(node.operator), _details(node), node.name)
        for node in graph.nodes
        if _identifies(node)
    )


def _identifies(node: Node) -> bool:
    if isinstance(node.operator, Source | Sink) or declared_tables(node):
        return True
    function = getattr(node.operator, "fn", None)
    return function is not None and bool(declared_operator_states(function))


def _details(node: Node) -> list[str]:
    operator = node.operator
    if isinstance(operator, Source):
        return [type(operator.source).__qualname__]
    if isinstance(operator, Sink):
        place = operator.sink.place
        return [type(operator.sink).__qualname__, *([] if place is None else [place])]
    return shape_of(operator)
