"""Sinks at run time: what they are given, prepare at a cut, and have published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tailrace.api.connectors import NO_RECORD, SinkWriter, is_out_of_reach
from tailrace.elements.batches import Batch, Columns
from tailrace.elements.byte_texts import size_text
from tailrace.elements.callables import work_not_done
from tailrace.elements.columns.schemas import OneSchema
from tailrace.errors import OutOfReachError, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Sink
from tailrace.state.backend import MetaPart
from tailrace.state.format import TableInfo
from tailrace.state.operator_state import NO_VALUES, OperatorStates, declared_operator_states
from tailrace.task.contract.cut_state import CutState
from tailrace.task.contract.usercode import raised_text
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.columns.conversion import columns_in, fit, rows_in
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.contracts import (
    of_class,
    writer_of,
)

LARGEST_PREPARED = 32 << 20
"""Largest part, in bytes, that a sink may prepare without checkpoints: it travels in one message. With checkpoints, parts
go into files."""


@dataclass(eq=False)
class SinkCutState(CutState):
    """State of a sink at a cut that no checkpoint holds."""

    records: int = 0


class Withheld(Protocol):
    """What the sink of a hot standby would write. It is written only if the standby takes the place of its worker."""

    def write(self, batch: Batch) -> None:
        """Keeps a batch."""

    def cut(self, checkpoint: int) -> None:
        """Keeps the place of the cut for a checkpoint."""

    def finish(self) -> None:
        """Keeps that the input has ended."""

    def confirm(self, checkpoint: int) -> None:
        """Drops what is in front of the cut for a checkpoint: the worker has written it."""


class SinkTask(OperatorTask, SinkCutState):
    """Hands batches to the writer, and has it prepare what is to be published.

    With checkpoints the writer prepares a part at each cut. A part belongs to that checkpoint and to every later one,
    until one of them is known to be complete: after an abort the next one publishes it. Each part names the first
    checkpoint that had it: the coordinator knows sooner than the task which checkpoints are complete, and has no part
    published twice. Without checkpoints the writer prepares at the end, and all is published once the job has succeeded.
    """

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, Sink)
        self.sink = node.operator.sink
        self.writer = SinkWriter()
        """Writer of the user's sink, once it is open; until then one that does nothing."""
        self.final_prepared: list[bytes] = []
        """Parts to publish at the end of the job, without checkpoints."""
        self.unconfirmed: list[tuple[int, bytes]] = []
        """Parts that are in no checkpoint known to be complete, each with the first checkpoint that had it."""
        self.one_schema = OneSchema()
        self.widens = not getattr(self.sink, "same_columns", False)
        self._state: OperatorStates | None = None
        """State that the writer declares as `tr.OperatorState`."""
        self._restored: list[MetaPart] = []
        self._over: list[bytes] = []
        """Parts prepared at the end of the input, for the next checkpoint."""
        self._ended = False
        self.withheld: Withheld | None = None
        """Given while the sink must write nothing: its worker is a hot standby."""

    def open(self) -> None:
        if self.withheld is None:
            self.open_writer()

    @property
    def has_state(self) -> bool:
        """True if the restored checkpoint is of a writer that declares state, with or without a value."""
        return any(part.data for part in self._restored)

    def open_writer(self) -> None:
        """Opens the writer."""
        made = lambda: writer_of(self.sink.writer(self.ctx), f"{of_class(self.sink)}.writer")  # noqa: E731
        self.writer = self.call_user(made, what="opening the sink")
        if any(part.data for part in self._restored) or declared_operator_states(self.writer):
            allowed = self.ctx.services.allow_dropped_state
            dropped = allowed if isinstance(allowed, bool) else self.ctx.uid in allowed
            self._state = OperatorStates(self.writer, self.ctx, dropped, self.ctx.services.exact)
            self._state.restore(self._restored, self.finished)
        self._restored = []

    def own_tables(self) -> list[TableInfo]:
        return [] if self._state is None else self._state.tables()

    def restore(self, parts: list[MetaPart]) -> None:
        self._restored = parts

    def process(self, batch: Batch, port: int) -> None:
        if not len(batch):
            return
        if self.withheld is not None:
            self.withheld.write(batch)
            self.records += len(batch)
            return
        batch = self._in_form(batch)
        data = batch.data if isinstance(batch, Columns) else batch.values
        try:
            write: Callable[[Any], Any] = self.writer.write
            returned = self.ctx.services.outside.apart(write, data)
            if returned is not None and work_not_done(returned) is not None:
                kind = f"{type(self.writer).__name__}.write"
                raise TypeError(
                    f"{kind} gave a {type(returned).__name__}, so nothing was written; it must not yield or wait"
                )
        except Exception as error:
            what = f"the sink raised {raised_text(error)}"
            if is_out_of_reach(self.sink, error):
                raise self._out_of_reach(what) from error
            record = getattr(self.writer, "record", NO_RECORD)
            raise self.user_error(error, *(() if record is NO_RECORD else (record,)), what=what) from error
        self.records += len(batch)

    def _in_form(self, batch: Batch) -> Batch:
        """Batch as the sink takes it: rows, or columns of its schema. A sink without a schema takes the schema of its
        first batch."""
        if self.sink.form == "rows":
            return rows_in(self, batch)
        schema = getattr(self.sink, "schema", None)
        if isinstance(schema, pa.Schema) and (self.sink.form == "columns" or isinstance(batch, Columns)):
            return columns_in(self, batch, schema)
        if isinstance(batch, Columns):
            return Columns(fit(self, batch.data), batch.times, batch.groups, batch.split)
        return batch

    def finish(self) -> None:
        if self.withheld is not None:
            self.withheld.finish()
            return
        finish = self._own_method("finish")
        if finish is not None:
            self.call_user(finish, what="finishing the sink's writes")
        prepared = self._prepare()
        (self._over if self.ctx.services.checkpointing else self.final_prepared).extend(prepared)
        self._ended = True

    def _own_method(self, name: str) -> Callable[[], Any] | None:
        """A method of the writer that does something; a writer need not be a `SinkWriter`."""
        method = getattr(type(self.writer), name, None)
        return None if method in (None, getattr(SinkWriter, name)) else getattr(self.writer, name)

    def _out_of_reach(self, what: str) -> OutOfReachError:
        return OutOfReachError(what, operator=self.node.name, subtask=self.ctx.subtask)

    def _prepare(self) -> list[bytes]:
        try:
            release = self._own_method("release")
            if release is not None:
                request = lambda: self.ctx.services.outside.request(release)  # noqa: E731 - one call of the user's
                self.writer.released = self.call_user(request, what="releasing the sink's writes")
            prepared = self.call_user(self.writer.prepare, what="preparing the sink's writes")
        except UserCodeError as error:
            if error.__cause__ is not None and is_out_of_reach(self.sink, error.__cause__):
                raise self._out_of_reach(str(error.args[0])) from error.__cause__
            raise
        if prepared is None:
            return []
        if not isinstance(prepared, bytes):
            wrong = TypeError(
                f"{of_class(self.writer)}.prepare: a sink's writer prepares bytes or None, not {of_class(prepared)}"
            )
            raise self.user_error(wrong)
        if len(prepared) > LARGEST_PREPARED and not self.ctx.services.checkpointing:
            raise self.user_error(
                ValueError(
                    f"the sink's writer prepared {size_text(len(prepared))} at once, and without checkpoints at most "
                    f"{size_text(LARGEST_PREPARED)} travel to the worker that publishes them: write the records to where "
                    f"publish finds them and prepare their name, or give the Environment checkpoint=tr.CheckpointConfig(...)"
                )
            )
        return [prepared]

    def call_user(self, function: Callable[..., Any], *args: Any, what: str) -> Any:
        """Calls code of the sink, whose readings of clocks are not recorded: a replacement names its files anew."""
        return super().call_user(self.ctx.services.outside.apart, function, *args, what=what)

    def close(self) -> None:
        self.writer.close()

    # Checkpoints.

    def snapshot(self, checkpoint: int) -> bytes | None:
        if self.withheld is not None:
            self.withheld.cut(checkpoint)
            return None
        prepared, self._over = self._over, []
        if not self._ended and not self.finished:
            prepared += self._prepare()
        self.unconfirmed += [(checkpoint, one) for one in prepared]
        if self.one_schema is not None and not self.widens:
            self.one_schema.close()
        # A writer that declares state has a part without a value, too: by it a hot standby knows not to follow.
        return None if self._state is None else self._state.snapshot() or NO_VALUES

    def prepared_output(self, checkpoint: int) -> list[tuple[int, bytes]]:
        return [(first, one) for first, one in self.unconfirmed if first <= checkpoint]

    def confirm(self, checkpoint: int) -> None:
        if self.withheld is not None:
            self.withheld.confirm(checkpoint)
        self.unconfirmed = [(first, one) for first, one in self.unconfirmed if first > checkpoint]
