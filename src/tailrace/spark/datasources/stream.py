"""The source of a stream reader (`DataSource.streamReader`, `DataSource.simpleStreamReader`): ranges of offsets are planned
in one place, and their partitions are splits, which all subtasks read in parallel."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tailrace.api.connectors import AssignedSplit, Enumerator, Reader, Source, SourceContext, SplitReader
from tailrace.elements.batches import Form
from tailrace.spark.datasources.ahead import WAIT, ReadAhead
from tailrace.spark.datasources.declared import Declared, ReaderCopies, ReadingMode
from tailrace.spark.datasources.listing import partition_of
from tailrace.spark.datasources.offsets import OffsetRange, SimpleOffsets, StreamOffsets
from tailrace.spark.datasources.planner import Planned, Planner, RangeSplit
from tailrace.spark.datasources.records import RowConverter

AT_ONCE = 8
"""Number of partitions that a subtask reads at once."""
FALLBACK = 0.01
"""Seconds until a reader without records is read again: it is woken for the first record of a portion only."""
LEAP = 1e8
"""Seconds between two reads that only a replay has: it lets time leap where it finds nothing."""


class StreamSource(Source):
    """A source of the rows of a stream reader. The position in a partition is the number of rows read: a restart reads a
    partition anew, and passes by as many."""

    description = "data source"
    splits_follow = True

    def __init__(self, declared: Declared, reader: Any, simple: bool, form: Form, reading: ReadingMode) -> None:
        self.name, self.simple, self.form = declared.name, simple, form
        self.every, self.bounded = reading.every, reading.until is not None
        self.columns = tuple(declared.arrow_schema.names)
        self.schema = declared.arrow_schema if form == "columns" else None
        self._converter = RowConverter(declared.schema, declared.arrow_schema, form)
        self._copies = ReaderCopies(reader)
        self._rows: dict[tuple[str, str], list[Any]] = {}
        """Rows that the planner of a simple reader has read in this process, by the offsets of their range."""

    def __repr__(self) -> str:
        return f"data source {self.name!r}"

    @property
    def position_format(self) -> str:
        return f"data source {self.name}, stream"

    def splits(self, parallelism: int) -> Sequence[Any]:
        raise NotImplementedError  # there is an enumerator

    def enumerator(self, parallelism: int, position: Planned | None = None) -> Enumerator:
        reader = self._copies.take()
        offsets = SimpleOffsets(reader, self.name, self._rows) if self.simple else StreamOffsets(reader, self.name)
        return Planner(offsets, parallelism, position, self.every, self.bounded)

    def reader(self, split: Any, position: Any = None) -> Reader:
        raise NotImplementedError  # there is a reader of all splits

    def split_reader(self, ctx: SourceContext) -> SplitReader:
        return _PartitionsReader(self)

    def open_partition(self, split: RangeSplit, rows: int, wake: Any) -> ReadAhead:
        """The records of a partition behind its first `rows` rows."""
        partition = partition_of(split.partition)
        where = f"partition {split.number} of the data source {self.name!r}, from {split.start} to {split.end}"
        kept = self._rows.pop((split.start, split.end), None) if isinstance(partition, OffsetRange) else None
        if kept is not None:
            return ReadAhead(lambda: kept, self._converter, rows, where, wake)
        reader = self._copies.take()
        if isinstance(partition, OffsetRange):
            start, end = partition.offsets()
            return ReadAhead(lambda: reader.readBetweenOffsets(start, end), self._converter, rows, where, wake)
        return ReadAhead(lambda: reader.read(partition), self._converter, rows, where, wake)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": {}}


class _OpenPartition:
    """A split of this subtask, which may not be read yet."""

    def __init__(self, split: RangeSplit, rows: int) -> None:
        self.split, self.before = split, rows
        self.ahead: ReadAhead | None = None

    @property
    def rows(self) -> int:
        return self.before if self.ahead is None else self.ahead.rows


class _PartitionsReader(SplitReader):
    """The reader of the partitions of one subtask: of `AT_ONCE` that are not paused at a time, each in a thread."""

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._open: dict[int, _OpenPartition] = {}
        self._paused: frozenset[int] = frozenset()
        self._news = threading.Event()
        self._turn = 0
        self._read_at = 0.0

    def assign(self, splits: Sequence[AssignedSplit]) -> None:
        for number, split, position in splits:
            self._open[number] = _OpenPartition(split, position or 0)

    def revoke(self, splits: Sequence[int]) -> None:
        for number in splits:
            found = self._open.pop(number, None)
            if found is not None and found.ahead is not None:
                found.ahead.close()

    def pause(self, splits: Collection[int]) -> None:
        self._paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Iterator[tuple[int, Any]]:
        active = [number for number in self._open if number not in self._paused][:AT_ONCE]
        self._turn += 1
        first = self._turn % len(active) if active else 0
        found = self._parts([*active[first:], *active[:first]], limit)
        if now - self._read_at < LEAP or not self._read_at:
            self._read_at = now
        elif not found:
            self._news.wait(WAIT)  # a replay repeats reads at once, and gives up where they stay empty
        given = {number for number, _ in found}
        return iter([*found, *((number, []) for number in active if number not in given)])

    def _parts(self, numbers: Sequence[int], limit: int) -> list[tuple[int, Any]]:
        """What comes next of these splits, without those that have nothing at the moment."""
        self._news.clear()
        parts: list[tuple[int, Any]] = []
        for place, number in enumerate(numbers):
            share = -(-limit // (len(numbers) - place))
            if not share:
                break
            records = self._next(self._open[number], share)
            if records is None or len(records):
                parts.append((number, records))
                limit -= 0 if records is None else len(records)
        return parts

    def _next(self, one: _OpenPartition, limit: int) -> Any:
        if one.split.partition is None:
            return None
        if one.ahead is None:
            one.ahead = self._source.open_partition(one.split, one.before, self._tell)
        return one.ahead.read(limit, 0.0)

    def _tell(self) -> None:
        self._news.set()
        self.wake()

    def position(self, split: int) -> int:
        return self._open[split].rows

    def next_at(self, now: float) -> float:
        return now + FALLBACK

    def close(self) -> None:
        self.revoke(list(self._open))
