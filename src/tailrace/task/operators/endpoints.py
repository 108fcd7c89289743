"""Sources and sinks at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tailrace.api.connectors import NO_RECORD, Reader
from tailrace.elements.batches import Columns, Rows
from tailrace.elements.timestamps import micros
from tailrace.graph.graph import Node
from tailrace.graph.operators import Sink, Source
from tailrace.task.context import OperatorContext
from tailrace.task.operators.base import OperatorTask, close_all
from tailrace.task.operators.stateless import rows_to_columns


@dataclass
class _OpenSplit:
    index: int
    reader: Reader
    ready_at: int = 0
    """Not read again before this time (int64 microseconds)."""


class SourceTask(OperatorTask):
    """Reads its share of the splits, all open at once and in turn: the watermark is a minimum over splits, so none may
    run ahead unseen."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, Source)
        self.source = node.operator.source
        self.splits: list[_OpenSplit] = []
        self.ended_splits: list[int] = []
        """Splits that ended since the task last looked."""
        self._next = 0

    def open(self) -> None:
        splits = self.call_user(lambda: list(self.source.splits(self.ctx.parallelism)), what="listing the splits")
        for index in range(self.ctx.subtask, len(splits), self.ctx.parallelism):
            reader = self.call_user(self.source.reader, splits[index], what="opening a split")
            self.splits.append(_OpenSplit(index, reader))

    @property
    def ended(self) -> bool:
        return not self.splits

    def ready(self, now: int) -> bool:
        """Whether some split may have records now."""
        return any(split.ready_at <= now for split in self.splits)

    def wake_at(self) -> int | None:
        """When some split may have records, where none has now."""
        return min((split.ready_at for split in self.splits), default=None)

    def read(self, limit: int, now: int) -> int:
        """Reads at most `limit` records of the next ready split and sends them on. Says how many."""
        split = self._turn(now)
        if split is None:
            return 0
        batch = self.call_user(lambda: self._read(split, limit, now / 1_000_000), what="reading a split")
        if batch is None:
            self._end(split)
            return 0
        if not len(batch):
            asked = lambda: micros(split.reader.next_at(now / 1_000_000))  # noqa: E731 - one call of the user's
            split.ready_at = self.call_user(asked, what="asking a split for its next time")
            return 0
        self.out(batch)
        return len(batch)

    def _read(self, split: _OpenSplit, limit: int, now: float) -> Any:
        """What the reader gives, as a batch of the source's form; None at the end of the split."""
        data = split.reader.read(limit, now)
        if isinstance(data, pa.RecordBatch):
            return Columns(data, split=split.index)
        if self.source.form == "columns" and data is not None and len(data):
            raise TypeError(f"a source of columns reads pyarrow.RecordBatch, not {type(data).__name__}")
        return None if data is None else Rows(data if isinstance(data, list) else list(data), split=split.index)

    def _turn(self, now: int) -> _OpenSplit | None:
        for offset in range(len(self.splits)):
            split = self.splits[(self._next + offset) % len(self.splits)]
            if split.ready_at <= now:
                self._next = (self._next + offset + 1) % len(self.splits)
                return split
        return None

    def _end(self, split: _OpenSplit) -> None:
        at = self.splits.index(split)
        del self.splits[at]
        if at < self._next:
            self._next -= 1
        self.ended_splits.append(split.index)
        self.call_user(split.reader.close, what="closing a split")

    def close(self) -> None:
        close_all([split.reader for split in self.splits])


class SinkTask(OperatorTask):
    """Hands batches to the writer; at the end the writer prepares what is published once the job has succeeded."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, Sink)
        self.sink = node.operator.sink
        self.writer: Any = None
        self.prepared: list[bytes] = []
        self.records = 0

    def open(self) -> None:
        self.writer = self.call_user(self.sink.writer, self.ctx, what="opening the sink")

    def process(self, batch: Any, port: int) -> None:
        if not len(batch):
            return
        if self.sink.form == "columns" and not isinstance(batch, Columns):
            batch = rows_to_columns(self, batch, self.sink.schema)
        elif self.sink.form == "rows":
            batch = batch.to_rows()
        data = batch.data if isinstance(batch, Columns) else batch.values
        try:
            self.writer.write(data)
        except Exception as error:
            record = getattr(self.writer, "record", NO_RECORD)
            what = f"the sink raised {type(error).__name__}: {error}"
            raise self.user_error(error, *(() if record is NO_RECORD else (record,)), what=what) from error
        self.records += len(batch)

    def finish(self) -> None:
        prepared = self.call_user(self.writer.prepare, what="preparing the sink's writes")
        if prepared is None:
            return
        if not isinstance(prepared, bytes):
            wrong = TypeError(f"a sink's writer prepares bytes or None, not {type(prepared).__name__}")
            raise self.user_error(wrong)
        self.prepared.append(prepared)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
