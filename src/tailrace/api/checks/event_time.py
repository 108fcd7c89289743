"""Checks of functions that need event time: those that are called in its order, and those whose state lives by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.api.checks.untimed_inputs import has_event_time
from tailrace.api.nodes import Stream, described_scope
from tailrace.errors import GraphError
from tailrace.graph.graph import Edge
from tailrace.state.handles import states_of


def check_in_order(value: Any, streams: Sequence[Stream], inputs: Sequence[tuple[Edge, ...]], verb: str) -> bool:
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
    return True


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
