"""The physical plan of a graph: chains of operators (vertices), their subtasks, and the channels between them.

An edge is chained if it forwards i to i at equal parallelism, in one scope, into an operator with no other input: the
two operators then run in one step without a channel. A vertex is a tree of chained operators with one root. Worker slot
*i* hosts the slice *i*: subtask *i* of every vertex that has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from tailrace.elements.frame_codec import ChannelId, ChannelName
from tailrace.graph.graph import Graph, Node
from tailrace.graph.loops import check_rounds, hoist_shuffles, lead_out, names_of_loops, tails_of, time_begins
from tailrace.graph.operators import Forward, Head, MapAsync, Partitioning, Rebalance, Rescale, Rounds
from tailrace.graph.scope import NO_LOOP, StreamScope


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
    """A link inside a vertex: records of node `source` (or its side output `tag`) go straight to node `target`."""

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
    scope: StreamScope = NO_LOOP


@dataclass(frozen=True)
class Nest:
    """An outermost loop with all that is in it: the unit of termination."""

    id: int
    scope: StreamScope
    """Scope of the outermost loop, of level 1."""
    vertices: frozenset[int]
    entries: frozenset[int]
    """The vertices of the nest that get records only from outside: none of their edges comes from inside."""
    slots: int
    """Number of slots with a part of the nest: slots 0 to `slots` - 1."""
    rounds: Rounds | None = None
    """Rounds of the outermost loop; None if it does not run in rounds."""


@dataclass(frozen=True)
class Plan:
    """The physical plan of one graph."""

    graph: Graph
    vertices: tuple[Vertex, ...]
    edges: tuple[PlanEdge, ...]
    nests: tuple[Nest, ...] = ()
    written: Graph | None = field(default=None, compare=False, repr=False)
    """The graph as the user has written it, from which plans of other sizes are made (`graph.sizes`). Workers need none."""

    @property
    def slots(self) -> int:
        """The number of workers that the plan needs: one per slice."""
        return max(vertex.parallelism for vertex in self.vertices)

    @cached_property
    def subtasks(self) -> int:
        """The number of all subtasks."""
        return sum(vertex.parallelism for vertex in self.vertices)

    def nest_of(self, vertex: int) -> Nest | None:
        """The nest that this vertex is in, or None."""
        return self._nest_of.get(vertex)

    @cached_property
    def _nest_of(self) -> dict[int, Nest]:
        return {vertex: nest for nest in self.nests for vertex in nest.vertices}

    @cached_property
    def tails(self) -> dict[StreamScope, list[int]]:
        """Scope of a loop that has feedback -> its tail."""
        return tails_of(self.graph)

    @cached_property
    def loops(self) -> dict[StreamScope, str]:
        """The names of the loops, by their scopes."""
        return names_of_loops(self.graph)

    @cached_property
    def leads_out(self) -> dict[str, frozenset[StreamScope]]:
        """Uid of an operator in a loop -> the scopes that wait for its event time: see `graph.loops.lead_out`."""
        return {self.graph.node(node).uid: scopes for node, scopes in lead_out(self.graph).items()}

    @cached_property
    def time_begins(self) -> frozenset[str]:
        """Uids of the operators at which event time begins for a loop: see `graph.loops.time_begins`."""
        return frozenset(self.graph.node(node).uid for node in time_begins(self.graph))

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

    def sources(self, edge: PlanEdge, target: int) -> range:
        """The subtasks of the edge's source that may send to subtask `target`."""
        senders, receivers = self.vertices[edge.source].parallelism, self.vertices[edge.target].parallelism
        if isinstance(edge.partitioning, Forward):
            return range(target, target + 1)
        if isinstance(edge.partitioning, Rescale):
            return _share(target, receivers, senders)  # a share is symmetric: senders and receivers can be swapped
        return range(senders)

    def channel_count(self, edge: PlanEdge) -> int:
        """The number of channels of an edge."""
        return sum(len(self.targets(edge, source)) for source in range(self.vertices[edge.source].parallelism))

    @cached_property
    def most_channels(self) -> int:
        """The largest number of channels that lead into one slot. They are counted edge by edge: a job of a thousand
        workers has millions of channels."""
        into = [0] * self.slots
        for edge in self.edges:
            for target in range(self.vertices[edge.target].parallelism):
                into[target] += len(self.sources(edge, target))
        return max(into)

    def peers(self, slot: int) -> set[int]:
        """The slots that `slot` has channels with, except itself."""
        found: set[int] = set()
        for edge in self.edges:
            if slot < self.vertices[edge.source].parallelism:
                found.update(self.targets(edge, slot))
            if slot < self.vertices[edge.target].parallelism:
                found.update(self.sources(edge, slot))
        return found - {slot}

    def name_of(self, channel: ChannelId) -> ChannelName:
        """The name of a channel in checkpoints, which outlive this plan: it names the operators at both ends."""
        edge = self.edges[channel.edge]
        place = edge.source_node, edge.tag, edge.port
        alike = [e.id for e in self.edges_into(edge.target) if (e.source_node, e.tag, e.port) == place]
        source, target = self.graph.node(edge.source_node), self.graph.node(self.vertices[edge.target].nodes[0])
        return ChannelName(
            source.uid, edge.tag, target.uid, edge.port, alike.index(edge.id), channel.source, channel.target
        )


def _share(source: int, senders: int, receivers: int) -> range:
    """The contiguous share of the receivers that belongs to one sender; each receiver has a sender and vice versa."""
    if senders >= receivers:
        target = source * receivers // senders
        return range(target, target + 1)
    return range(-(-source * receivers // senders), -(-(source + 1) * receivers // senders))


def make_plan(graph: Graph) -> Plan:
    """The plan of a graph: chains its operators, and numbers vertices and edges. A pure function: equal graphs give equal
    plans. Raises `GraphError` for loops in rounds that cannot run."""
    check_rounds(graph)
    written, graph = graph, hoist_shuffles(graph)
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
    return Plan(graph, vertices, tuple(edges), _nests(graph, vertices, edges), written)


def physical(partitioning: Partitioning, source: Node, target: Node) -> Partitioning:
    """The partitioning of an edge between these nodes: forwarding between unequal parallelisms becomes a rebalance."""
    if isinstance(partitioning, Forward) and source.parallelism != target.parallelism:
        return Rebalance()
    return partitioning


def _chainable(graph: Graph, node: Node) -> bool:
    if len(node.inputs) != 1 or isinstance(node.operator, MapAsync):
        return False  # calls under way hold up the input of their task, and no operator before them
    edge = node.inputs[0]
    source = graph.node(edge.source)
    forwards = isinstance(edge.partitioning, Forward) and source.parallelism == node.parallelism
    return forwards and source.scope == node.scope


def _chain(graph: Graph) -> dict[int, int]:
    """Node -> the root of the vertex that it runs in."""
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
        first = nodes[0]
        vertices.append(Vertex(len(vertices), tuple(n.id for n in nodes), links, first.parallelism, name, first.scope))
    return tuple(vertices)


def _nests(graph: Graph, vertices: tuple[Vertex, ...], edges: list[PlanEdge]) -> tuple[Nest, ...]:
    """The outermost loops, in the order of their first vertices."""
    inside: dict[StreamScope, set[int]] = {}
    for vertex in vertices:
        if vertex.scope.level:
            inside.setdefault(vertex.scope.at_level(1), set()).add(vertex.id)
    rounds = {n.scope: n.operator.loop.rounds for n in graph.nodes if isinstance(n.operator, Head)}
    nests: list[Nest] = []
    for scope, members in inside.items():
        fed_from_inside = {edge.target for edge in edges if edge.source in members}
        slots = max(vertices[ident].parallelism for ident in members)
        entries = frozenset(members - fed_from_inside)
        nests.append(Nest(len(nests), scope, frozenset(members), entries, slots, rounds.get(scope)))
    return tuple(nests)
