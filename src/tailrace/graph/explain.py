"""A plan for users: as text and as a Mermaid flowchart. Loops are boxes; edges that carry only markers are left out."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.graph.operators import MARKERS, EnterLoop, Head, Judge, LeaveLoop, Loop, Tail
from tailrace.graph.plan import Plan, PlanEdge, Vertex
from tailrace.graph.scope import NO_LOOP, StreamScope
from tailrace.passwords import hide_passwords


def as_text(plan: Plan) -> str:
    """The plan as indented text: slots, loops, vertices with their chains, edges with their channels."""
    channels = sum(plan.channel_count(edge) for edge in _record_edges(plan.edges))
    lines = [
        f"{plan.slots} slot(s), {len(plan.vertices)} vertices, {plan.subtasks} subtasks, {channels} channels, "
        f"{plan.graph.max_parallelism} key groups"
    ]
    lines.extend(_text_of(plan, NO_LOOP))
    return hide_passwords("\n".join(lines) + "\n")


def _text_of(plan: Plan, scope: StreamScope) -> Iterator[str]:
    for item in _items(plan, scope):
        if isinstance(item, StreamScope):
            yield _loop_text(plan, item)
            yield from (f"  {line}" for line in _text_of(plan, item))
        else:
            yield from _vertex_text(plan, item)


def _vertex_text(plan: Plan, vertex: Vertex) -> Iterator[str]:
    yield f"[{vertex.id}] x{vertex.parallelism}"
    for ident in vertex.nodes:
        node = plan.graph.node(ident)
        uid = f"  uid={node.uid}" if node.uid_given else ""
        yield f"      {node.name}  ({node.form}){uid}"
    yield from (f"    <- {_edge_text(plan, edge)}" for edge in _record_edges(plan.edges_into(vertex.id)))
    yield from (f"    feedback -> [{head}]" for tail, head in _feedback(plan) if tail == vertex.id)


def as_mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart: a box per vertex and around each loop, an arrow per edge, dotted for feedback."""
    lines = ["flowchart LR", *(f"  {line}" for line in _mermaid_of(plan, NO_LOOP))]
    for edge in _record_edges(plan.edges):
        lines.append(f'  v{edge.source} -->|"{_escape(_edge_label(edge))}"| v{edge.target}')
    lines.extend(f"  v{tail} -.->|feedback| v{head}" for tail, head in _feedback(plan))
    return hide_passwords("\n".join(lines) + "\n")


def _mermaid_of(plan: Plan, scope: StreamScope) -> Iterator[str]:
    for item in _items(plan, scope):
        if isinstance(item, StreamScope):
            first = min(vertex.id for vertex in plan.vertices if vertex.scope >= item)
            yield f'subgraph l{item.level}v{first}["{_escape(_loop_text(plan, item))}"]'
            yield from (f"  {line}" for line in _mermaid_of(plan, item))
            yield "end"
        else:
            label = "<br/>".join(_escape(plan.graph.node(ident).name) for ident in item.nodes)
            yield f'v{item.id}["{label}<br/>x{item.parallelism}"]'


def _items(plan: Plan, scope: StreamScope) -> list[Vertex | StreamScope]:
    """The items directly in a scope: its own vertices, and each loop in it at the position of the loop's first vertex."""
    items: dict[Vertex | StreamScope, None] = {}
    for vertex in plan.vertices:
        if vertex.scope >= scope:
            items[vertex if vertex.scope == scope else vertex.scope.at_level(scope.level + 1)] = None
    return list(items)


def _loop_text(plan: Plan, scope: StreamScope) -> str:
    loop = loops_of(plan)[scope]
    if loop.rounds is None:
        return f"loop {loop.name}"
    most = "" if loop.rounds.max is None else f", at most {loop.rounds.max}"
    span = "" if loop.rounds.span is None else f" by spans of {loop.rounds.span / 1e6:g} s of event time"
    return f"loop {loop.name}, in rounds{span}{most}"


def loops_of(plan: Plan) -> dict[StreamScope, Loop]:
    """The loops of a plan, by scope."""
    operators = (node.operator for node in plan.graph.nodes)
    return {op.loop.scope: op.loop for op in operators if isinstance(op, Head | Tail | EnterLoop | LeaveLoop | Judge)}


def _feedback(plan: Plan) -> list[tuple[int, int]]:
    """(tail, head): the vertices of each loop's tail and head."""
    roots = [(vertex, plan.graph.node(vertex.nodes[0]).operator) for vertex in plan.vertices]
    heads = {vertex.scope: vertex.id for vertex, operator in roots if isinstance(operator, Head)}
    return [(vertex.id, heads[vertex.scope]) for vertex, operator in roots if isinstance(operator, Tail)]


def _record_edges(edges: list[PlanEdge] | tuple[PlanEdge, ...]) -> list[PlanEdge]:
    """The edges that records travel."""
    return [edge for edge in edges if edge.tag != MARKERS]


def _edge_text(plan: Plan, edge: PlanEdge) -> str:
    source: Vertex = plan.vertices[edge.source]
    count = plan.channel_count(edge)
    return f"[{source.id}] {plan.graph.node(edge.source_node).name}  {_edge_label(edge)}, {count} channel(s)"


def _edge_label(edge: PlanEdge) -> str:
    tag = f"side output {edge.tag}, " if edge.tag is not None else ""
    port = f", input {edge.port + 1}" if edge.port else ""
    return f"{tag}{edge.partitioning}{port}"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
