"""Loops in a plan: the shuffle that moves onto the edges into a head, the ways of event time, the conditions of rounds."""

from __future__ import annotations

from dataclasses import replace

from tailrace.errors import GraphError
from tailrace.graph.graph import Edge, Graph, Node, unbounded_before
from tailrace.graph.operators import (
    FEEDBACK,
    MARKERS,
    AssignTimestamps,
    Broadcast,
    EnterLoop,
    Forward,
    Hash,
    Head,
    LeaveLoop,
    Rounds,
    Tail,
)
from tailrace.graph.scope import StreamScope


def hoist_shuffles(graph: Graph) -> Graph:
    """The graph with one shuffle less for each lap of a loop if the only consumer of its head reads by a key.

    The head then gets its records by that key, from outside and from its tail, and forwards them i to i to its consumer.
    So each record is in the subtask of its key when it is in the head: the loop keeps the order of a key's records, and
    feedback waits beside the state of its key.
    """
    inputs = {node.id: node.inputs for node in graph.nodes}
    for head in graph.nodes:
        if isinstance(head.operator, Head):
            _hoist(graph, head, head.operator, inputs)
    return Graph(tuple(replace(node, inputs=inputs[node.id]) for node in graph.nodes), graph.max_parallelism)


def names_of_loops(graph: Graph) -> dict[StreamScope, str]:
    """The names of all loops of a graph, by their scopes."""
    return {node.scope: node.name for node in graph.nodes if isinstance(node.operator, Head)}


def _hoist(graph: Graph, head: Node, operator: Head, inputs: dict[int, tuple[Edge, ...]]) -> None:
    by_key = _only_key(graph, head, None)
    fed_by_key = _only_key(graph, head, FEEDBACK) if operator.loop.separate else by_key
    if by_key is None or fed_by_key is None or _is_broadcast(graph, head):
        return
    inputs[head.id] = tuple(replace(edge, partitioning=by_key) for edge in inputs[head.id])
    for node in graph.nodes:
        if isinstance(node.operator, Tail) and node.scope == head.scope:
            edges = inputs[node.id]
            inputs[node.id] = tuple(e if e.tag == MARKERS else replace(e, partitioning=fed_by_key) for e in edges)
    for target, edge in _consumers(graph, head):
        inputs[target.id] = tuple(replace(e, partitioning=Forward()) if e == edge else e for e in inputs[target.id])


def _is_broadcast(graph: Graph, head: Node) -> bool:
    """True if records are broadcast to the head or its tail: each subtask gets a copy. By a key only one subtask would."""
    into = [n for n in graph.nodes if n is head or (isinstance(n.operator, Tail) and n.scope == head.scope)]
    return any(isinstance(edge.partitioning, Broadcast) for node in into for edge in node.inputs)


def _only_key(graph: Graph, head: Node, tag: str | None) -> Hash | None:
    """The key partitioning by which the only consumer of the head's output, or of its side output `tag`, reads. None if
    there are several consumers, or it reads otherwise or at another parallelism."""
    consumers = [(node, edge) for node, edge in _consumers(graph, head) if edge.tag == tag]
    if len(consumers) != 1:
        return None
    node, edge = consumers[0]
    fits = isinstance(edge.partitioning, Hash) and node.parallelism == head.parallelism
    return edge.partitioning if fits else None  # type: ignore[return-value]


def _consumers(graph: Graph, head: Node) -> list[tuple[Node, Edge]]:
    """The edges by which records leave the head, with the nodes that hold the edges."""
    return [(n, e) for n in graph.nodes for e in n.inputs if e.source == head.id and e.tag != MARKERS]


def lead_out(graph: Graph) -> dict[int, frozenset[StreamScope]]:
    """Node in a loop -> the scopes around it that its records may leave with the event time that they have in the node. If
    every way out of a scope leads through an operator that assigns timestamps, no operator outside needs to wait for the
    event time of the nodes before it."""
    found: dict[int, set[StreamScope]] = {}
    tails = tails_of(graph)
    for leave in graph.nodes:
        if isinstance(leave.operator, LeaveLoop):
            _lead_out(graph, leave, leave.operator.loop.scope, tails, found)
    return {node: frozenset(scopes) for node, scopes in found.items()}


def time_begins(graph: Graph) -> frozenset[int]:
    """The nodes at which event time begins for a loop: heads and entries into which a stream with timestamps comes, and
    operators that assign the first timestamps to a stream without. Later operators may assign another time, which is
    independent of the time before."""
    timed: set[int] = set()
    """Nodes whose input has event time."""
    found: set[int] = set()
    for node in graph.nodes:
        if any(isinstance(graph.node(e.source).operator, AssignTimestamps) or e.source in timed for e in node.inputs):
            timed.add(node.id)
        begins = Head | EnterLoop if node.id in timed else AssignTimestamps
        if isinstance(node.operator, begins):
            found.add(node.id)
    return frozenset(found)


def tails_of(graph: Graph) -> dict[StreamScope, list[int]]:
    """Scope of a loop that has feedback -> its tail."""
    tails: dict[StreamScope, list[int]] = {}
    for node in graph.nodes:
        if isinstance(node.operator, Tail):
            tails.setdefault(node.scope, []).append(node.id)
    return tails


def _lead_out(
    graph: Graph,
    leave: Node,
    scope: StreamScope,
    tails: dict[StreamScope, list[int]],
    found: dict[int, set[StreamScope]],
) -> None:
    open_ = [edge.source for edge in leave.inputs]
    while open_:
        node = graph.node(open_.pop())
        scopes = found.setdefault(node.id, set())
        if scope in scopes or not (node.scope == scope or node.scope.is_inner_of(scope)):
            continue
        scopes.add(scope)
        if not isinstance(node.operator, AssignTimestamps):
            open_ += [edge.source for edge in node.inputs if edge.tag != MARKERS]
            open_ += tails.get(node.scope, []) if isinstance(node.operator, Head) else []


def check_rounds(graph: Graph) -> None:
    """Raises `GraphError` for a loop in rounds that is inside another loop, contains one, or gets records of an unbounded
    source and does not go by spans of event time: its first round would never be over."""
    heads = {node.scope: node for node in graph.nodes if isinstance(node.operator, Head)}
    for scope, head in heads.items():
        rounds = rounds_of(head)
        if rounds is None:
            continue
        if scope.level > 1:
            raise GraphError(rounds_inside(head.name, heads[scope.unnest()].name if scope.unnest() in heads else ""))
        for other in heads:
            if other.is_inner_of(scope):
                raise GraphError(rounds_inside(heads[other].name, head.name))
        inside = [node for node in graph.nodes if node.scope >= scope]
        source = None if rounds.span is not None else unbounded_before(graph.node, [node.id for node in inside])
        if source is not None:
            raise GraphError(rounds_unbounded(head.name, source.name))


def rounds_of(head: Node) -> Rounds | None:
    """The rounds of the head's loop; None if it does not run in rounds."""
    return head.operator.loop.rounds if isinstance(head.operator, Head) else None


def rounds_inside(inner: str, outer: str) -> str:
    """The text of the error for two loops, one in the other, of which one runs in rounds."""
    where = f" {outer!r}" if outer else " another"
    return (
        f"loop {inner!r} is inside loop{where}, and a loop with rounds can neither be in a loop nor contain one; leave "
        f"rounds= out, or write the loops one after the other"
    )


def rounds_unbounded(loop: str, source: str) -> str:
    """The text of the error for a loop in rounds whose first round would never end."""
    return (
        f"loop {loop!r}: source {source!r} is unbounded, so the first round would never end; leave rounds= out, or use "
        f"bounded sources, or give each span of event time rounds of its own, as in tr.Rounds(span='1 hour')"
    )
