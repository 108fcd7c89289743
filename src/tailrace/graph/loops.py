"""Loops in a plan: the shuffle that moves onto the edges into a head, and the conditions of rounds."""

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


def hoisted(graph: Graph) -> Graph:
    """The graph with one shuffle less for each lap of a loop whose head has a key's consumer only.

    Such a head gets its records by that key, from outside and from its tail, and its consumer gets them i to i. So each
    record is where its key is when it is in the head: the order of a key's records is kept around the loop, and
    feedback waits beside the state of its key.
    """
    inputs = {node.id: node.inputs for node in graph.nodes}
    for head in graph.nodes:
        if isinstance(head.operator, Head):
            _hoist(graph, head, head.operator, inputs)
    return Graph(tuple(replace(node, inputs=inputs[node.id]) for node in graph.nodes), graph.max_parallelism)


def _hoist(graph: Graph, head: Node, operator: Head, inputs: dict[int, tuple[Edge, ...]]) -> None:
    by_key = _only_key(graph, head, None)
    fed_by_key = _only_key(graph, head, FEEDBACK) if operator.loop.separate else by_key
    if by_key is None or fed_by_key is None or _multiplied(graph, head):
        return
    inputs[head.id] = tuple(replace(edge, partitioning=by_key) for edge in inputs[head.id])
    for node in graph.nodes:
        if isinstance(node.operator, Tail) and node.scope == head.scope:
            edges = inputs[node.id]
            inputs[node.id] = tuple(e if e.tag == MARKERS else replace(e, partitioning=fed_by_key) for e in edges)
    for target, edge in _consumers(graph, head):
        inputs[target.id] = tuple(replace(e, partitioning=Forward()) if e == edge else e for e in inputs[target.id])


def _multiplied(graph: Graph, head: Node) -> bool:
    """Whether records come into the head or its tail once for each subtask: by a key they would come once in all."""
    into = [n for n in graph.nodes if n is head or (isinstance(n.operator, Tail) and n.scope == head.scope)]
    return any(isinstance(edge.partitioning, Broadcast) for node in into for edge in node.inputs)


def _only_key(graph: Graph, head: Node, tag: str | None) -> Hash | None:
    """How the head's only consumer wants its records (or those of the side output `tag`): by a key, or None."""
    consumers = [(node, edge) for node, edge in _consumers(graph, head) if edge.tag == tag]
    if len(consumers) != 1:
        return None
    node, edge = consumers[0]
    fits = isinstance(edge.partitioning, Hash) and node.parallelism == head.parallelism
    return edge.partitioning if fits else None  # type: ignore[return-value]


def _consumers(graph: Graph, head: Node) -> list[tuple[Node, Edge]]:
    """The edges that records leave the head by, with the nodes that hold them."""
    return [(n, e) for n in graph.nodes for e in n.inputs if e.source == head.id and e.tag != MARKERS]


def lead_out(graph: Graph) -> dict[int, frozenset[StreamScope]]:
    """For each node in a loop the scopes around it that its records may leave with the event time that they have in it.
    Where each way out of a scope leads through an operator that assigns timestamps, nobody needs to wait for the event time
    of those before it."""
    found: dict[int, set[StreamScope]] = {}
    tails = tails_of(graph)
    for leave in graph.nodes:
        if isinstance(leave.operator, LeaveLoop):
            _lead_out(graph, leave, leave.operator.loop.scope, tails, found)
    return {node: frozenset(scopes) for node, scopes in found.items()}


def time_begins(graph: Graph) -> frozenset[int]:
    """Where event time begins for a loop: where a stream with timestamps comes in, and at operators that assign the first
    ones to one without. Those behind them may assign another time, which says nothing of that before."""
    timed: set[int] = set()
    """Nodes that event time comes to."""
    found: set[int] = set()
    for node in graph.nodes:
        if any(isinstance(graph.node(e.source).operator, AssignTimestamps) or e.source in timed for e in node.inputs):
            timed.add(node.id)
        begins = Head | EnterLoop if node.id in timed else AssignTimestamps
        if isinstance(node.operator, begins):
            found.add(node.id)
    return frozenset(found)


def tails_of(graph: Graph) -> dict[StreamScope, list[int]]:
    """The tail of each loop that has feedback, by the loop's scope."""
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
    """Raises `GraphError` for a loop in rounds that is inside another, has others inside, or gets records of a source that
    never ends: then no round would ever be over."""
    heads = {node.scope: node for node in graph.nodes if isinstance(node.operator, Head)}
    for scope, head in heads.items():
        if not rounds_of(head):
            continue
        if scope.level > 1:
            raise GraphError(rounds_inside(head.name, heads[scope.unnest()].name if scope.unnest() in heads else ""))
        for other in heads:
            if other.is_inner_of(scope):
                raise GraphError(rounds_inside(heads[other].name, head.name))
        source = unbounded_before(graph.node, [node.id for node in graph.nodes if node.scope >= scope])
        if source is not None:
            raise GraphError(rounds_unbounded(head.name, source.name))


def rounds_of(head: Node) -> Rounds | None:
    """The rounds of the head's loop, where it runs in rounds."""
    return head.operator.loop.rounds if isinstance(head.operator, Head) else None


def rounds_inside(inner: str, outer: str) -> str:
    """The text for two loops, one in the other, of which one runs in rounds."""
    where = f" {outer!r}" if outer else " another"
    return (
        f"loop {inner!r} is inside loop{where}, and a loop with rounds can neither be in a loop nor contain one; leave "
        f"rounds= out, or write the loops one after the other"
    )


def rounds_unbounded(loop: str, source: str) -> str:
    """The text for a loop in rounds whose first round would never end."""
    return (
        f"loop {loop!r}: source {source!r} is unbounded, so the first round would never end; leave rounds= out, or use "
        f"bounded sources"
    )
