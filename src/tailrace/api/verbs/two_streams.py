"""Functions of two streams, of which the second may be broadcast: what they need, and the node that is added for one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.api.checks.arguments import ENDS, check_at_end, check_co_process, check_keyed, check_methods, check_object
from tailrace.api.checks.event_time import check_in_order, check_lifetimes, waits_in
from tailrace.api.checks.untimed_inputs import check_times, clocks_before, has_event_time
from tailrace.api.failure_options import FAIL
from tailrace.api.functions import BroadcastProcessFunction
from tailrace.api.joins.writing import check_keys
from tailrace.api.nodes import add_node, check_together, described_scope
from tailrace.api.restore.kinds import takes_timers
from tailrace.elements.timestamps import is_late
from tailrace.errors import GraphError
from tailrace.graph import operators as ops
from tailrace.graph.graph import Node
from tailrace.state.handles import states_of
from tailrace.state.operator_state import declared_operator_states


def check_broadcast_function(fn: Any, verb: str) -> None:
    """Raises `GraphError` unless `fn` is a `BroadcastProcessFunction` with both of its methods."""
    check_object(fn, BroadcastProcessFunction, verb)
    methods = {"process": 2, "process_broadcast": 2, "on_timer": 2, **ENDS}
    check_methods(fn, BroadcastProcessFunction, methods, verb)


def co_process(
    first: Any, second: Any, fn: Any, at_end: Any, in_order: bool, options: dict[str, Any], verb: str
) -> Node:
    """Adds the node of a `CoProcessFunction` of two streams. Raises `GraphError` for a function that does not fit the
    streams."""
    check_co_process(fn, verb)
    keys = getattr(first, "key", None), getattr(second, "key", None)
    check_keys(*keys, verb)
    check_keyed(fn, None not in keys, verb)
    check_together(first, second, verb)
    inputs = first._edges(first._partitioning, 0), second._edges(second._partitioning, 1)
    check_times(fn, inputs, first.env._graph.nodes, verb)
    check_lifetimes(fn, [first, second], inputs, verb)
    ordered = check_in_order(in_order, [first, second], inputs, verb)
    operator = ops.CoProcess(fn, keys, check_at_end(at_end), ordered)
    return add_node(first, operator, (*inputs[0], *inputs[1]), "process", options, "rows", None)


def broadcast_process(
    first: Any,
    second: Any,
    fn: BroadcastProcessFunction,
    at_end: Any,
    ordered: bool,
    options: dict[str, Any],
    verb: str,
) -> Node:
    """Adds the node of a function of `first` and of the broadcast stream `second`. Raises `GraphError` for a function that
    does not fit the streams."""
    check_broadcast_function(fn, verb)
    _check_sides(first, second, type(fn).__name__, verb)
    key = getattr(first, "key", None)
    if key is None and (states_of(fn) or takes_timers(fn)):
        raise GraphError(
            f"{verb}: {type(fn).__name__} uses keyed state or timers, and the first stream has no key; call key_by on it"
        )
    check_together(first, second, verb)
    in_order = _check_ordered(ordered, first, second, fn, verb)
    one = in_one_order(second, options.get("uid"), bool(in_order))
    inputs = first._edges(first._partitioning, 0), one._edges(ops.Broadcast(), 1)
    check_times(fn, inputs, first.env._graph.nodes, verb, ("process", "process_broadcast"))
    check_lifetimes(fn, [first, one], inputs, verb)
    operator = ops.BroadcastProcess(fn, key, check_at_end(at_end), in_order)
    # A derived uid is equal for every parallelism of `second`: of one subtask no node brings the records into one order.
    shape = (*inputs[0], *second._edges(ops.Broadcast(), 1))
    return add_node(first, operator, (*inputs[0], *inputs[1]), "process", options, "rows", None, shape=shape)


def _check_sides(first: Any, second: Any, name: str, verb: str) -> None:
    if isinstance(first._partitioning, ops.Broadcast):
        raise GraphError(
            f"{verb}: the broadcast stream is the second one for {name}: records.connect(rules.broadcast()).process(...)"
        )
    if not isinstance(second._partitioning, ops.Broadcast):
        raise GraphError(
            f"{verb}: {name} needs all records of the second stream in every subtask; call broadcast() on it: "
            f"records.connect(rules.broadcast()).process(...)"
        )


def _check_ordered(value: Any, first: Any, second: Any, fn: Any, verb: str) -> ops.InOrder:
    """The option `ordered`, checked. Raises `GraphError` for streams and functions whose calls have no order of time."""
    if not isinstance(value, bool):
        raise GraphError(f"{verb}: ordered must be True or False, not {value!r}")
    if not value:
        return False
    if getattr(first, "key", None) is None:
        raise GraphError(
            f"{verb}: ordered=True keeps records by key until their time has come; call key_by on the first"
        )
    if first.scope.level:
        raise GraphError(
            f"{verb}: ordered=True cannot be kept {described_scope(first)}: a record that comes around may be older than "
            f"all that was handed over; put the function in front of the loop, or behind it"
        )
    nodes = first.env._graph.nodes
    for stream, which in ((first, "first"), (second, "broadcast")):
        if not has_event_time(stream._edges(ops.Forward()), nodes):
            raise GraphError(
                f"{verb}: ordered=True is by event time, and the {which} stream has none; call assign_timestamps on it"
            )
    for clock in clocks_before(second._edges(ops.Forward()), nodes):
        if clock.idle_after is not None and clock.when_all_idle != "advance":
            raise GraphError(
                f"{verb}: with ordered=True the broadcast stream must not fall idle: event time would go on without it, and "
                f"later records of it would come in time in some subtasks only; give its assign_timestamps "
                f'when_all_idle="advance"'
            )
    own = [name for name, state in declared_operator_states(fn).items() if not state.copied]
    if own:
        raise GraphError(
            f"{verb}: with ordered=True a function has broadcast state and keyed state, and {type(fn).__name__} declares "
            f"the operator state {own[0]!r}; after a start at another parallelism it would be changed twice"
        )
    return waits_in([first])


def in_one_order(stream: Any, uid: str | None, in_order: bool = False) -> Any:
    """The records of a stream behind one subtask, so that all subtasks that they are broadcast to get them in one order.
    With `in_order` each comes with whether it is late there."""
    senders = [stream.env._graph.nodes[node].parallelism for node, _ in stream._upstreams]
    if senders == [1] and not in_order:
        return stream
    options = {
        "name": "broadcast",
        "parallelism": 1,
        "on_error": FAIL,
        "uid": None if uid is None else f"{uid}-broadcast",
    }
    operator: ops.Operator = ops.Map(_same) if stream.form == "rows" else ops.ToRows()
    if in_order:
        operator = ops.Process(_with_lateness, "wait")
    edges = stream._edges(ops.Rebalance())
    return stream._of(
        add_node(stream, operator, edges, "broadcast", options, "rows", None if in_order else stream.columns)
    )


def _same(record: Any) -> Any:
    return record


def _with_lateness(record: Any, ctx: Any) -> list[Any]:
    """Whether a record is late for its own stream, and the record: all subtasks that get it must agree on that."""
    return [(ctx.timestamp is not None and bool(is_late(np.array([ctx.timestamp]), ctx.watermark).any()), record)]
