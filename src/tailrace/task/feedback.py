"""The feedback edge of a loop inside one worker: what its tail hands to its head, unbounded, and the logs of it.

The tail appends and never waits, so the cycle cannot block; what has no room in memory goes to a spill. A checkpoint does
not wait for feedback to go round either: from the head's cut until the marker of the checkpoint has come back to the tail,
what crosses the edge belongs to the checkpoint and is logged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tailrace.elements.batches import Columns, Rows, concat, joinable
from tailrace.elements.frames import decode
from tailrace.elements.markers import Attempt
from tailrace.errors import CheckpointCorrupt, InternalError, ProtocolViolation
from tailrace.task.combining import Combined, Combiner
from tailrace.task.spilling import FRAME_BYTES, FRAME_RECORDS, Item, MemorySpill, Shelf, Spill, framed

__all__ = ["Combiner", "FeedbackQueue", "LogFrame", "MemorySpill", "Spill", "log_frame"]


@dataclass(frozen=True, slots=True)
class LogFrame:
    """Some records of a log, in order."""

    round: int
    """The round that they wait for, in a loop in rounds; 0: none."""
    count: int
    data: bytes
    """One frame (`elements.frames`), of no channel."""


def log_frame(batch: Rows | Columns, round: int, who: str, subtask: int) -> LogFrame:
    """A batch as one frame of a log. Raises `UserCodeError` for a record that cannot be pickled."""
    return LogFrame(round, len(batch), framed(batch, who, subtask, "go into a checkpoint"))


class Log:
    """What belongs to one checkpoint: (item, the first of its records that does, the round that they wait for or 0)."""

    __slots__ = ("complete", "entries", "records", "stopped")

    def __init__(self, complete: bool, stopped: bool) -> None:
        self.entries: deque[tuple[Item, int, int]] = deque()
        self.records = 0
        self.complete = complete
        self.stopped = stopped
        """Whether rounds had been stopped at the cut: what is dropped belongs only to checkpoints from before."""


class FeedbackQueue:
    """The queue between one tail subtask, `who`, and its head subtask.

    Invariant Q1: records and markers come out in the order in which they went in. (In rounds: the records that became
    ready, and the markers, each among themselves; a merged record has the place of its oldest part.)
    Invariant Q2: `appended` + `returned` == `taken` + `records` + `waiting` + `dropped` + `merged`.
    Invariant Q3: the log of checkpoint n holds each record that was unread at cut(n) or appended from there until
    barrier(n), once, as it was then, and no other record. Records of that span may appear merged.
    Invariant Q4: an item is held once by the queue while it has an unread record and once by each log entry for it.
    Invariant Q5: an open log is younger than the newest barrier; after the end there is none.
    Invariant Q6: `memory` is at most `memory_bytes` (with a combiner, plus the batch that came last).
    """

    def __init__(
        self,
        who: str,
        subtask: int,
        make_spill: Callable[[], Spill],
        memory_bytes: int,
        combine: Combiner | None,
        in_rounds: bool,
    ) -> None:
        self.who = who
        self.subtask = subtask
        self.in_rounds = in_rounds
        self.records = 0
        """Ready and unread."""
        self.waiting = 0
        """For the next round."""
        self.appended = 0
        self.returned = 0
        """Records that a checkpoint brought back."""
        self.taken = 0
        self.dropped = 0
        self.merged = 0
        """Records that went into another that waited."""
        self._memory_bytes = memory_bytes
        self._combined = None if combine is None else Combined(combine, who, subtask)
        # With a combiner half the memory is for the records that can still be merged, so that there always are some.
        budget = memory_bytes if combine is None else memory_bytes // 2
        self._shelf = Shelf(who, subtask, make_spill, budget)
        self._ready: deque[Item | Attempt] = deque()
        self._start = 0
        """How many records of the first item are taken."""
        self._front: Any = None
        """The records of the first item, where they were decoded."""
        self._later: deque[tuple[Item, int]] = deque()
        """In rounds: items with the round that they wait for, in order."""
        self._round = 1
        """In rounds: the round that what comes now waits for."""
        self._logs: dict[int, Log] = {}
        self._newest_cut = -1
        self._newest_barrier = -1
        self._newest_known = -1
        """The newest checkpoint that was cut or given up."""
        self._ended = False
        self._stopped = False

    # The tail.

    def append(self, batch: Rows | Columns) -> None:
        """Takes feedback. Raises `UserCodeError` for a record that must go to the disk and cannot be pickled, or that
        cannot be merged."""
        self._not_ended("a record")
        count = len(batch)
        if not count:
            return
        self.appended += count
        if self._stopped:
            self._drop(batch)
        elif self._combined is None:
            self._queue(self._shelf.place(batch))
        else:
            self._combine(self._combined, batch)

    def marker(self, marker: Attempt) -> None:
        """A marker of a wave: behind the records that came before it, but past those that wait for the next round."""
        self._not_ended(f"{marker}")
        if not self.in_rounds:
            self._seal()
        self._ready.append(marker)

    def barrier(self, checkpoint: int) -> None:
        """The marker of a checkpoint has come back: its log is complete. Markers of older ones cannot come any more."""
        if self._ended:
            return
        if checkpoint > self._newest_known:
            raise InternalError(f"Q3: the marker of checkpoint {checkpoint} came to {self.who!r} before its head's cut")
        self._newest_barrier = max(self._newest_barrier, checkpoint)
        log = self._logs.get(checkpoint)
        if log is not None and not log.complete:
            self._seal()
            log.complete = True
        for older in [n for n, log in self._logs.items() if n < checkpoint and not log.complete]:
            self.discard(older)

    def end(self) -> None:
        """Nothing comes any more: every log is complete, and one that is cut later is from its beginning."""
        self._seal()
        self._ended = True
        for log in self._logs.values():
            log.complete = True

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return self._ended

    # The head.

    @property
    def ready(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._ready) or bool(self._combined and not self.in_rounds)

    def take(self, limit: int) -> Rows | Columns | Attempt | None:
        """The next marker, or the next records, at most `limit`; None where nothing is ready."""
        if not self._ready:
            return self._take_combined(limit)
        if isinstance(self._ready[0], Attempt):
            return self._ready.popleft()  # type: ignore[return-value]
        parts = [self._take_front(limit)]
        room = limit - len(parts[0])
        while room > 0 and self._joins(parts[0], room):
            parts.append(self._take_front(room))
            room -= len(parts[-1])
        batch: Rows | Columns = concat(parts)
        self.records -= len(batch)
        self.taken += len(batch)
        return batch

    def cut(self, checkpoint: int) -> None:
        """The head has cut: the log of the checkpoint begins with what is unread. What can still be merged follows when it
        is read or sealed, which is at the barrier at the latest."""
        if checkpoint <= max(self._newest_cut, self._newest_barrier):
            raise InternalError(
                f"Q3: a cut of checkpoint {checkpoint} after the cut of {self._newest_cut} and the marker of "
                f"{self._newest_barrier}"
            )
        self._newest_cut = checkpoint
        self._newest_known = max(self._newest_known, checkpoint)
        log = self._logs[checkpoint] = Log(self._ended, self._stopped)
        start = self._start
        for entry in self._ready:
            if isinstance(entry, Item):
                self._write(log, entry, start, 0)
                start = 0
        for item, round in self._later:
            self._write(log, item, 0, round)

    def round_ended(self, number: int) -> None:
        """The tail has all that round `number` brought. What comes from now on is of a later one: another worker may be
        told of it before this head is."""
        self._seal()
        self._round = max(self._round, number + 2)

    def open_round(self, number: int | None = None) -> int:
        """What waits for rounds up to `number` (None: for any) becomes ready; says how many records that are."""
        self._seal()
        opened = 0
        while self._later and (number is None or self._later[0][1] <= number):
            item = self._later.popleft()[0]
            self._ready.append(item)
            opened += item.count
        self.waiting -= opened
        self.records += opened
        return opened

    def drop(self) -> None:
        """There are no more rounds: what waits for one is dropped, and so is all that comes. It stays in the logs of
        cuts before, because a restore goes back to before rounds were stopped."""
        if not self.in_rounds:
            raise InternalError(f"feedback of {self.who!r} is dropped, but its loop has no rounds")
        self._seal()
        self._stopped = True
        self.dropped += self.waiting
        self.waiting = 0
        for item, _ in self._later:
            self._shelf.release(item)
        self._later.clear()

    @property
    def memory(self) -> int:
        """Bytes in memory, of the queue and of its logs."""
        return self._shelf.memory + (0 if self._combined is None else self._combined.size)

    @property
    def spilled(self) -> int:
        """Bytes in the spill, of the queue and of its logs."""
        return self._shelf.spilled

    # Logs.

    def pending(self) -> list[int]:
        """The checkpoints that have a log."""
        return list(self._logs)

    def complete(self, checkpoint: int) -> bool:
        """Whether there is a log of the checkpoint, and nothing will be added to it."""
        log = self._logs.get(checkpoint)
        return log is not None and log.complete

    def log_records(self, checkpoint: int) -> int:
        """How many records the log of a checkpoint got so far; encoding takes none away."""
        log = self._logs.get(checkpoint)
        return 0 if log is None else log.records

    def encode(self, checkpoint: int, limit: int) -> tuple[list[LogFrame], bool]:
        """About `limit` more records of a complete log, in order, and whether these are the last. What it gave it does
        not hold any more. Raises `UserCodeError` for a record that cannot be pickled."""
        log = self._logs.get(checkpoint)
        if log is None or not log.complete:
            raise InternalError(f"Q3: the log of checkpoint {checkpoint} is {'not complete' if log else 'not there'}")
        frames: list[LogFrame] = []
        count = 0
        while log.entries and count < limit:
            made = self._next_frames(log, limit - count)
            count += sum(frame.count for frame in made)
            frames += made
        return frames, not log.entries

    def discard(self, checkpoint: int) -> None:
        """The log of a checkpoint is not needed: it is encoded, or the checkpoint was given up."""
        self._newest_known = max(self._newest_known, checkpoint)
        log = self._logs.pop(checkpoint, None)
        if log is not None:
            for item, _, _ in log.entries:
                self._shelf.release(item)

    def restored(self, frames: Iterable[LogFrame]) -> None:
        """What the checkpoint held of this queue, in order. Before anything else. Raises `CheckpointCorrupt` for a frame
        that is none."""
        if self.appended or self.taken or self._newest_known >= 0:
            raise InternalError(f"feedback of {self.who!r} is restored after its start")
        for frame in frames:
            self._check_frame(frame)
            if frame.count:
                self.returned += frame.count
                item = self._shelf.restore(frame.data, frame.count)
                self._add(item, frame.round if self.in_rounds else 0)

    def close(self) -> None:
        """Lets go of everything."""
        self._ready.clear()
        self._later.clear()
        self._logs.clear()
        self._combined = self._front = None
        self._start = self.records = self.waiting = 0
        self._shelf.close()

    # How records come in.

    def _not_ended(self, what: str) -> None:
        if self._ended:
            raise InternalError(f"Q5: {what} came to {self.who!r} after its end")

    def _queue(self, items: list[Item]) -> None:
        """New items go behind all others, and into every open log."""
        for item in items:
            round = self._round if self.in_rounds else 0
            self._add(item, round)
            for log in self._logs.values():
                if not log.complete:
                    self._write(log, item, 0, round)

    def _add(self, item: Item, round: int) -> None:
        if round:
            self._later.append((item, round))
            self.waiting += item.count
        else:
            self._ready.append(item)
            self.records += item.count

    def _write(self, log: Log, item: Item, start: int, round: int) -> None:
        self._shelf.hold(item)
        log.entries.append((item, start, round))
        log.records += item.count - start

    def _drop(self, batch: Any) -> None:
        self.dropped += len(batch)
        logs = [log for log in self._logs.values() if not log.complete and not log.stopped]
        for item in self._shelf.place(batch) if logs else ():
            for log in logs:
                self._write(log, item, 0, self._round)
            self._shelf.release(item)

    def _combine(self, combined: Combined, batch: Any) -> None:
        merged, size, before = 0, combined.size, len(combined)
        try:
            merged = combined.add(batch)
        finally:  # also when a merge failed: what is counted is what is there
            self._count(len(combined) - before)
            self.merged += merged
        grown = max(0, combined.size - size)
        if combined.size > self._memory_bytes // 2:
            self._seal()
        self._shelf.relieve(grown)

    def _count(self, by: int) -> None:
        if self.in_rounds:
            self.waiting += by
        else:
            self.records += by

    def _seal(self) -> None:
        """What could still be merged becomes items, in memory as it is, and goes into every open log. At a barrier this
        keeps apart what belongs to the log and what does not; spilling it is left to later steps."""
        if self._combined:
            size, count = self._combined.size, len(self._combined)
            rows = self._combined.take(count)
            self._count(-count)
            self._queue(self._shelf.keep(rows, size))

    # How they go out.

    def _take_front(self, limit: int) -> Any:
        """At most `limit` records of the first item."""
        item = self._first()
        batch = self._front if self._front is not None else self._shelf.load(item)
        start, stop = self._start, min(item.count, self._start + limit)
        if stop < item.count:
            self._start = stop
            self._front = batch
        else:
            self._start = 0
            self._front = None
            self._ready.popleft()
            self._shelf.release(item)
        return batch if stop - start == item.count else batch.slice(start, stop)

    def _first(self) -> Item:
        item = self._ready[0]
        assert isinstance(item, Item)
        return item

    def _joins(self, batch: Any, room: int) -> bool:
        """Whether the next item goes whole into one batch with `batch`: small ones do, lap by lap they would get smaller
        else."""
        if not self._ready or isinstance(self._ready[0], Attempt):
            return False
        item = self._ready[0]
        if item.count > room:
            return False
        self._front = self._shelf.load(item)
        return _joinable(batch, self._front)

    def _take_combined(self, limit: int) -> Rows | None:
        combined = self._combined
        if not combined or self.in_rounds:
            return None
        before = combined.size
        rows = combined.take(limit)
        self.records -= len(rows)
        self.taken += len(rows)
        logs = [log for log in self._logs.values() if not log.complete]
        for item in self._shelf.keep(rows, before - combined.size) if logs else ():
            for log in logs:
                self._write(log, item, 0, 0)
            self._shelf.release(item)
        return rows

    # How a log becomes frames.

    def _next_frames(self, log: Log, limit: int) -> list[LogFrame]:
        item, start, round = log.entries[0]
        data = None if start or item.batch is not None else self._shelf.frame(item)
        used = 1
        if data is not None:
            frames = [LogFrame(round, item.count, data)]
        else:
            parts = self._together(log, limit)
            used = len(parts)
            encoded = self._shelf.encoded(concat(parts), "go into a checkpoint")
            frames = [LogFrame(round, count, data) for count, data in encoded]
        for _ in range(used):
            self._shelf.release(log.entries.popleft()[0])
        return frames

    def _together(self, log: Log, limit: int) -> list[Any]:
        """The first entry of a log, and those after it that go into one frame with it: small ones of rows in memory."""
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
            if not fits or other != round or not _joinable(batch, item.batch):
                break
            parts.append(item.batch)
        return parts

    def _check_frame(self, frame: LogFrame) -> None:
        try:
            count = decode(frame.data).count
        except ProtocolViolation as error:
            raise CheckpointCorrupt(f"the feedback of {self.who!r} holds no frame: {error}") from error
        if count != frame.count:
            raise CheckpointCorrupt(f"the feedback of {self.who!r} holds {count} records where {frame.count} should be")

    def check(self) -> None:
        """Raises `InternalError` where an invariant does not hold."""
        ready = [item for item in self._ready if isinstance(item, Item)]
        later = [item for item, _ in self._later]
        holders = Counter(map(id, [*ready, *later]))
        held = {id(item): item for item in [*ready, *later]}
        for log in self._logs.values():
            holders.update(id(item) for item, _, _ in log.entries)
            held.update((id(item), item) for item, _, _ in log.entries)
        self._check_counts(ready)
        for ident, item in held.items():
            if item.uses != holders[ident]:
                raise InternalError(f"Q4: an item is held {holders[ident]} times and counts {item.uses}")
        memory = sum(item.size for item in held.values() if item.in_memory)
        spilled = sum(item.size for item in held.values() if not item.in_memory)
        if (memory, spilled) != (self._shelf.memory, self._shelf.spilled):
            raise InternalError(f"Q7: {(memory, spilled)} bytes, counted {(self._shelf.memory, self._shelf.spilled)}")
        for n, log in self._logs.items():
            if not log.complete and (self._ended or n <= self._newest_barrier):
                raise InternalError(f"Q5: the log of checkpoint {n} is open, after marker {self._newest_barrier}")

    def _check_counts(self, ready: list[Item]) -> None:
        merging = 0 if self._combined is None else len(self._combined)
        records = sum(item.count for item in ready) - self._start + (0 if self.in_rounds else merging)
        waiting = sum(item.count for item, _ in self._later) + (merging if self.in_rounds else 0)
        if (records, waiting) != (self.records, self.waiting):
            raise InternalError(
                f"Q2: {(records, waiting)} records are there, {(self.records, self.waiting)} are counted"
            )
        went = self.taken + self.records + self.waiting + self.dropped + self.merged
        if self.appended + self.returned != went:
            raise InternalError(f"Q2: {self.appended} + {self.returned} records came, {went} went or are there")
        if self._combined is None and self.memory > self._memory_bytes:
            raise InternalError(f"Q6: {self.memory} bytes in memory of {self._memory_bytes}")


def _joinable(a: Any, b: Any) -> bool:
    """Whether two batches can be one without that any record loses its key group."""
    return joinable(a, b) and (a.groups is None) == (b.groups is None)


def _after_first(entries: deque[tuple[Item, int, int]]) -> Iterator[tuple[Item, int, int]]:
    them = iter(entries)
    next(them)
    return them
