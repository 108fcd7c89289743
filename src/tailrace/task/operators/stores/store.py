"""Records of the inputs of one operator, kept as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.state.backend import Backend
from tailrace.state.format import JOINED
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.stores.chunks import BlockKeys, ChunkFront, KeptBlock, key_of_block, restore_blocks
from tailrace.task.operators.stores.places import KeptPlaces
from tailrace.task.operators.stores.segments import GONE, UNWRITTEN, JoinRecords, KeptSegment, Side
from tailrace.task.operators.stores.unmatched import Unmatched

Array = np.ndarray[Any, Any]
_SUBTASKS = 16
"""Bits for the subtask in the number of a record."""


class ColumnStore:
    """Records of two inputs at most. Each has a number, by which those of one input are in the order in which they came."""

    def __init__(
        self, backend: Backend, keys: BlockKeys, ctx: OperatorContext, spans: tuple[int, int] = (0, 0)
    ) -> None:
        """`spans`: for each input how long behind its own time a record may have to wait until it comes out."""
        backend.small = 0  # few entries have many records
        self._ctx = ctx
        self.came = 0
        """Number that is above those of all records that came."""
        self.sides = (Side(), Side())
        self.unmatched = Unmatched(spans)
        self.front = ChunkFront(self.sides, keys)
        self._table = backend.table(JOINED.name, kind=JOINED.kind, group_by=key_of_block)
        self._table.front = self.front

    def __len__(self) -> int:
        return sum(side.kept for side in self.sides)

    def records(self, data: pa.RecordBatch, times: Array, hashes: Array, groups: Array) -> JoinRecords:
        """New records, with numbers."""
        count = len(data)
        seqs = (np.arange(self.came, self.came + count) << _SUBTASKS) + self._ctx.subtask
        self.came += count
        chunks = np.full(count, UNWRITTEN, np.int64)
        return JoinRecords(data, seqs, times, hashes, groups, chunks, np.zeros(count, np.uint8))

    def restored_blocks(self, group_of: Callable[[Any], int]) -> Iterator[tuple[int, list[tuple[int, KeptBlock]]]]:
        """The blocks that the table has after a restore: for each input that has some, each with its chunk."""
        self._table.front = None
        entries = dict(self._table.items())
        self._table.front = self.front
        found: tuple[list[tuple[int, KeptBlock]], list[tuple[int, KeptBlock]]] = ([], [])
        for port, number, block in restore_blocks(self.front, entries, group_of):
            if len(block.seqs):
                found[port].append((number, block))
        return ((port, blocks) for port, blocks in enumerate(found) if blocks)

    def records_of(
        self, data: pa.RecordBatch, blocks: list[tuple[int, KeptBlock]], hashes: Array, groups: Array
    ) -> JoinRecords:
        """The records of restored blocks, whose columns are `data`."""
        seqs, times, marks = (
            np.concatenate([getattr(block, name) for _, block in blocks]) for name in ("seqs", "times", "marks")
        )
        chunks = np.concatenate([np.full(len(block.seqs), number, np.int64) for number, block in blocks])
        self.came = max(self.came, 1 + (int(seqs.max()) >> _SUBTASKS))
        records = JoinRecords(data, seqs, times, hashes, groups, chunks, marks)
        return records.some(np.argsort(seqs, kind="stable"))

    # Event time.

    def next_time(self, spans: tuple[int, int], last: int) -> int | None:
        """The least time, at most `last`, at which a record has to go, so long behind its own, or comes out."""
        times = [
            min(time + span, last)
            for side, span in zip(self.sides, spans, strict=True)
            for one in side.segments
            if (time := one.next_time()) is not None
        ]
        waits = self.unmatched.next_time()
        return min(times if waits is None else [*times, waits], default=None)

    def let_wait(self, port: int, one: KeptSegment, rows: Array) -> None:
        """Lets some records of a segment wait to come out."""
        if len(rows):
            one.alive -= len(rows)
            count = self.unmatched.add(port, one, rows)
            one.waiting += count
            self.sides[port].waiting += count

    def take(self, port: int, time: int) -> KeptPlaces | None:
        """The records of an input that event time has passed since the last call, which wait to come out; None if there are
        none."""
        segments, found = [*self.sides[port].segments], []
        for number, one in enumerate(segments):
            rows = one.pass_by(time)
            rows = rows[one.records.marks[rows] & GONE == 0]
            if len(rows):
                one.alive -= len(rows)
                one.waiting += len(rows)
                self.sides[port].waiting += len(rows)
                found.append((np.full(len(rows), number), rows))
        return KeptPlaces(segments, *map(np.concatenate, zip(*found, strict=True))) if found else None

    def let_go(self, port: int, some: KeptPlaces) -> None:
        """Lets go of records that do not wait to come out."""
        for one, _, rows in some.by_segment():
            one.alive -= len(rows)
            self.front.mark(port, one, rows, GONE, True)

    def let_out(self, port: int, some: KeptPlaces) -> None:
        """Lets go of records that have come out."""
        for one, _, rows in some.by_segment():
            one.waiting -= len(rows)
            self.sides[port].waiting -= len(rows)
            self.front.mark(port, one, rows, GONE, True)

    def tidy(self) -> None:
        """Drops what is left of records that are gone, where no record waits to come out."""
        for side in self.sides:
            side.tidy()
