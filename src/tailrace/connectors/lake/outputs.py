"""The transactions that a lake table does not have yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.connectors.transactional import PreparedTransaction, Scope, TransactionalSink, unwritten


def unwritten_outputs(
    sink: TransactionalSink, outputs: Sequence[PreparedTransaction], mark_of: Callable[[Scope], int | None]
) -> list[PreparedTransaction]:
    """The transactions whose counters are above the marks of their scopes, each once. `mark_of(scope)` is the mark in the
    table. They keep their order, and those of one scope are in the order of their counters. Raises `OutputLost` where the
    table has lost one."""
    by_scope: dict[Scope, list[PreparedTransaction]] = {}
    for one in outputs:
        by_scope.setdefault(one.scope, []).append(one)
    found = {
        scope: iter(list(unwritten(sink, mark_of(scope), sorted(own, key=lambda one: one.counter))))
        for scope, own in by_scope.items()
    }
    following = (next(found[one.scope], None) for one in outputs)
    return [one for one in following if one is not None]


def new_marks(outputs: Sequence[PreparedTransaction]) -> dict[str, int]:
    """The marks behind these transactions, by the names of their scopes."""
    return {one.scope.name: one.counter for one in outputs}
