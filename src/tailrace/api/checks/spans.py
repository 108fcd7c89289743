"""Check of a loop in rounds by spans of event time: what is in it must begin each span without state, and do nothing between
two of them."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.api.restore.kinds import ends_with_output, takes_timers
from tailrace.errors import GraphError
from tailrace.graph.graph import Node
from tailrace.graph.loops import rounds_of
from tailrace.graph.operators import (
    Broadcast,
    BroadcastProcess,
    CoProcess,
    Filter,
    FlatMap,
    Head,
    Judge,
    KeyedProcess,
    Map,
    Process,
    Tail,
)
from tailrace.state.handles import states_of

_IN_SPANS = (Map, Filter, FlatMap, Process, KeyedProcess, CoProcess, Tail, Judge)


def check_spans(nodes: Iterable[Node]) -> None:
    """Raises `GraphError` for an operator that cannot be in its loop, because that runs in rounds by spans of event time."""
    every = list(nodes)
    for head in every:
        rounds = rounds_of(head)
        if rounds is None or rounds.span is None:
            continue
        if any(isinstance(edge.partitioning, Broadcast) for edge in head.inputs):
            raise GraphError(
                f"loop {head.name!r} goes by spans of event time, and each subtask would hold all of its input; leave "
                f"broadcast() out before it"
            )
        for node in every:
            what = _misfit(node) if node.scope == head.scope and not isinstance(node.operator, Head) else ""
            if what:
                raise GraphError(f"loop {head.name!r} goes by spans of event time, and {node.name!r} in it {what}")


def _misfit(node: Node) -> str:
    """What is wrong with an operator in such a loop; empty if nothing is."""
    function = getattr(node.operator, "fn", None)
    if isinstance(node.operator, BroadcastProcess):
        return (
            "processes a broadcast stream, whose state would outlast its span; put it in front of the loop or behind it"
        )
    if node.form == "columns" or not isinstance(node.operator, _IN_SPANS):
        return (
            "is none of map, filter, flat_map and process of rows, which begin each span without state; put it in front of "
            "the loop or behind it"
        )
    if node.on_error != "fail":
        return "has on_error=; leave that out, and check records in front of the loop"
    if takes_timers(function):
        return "has on_timer; leave that out, since a timer may be due when no span is under way"
    if ends_with_output(function):
        return "has finish, whose output would be of no span; emit it in on_round_end"
    if any(state.ttl is not None for state in states_of(function).values()):
        return "has state with a ttl; leave that out, since state lives as long as its span"
    return ""
