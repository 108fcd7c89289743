"""`map`, `filter` and `flat_map` with a policy for records that fail. They stand alone, and are not fused with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tailrace.api.functions import Function, as_callable
from tailrace.elements.batches import Batch, Rows
from tailrace.elements.callables import run_to_its_end
from tailrace.elements.timestamps import NO_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import Filter, FlatMap, Map
from tailrace.task.operators.base import OperatorTask, close_functions
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.policy import FailurePolicy
from tailrace.task.operators.stateless import one_value, several_values, truth_value


class GuardedRows(OperatorTask):
    """Calls a function record by record. What it gives for a record is complete before any of it goes on."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, Map | Filter | FlatMap)
        self.fn = node.operator.fn
        self._guard = self.policy = FailurePolicy(node, ctx)
        self._guard.note_call = self.note_call
        self._records = _records_of(node.operator)

    def open(self) -> None:
        if isinstance(self.fn, Function):
            self.call_user(self.fn.open, self.ctx, what="open")

    def process(self, batch: Batch, port: int) -> None:
        rows = batch.to_rows()
        times = [NO_TIME] * len(rows.values) if rows.times is None else rows.times.tolist()
        out: list[Any] = []
        kept: list[int] = []
        for value, time in zip(rows.values, times, strict=True):
            found = self._guard.call(self._records, value, time)
            if found is not None:
                out += found[0]
                kept += [time] * len(found[0])
        self._guard.count(len(rows.values))
        self.flush_side(rows.split)
        if out:
            self.out(Rows(out, None if rows.times is None else np.array(kept, np.int64), None, rows.split))

    def close(self) -> None:
        close_functions([self.fn])


def _records_of(operator: Map | Filter | FlatMap) -> Callable[[Any], list[Any]]:
    """The function of a record that returns the list of the records that take its place."""
    fn = run_to_its_end(as_callable(operator.fn))
    if isinstance(operator, Map):
        return lambda value: [one_value(fn(value))]
    if isinstance(operator, Filter):
        return lambda value: [value] if truth_value(fn(value)) else []
    return lambda value: list(several_values(fn(value)))
