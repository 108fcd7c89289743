"""Check of the tags of side outputs. A misspelt tag is a stream without records, and the records themselves go nowhere."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tailrace.api.checks.arguments import check_name
from tailrace.api.checks.tags import tags_of
from tailrace.api.failure_options import aside_of
from tailrace.api.functions import Function, takes_context
from tailrace.api.joins.functions import SelectCall
from tailrace.api.windows.functions import CountedWindows, WindowCall
from tailrace.errors import GraphError, level_of_user
from tailrace.graph.graph import Node
from tailrace.graph.operators import (
    AHEAD,
    JOINS,
    AssignTimestamps,
    BroadcastProcess,
    CoProcess,
    DropDuplicates,
    KeyedProcess,
    Map,
    MapBatches,
    Process,
    Windowed,
)

if TYPE_CHECKING:
    from tailrace.api.nodes import Stream


def failed_of(stream: Stream, tag: Any) -> list[Node]:
    """The operators that set failed records aside to `tag`: that of a stream, or of which it is a side output, and the
    windows in front of an operator that calls a function for them."""
    if len(stream._upstreams) != 1:
        return []
    nodes = stream.env._graph.nodes
    node = nodes[stream._upstreams[0][0]]
    calls = isinstance(getattr(node.operator, "fn", None), WindowCall)
    some = [node, nodes[node.inputs[0].source]] if calls else [node]
    return [one for one in some if (aside := aside_of(one.on_error)) is not None and aside.tag == tag]


def side_of(stream: Stream, tag: Any) -> Node:
    """The operator of a stream that has the side output `tag`. Raises `GraphError` if it cannot have one."""
    check_name(tag, "side_output", "the tag")
    if len(stream._upstreams) != 1 or stream._upstreams[0][1] is not None:
        raise GraphError("side_output: call it on the stream of one operator, before union or another side_output")
    node = stream.env._graph.nodes[stream._upstreams[0][0]]
    if isinstance(node.operator, DropDuplicates) and not (node.operator.timed and node.operator.within):
        raise GraphError(
            f"side_output: {node.name!r} has no late records: give it within=..., on a stream with event time"
        )
    if isinstance(node.operator, Map) and isinstance(node.operator.fn, SelectCall):
        node = stream.env._graph.nodes[node.inputs[0].source]
    if isinstance(node.operator, JOINS):
        if tag != "late":
            raise GraphError(f"side_output: join {node.name!r} has the side output 'late' only, not {tag!r}")
        return node
    if isinstance(node.operator, Windowed):
        if tag != "late":
            raise GraphError(f"side_output: window {node.name!r} has the side output 'late' only, not {tag!r}")
        return node
    if isinstance(node.operator, AssignTimestamps):
        if tag != AHEAD or node.operator.most_ahead is None or node.operator.if_ahead != "aside":
            raise GraphError(
                f"side_output: {node.name!r} has the side output 'ahead' only, and that with most_ahead=... and "
                f'if_ahead="aside"'
            )
        return node
    if not isinstance(node.operator, Process | KeyedProcess | CoProcess | BroadcastProcess | MapBatches):
        instead = (
            "; in columns keep each part with a filter(...) of its own, or emit in map_batches"
            if node.form == "columns"
            else ""
        )
        raise GraphError(
            f"side_output: operator {node.name!r} has no side outputs; process functions, map_batches, windows and "
            f"joins have{instead}"
        )
    fn = node.operator.fn
    if tag == "late" and isinstance(fn, WindowCall):
        return side_of_window(stream, node)
    if isinstance(fn, CountedWindows):
        raise GraphError(f"side_output: window {node.name!r} does not depend on time, and has no late records")
    if (
        tag == "late"
        and isinstance(node.operator, KeyedProcess | CoProcess | BroadcastProcess)
        and node.operator.in_order
    ):
        return node  # the operator itself sends late records there
    if isinstance(node.operator, MapBatches) and not isinstance(fn, Function) and not takes_context(fn):
        raise GraphError(
            f"side_output: the function of operator {node.name!r} is not given the context, and cannot emit; let it take "
            f"it: f(batch, ctx)"
        )
    warn_of_tag(node.operator.fn, tag, node.name)
    return node


def side_of_window(stream: Stream, node: Node) -> Node:
    """The window in front of the operator that calls a function with its records. Raises `GraphError` if no record is late
    for it."""
    window = stream.env._graph.nodes[node.inputs[0].source]
    if isinstance(window.operator, Windowed):
        return window
    raise GraphError(f"side_output: window {window.name!r} does not depend on time, and has no late records")


def warn_of_tag(fn: Any, tag: str, operator: str) -> None:
    """Warns, at the user's line, if every `emit` that is seen in a function has another tag than `tag`. It is no error: the
    function may emit to the tag through a helper function."""
    tags = tags_of(fn)
    if tags and tag not in tags:
        names = " and ".join(map(repr, sorted(tags)))
        warnings.warn(
            f"side_output({tag!r}): nothing in the function of operator {operator!r} emits to {tag!r}; it emits to {names}",
            stacklevel=level_of_user(),
        )
