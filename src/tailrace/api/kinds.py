"""What an operator is to its state: its kind, and what else of its description that depends on. Checkpoints have both, and a
start compares them before anything runs."""

from __future__ import annotations

from typing import Any

from tailrace.api.aggregates import is_builtin
from tailrace.api.functions import CoProcessFunction, Function, KeyedProcessFunction, ProcessFunction
from tailrace.graph.graph import Node
from tailrace.graph.operators import (
    Aggregate,
    AssignTimestamps,
    CoProcess,
    Hash,
    Head,
    Judge,
    KeyedProcess,
    MapBatches,
    Operator,
    Process,
    Reduce,
    Sink,
    Source,
    Window,
)

PROCESS, SINK, STATELESS = "process", "sink", "stateless"
KINDS: dict[type[Operator], str] = {
    Source: "source",
    AssignTimestamps: "timestamps",
    MapBatches: "map_batches",
    Process: PROCESS,
    KeyedProcess: PROCESS,
    CoProcess: PROCESS,
    Reduce: "reduce",
    Aggregate: "aggregate",
    Window: "window",
    Head: "loop",
    Judge: "rounds",
    Sink: SINK,
}
"""Operators that may hold something. Process functions are of one kind: they go on with what each declares by name."""
CALLED = {
    "source": "a source",
    "timestamps": "assign_timestamps",
    "map_batches": "map_batches",
    PROCESS: "a process function",
    "reduce": "a reduce",
    "aggregate": "an aggregate",
    "window": "a window",
    "loop": "the head of a loop",
    "rounds": "the end of a loop's rounds",
    SINK: "a sink",
    STATELESS: "an operator without state",
}
"""The kinds for people."""


def kind_of(operator: Operator) -> str:
    """The kind of an operator, as checkpoints have it."""
    return KINDS.get(type(operator), STATELESS)


def shape_of(operator: Operator) -> list[str]:
    """What the state of an operator is made of: accumulators of other aggregates, windows of another size, positions of
    another source and feedback of a loop without rounds cannot be gone on with."""
    if isinstance(operator, Source):
        return [str(operator.source.position_format)]
    if isinstance(operator, Sink):
        return [type(operator.sink).__qualname__]
    if isinstance(operator, Head):
        return ["in rounds"] if operator.loop.rounds is not None else []
    if isinstance(operator, Reduce):
        return ["custom"]
    if not isinstance(operator, Aggregate | Window):
        return []
    several = len(operator.aggregates) > 1
    parts = [_part(fn, name if several else "") for name, fn in operator.aggregates]
    if isinstance(operator, Aggregate):
        return parts
    window = f"windows of {operator.size / 1e6:g} s every {operator.slide / 1e6:g} s from {operator.offset / 1e6:g} s"
    return [window, *(["reduce"] if operator.reduce is not None else parts)]


def key_columns(node: Node) -> list[list[str]]:
    """By input of an operator: the columns that make its key, in their order, where there are several."""
    found = [list[str]() for _ in range(1 + max((edge.port for edge in node.inputs), default=-1))]
    for edge in node.inputs:
        key = edge.partitioning.key if isinstance(edge.partitioning, Hash) else None
        if isinstance(key, tuple):
            found[edge.port] = [*key]
    return found if any(found) else []


def _part(fn: Any, name: str) -> str:
    """One accumulator. Several are known by their fields; those of functions by the names of their results."""
    if is_builtin(fn) and not callable(fn.of):
        return str(fn.described)
    return f"{type(fn).__name__ if is_builtin(fn) else 'custom'}{f' as {name}' if name else ''}"


def takes_timers(fn: Any) -> bool:
    """Whether a function has an `on_timer` of its own."""
    method = getattr(fn, "on_timer", None)
    ours = (KeyedProcessFunction.on_timer, CoProcessFunction.on_timer)
    return method is not None and getattr(method, "__func__", None) not in ours


def ends_rounds(fn: Any) -> bool:
    """Whether a function wants to know of the end of a round."""
    return any("on_round_end" in vars(kind) for kind in type(fn).__mro__[:-1] if kind not in _DECLARING)


_DECLARING = (ProcessFunction, KeyedProcessFunction, CoProcessFunction, Function)
"""Classes whose own `on_round_end` does nothing."""
