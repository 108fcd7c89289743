"""`map_batches`: a function of whole batches, with its side outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.api.functions import Function, MapBatchesFunction, as_callable, takes_context
from tailrace.elements.batches import Batch, Columns, Times
from tailrace.elements.callables import run_to_its_end
from tailrace.elements.columns.schemas import OneSchema
from tailrace.elements.timestamps import NO_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import MapBatches
from tailrace.state.backend import MetaPart
from tailrace.state.format import TableInfo
from tailrace.state.operator_state import OperatorStates
from tailrace.state.undo_log import keep_journal
from tailrace.task.operators.base import Emit, OperatorTask, close_functions, new_journal
from tailrace.task.operators.columns.conversion import fit
from tailrace.task.operators.columns.dataframes import ArrowBatches, Frames, format_of, frames_of
from tailrace.task.operators.columns.timestamps import times_kept, with_times
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.timestamps import arrow_times

Given = tuple[pa.RecordBatch, Times | None]
"""The batch that a function was given, and its timestamps."""


class BatchesTask(OperatorTask):
    """Operator that calls the user's function with each batch or frame, and emits the batches that it returns. Their
    timestamps come from `task.operators.columns.timestamps`."""

    one_schema_of = "output"

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, MapBatches)
        self.fn = node.operator.fn
        allowed = ctx.services.allow_dropped_state
        dropped = allowed if isinstance(allowed, bool) else ctx.uid in allowed
        exact = ctx.services.exact
        self.own_state = OperatorStates(self.fn, ctx, dropped, exact) if isinstance(self.fn, Function) else None
        self.journal = new_journal(node)
        if self.journal is not None:
            keep_journal(self.journal, {}, [] if self.own_state is None else self.own_state.handles)
        self._work = run_to_its_end(as_callable(self.fn))
        self._more = (ctx,) if takes_context(self.fn) else ()
        """Arguments of the function beside the batch."""
        self._time_column = node.operator.timestamps
        self.one_schema = OneSchema()
        ctx.side = {}
        self._format = node.operator.format
        self._frames: Frames = ArrowBatches()

    def snapshot(self, checkpoint: int) -> bytes | None:
        return None if self.own_state is None else self.own_state.snapshot()

    def own_tables(self) -> list[TableInfo]:
        return [] if self.own_state is None else self.own_state.tables()

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
        if self.ctx.side:
            what = "open emitted to a side output, before there is a batch; emit in map_batches, on_round_end or finish"
            raise self.user_error(ValueError(what), what=what)

    def finish(self) -> None:
        if not self.rested:
            self._call_method("finish")

    def at_rest(self) -> None:
        super().at_rest()
        self._call_method("finish")

    def end_round(self, number: int, limit: int) -> bool:
        self._call_method("on_round_end", number)
        return True

    def _call_method(self, what: str, *args: Any) -> None:
        """Calls a method of the user's function without a batch at hand, and emits what it returns."""
        if isinstance(self.fn, MapBatchesFunction):
            answer = self.call_user(getattr(self.fn, what), *args, what=what)
            for made in self._batches([answer] if format_of(answer) else answer or ()):
                self._send(self.out, made, None, -1)
            self._send_aside(None, -1)

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
            self._send(self.out, made, self._kept_times((given, batch.times), made), batch.split)
        if self.ctx.side:
            self._send_aside((given, batch.times), batch.split)

    def _kept_times(self, given: Given | None, made: pa.RecordBatch) -> Times | None:
        """Timestamps of records that the function made of a batch, if they are not in a column and can be known; else
        None."""
        batch, times = given if given is not None else (None, None)
        return None if times is None or self._time_column is not None else times_kept(batch, times, made)

    def _send(self, out: Emit, made: pa.RecordBatch, times: Times | None, split: int, side: str | None = None) -> None:
        if not made.num_rows:
            return
        if self._time_column is not None:
            made, times = self._without_times(made, self._time_column, side)
        out(Columns(fit(self, made, side), times, None, split))

    def _send_aside(self, given: Given | None, split: int) -> None:
        """Sends on what the user emitted to side outputs during the last call."""
        side, self.ctx.side = self.ctx.side or {}, {}
        for tag, (values, stamps) in side.items():
            target = self.side_out.get(tag)
            if target is None:
                continue  # no operator takes it
            for value, stamp in zip(values, stamps, strict=True):
                if stamp != NO_TIME and self._time_column is not None:
                    what = f"the timestamps of what is emitted are in its column {self._time_column!r}; leave timestamp= out"
                    raise self.user_error(ValueError(what), what=what)
                for made in self._batches([value], tag):
                    stamped = (
                        self._kept_times(given, made) if stamp == NO_TIME else np.full(made.num_rows, stamp, np.int64)
                    )
                    self._send(target, made, stamped, split, tag)

    def _without_times(self, made: pa.RecordBatch, name: str, side: str | None) -> tuple[pa.RecordBatch, Times]:
        at = made.schema.get_field_index(name)
        if at < 0:
            did = "returned" if side is None else f"emitted to {side!r}"
            missing = ValueError(f"timestamps={name!r}: what map_batches {did} has no such column")
            raise self.user_error(missing)
        try:
            times = arrow_times(made.column(at))
        except (TypeError, OverflowError, pa.ArrowInvalid) as error:
            what = f"the timestamps in column {name!r} cannot be used: {error}"
            raise self.user_error(error.with_traceback(None), what=what) from error
        return made.remove_column(at), times

    def _results(self, data: pa.RecordBatch) -> list[pa.RecordBatch]:
        try:
            given = self._frames.convert(data)
        except TypeError as error:
            raise self.user_error(error.with_traceback(None), what=str(error)) from error
        try:
            result = self._work(given, *self._more)
            found = [result] if format_of(result) else list(result or ())
        except Exception as error:
            raise self.user_error(error, data) from error
        return self._batches(found)

    def _batches(self, found: Iterable[Any], tag: str | None = None) -> list[pa.RecordBatch]:
        """Batches of what the function returned, or emitted to a side output. Raises `UserCodeError` for anything else."""
        batches: list[pa.RecordBatch] = []
        did = "returned" if tag is None else f"emitted to {tag!r}"
        for one in found:
            try:
                made = self._frames.batches(one)
            except (TypeError, ValueError, pa.ArrowException) as error:
                what = f"what map_batches {did} is no batch of a stream: {error}"
                raise self.user_error(error.with_traceback(None), what=what) from error
            if made is None:
                other = format_of(one)
                hint = "" if other in (None, self._format) else f"; give it format={other!r}"
                verb = "return" if tag is None else f"emit to {tag!r}"
                what = f"map_batches must {verb} {self._frames.accepted}, not {type(one).__name__}{hint}"
                raise self.user_error(TypeError(what))
            batches += made
        return batches

    def close(self) -> None:
        close_functions([self.fn])
