"""Operators without state: fused row functions, batch functions, conversions between the forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.api.functions import Function, as_callable
from tailrace.elements.batches import Columns, Rows
from tailrace.elements.convert import columns_of
from tailrace.errors import TailraceError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Filter, FlatMap, Map, MapBatches, ToColumns
from tailrace.task.context import OperatorContext
from tailrace.task.operators.base import OperatorTask
from tailrace.task.usercode import FUSED, innermost_fused_frame, user_error

FUSIBLE = (Map, Filter, FlatMap)


class FusedRows(OperatorTask):
    """A run of map, filter and flat_map as one generated comprehension.

    Each user function is called on a line of its own in the generated code, so that when one raises, the line of the
    innermost generated frame says which operator it was and the frame's locals hold its record.
    """

    def __init__(self, nodes: list[Node], ctxs: list[OperatorContext]) -> None:
        super().__init__(nodes[-1], ctxs[-1])
        self.nodes = nodes
        self.ctxs = ctxs
        self.functions = [_function(node) for node in nodes]
        self.keeps_count = all(isinstance(node.operator, Map) for node in nodes)
        self._plain, self._timed = compiled(nodes, [as_callable(fn) for fn in self.functions])

    def open(self) -> None:
        for fn, ctx in zip(self.functions, self.ctxs, strict=True):
            if isinstance(fn, Function):
                self.call_user(fn.open, ctx, what="open")

    def process(self, batch: Any, port: int) -> None:
        rows = batch.to_rows()
        try:
            if rows.times is None:
                made = Rows(self._plain(rows.values), None, None, rows.split)
            elif self.keeps_count:
                made = Rows(self._plain(rows.values), rows.times, None, rows.split)
            else:
                pairs = self._timed(rows.values, rows.times.tolist())
                times = np.array([pair[1] for pair in pairs], np.int64)
                made = Rows([pair[0] for pair in pairs], times, None, rows.split)
        except TailraceError:
            raise
        except Exception as error:
            raise self._located(error) from error
        self.out(made)

    def _located(self, error: Exception) -> Exception:
        at = innermost_fused_frame(error.__traceback__)
        if at is None:
            return self.user_error(error)
        index = min(max(at.tb_lineno - _FIRST_LINE, 0), len(self.nodes) - 1)
        scope = at.tb_frame.f_locals
        record = (scope[f"x{index}"],) if f"x{index}" in scope else ()
        what = None
        if isinstance(self.nodes[index].operator, FlatMap) and at.tb_next is None:
            what = f"flat_map must return an iterable or None ({error})"
        return user_error(error, self.nodes[index].name, self.ctx.subtask, *record, what=what)

    def close(self) -> None:
        for fn in self.functions:
            if isinstance(fn, Function):
                fn.close()


def _function(node: Node) -> Any:
    operator = node.operator
    assert isinstance(operator, FUSIBLE)
    return operator.fn


_FIRST_LINE = 4
"""The line of the generated code on which the first user function is called."""


def compiled(nodes: list[Node], functions: list[Callable[..., Any]]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The generated functions: (values) -> values, and (values, times) -> [(value, time)]."""
    lines = []
    for i, node in enumerate(nodes):
        if isinstance(node.operator, Map):
            lines.append(f"for x{i + 1} in [f{i}(x{i})]")
        elif isinstance(node.operator, Filter):
            lines.append(f"if f{i}(x{i}) for x{i + 1} in [x{i}]")
        else:
            lines.append(f"for x{i + 1} in (f{i}(x{i}) or ())")
    body, last = "\n".join(lines), f"x{len(nodes)}"
    plain = f"def plain(values):\n  return [{last}\nfor x0 in values\n{body}]"
    timed = f"def timed(values, times):\n  return [({last}, t)\nfor x0, t in zip(values, times)\n{body}]"
    scope: dict[str, Any] = {f"f{i}": fn for i, fn in enumerate(functions)}
    for source in (plain, timed):
        exec(compile(source, FUSED, "exec"), scope)
    return scope["plain"], scope["timed"]


class BatchesTask(OperatorTask):
    """`map_batches`: a record batch in, one or several out. Timestamps and keys do not survive a user's batch function
    that changes the number of records; those of a batch of equal length do."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, MapBatches)
        self.fn = node.operator.fn
        self._call = as_callable(self.fn)

    def open(self) -> None:
        if isinstance(self.fn, Function):
            self.call_user(self.fn.open, self.ctx, what="open")

    def process(self, batch: Any, port: int) -> None:
        for made in self._results(batch.data):
            kept = batch.times is not None and made.num_rows == len(batch)
            self.out(Columns(made, batch.times if kept else None, None, batch.split))

    def _results(self, data: pa.RecordBatch) -> list[pa.RecordBatch]:
        try:
            result = self._call(data)
            found = [result] if isinstance(result, pa.RecordBatch | pa.Table) else list(result or ())
        except TailraceError:
            raise
        except Exception as error:
            raise self.user_error(error, data) from error
        batches: list[pa.RecordBatch] = []
        for one in found:
            if isinstance(one, pa.RecordBatch):
                batches.append(one)
            elif isinstance(one, pa.Table):
                batches.extend(one.combine_chunks().to_batches())
            else:
                wrong = TypeError(f"map_batches must return pyarrow.RecordBatch(es), not {type(one).__name__}")
                raise self.user_error(wrong)
        return batches

    def close(self) -> None:
        if isinstance(self.fn, Function):
            self.fn.close()


class ToRowsTask(OperatorTask):
    """Columns to named tuples."""

    def process(self, batch: Any, port: int) -> None:
        self.out(batch.to_rows())


class ToColumnsTask(OperatorTask):
    """Rows to record batches of a declared schema."""

    def process(self, batch: Any, port: int) -> None:
        assert isinstance(self.node.operator, ToColumns)
        self.out(rows_to_columns(self, batch, self.node.operator.schema))


def rows_to_columns(task: OperatorTask, batch: Any, schema: pa.Schema) -> Columns:
    """A batch in columns, whatever its form. A record that does not fit the schema is the user's error and is named."""
    if isinstance(batch, Columns):
        return batch
    try:
        return Columns(columns_of(batch.values, schema), batch.times, batch.groups, batch.split)
    except Exception as error:
        for value in batch.values:
            try:
                columns_of([value], schema)
            except Exception as again:
                what = f"a record does not fit the schema ({', '.join(f'{f.name} {f.type}' for f in schema)}): {again}"
                raise task.user_error(again, value, what=what) from again
        raise task.user_error(error, what=f"the records do not fit the schema: {error}") from error
