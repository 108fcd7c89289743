"""Operators without state: fused row functions, batch functions, conversions between the forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.api.functions import Function, MapBatchesFunction, as_callable
from tailrace.elements.batches import Batch, Columns, Rows, Times
from tailrace.elements.columns.kinds import plain_schema
from tailrace.elements.columns.schemas import OneSchema
from tailrace.graph.graph import Node
from tailrace.graph.operators import Filter, FlatMap, Map, MapBatches, ToColumns
from tailrace.state.backend import MetaPart
from tailrace.state.operator_state import OperatorStates
from tailrace.task.batchtimes import times_kept, with_times
from tailrace.task.context import OperatorContext
from tailrace.task.dataframes import ArrowBatches, Frames, format_of, frames_of
from tailrace.task.operators.base import OperatorTask, call_user, close_functions
from tailrace.task.operators.columns import columns_in, fitted, rows_in
from tailrace.task.operators.timestamps import arrow_times
from tailrace.task.usercode import FUSED, innermost_fused_frame, user_error

FUSIBLE = (Map, Filter, FlatMap)


class FusedRows(OperatorTask):
    """A run of map, filter and flat_map as one generated loop.

    Each user function is called on a line of its own in the generated code, so that when one raises, the line of the
    innermost generated frame says which operator it was and the frame's locals hold its record. (A comprehension would
    tell neither: it has one line, and from Python 3.12 on its variables are gone once it is left.)
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
                call_user(fn.open, ctx, what="open", operator=ctx.name, subtask=ctx.subtask)

    def contexts(self) -> list[OperatorContext]:
        return self.ctxs

    def advance(self, time: int, limit: int) -> bool:
        for ctx in self.ctxs:
            ctx.watermark_time = time
        return True

    def process(self, batch: Batch, port: int) -> None:
        rows = batch.to_rows()
        try:
            if rows.times is None:
                made = Rows(self._plain(rows.values), None, None, rows.split)
            elif self.keeps_count:
                made = Rows(self._plain(rows.values), rows.times, None, rows.split)
            else:
                values, times = self._timed(rows.values, rows.times.tolist())
                made = Rows(values, np.array(times, np.int64), None, rows.split)
        except Exception as error:
            raise self._located(error) from error
        if made.values:
            self.out(made)

    def _located(self, error: Exception) -> Exception:
        at = innermost_fused_frame(error.__traceback__)
        if at is None:
            return self.user_error(error)
        index = min(max(at.tb_lineno - _FIRST_LINE, 0), len(self.nodes) - 1)
        record = at.tb_frame.f_locals[input_names(self.nodes)[index]]
        what = None
        if isinstance(self.nodes[index].operator, FlatMap) and at.tb_next is None and "not iterable" in str(error):
            what = f"flat_map must return an iterable or None ({error})"
        node = self.nodes[index]
        return user_error(error, node.name, self.ctx.subtask, record, what=what, written=node.written)

    def close(self) -> None:
        close_functions(self.functions)


def _function(node: Node) -> Any:
    operator = node.operator
    assert isinstance(operator, FUSIBLE)
    return operator.fn


_FIRST_LINE = 4
"""The line of the generated code on which the first user function is called."""


MAX_FUSED = 16
"""How many functions may be fused: each flat_map is a loop in a loop, and Python allows for twenty."""


def input_names(nodes: list[Node]) -> list[str]:
    """The variable of the generated code that holds each operator's record, and at the end that of the result."""
    names = ["x0"]
    for i, node in enumerate(nodes):
        names.append(names[i] if isinstance(node.operator, Filter) else f"x{i + 1}")
    return names


def compiled(nodes: list[Node], functions: list[Callable[..., Any]]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The generated functions: (values) -> values, and (values, times) -> (values, times)."""
    names, indent, lines = input_names(nodes), "    ", []
    for i, node in enumerate(nodes):
        call = f"f{i}({names[i]})"
        if isinstance(node.operator, Map):
            lines.append(f"{indent}{names[i + 1]} = {call}")
        elif isinstance(node.operator, Filter):
            lines.append(f"{indent}if not {call}: continue")
        else:
            lines.append(f"{indent}for {names[i + 1]} in () if (r := {call}) is None else r:")
            indent += "  "
    body = "\n".join(lines)
    plain = f"""def plain(values):
  out = []
  for x0 in values:
{body}
{indent}out.append({names[-1]})
  return out"""
    timed = f"""def timed(values, times):
  out = []; kept = []
  for x0, t in zip(values, times):
{body}
{indent}out.append({names[-1]}); kept.append(t)
  return out, kept"""
    scope: dict[str, Any] = {f"f{i}": fn for i, fn in enumerate(functions)}
    for source in (plain, timed):
        exec(compile(source, FUSED, "exec"), scope)
    return scope["plain"], scope["timed"]


class BatchesTask(OperatorTask):
    """`map_batches`: a batch or a frame in, one or several out. `task.batchtimes` says which timestamps they have."""

    one_schema_of = "output"

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, MapBatches)
        self.fn = node.operator.fn
        allowed = ctx.services.allow_dropped_state
        dropped = allowed if isinstance(allowed, bool) else ctx.uid in allowed
        self.own_state = OperatorStates(self.fn, ctx, dropped) if isinstance(self.fn, Function) else None
        self._call = as_callable(self.fn)
        self._time_column = node.operator.timestamps
        self.one_schema = OneSchema()
        self._format = node.operator.format
        self._frames: Frames = ArrowBatches()

    def snapshot(self, checkpoint: int) -> bytes | None:
        return None if self.own_state is None else self.own_state.snapshot()

    def restore(self, parts: list[MetaPart]) -> None:
        if self.own_state is not None:
            self.own_state.restore(parts, self.finished)

    def open(self) -> None:
        try:
            self._frames = frames_of(self._format)
        except ImportError as error:
            what = f"format={self._format!r} needs a package that is not installed on the executor: {error}"
            raise self.user_error(error.with_traceback(None), what=what) from error
        if isinstance(self.fn, Function):
            self.call_user(self.fn.open, self.ctx, what="open")

    def finish(self) -> None:
        if not self.rested:
            self._say("finish")

    def at_rest(self) -> None:
        super().at_rest()
        self._say("finish")

    def end_round(self, number: int, limit: int) -> bool:
        self._say("on_round_end", number)
        return True

    def _say(self, what: str, *args: Any) -> None:
        """What the user's function has to say without a batch at hand."""
        if isinstance(self.fn, MapBatchesFunction):
            said = self.call_user(getattr(self.fn, what), *args, what=what)
            for made in self._batches([said] if format_of(said) else said or ()):
                self._send(made, None, -1)

    def process(self, batch: Batch, port: int) -> None:
        assert isinstance(batch, Columns)
        given, name = batch.data, self._time_column
        if name is not None:
            if name in given.schema.names:
                taken = ValueError(
                    f"timestamps={name!r}: the stream has a column of this name already; choose another name"
                )
                raise self.user_error(taken)
            given = with_times(given, batch.times, name)
        for made in self._results(given):
            kept = None if name is not None or batch.times is None else times_kept(given, batch.times, made)
            self._send(made, kept, batch.split)

    def _send(self, made: pa.RecordBatch, times: Times | None, split: int) -> None:
        if not made.num_rows:
            return
        if self._time_column is not None:
            made, times = self._without_times(made, self._time_column)
        self.out(Columns(fitted(self, made), times, None, split))

    def _without_times(self, made: pa.RecordBatch, name: str) -> tuple[pa.RecordBatch, Times]:
        at = made.schema.get_field_index(name)
        if at < 0:
            missing = ValueError(f"timestamps={name!r}: what map_batches returned has no such column")
            raise self.user_error(missing)
        try:
            times = arrow_times(made.column(at))
        except (TypeError, OverflowError, pa.ArrowInvalid) as error:
            what = f"the timestamps in column {name!r} cannot be used: {error}"
            raise self.user_error(error.with_traceback(None), what=what) from error
        return made.remove_column(at), times

    def _results(self, data: pa.RecordBatch) -> list[pa.RecordBatch]:
        try:
            given = self._frames.given(data)
        except TypeError as error:
            raise self.user_error(error.with_traceback(None), what=str(error)) from error
        try:
            result = self._call(given)
            found = [result] if format_of(result) else list(result or ())
        except Exception as error:
            raise self.user_error(error, data) from error
        return self._batches(found)

    def _batches(self, found: Iterable[Any]) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []
        for one in found:
            try:
                made = self._frames.batches(one)
            except (TypeError, ValueError, pa.ArrowException) as error:
                what = f"what map_batches returned is no batch of a stream: {error}"
                raise self.user_error(error.with_traceback(None), what=what) from error
            if made is None:
                other = format_of(one)
                hint = "" if other in (None, self._format) else f"; give it format={other!r}"
                what = f"map_batches must return {self._frames.said}, not {type(one).__name__}{hint}"
                raise self.user_error(TypeError(what))
            batches += made
        return batches

    def close(self) -> None:
        close_functions([self.fn])


class ToRowsTask(OperatorTask):
    """Columns to named tuples."""

    def process(self, batch: Batch, port: int) -> None:
        self.out(rows_in(self, batch))


class ToColumnsTask(OperatorTask):
    """Records of either form to record batches of a declared schema. Of a stream in columns it takes the columns that the
    schema names."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, ToColumns)
        self.schema = plain_schema(node.operator.schema)

    def process(self, batch: Batch, port: int) -> None:
        self.out(columns_in(self, batch, self.schema, select=True))
