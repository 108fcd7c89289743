"""Checks of the options of `assign_timestamps` that go by the clock, or by the splits of a source."""

from __future__ import annotations

from typing import Any

from tailrace.api.nodes import Stream, described_scope
from tailrace.errors import GraphError
from tailrace.graph.operators import AssignTimestamps, Forward, IfAhead, Source, WhenAllIdle


def check_clock_options(
    stream: Stream, idle_after: int | None, when_all_idle: Any, if_ahead: Any, verb: str
) -> tuple[WhenAllIdle, IfAhead]:
    """The options `when_all_idle` and `if_ahead`, checked. Raises `GraphError` for other values, and for "advance" without
    `idle_after` or in a loop."""
    if when_all_idle not in ("wait", "advance"):
        raise GraphError(f"{verb}: when_all_idle must be 'wait' or 'advance', not {when_all_idle!r}")
    if if_ahead not in ("aside", "clamp", "fail"):
        raise GraphError(f"{verb}: if_ahead must be 'aside', 'clamp' or 'fail', not {if_ahead!r}")
    if when_all_idle == "advance" and idle_after is None:
        raise GraphError(f"{verb}: when_all_idle='advance' needs idle_after=..., the time after which an input is idle")
    if when_all_idle == "advance" and stream.scope.level:
        raise GraphError(
            f"{verb}: when_all_idle='advance' cannot be kept {described_scope(stream)}: its input is not silent while "
            f"records are on their way around; assign timestamps in front of the loop"
        )
    return when_all_idle, if_ahead


def check_waits_when_idle(stream: Stream, verb: str) -> None:
    """Raises `GraphError` if event time of a stream that comes into a loop goes on by the clock: behind the loop it would
    not."""
    nodes = stream.env._graph.nodes
    waiting, seen = [node for node, _ in stream._upstreams], set[int]()
    while waiting:
        node = nodes[waiting.pop()]
        if node.id in seen:
            continue
        seen.add(node.id)
        if not isinstance(node.operator, AssignTimestamps):
            waiting += [edge.source for edge in node.inputs]
        elif node.operator.when_all_idle == "advance":
            raise GraphError(
                f"{verb}: {node.name!r} has when_all_idle='advance', and while all inputs of a loop are idle, event time "
                f"behind it stays where it is; leave that option out there, and assign timestamps with it behind the loop"
            )


def check_behind_source(stream: Stream, verb: str) -> None:
    """Raises `GraphError` unless nothing but functions of the same subtask is between the operator of a stream and a
    source."""
    nodes = stream.env._graph.nodes
    node = nodes[stream._upstreams[0][0]]
    while not isinstance(node.operator, Source):
        edges = node.inputs
        before = nodes[edges[0].source]
        direct = len(edges) == 1 and isinstance(edges[0].partitioning, Forward)
        if not direct or before.parallelism != node.parallelism:
            raise GraphError(
                f"{verb}: max_drift=... is between the splits of a source, and {node.name!r} is not directly behind one; "
                f"assign timestamps there, at the parallelism of the source and before anything that partitions"
            )
        node = before
