"""Check of functions with two inputs of which only one has event time. Records that the function emits for the other input
have no timestamp, and a window after it would depend on which input was faster."""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FunctionType
from typing import Any

from tailrace.api.functions import BroadcastProcessFunction, CoProcessFunction
from tailrace.errors import GraphError
from tailrace.graph.graph import Edge, Node
from tailrace.graph.operators import AssignTimestamps


def check_times(
    fn: CoProcessFunction | BroadcastProcessFunction,
    inputs: tuple[tuple[Edge, ...], tuple[Edge, ...]],
    nodes: Any,
    verb: str,
    methods: tuple[str, str] = ("process1", "process2"),
) -> None:
    """Raises `GraphError` if the method for the input without event time emits, and the function never gives a record a
    timestamp of its own (`ctx.stamped`). `nodes` has the graph's nodes by id; `methods` are called for the records of the
    first and the second input."""
    timed = [has_event_time(edges, nodes) for edges in inputs]
    if timed[0] == timed[1]:
        return
    bare = timed.index(False)
    method = getattr(type(fn), methods[bare])
    if not may_emit(method) or _stamps(type(fn)):
        return
    raise GraphError(
        f"{verb}: {type(fn).__name__}.{methods[bare]} emits records, and its input has no event time while the other one "
        f"has: what it emits would have no timestamp; yield ctx.stamped(record, timestamp) with the time of the record "
        f"(None: it has none), or give the {('first', 'second')[bare]} stream timestamps by assign_timestamps"
    )


def has_event_time(edges: tuple[Edge, ...], nodes: Any) -> bool:
    """True if records on these edges have timestamps: an `assign_timestamps` is somewhere before them."""
    seen: set[int] = set()
    waiting = [edge.source for edge in edges]
    while waiting:
        ident = waiting.pop()
        if ident in seen:
            continue
        seen.add(ident)
        node: Node = nodes[ident]
        if isinstance(node.operator, AssignTimestamps):
            return True
        waiting += [edge.source for edge in node.inputs]
    return False


def clocks_before(edges: tuple[Edge, ...], nodes: Any) -> list[AssignTimestamps]:
    """The operators that give records on these edges their timestamps."""
    found, seen, waiting = list[AssignTimestamps](), set[int](), [edge.source for edge in edges]
    while waiting:
        ident = waiting.pop()
        if ident in seen:
            continue
        seen.add(ident)
        operator = nodes[ident].operator
        if isinstance(operator, AssignTimestamps):
            found.append(operator)
        else:
            waiting += [edge.source for edge in nodes[ident].inputs]
    return found


def may_emit(method: Any) -> bool:
    """True if a method yields or returns something else than None, or if its code does not show it."""
    if inspect.isgeneratorfunction(method) or not isinstance(method, FunctionType):
        return True
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(method):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return True
        if instruction.opname == "RETURN_VALUE":
            known = before is not None and before.opname == "LOAD_CONST" and not instruction.is_jump_target
            if not known or before.argval is not None:  # type: ignore[union-attr]
                return True
        before = instruction
    return False


def _stamps(kind: type) -> bool:
    """True if the code of some method of a class names `stamped`."""
    bodies = [
        value.__code__ for owner in kind.__mro__ for value in vars(owner).values() if isinstance(value, FunctionType)
    ]
    while bodies:
        code = bodies.pop()
        if "stamped" in code.co_names:
            return True
        bodies += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return False
