"""From a graph to what runs: chains of operators (vertices), their subtasks, and the channels between them.

An edge is chained when it forwards i to i at equal parallelism into an operator with no other input: the two operators
then run in one step without a channel. A vertex is a tree of chained operators with one root. Worker slot *i* hosts the
slice *i*: subtask *i* of every vertex that has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tailrace.elements.frames import ChannelId
from tailrace.graph.graph import Graph, Node
from tailrace.graph.operators import Forward, Partitioning, Rebalance, Rescale


@dataclass(frozen=True)
class PlanEdge:
    """An edge between two vertices: from operator `source_node` (or its side output `tag`) to `port` of `target`."""

    id: int
    source: int
    source_node: int
    tag: str | None
    target: int
    port: int
    partitioning: Partitioning


@dataclass(frozen=True)
class ChainLink:
    """Inside a vertex: the records of node `source` (or its side output `tag`) go straight to node `target`."""

    source: int
    tag: str | None
    target: int


@dataclass(frozen=True)
class Vertex:
    """A tree of chained operators: `nodes` in topological order, the root first."""

    id: int
    nodes: tuple[int, ...]
    links: tuple[ChainLink, ...]
    parallelism: int
    name: str


@dataclass(frozen=True)
class Plan:
    """The physical plan of one graph."""

    graph: Graph
    vertices: tuple[Vertex, ...]
    edges: tuple[PlanEdge, ...]

    @property
    def slots(self) -> int:
        """How many workers the plan needs: one per slice."""
        return max(vertex.parallelism for vertex in self.vertices)

    @cached_property
    def subtasks(self) -> int:
        """How many subtasks there are in all."""
        return sum(vertex.parallelism for vertex in self.vertices)

    def edges_into(self, vertex: int) -> list[PlanEdge]:
        """The edges whose target is this vertex, in the order of their ids."""
        return [edge for edge in self.edges if edge.target == vertex]

    def edges_out_of(self, vertex: int) -> list[PlanEdge]:
        """The edges whose source is this vertex, in the order of their ids."""
        return [edge for edge in self.edges if edge.source == vertex]

    def targets(self, edge: PlanEdge, source: int) -> range:
        """The subtasks of the edge's target that subtask `source` may send to."""
        senders, receivers = self.vertices[edge.source].parallelism, self.vertices[edge.target].parallelism
        if isinstance(edge.partitioning, Forward):
            return range(source, source + 1)
        if isinstance(edge.partitioning, Rescale):
            return _share(source, senders, receivers)
        return range(receivers)

    def sources(self, edge: PlanEdge, target: int) -> list[int]:
        """The subtasks of the edge's source that may send to subtask `target`."""
        return [s for s in range(self.vertices[edge.source].parallelism) if target in self.targets(edge, s)]

    def channels(self, edge: PlanEdge) -> Iterator[ChannelId]:
        """Every channel of an edge."""
        for source in range(self.vertices[edge.source].parallelism):
            for target in self.targets(edge, source):
                yield ChannelId(edge.id, source, target)


def _share(source: int, senders: int, receivers: int) -> range:
    """The contiguous share of the receivers that belongs to one sender; each receiver has a sender and vice versa."""
    if senders >= receivers:
        target = source * receivers // senders
        return range(target, target + 1)
    return range(-(-source * receivers // senders), -(-(source + 1) * receivers // senders))


def make_plan(graph: Graph) -> Plan:
    """Chains the graph and numbers what results. A pure function: equal graphs give equal plans."""
    root_of = _chain(graph)
    vertices = _vertices(graph, root_of)
    vertex_of = {node: vertex.id for vertex in vertices for node in vertex.nodes}
    edges: list[PlanEdge] = []
    for node in graph.nodes:
        for edge in node.inputs:
            if root_of[node.id] != node.id:
                continue  # chained: a link inside the vertex, no edge of the plan
            partitioning = physical(edge.partitioning, graph.node(edge.source), node)
            edges.append(
                PlanEdge(
                    len(edges),
                    vertex_of[edge.source],
                    edge.source,
                    edge.tag,
                    vertex_of[node.id],
                    edge.port,
                    partitioning,
                )
            )
    return Plan(graph, vertices, tuple(edges))


def physical(partitioning: Partitioning, source: Node, target: Node) -> Partitioning:
    """What an edge does once parallelisms are known: forwarding between unequal ones becomes a rebalance."""
    if isinstance(partitioning, Forward) and source.parallelism != target.parallelism:
        return Rebalance()
    return partitioning


def _chainable(graph: Graph, node: Node) -> bool:
    if len(node.inputs) != 1:
        return False
    edge = node.inputs[0]
    return isinstance(edge.partitioning, Forward) and graph.node(edge.source).parallelism == node.parallelism


def _chain(graph: Graph) -> dict[int, int]:
    """For every node the root of the vertex it runs in."""
    roots: dict[int, int] = {}
    for node in graph.nodes:
        roots[node.id] = roots[node.inputs[0].source] if _chainable(graph, node) else node.id
    return roots


def _vertices(graph: Graph, root_of: dict[int, int]) -> tuple[Vertex, ...]:
    members: dict[int, list[Node]] = {}
    for node in graph.nodes:
        members.setdefault(root_of[node.id], []).append(node)
    vertices: list[Vertex] = []
    for root, nodes in members.items():
        links = tuple(ChainLink(n.inputs[0].source, n.inputs[0].tag, n.id) for n in nodes if n.id != root)
        name = " -> ".join(n.name for n in nodes)
        vertices.append(Vertex(len(vertices), tuple(n.id for n in nodes), links, nodes[0].parallelism, name))
    return tuple(vertices)
