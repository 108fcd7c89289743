"""The size of a dataflow: the parallelism of its operators, and the plan that another size gives.

The plan of another size is the one that the program would have made with it. So an operator whose parallelism the user gave
keeps it, and the others follow the operators before them, their loop or the environment, as they did when the program was
written (`Node.follows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tailrace.errors import GraphError
from tailrace.graph.graph import Graph, Node, check_parallelism
from tailrace.graph.operators import AssignTimestamps, BroadcastProcess, EnterLoop, Head, Judge, LeaveLoop, Source, Tail
from tailrace.graph.plan import Plan, make_plan
from tailrace.graph.scope import StreamScope

Sizes = int | Mapping[str, int]
"""A size of a job: the parallelism of the environment, or that of some operators by their uids."""


def size_text(sizes: Sizes) -> str:
    """A size in words."""
    return str(sizes) if isinstance(sizes, int) else ", ".join(f"{uid}={count}" for uid, count in sizes.items())


def plan_of_size(plan: Plan, sizes: Sizes) -> Plan:
    """The plan of the same dataflow in another size. Raises `GraphError` for a size that it cannot have."""
    assert plan.written is not None, "a plan that has travelled to a worker has no other size"
    return make_plan(graph_of_size(plan.written, sizes))


def check_elastic(plan: Plan, least: int, most: int) -> None:
    """Raises `GraphError` unless the dataflow can have each parallelism from `least` to `most`, with as many slots."""
    for size in dict.fromkeys((least, most)):
        slots = plan_of_size(plan, size).slots
        own = [node.name for node in plan.graph.nodes if node.follows is None and node.parallelism == slots]
        if slots > size:
            raise GraphError(
                f"Elastic: with a parallelism of {size} the job would need {slots} task slots, because of the parallelism "
                f"of {', '.join(map(repr, own)) or 'its operators'}; leave that out, or set least to {slots} at least"
            )
        if slots < size:
            raise GraphError(
                f"Elastic: no operator of the job follows the parallelism of the environment, and none has more than "
                f"{slots} subtasks; leave parallelism= out where there may be more"
            )


def graph_of_size(graph: Graph, sizes: Sizes) -> Graph:
    """The graph in another size. Raises `GraphError` for one that it cannot have."""
    given = {} if isinstance(sizes, int) else dict(sizes)
    if isinstance(sizes, int):
        check_parallelism(sizes, graph.max_parallelism, "rescale")
    _check_uids(graph, given)
    heads = {node.scope: node.id for node in graph.nodes if isinstance(node.operator, Head)}
    found: dict[int, int] = {}
    for node in graph.nodes:
        if node.uid in given:
            check_parallelism(given[node.uid], graph.max_parallelism, f"rescale: operator {node.name!r}")
            found[node.id] = given[node.uid]
        else:
            found[node.id] = _width(node, found, heads, sizes)
    made = replace(graph, nodes=tuple(replace(node, parallelism=found[node.id]) for node in graph.nodes))
    _check(made)
    return made


def _width(node: Node, found: Mapping[int, int], heads: Mapping[StreamScope, int], sizes: Sizes) -> int:
    if node.follows is None:
        return node.parallelism
    before = {found[one] for one in node.follows}
    if len(before) == 1:
        return before.pop()
    if isinstance(node.operator, LeaveLoop):
        return max(before)
    head = heads.get(node.scope.unnest() if isinstance(node.operator, Head) else node.scope)
    if head is not None:
        return found[head]
    return sizes if isinstance(sizes, int) else node.parallelism


def _check_uids(graph: Graph, given: Mapping[str, int]) -> None:
    named = {node.uid for node in graph.nodes if not isinstance(node.operator, Tail | Judge | EnterLoop | LeaveLoop)}
    unknown = [uid for uid in given if uid not in named]
    if unknown:
        uids = ", ".join(repr(node.uid) for node in graph.nodes if node.uid_given) or "none that was given"
        raise GraphError(f"rescale: no operator of the job has the uid {unknown[0]!r}; its uids are {uids}")


def _check(graph: Graph) -> None:
    """Raises `GraphError` where the dataflow was written for the size that it has."""
    for node in graph.nodes:
        if isinstance(node.operator, AssignTimestamps) and node.operator.max_drift is not None:
            _check_drift(graph, node)
        for edge in node.inputs:
            ordered = isinstance(node.operator, BroadcastProcess) and edge.port == 1
            if ordered and graph.node(edge.source).parallelism > 1:
                raise GraphError(
                    f"rescale: all subtasks of {node.name!r} must get the records of {graph.node(edge.source).name!r} in "
                    f"one order, and the program was written for one subtask of it; give that operator parallelism=1, or "
                    f"stop the job and start its program with another parallelism"
                )


def _check_drift(graph: Graph, node: Node) -> None:
    """Raises `GraphError` unless all is i to i from a source to an operator that keeps its splits together."""
    at = node
    while not isinstance(at.operator, Source):
        before = graph.node(at.inputs[0].source)
        if before.parallelism != node.parallelism:
            raise GraphError(
                f"rescale: {node.name!r} keeps the splits of a source together (max_drift), and needs the parallelism of "
                f"{before.name!r}; give both one size"
            )
        at = before
