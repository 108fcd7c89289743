"""A plan for people: as text and as a Mermaid flowchart."""

from __future__ import annotations

from tailrace.graph.plan import Plan, PlanEdge, Vertex


def as_text(plan: Plan) -> str:
    """The plan as indented text: slots, vertices with their chains, edges with their channels."""
    channels = sum(1 for edge in plan.edges for _ in plan.channels(edge))
    lines = [
        f"{plan.slots} slot(s), {len(plan.vertices)} vertices, {plan.subtasks} subtasks, {channels} channels, "
        f"{plan.graph.max_parallelism} key groups"
    ]
    for vertex in plan.vertices:
        lines.append(f"[{vertex.id}] x{vertex.parallelism}")
        for ident in vertex.nodes:
            node = plan.graph.node(ident)
            uid = f"  uid={node.uid}" if node.uid_given else ""
            lines.append(f"      {node.name}  ({node.form}){uid}")
        lines.extend(f"    <- {_edge_text(plan, edge)}" for edge in plan.edges_into(vertex.id))
    return "\n".join(lines) + "\n"


def as_mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart: a box per vertex, an arrow per edge."""
    lines = ["flowchart LR"]
    for vertex in plan.vertices:
        label = "<br/>".join(_escape(plan.graph.node(ident).name) for ident in vertex.nodes)
        lines.append(f'  v{vertex.id}["{label}<br/>x{vertex.parallelism}"]')
    for edge in plan.edges:
        lines.append(f'  v{edge.source} -->|"{_escape(_edge_label(edge))}"| v{edge.target}')
    return "\n".join(lines) + "\n"


def _edge_text(plan: Plan, edge: PlanEdge) -> str:
    source: Vertex = plan.vertices[edge.source]
    count = sum(1 for _ in plan.channels(edge))
    return f"[{source.id}] {plan.graph.node(edge.source_node).name}  {_edge_label(edge)}, {count} channel(s)"


def _edge_label(edge: PlanEdge) -> str:
    tag = f"side output {edge.tag}, " if edge.tag is not None else ""
    port = f", input {edge.port + 1}" if edge.port else ""
    return f"{tag}{edge.partitioning}{port}"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
