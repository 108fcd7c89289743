"""The graph of a job as a part of its snapshot: operators, edges, and loops as nested boxes."""

from __future__ import annotations

import re

from tailrace.coordinator.view.snapshot import GraphEdge, GraphOperator, GraphScope, GraphShape
from tailrace.graph.graph import Node
from tailrace.graph.operators import MARKERS, EnterLoop, Head, Judge, LeaveLoop, Loop, Sink, Source, Tail
from tailrace.graph.plan import Plan, physical
from tailrace.graph.scope import StreamScope
from tailrace.passwords import hide_passwords

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def shape_of(plan: Plan) -> GraphShape:
    """The graph of a plan. Edges that carry only markers are left out."""
    graph = plan.graph
    chains = {node: vertex.id for vertex in plan.vertices for node in vertex.nodes}
    edges = [
        GraphEdge(
            graph.node(edge.source).uid,
            node.uid,
            str(physical(edge.partitioning, graph.node(edge.source), node)),
            chained=chains[edge.source] == chains[node.id],
            port=edge.port,
            tag=edge.tag,
        )
        for node in graph.nodes
        for edge in node.inputs
        if edge.tag != MARKERS
    ]
    heads = {node.scope: node for node in graph.nodes if isinstance(node.operator, Head)}
    tails = [node for node in graph.nodes if isinstance(node.operator, Tail)]
    feedback = [GraphEdge(node.uid, heads[node.scope].uid, "forward", feedback=True) for node in tails]
    return GraphShape([_operator(node, chains[node.id]) for node in graph.nodes], edges + feedback, _scopes(plan))


def _operator(node: Node, chain: int) -> GraphOperator:
    operator = node.operator
    described = ""
    if isinstance(operator, Source):
        described = operator.source.description
    elif isinstance(operator, Sink):
        described = operator.sink.description
    kind = _HUMP.sub("_", type(operator).__name__).lower()
    return GraphOperator(
        node.uid,
        hide_passwords(node.name),
        kind,
        node.parallelism,
        chain,
        str(node.scope),
        str(node.form),
        node.written,
        hide_passwords(described),
    )


def _scopes(plan: Plan) -> list[GraphScope]:
    loops = loops_of(plan)
    return [_scope(loops[scope]) for scope in sorted(loops, key=lambda scope: (scope.level, str(scope)))]


def _scope(loop: Loop) -> GraphScope:
    rounds = loop.rounds
    limit = None if rounds is None else rounds.max
    return GraphScope(str(loop.scope), str(loop.scope.unnest()), loop.name, rounds is not None, limit)


def loops_of(plan: Plan) -> dict[StreamScope, Loop]:
    """The loops of a plan, by scope."""
    operators = (node.operator for node in plan.graph.nodes)
    return {op.loop.scope: op.loop for op in operators if isinstance(op, Head | Tail | EnterLoop | LeaveLoop | Judge)}
