"""The one reader of all splits of a subtask, beside the readers that a source makes for each split."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tailrace.api.connectors import AssignedSplit, Reader, Source, SplitReader
from tailrace.task.contract.outside import TakenParts
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.contracts import of_class, parts_of, split_reader_of


def reads_many(source: Source) -> bool:
    """True if a source may have a reader of several splits. Its splits are all dealt out at once."""
    return type(source).split_reader is not Source.split_reader


def lost_metric(reader: Any) -> str:
    """The name of the metric that counts what a reader has lost."""
    return f"lost_{getattr(reader, 'lost_unit', 'bytes')}"


class SplitOfMany(Reader):
    """A split of a `SplitReader`, as its task sees the reader of one split. Reading is `SharedReader.take`."""

    def __init__(self, reader: SplitReader, number: int) -> None:
        self.reader, self._number = reader, number

    @property
    def position(self) -> Any:
        return self.reader.position(self._number)

    def close(self) -> None:
        self.reader.revoke([self._number])


class SharedReader:
    """The reader of all splits of a subtask, made for the first of them.

    Invariant D3: no record is taken of a split while it is paused, also where a lost worker's reads are repeated. Such a
    read takes the records of one split, and pauses all others: splits may come in another order than the first time.
    """

    def __init__(self, source: Source, ctx: OperatorContext) -> None:
        self._source, self._ctx = source, ctx
        self.reader: SplitReader | None = None
        self.next_read = 0
        """Time of the next read, if nothing wakes the task before (int64 microseconds)."""
        self.held: set[int] = set()
        """Splits that were too far ahead of others at the last read."""
        self.woken = True
        """True if records may have come since the last read."""
        self._assigned: set[int] = set()
        self._paused: set[int] = set()

    def assign(self, splits: list[AssignedSplit]) -> list[Reader] | None:
        """Adds splits; returns each as its task sees it. None if the source has a reader for each split after all."""
        if self.reader is None:
            made = self._source.split_reader(self._ctx)
            self.reader = split_reader_of(made, f"{of_class(self._source)}.split_reader")
            if self.reader is not None:
                self.reader.wake = self._ctx.services.outside.beside.waker(self._ctx.uid)  # type: ignore[method-assign, assignment]
        if self.reader is None:
            return None
        self.reader.assign(splits)
        self._assigned.update(split.number for split in splits)
        return [SplitOfMany(self.reader, split.number) for split in splits]

    def is_due(self, now: int, held: set[int], woken: bool) -> bool:
        """True if the reader is to be read, with these splits held back."""
        return self.next_read <= now or held != self.held or woken

    def take(self, limit: int, now: float, only: int | None) -> TakenParts:
        """Records that the reader returns, and how much it has lost since it was read last. `only`: of one split
        alone."""
        reader: Any = self.reader
        held = self.held if only is None else self._assigned - {only}
        self._pause(held & self._assigned)
        given, who = reader.read(limit, now), f"{of_class(reader)}.read"
        lost = getattr(reader, "lost", 0)
        if lost:
            reader.lost = 0
        return parts_of(given, limit, self._source, self._assigned - self._paused, who), lost

    def _pause(self, splits: set[int]) -> None:
        if splits != self._paused:
            assert self.reader is not None
            self.reader.pause(frozenset(splits))
            self._paused = splits

    def forget(self, splits: Collection[int]) -> None:
        """Forgets splits that were revoked."""
        self._assigned.difference_update(splits)
        self._paused.difference_update(splits)
