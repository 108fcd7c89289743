"""The kind and the shape of operators, which decide whether an operator can go on with a state. Checkpoints record both, and
a start compares them before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.api.aggregates import is_builtin
from tailrace.api.functions import (
    BroadcastProcessFunction,
    CoProcessFunction,
    Function,
    KeyedProcessFunction,
    ProcessFunction,
)
from tailrace.graph.graph import Node
from tailrace.graph.operators import (
    Aggregate,
    AsOfJoin,
    AssignTimestamps,
    BroadcastProcess,
    CoProcess,
    DropDuplicates,
    Hash,
    Head,
    IntervalJoin,
    Judge,
    KeyedProcess,
    MapAsync,
    MapBatches,
    Operator,
    Process,
    Reduce,
    SessionSpec,
    SessionWindow,
    Sink,
    Source,
    Triggers,
    Window,
    WindowJoin,
    WindowSpec,
)

PROCESS, SINK, STATELESS = "process", "sink", "stateless"
KINDS: dict[type[Operator], str] = {
    Source: "source",
    AssignTimestamps: "timestamps",
    MapBatches: "map_batches",
    Process: PROCESS,
    KeyedProcess: PROCESS,
    CoProcess: PROCESS,
    BroadcastProcess: PROCESS,
    MapAsync: "map_async",
    Reduce: "reduce",
    Aggregate: "aggregate",
    Window: "window",
    SessionWindow: "session",
    DropDuplicates: "duplicates",
    IntervalJoin: "join",
    WindowJoin: "join",
    AsOfJoin: "join",
    Head: "loop",
    Judge: "rounds",
    Sink: SINK,
}
"""Operator that may hold something -> kind. All process functions are of one kind: they find their states by name."""
CALLED = {
    "source": "a source",
    "timestamps": "assign_timestamps",
    "map_batches": "map_batches",
    PROCESS: "a process function",
    "map_async": "map_async",
    "reduce": "a reduce",
    "aggregate": "an aggregate",
    "window": "a window",
    "session": "a session window",
    "duplicates": "drop_duplicates",
    "join": "a join",
    "loop": "the head of a loop",
    "rounds": "the end of a loop's rounds",
    SINK: "a sink",
    STATELESS: "an operator without state",
}
"""Kind -> its name in errors."""


class Shaped:
    """Base of functions of this library whose state only fits functions of its own shape."""

    def shape(self) -> list[str]:
        """The parts that the state is made of."""
        raise NotImplementedError


def kind_of(operator: Operator) -> str:
    """The kind of an operator, as checkpoints record it."""
    return KINDS.get(type(operator), STATELESS)


def shape_of(operator: Operator) -> list[str]:
    """The parts that the state of an operator is made of: the position format of a source, the class of a sink, the size of
    windows, the accumulators of aggregates, rounds of a loop. An operator cannot go on with a state of another shape."""
    if isinstance(operator, Source):
        return [str(operator.source.position_format)]
    if isinstance(operator, Sink):
        return [type(operator.sink).__qualname__]
    if isinstance(operator, Head):
        rounds = operator.loop.rounds
        if rounds is None or rounds.span is None:
            return [] if rounds is None else ["in rounds"]
        return [f"in rounds by spans of {_seconds(rounds.span)} s"]
    if isinstance(operator, Reduce):
        return ["custom"]
    if isinstance(operator, DropDuplicates):
        clock = "event time" if operator.timed else "the clock"
        return ["all keys"] if operator.within is None else [f"keys of {_seconds(operator.within)} s of {clock}"]
    if isinstance(operator, KeyedProcess) and isinstance(operator.fn, Shaped):
        return operator.fn.shape()
    if isinstance(operator, WindowJoin):
        windows = operator.windows
        spans = _gap(windows.gap) if isinstance(windows, SessionSpec) else _windows(windows)
        return [f"{operator.how} join in columns", spans]
    if isinstance(operator, AsOfJoin):
        return ["join with versions as of a time in columns"]
    if isinstance(operator, IntervalJoin):
        form = "" if operator.suffixes is None else " in columns"
        return [f"{operator.how} join within {operator.before / 1e6} s and {operator.after / 1e6} s{form}"]
    if not isinstance(operator, Aggregate | Window | SessionWindow):
        return []
    if isinstance(operator, Aggregate):
        return accumulators_of(operator.aggregates, None)
    return [*_windows_of(operator), *accumulators_of(operator.aggregates, operator.reduce)]


def accumulators_of(aggregates: Sequence[tuple[str, Any]], reduce: Any) -> list[str]:
    """The accumulators of aggregates with their names, or of a reduce, by name."""
    if reduce is not None:
        return ["reduce"]
    several = len(aggregates) > 1
    return [_part(fn, name if several else "") for name, fn in aggregates]


def _windows(spec: Window | WindowSpec) -> str:
    if spec.calendar is not None:
        return f"windows of {spec.calendar}"
    size, slide, offset = map(_seconds, (spec.size, spec.slide, spec.offset))
    return f"windows of {size} s every {slide} s from {offset} s"


def _windows_of(operator: Window | SessionWindow) -> list[str]:
    if isinstance(operator, SessionWindow):
        return [_gap(operator.gap)]
    return [_windows(operator), *discards(operator.triggers)]


def _gap(gap: int | None) -> str:
    return f"sessions with a gap {'per record' if gap is None else f'of {_seconds(gap)} s'}"


def discards(triggers: Triggers | None) -> list[str]:
    """The part of a shape by which windows that discard differ from others."""
    return ["results without what was in earlier ones"] if triggers is not None and triggers.discarding else []


def _seconds(span: int) -> str:
    """A span as text that no other span has: in six digits, or in as many as it takes."""
    short = f"{span / 1e6:g}"
    return short if round(float(short) * 1e6) == span else f"{span / 1e6}"


def key_columns(node: Node) -> list[list[str]]:
    """The columns of a key of several columns, in their order, for each input of an operator. Empty if no input has one."""
    found = [list[str]() for _ in range(1 + max((edge.port for edge in node.inputs), default=-1))]
    for edge in node.inputs:
        key = edge.partitioning.key if isinstance(edge.partitioning, Hash) else None
        if isinstance(key, tuple):
            found[edge.port] = [*key]
    return found if any(found) else []


def _part(fn: Any, name: str) -> str:
    """The name of one accumulator: a built-in aggregate with its field; else with the name of its result, if given."""
    if isinstance(fn, Shaped):
        return ", ".join(fn.shape())
    if is_builtin(fn) and not callable(fn.of):
        return str(fn.described)
    return f"{type(fn).__name__ if is_builtin(fn) else 'custom'}{f' as {name}' if name else ''}"


def takes_timers(fn: Any) -> bool:
    """True if a function defines `on_timer`."""
    method = getattr(fn, "on_timer", None)
    ours = (KeyedProcessFunction.on_timer, CoProcessFunction.on_timer, BroadcastProcessFunction.on_timer)
    return method is not None and getattr(method, "__func__", None) not in ours


def takes_many(fn: Any) -> bool:
    """True if a function defines `process_many`."""
    return isinstance(fn, KeyedProcessFunction) and type(fn).process_many is not KeyedProcessFunction.process_many


def ends_with_output(fn: Any) -> bool:
    """True if a function defines `finish`."""
    return any("finish" in vars(kind) for kind in type(fn).__mro__[:-1] if kind not in _DECLARING)


def ends_rounds(fn: Any) -> bool:
    """True if a function defines `on_round_end`."""
    return any("on_round_end" in vars(kind) for kind in type(fn).__mro__[:-1] if kind not in _DECLARING)


_DECLARING = (ProcessFunction, KeyedProcessFunction, CoProcessFunction, BroadcastProcessFunction, Function)
"""Classes whose `on_round_end` does nothing."""
