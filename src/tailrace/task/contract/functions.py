"""Function objects: each operator opens, binds to its state and closes one of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tailrace.api.functions import Function
from tailrace.errors import GraphError, error_text
from tailrace.graph.graph import Node
from tailrace.graph.plan import Plan


def with_own_functions(plan: Plan, *, keep_first: bool) -> Plan:
    """A plan in which no two operators share a function object, even if the user has given one object to several. With
    `keep_first` the first operator keeps the object itself; the others get copies."""
    kept: set[int] = set()

    def own(fn: Any, node: Node) -> Any:
        if not isinstance(fn, Function) or (keep_first and id(fn) not in kept):
            kept.add(id(fn))
            return fn
        try:
            return copy.deepcopy(fn)
        except Exception as error:
            raise GraphError(
                f"operator {node.name!r}: its function cannot be copied for its subtasks ({error_text(error)}); "
                f"make what it holds in open()"
            ) from error

    def owning(node: Node) -> Node:
        given = {name: getattr(node.operator, name) for name in ("fn", "reduce") if hasattr(node.operator, name)}
        changes = {name: own(fn, node) for name, fn in given.items()}
        if hasattr(node.operator, "aggregates"):
            changes["aggregates"] = tuple((name, own(fn, node)) for name, fn in node.operator.aggregates)
        return replace(node, operator=replace(node.operator, **changes)) if changes else node

    return replace(plan, graph=replace(plan.graph, nodes=tuple(map(owning, plan.graph.nodes))))


def functions_of(node: Node) -> Iterator[Function]:
    """The function objects of a node that have `prepare`, `open` and `close`."""
    operator: Any = node.operator
    given = [getattr(operator, name) for name in ("fn", "reduce") if hasattr(operator, name)]
    given += [fn for _, fn in getattr(operator, "aggregates", ())]
    return (fn for fn in given if isinstance(fn, Function))
