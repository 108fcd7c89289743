"""Checks of what goes by event time: functions that are called in its order, state that lives by it, and the options of
`assign_timestamps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.api.checks.untimed_inputs import has_event_time
from tailrace.api.nodes import Stream, described_scope
from tailrace.errors import GraphError
from tailrace.graph.graph import Edge
from tailrace.graph.operators import AssignTimestamps, Forward, IfAhead, InOrder, Source, WhenAllIdle
from tailrace.state.handles import states_of


def check_in_order(value: Any, streams: Sequence[Stream], inputs: Sequence[tuple[Edge, ...]], verb: str) -> InOrder:
    """The option `in_order`, checked for a function on these streams. `inputs` are the edges of each. Raises `GraphError`
    for what is no bool, and for streams without a key, without event time, or in a loop."""
    if not isinstance(value, bool):
        raise GraphError(f"{verb}: in_order must be True or False, not {value!r}")
    if not value:
        return False
    if any(getattr(stream, "key", None) is None for stream in streams):
        raise GraphError(f"{verb}: in_order=True hands over the records of a key in order; call key_by on both streams")
    if streams[0].scope.level:
        raise GraphError(
            f"{verb}: in_order=True cannot be kept {described_scope(streams[0])}: a record that comes around may be older "
            f"than all that was handed over, and event time does not wait for it; put the function in front of the loop, or "
            f"behind it, where event time waits for all that is still inside"
        )
    _require_event_time(streams, inputs, f"{verb}: in_order=True is")
    return waits_in(streams)


def waits_in(streams: Sequence[Stream]) -> InOrder:
    """The way in which records of keyed streams wait for event time: as columns where all streams are in columns, and have
    columns as keys."""
    columns = all(one.form == "columns" and not callable(getattr(one, "key", None)) for one in streams)
    return "columns" if columns else True


def check_lifetimes(fn: Any, streams: Sequence[Stream], inputs: Sequence[tuple[Edge, ...]], verb: str) -> None:
    """Raises `GraphError` if a function has state with a time to live by event time, and one of these streams has none."""
    for name, state in states_of(fn).items():
        if state.ttl is not None and state.ttl.clock == "event":
            _require_event_time(streams, inputs, f"{verb}: the ttl of state {name!r} is")


def _require_event_time(streams: Sequence[Stream], inputs: Sequence[tuple[Edge, ...]], what: str) -> None:
    for stream, edges in zip(streams, inputs, strict=True):
        if not has_event_time(edges, stream.env._graph.nodes):
            which = "" if len(streams) == 1 else ("first ", "second ")[streams.index(stream)]
            raise GraphError(
                f"{what} by event time, and the {which}stream has none; call assign_timestamps before key_by"
            )


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
