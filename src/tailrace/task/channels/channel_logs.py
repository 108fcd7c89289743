"""Logs of a channel: which of its records in flight belong to which checkpoint. Records are held by reference, and
encoded later, in portions.

A log holds the very batches and frames that wait in the channel: recording copies nothing, what is on disk stays there,
and each checkpoint under way has a log of its own. The reader of the channel *begins* a log at its cut, with the records
that it has not read. Records that arrive go into every open log. When the last record of a checkpoint has arrived, its
log is *complete*, and the worker encodes it into its file. At a restore `task.inflight.redistribution` decides which
subtask takes a record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import msgspec
import numpy as np

from tailrace.elements.batches import Batch, Rows, concat, joinable
from tailrace.elements.frame_codec import ChannelId, Frame, decode
from tailrace.elements.valueclasses import ChangedClass, renewal
from tailrace.errors import CheckpointCorrupt, IncompatibleState, InternalError, ProtocolViolation
from tailrace.state.parts import LogOf
from tailrace.task.channels.spilling import FRAME_BYTES, FRAME_RECORDS, Item, Shelf, frame_of
from tailrace.task.channels.written_records import Indexes, Span, WrittenRecords

_T = TypeVar("_T")

Numbered = tuple[ChannelId, int, int]
"""Some records of a channel, from the one of this number on: (channel, number, count)."""
Entry = tuple[Item, int, int]
"""(item, the first of its records that belongs to the log, the round that they wait for or 0)."""


@dataclass(frozen=True, slots=True)
class LogFrame:
    """Some records of a log, in order."""

    round: int
    """Round that the records wait for, in a loop in rounds; 0: none."""
    count: int
    data: bytes
    """One frame (`elements.frame_codec`), of no channel."""
    holds: tuple[Numbered, ...] = ()
    """Numbers of the records, in order, if they are numbered."""

    def batch(self, what: str) -> Batch:
        """Records of the frame. Raises `CheckpointCorrupt` for bytes that are no frame; `what` names the frame there."""
        return _read(lambda frame: frame.batch(), self.data, what)

    def check(self, what: str) -> None:
        """Raises `CheckpointCorrupt` for bytes that are no frame of `count` records. The records are not read."""
        count = _read(lambda frame: frame.count, self.data, what)
        if count != self.count:
            raise CheckpointCorrupt(f"{what} holds {count} records where {self.count} should be")


@dataclass(frozen=True, slots=True)
class Referred:
    """Some records of a log that are in the file of an earlier checkpoint."""

    round: int
    span: Span

    @property
    def count(self) -> int:
        return self.span.count


def _read(ask: Callable[[Frame], _T], data: bytes, what: str) -> _T:
    try:
        return ask(decode(data))
    except ProtocolViolation as error:
        raise CheckpointCorrupt(f"{what} cannot be read: {error}") from error


def log_frame(batch: Batch, round: int, who: str, subtask: int) -> LogFrame:
    """Batch as one frame of a log. Raises `UserCodeError` for a record that cannot be pickled."""
    return LogFrame(round, len(batch), frame_of(batch, who, subtask, "go into a checkpoint"))


def restored_frame(part: LogOf, who: str, subtask: int, *, as_it_is: bool = False) -> LogFrame:
    """Frame of a log that a checkpoint describes: all of its records, the records from some record on, or the records of
    some key groups. They are converted to the classes of today, unless the frame is only copied (`as_it_is`). Raises
    `CheckpointCorrupt` if the frame does not hold them, and `IncompatibleState` if one of their classes has changed."""
    whole = LogFrame(part.round, part.count, bytes(part.data))
    what = f"the log of {part.channel}"
    frame = _read(lambda one: one, whole.data, what)
    try:
        changed = not as_it_is and any(renewal(shape) is not None for shape in frame.classes)
        if not changed and not part.start and part.groups is None and part.stop in (-1, frame.count):
            return whole
        batch = _read(lambda one: msgspec.structs.replace(one, older=True).batch(), whole.data, what)
    except ChangedClass as error:
        raise IncompatibleState(f"operator {who!r}: {what} cannot be read: {error}") from error
    stop = len(batch) if part.stop < 0 else min(part.stop, len(batch))
    batch = batch.slice(min(part.start, stop), stop)
    if part.groups is not None:
        batch = _of_groups(batch, part.groups, what)
    if len(batch) != part.count:
        raise CheckpointCorrupt(f"{what} holds {len(batch)} records where {part.count} should be")
    return log_frame(batch, part.round, who, subtask)


def positions_of(part: LogOf) -> Indexes | None:
    """Positions in a frame of the records that belong to a log, if they depend on key groups; else None: the records are
    one behind the other, from `start` on."""
    if part.groups is None:
        return None
    groups = _read(lambda frame: frame.batch(), bytes(part.data), f"the log of {part.channel}").groups
    assert groups is not None  # `restored_frame` has looked
    there = np.arange(len(groups))
    chosen = (groups >= part.groups[0]) & (groups < part.groups[1]) & (there >= part.start)
    return np.flatnonzero(chosen if part.stop < 0 else chosen & (there < part.stop))


def _of_groups(batch: Batch, groups: tuple[int, int], what: str) -> Batch:
    if batch.groups is None:
        raise CheckpointCorrupt(f"{what}: records of key groups {groups} are wanted, and the frame does not say theirs")
    chosen = (batch.groups >= groups[0]) & (batch.groups < groups[1])
    parts: dict[int, Batch] = dict(batch.partition(chosen.astype(np.int64), 2))
    return parts.get(1, batch.slice(0, 0))


class Log:
    """Records of one channel that belong to one checkpoint."""

    __slots__ = ("checkpoint", "complete", "entries", "records", "shape", "whole")

    def __init__(self, checkpoint: int, complete: bool, whole: bool = False) -> None:
        self.checkpoint = checkpoint
        self.whole = whole
        """True if the records of the log are written whatever earlier files have."""
        self.entries: deque[Entry] = deque()
        self.records = 0
        """Number of records that the log got so far; encoding takes none away."""
        self.shape: list[int] = []
        """Shape of the records on the channel, if a replacement of a worker may need it (`task.journal.shapes`)."""
        self.complete = complete


class Recording:
    """Logs of one channel, one for each checkpoint that is under way. Their records are items of `shelf`.

    Invariant Q5: an open log is younger than the newest one that was completed; after the end there is none.
    Invariant Q10: `open` holds exactly the logs that are not complete, the oldest first.
    """

    def __init__(self, who: str, shelf: Shelf, written: WrittenRecords | None = None) -> None:
        """`written`: the records in files that a log may refer to."""
        self.who = who
        """Name of the operator whose channel it is, for errors."""
        self._written = written
        self.open: list[Log] = []
        self.newest_cut = -1
        self._shelf = shelf
        self._logs: dict[int, Log] = {}
        self._newest_complete = -1
        self._newest_known = -1
        """Newest checkpoint that was cut or given up."""
        self._ended = False

    # Recording.

    def begin(self, checkpoint: int, whole: bool = False, complete: bool = False) -> Log:
        """Begins the log of a checkpoint, at its cut. The caller writes the unread records into the log; records that
        arrive later follow. `whole`: the checkpoint refers to no earlier files. `complete`: nothing follows."""
        if checkpoint <= max(self.newest_cut, self._newest_complete):
            raise InternalError(
                f"Q3: a cut of checkpoint {checkpoint} after the cut of {self.newest_cut} and the marker of "
                f"{self._newest_complete}"
            )
        self.newest_cut = checkpoint
        self._newest_known = max(self._newest_known, checkpoint)
        log = self._logs[checkpoint] = Log(checkpoint, self._ended or complete, whole)
        if not log.complete:
            self.open.append(log)
        return log

    def write(self, log: Log, item: Item, start: int = 0, round: int = 0) -> None:
        """Adds an item to a log, from its `start`-th record on."""
        self._shelf.hold(item)
        log.entries.append((item, start, round))
        log.records += item.count - start

    def add(self, item: Item, round: int = 0) -> None:
        """Adds an item that arrived to every open log."""
        for log in self.open:
            self.write(log, item, 0, round)

    def awaits(self, checkpoint: int) -> bool:
        """True if the log of a checkpoint is open. Raises `InternalError` if the checkpoint was neither begun nor given
        up."""
        if checkpoint > self._newest_known:
            raise InternalError(f"Q3: the marker of checkpoint {checkpoint} came to {self.who!r} before its head's cut")
        log = self._logs.get(checkpoint)
        return log is not None and not log.complete

    def complete_logs(self, checkpoint: int) -> None:
        """Completes the log of a checkpoint whose last record has arrived. No more records arrive for older ones: their
        open logs are given up."""
        self._newest_complete = max(self._newest_complete, checkpoint)
        log = self._logs.get(checkpoint)
        if log is not None and not log.complete:
            log.complete = True
            self.open.remove(log)
        for older in [log.checkpoint for log in self.open if log.checkpoint < checkpoint]:
            self.discard(older)

    def end(self) -> None:
        """Ends the channel: every log is complete, and a log that is begun later is complete from its beginning."""
        self._ended = True
        for log in self.open:
            log.complete = True
        self.open.clear()

    def discard(self, checkpoint: int) -> None:
        """Lets go of the log of a checkpoint that was encoded or given up."""
        self._newest_known = max(self._newest_known, checkpoint)
        log = self._logs.pop(checkpoint, None)
        if log is None:
            return
        if not log.complete:
            self.open.remove(log)
        for item, _, _ in log.entries:
            self._shelf.release(item)

    def close(self) -> None:
        """Lets go of every log. The owner of the shelf closes the shelf."""
        self._logs.clear()
        self.open.clear()

    # Encoding.

    @property
    def untouched(self) -> bool:
        """True if no checkpoint was begun or given up so far."""
        return self._newest_known < 0

    def log(self, checkpoint: int) -> Log:
        """Log of a checkpoint that has one."""
        return self._logs[checkpoint]

    def pending(self) -> list[int]:
        """Checkpoints that have a log."""
        return list(self._logs)

    def complete(self, checkpoint: int) -> bool:
        """True if there is a log of the checkpoint, and nothing will be added to it."""
        log = self._logs.get(checkpoint)
        return log is not None and log.complete

    def records(self, checkpoint: int) -> int:
        """Number of records that the log of a checkpoint got so far; encoding takes none away."""
        log = self._logs.get(checkpoint)
        return 0 if log is None else log.records

    def encode(self, checkpoint: int, limit: int) -> tuple[list[LogFrame | Referred], bool]:
        """About `limit` more records of a complete log, in order, and True if these are the last. The log does not hold
        them any more. Raises `UserCodeError` for a record that cannot be pickled."""
        log = self._logs.get(checkpoint)
        if log is None or not log.complete:
            raise InternalError(f"Q3: the log of checkpoint {checkpoint} is {'not complete' if log else 'not there'}")
        frames: list[LogFrame | Referred] = []
        count = 0
        while log.entries and count < limit:
            made = self._next_frames(log, limit - count)
            count += sum(frame.count for frame in made)
            frames += made
        return frames, not log.entries

    def skip(self, checkpoint: int, over: Callable[[Item], bool]) -> None:
        """Lets go of the items with which a log begins, as long as `over` is true for them."""
        entries = self._logs[checkpoint].entries
        while entries and over(entries[0][0]):
            self._shelf.release(entries.popleft()[0])

    def _next_frames(self, log: Log, limit: int) -> Sequence[LogFrame | Referred]:
        item, start, round = log.entries[0]
        spans = self._spans(log, item, start)
        data = None if start or item.batch is not None else self._shelf.frame(item)
        used = 1
        if not spans and item.in_memory and item.batch is None and item.data is None:
            raise InternalError(f"X3: {item.at} is in a file only, and no log may refer to that", ())
        frames: Sequence[LogFrame | Referred]
        if spans:
            if item.batch is not None:
                self._shelf.look(item.batch)
            frames = [Referred(round, span) for span in spans]
        elif data is not None:
            frames = [LogFrame(round, item.count, data, _numbers_of(item, start))]
        else:
            parts = self._together(log, limit)
            used = len(parts)
            encoded = self._shelf.encode(concat(parts), "go into a checkpoint")
            numbered = [one for entry in islice(log.entries, used) for one in _numbers_of(*entry[:2])]
            frames = [LogFrame(round, count, data, _next_of(numbered, count)) for count, data in encoded]
        for _ in range(used):
            self._shelf.release(log.entries.popleft()[0])
        return frames

    def _spans(self, log: Log, item: Item, start: int) -> list[Span]:
        """Places in files of the records of an entry, if a log may refer to all of them there; else empty."""
        if self._written is None or item.at is None or not item.count or log.whole:
            return []
        channel, first = item.at
        return self._written.find(channel, first + start, item.count - start)

    def _together(self, log: Log, limit: int) -> list[Batch]:
        """Records of the first entry of a log, and of the entries after it that go into one frame with it: small ones of
        rows in memory."""
        first, start, round = log.entries[0]
        batch = self._shelf.load(first)
        parts = [batch.slice(start, first.count) if start else batch]
        count, size = len(parts[0]), first.size
        if not isinstance(batch, Rows):
            return parts
        for item, _, other in _after_first(log.entries):
            count += item.count
            size += item.size
            fits = count <= min(limit, FRAME_RECORDS) and size <= FRAME_BYTES
            piece = item.batch
            if (
                piece is None
                or not fits
                or other != round
                or not joinable_as_one(batch, piece)
                or self._spans(log, item, 0)
            ):
                break
            parts.append(piece)
        return parts

    # Inspection.

    def items(self) -> Iterator[Item]:
        """Items of every log, each as often as logs hold it."""
        for log in self._logs.values():
            for item, _, _ in log.entries:
                yield item

    def check(self) -> None:
        """Raises `InternalError` where an invariant does not hold."""
        for n, log in self._logs.items():
            if not log.complete and (self._ended or n <= self._newest_complete):
                raise InternalError(f"Q5: the log of checkpoint {n} is open, after marker {self._newest_complete}")
        if self.open != [log for log in self._logs.values() if not log.complete]:
            raise InternalError(f"Q10: the logs {[log.checkpoint for log in self.open]} count as open")


def joinable_as_one(a: Batch, b: Batch) -> bool:
    """True if two batches can be one without that any record loses its key group."""
    return joinable(a, b) and (a.groups is None) == (b.groups is None)


def _numbers_of(item: Item, start: int) -> tuple[Numbered, ...]:
    return () if item.at is None or not item.count else ((item.at[0], item.at[1] + start, item.count - start),)


def _next_of(numbered: list[Numbered], count: int) -> tuple[Numbered, ...]:
    """Takes `count` records away from the front of `numbered`."""
    taken: list[Numbered] = []
    while count and numbered:
        channel, first, there = numbered.pop(0)
        taken.append((channel, first, min(there, count)))
        if there > count:
            numbered.insert(0, (channel, first + count, there - count))
        count -= taken[-1][2]
    return tuple(taken)


def _after_first(entries: deque[Entry]) -> Iterator[Entry]:
    them = iter(entries)
    next(them)
    return them
