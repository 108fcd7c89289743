"""Functions of two streams, of which the second may be broadcast: what they need, and the node that is added for one."""

from __future__ import annotations

from typing import Any

from tailrace.api.checks import ENDS, check_at_end, check_co_process, check_keyed, check_methods, check_object
from tailrace.api.failing import FAIL
from tailrace.api.functions import BroadcastProcessFunction
from tailrace.api.joins.writing import check_keys
from tailrace.api.kinds import takes_timers
from tailrace.api.nodes import add_node, check_together
from tailrace.api.ordered import check_in_order
from tailrace.api.released import check_times
from tailrace.errors import GraphError
from tailrace.graph import operators as ops
from tailrace.graph.graph import Node
from tailrace.state.handles import states_of


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
    ordered = check_in_order(in_order, [first, second], inputs, verb)
    operator = ops.CoProcess(fn, keys, check_at_end(at_end), ordered)
    return add_node(first, operator, (*inputs[0], *inputs[1]), "process", options, "rows", None)


def broadcast_process(
    first: Any, second: Any, fn: BroadcastProcessFunction, at_end: Any, options: dict[str, Any], verb: str
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
    one = in_one_order(second, options.get("uid"))
    inputs = first._edges(first._partitioning, 0), one._edges(ops.Broadcast(), 1)
    check_times(fn, inputs, first.env._graph.nodes, verb, ("process", "process_broadcast"))
    operator = ops.BroadcastProcess(fn, key, check_at_end(at_end))
    return add_node(first, operator, (*inputs[0], *inputs[1]), "process", options, "rows", None)


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


def in_one_order(stream: Any, uid: str | None) -> Any:
    """The records of a stream behind one subtask, so that all subtasks that they are broadcast to get them in one order."""
    senders = [stream.env._graph.nodes[node].parallelism for node, _ in stream._upstreams]
    if senders == [1]:
        return stream
    options = {
        "name": "broadcast",
        "parallelism": 1,
        "on_error": FAIL,
        "uid": None if uid is None else f"{uid}-broadcast",
    }
    operator = ops.Map(_same) if stream.form == "rows" else ops.ToRows()
    edges = stream._edges(ops.Rebalance())
    return stream._of(add_node(stream, operator, edges, "broadcast", options, "rows", stream.columns))


def _same(record: Any) -> Any:
    return record
