"""Feedback edge of a loop inside one worker: the unbounded queue from its tail to its head.

The tail appends and never waits, so the cycle cannot block; what has no room in memory goes to a spill. A checkpoint does
not wait for feedback to go round either. What crosses the edge from the head's cut until the marker of the checkpoint has
come back to the tail belongs to the checkpoint: it goes into a log, which `task.channels.channel_logs` keeps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from tailrace.elements.batches import Batch, Rows, concat
from tailrace.elements.markers import WaveMark
from tailrace.elements.spills import FrameSpill
from tailrace.errors import InternalError
from tailrace.task.channels.channel_logs import LogFrame, Recording, joinable_as_one
from tailrace.task.channels.combining import Combined, Combiner
from tailrace.task.channels.spilling import Item, Shelf


class FeedbackQueue:
    """Queue between one tail subtask, `who`, and its head subtask.

    Invariant Q1: records and markers come out in the order in which they went in. (In rounds: the records that became
    ready, and the markers, each among themselves; a merged record has the place of its oldest part.)
    Invariant Q2: `appended` + `returned` == `taken` + `records` + `waiting` + `dropped` + `merged`.
    Invariant Q3: the log of checkpoint n holds each record that was unread at cut(n) or appended from there until
    barrier(n), once, as it was then, and no other record. Records of that span may appear merged.
    Invariant Q4: an item is held once by the queue while it has an unread record and once by each log entry for it.
    Invariant Q6: `memory` is at most `memory_bytes` (with a combiner, plus the batch that came last).
    """

    def __init__(
        self,
        who: str,
        subtask: int,
        make_spill: Callable[[], FrameSpill],
        memory_bytes: int,
        combine: Combiner | None,
        in_rounds: bool,
    ) -> None:
        self.who = who
        self.subtask = subtask
        self.in_rounds = in_rounds
        self.records = 0
        """Number of records that are ready and unread."""
        self.waiting = 0
        """Number of records that wait for a later round."""
        self.appended = 0
        self.returned = 0
        """Number of records that a checkpoint brought back."""
        self.taken = 0
        self.dropped = 0
        self.merged = 0
        """Number of records that were merged into another that waited."""
        self._memory_bytes = memory_bytes
        self._combined = None if combine is None else Combined(combine, who, subtask)
        # With a combiner half the memory is for the records that can still be merged, so that there always are some.
        budget = memory_bytes if combine is None else memory_bytes // 2
        self._shelf = Shelf(who, subtask, make_spill, budget)
        self._ready: deque[Item | WaveMark] = deque()
        self._start = 0
        """Number of records of the first item that are taken."""
        self._front: Batch | None = None
        """Records of the first item, if they were decoded."""
        self._later: deque[tuple[Item, int]] = deque()
        """In rounds: items with the round that they wait for, in order."""
        self._round = 1
        """In rounds: the round for which records wait that come now."""
        self.logs = Recording(who, self._shelf)
        """Logs of the checkpoints that are under way."""
        self._ended = False
        self.over = False
        """True if the loop of the head has ended: nothing comes back, though the tail may still be on its way to its end.
        A head that has ended sends no barrier, so its tail may cut before it does."""
        self._stopped_after: int | None = None
        """Newest cut at the time when rounds were stopped. What is dropped belongs only to checkpoints up to that cut."""

    # The tail.

    def append(self, batch: Batch) -> None:
        """Appends feedback. Raises `UserCodeError` for a record that must go to the disk and cannot be pickled, or that
        cannot be merged."""
        self._not_ended("a record")
        count = len(batch)
        if not count:
            return
        self.appended += count
        if self._stopped_after is not None:
            self._drop(batch)
        elif self._combined is None:
            self._queue(self._shelf.place(batch))
        else:
            self._combine(self._combined, batch)

    def marker(self, marker: WaveMark) -> None:
        """Appends the marker of a wave: behind the records that came before it, but past records that wait for the next
        round."""
        self._not_ended(f"{marker}")
        if not self.in_rounds:
            self.seal()
        self._ready.append(marker)

    def barrier(self, checkpoint: int) -> None:
        """Completes the log of a checkpoint whose marker has come back. Markers of older checkpoints cannot come any
        more."""
        if self._ended:
            return
        early = self.over and checkpoint > self.logs.newest_cut
        if early or self.logs.awaits(checkpoint):
            self.keep_apart()
        if not early:  # else the head's cut is still to come, with a log that nothing is added to
            self.logs.complete_logs(checkpoint)

    def keep_apart(self) -> None:
        """Seals what waits, when the tail has cut: what is merged from now on depends on nothing that was before."""
        self.seal()
        if self._combined is not None:
            self._combined.measure_anew()

    def end(self) -> None:
        """Ends the feedback: every log is complete, and a log that is begun later is complete from its beginning."""
        self.seal()
        self._ended = True
        self.logs.end()

    @property
    def ended(self) -> bool:
        """True if nothing comes any more."""
        return self._ended

    @property
    def marks(self) -> list[tuple[int, int]]:
        """Markers that wait: (wave, number of ready records that wait behind it)."""
        found, behind = list[tuple[int, int]](), 0
        for one in reversed(self._ready):
            if isinstance(one, WaveMark):
                found.append((one.wave, behind))
            else:
                behind += one.count
        return found[::-1]

    @marks.setter
    def marks(self, marks: list[tuple[int, int]]) -> None:
        """Puts markers back among the records that a log has of the queue; the log has no markers. If records are in one
        item by now, a marker goes behind all of them: a wave then counts some that it need not, and finds that it came
        too early."""
        for wave, behind in reversed(marks):
            at = len(self._ready)
            for one in reversed(self._ready):
                behind -= 0 if isinstance(one, WaveMark) else one.count
                if behind < 0:
                    break
                at -= 1
            self._ready.insert(at, WaveMark(wave))

    # The head.

    @property
    def ready(self) -> bool:
        """True if `take` would return something."""
        return bool(self._ready) or bool(self._combined and not self.in_rounds)

    def take(self, limit: int) -> Batch | WaveMark | None:
        """The next marker, or the next records, at most `limit`; None where nothing is ready."""
        if not self._ready:
            return self._take_combined(limit)
        if isinstance(self._ready[0], WaveMark):
            return self._ready.popleft()  # type: ignore[return-value]
        parts = [self._take_front(limit)]
        room = limit - len(parts[0])
        while room > 0 and self._joins(parts[0], room):
            parts.append(self._take_front(room))
            room -= len(parts[-1])
        batch = concat(parts)
        self.records -= len(batch)
        self.taken += len(batch)
        return batch

    def cut(self, checkpoint: int) -> None:
        """Begins the log of a checkpoint with what is unread, at the head's cut. Records that can still be merged follow
        when they are read or sealed, which is at the barrier at the latest."""
        log = self.logs.begin(checkpoint, complete=self.over)
        start = self._start
        for entry in self._ready:
            if isinstance(entry, Item):
                self.logs.write(log, entry, start)
                start = 0
        for item, round in self._later:
            self.logs.write(log, item, 0, round)

    def round_ended(self, number: int) -> None:
        """Takes note that the tail has all that round `number` brought. Records that come from now on are of a later
        round: another worker may start that round before this head does."""
        self.seal()
        self._round = max(self._round, number + 2)

    def open_round(self, number: int | None = None) -> int:
        """Makes ready what waits for rounds up to `number` (None: for any); returns the number of these records."""
        self.seal()
        opened = 0
        while self._later and (number is None or self._later[0][1] <= number):
            item = self._later.popleft()[0]
            self._ready.append(item)
            opened += item.count
        self.waiting -= opened
        self.records += opened
        return opened

    def drop(self) -> None:
        """Drops what waits for a round, and all that comes from now on: there are no more rounds. It stays in the logs of
        earlier cuts, because a restore goes back to before rounds were stopped."""
        if not self.in_rounds:
            raise InternalError(f"feedback of {self.who!r} is dropped, but its loop has no rounds")
        self.drop_waiting()
        self._stopped_after = self.logs.newest_cut

    def drop_waiting(self, below: int | None = None) -> int:
        """Drops what waits for rounds below a number (None: for any), but not what comes from now on. Returns the number of
        these records."""
        self.seal()
        before = self.dropped
        while self._later and (below is None or self._later[0][1] < below):
            item, _ = self._later.popleft()
            self.waiting -= item.count
            self.dropped += item.count
            self._shelf.release(item)
        return self.dropped - before

    def hold(self, batch: Batch, round: int) -> None:
        """Holds input until its round is opened, whatever rounds others wait for. It is in no log that has begun."""
        at = len(self._later)
        while at and self._later[at - 1][1] > round:
            at -= 1
        self.appended += len(batch)
        self.waiting += len(batch)
        for number, item in enumerate(self._shelf.place(batch)):
            self._later.insert(at + number, (item, round))

    @property
    def earliest(self) -> int | None:
        """The lowest round for which anything waits."""
        return self._later[0][1] if self._later else None

    @property
    def memory(self) -> int:
        """Bytes in memory, of the queue and of its logs."""
        return self._shelf.memory + (0 if self._combined is None else self._combined.size)

    @property
    def spilled(self) -> int:
        """Bytes in the spill, of the queue and of its logs."""
        return self._shelf.spilled

    @property
    def stored(self) -> int:
        """Number of records that have ever gone to the disk at once."""
        return self._shelf.stored

    def restore(self, frames: Iterable[LogFrame]) -> None:
        """Takes what the checkpoint held of this queue, in order, before anything else. Raises `CheckpointCorrupt` for an
        invalid frame."""
        if self.appended or self.taken or not self.logs.untouched:
            raise InternalError(f"feedback of {self.who!r} is restored after its start")
        for frame in frames:
            frame.check(f"the feedback of {self.who!r}")
            if frame.count:
                self.returned += frame.count
                item = self._shelf.restore(frame.data, frame.count)
                self._add(item, frame.round if self.in_rounds else 0)

    def close(self) -> None:
        """Releases everything."""
        self._ready.clear()
        self._later.clear()
        self.logs.close()
        self._combined = self._front = None
        self._start = self.records = self.waiting = 0
        self._shelf.close()

    # How records come in.

    def _not_ended(self, what: str) -> None:
        if self._ended:
            raise InternalError(f"Q5: {what} came to {self.who!r} after its end")

    def _queue(self, items: list[Item]) -> None:
        """Adds new items behind all others, and to every open log."""
        for item in items:
            round = self._round if self.in_rounds else 0
            self._add(item, round)
            self.logs.add(item, round)

    def _add(self, item: Item, round: int) -> None:
        if round:
            self._later.append((item, round))
            self.waiting += item.count
        else:
            self._ready.append(item)
            self.records += item.count

    def _drop(self, batch: Batch) -> None:
        self.dropped += len(batch)
        stopped = -1 if self._stopped_after is None else self._stopped_after
        logs = [log for log in self.logs.open if log.checkpoint <= stopped]
        for item in self._shelf.place(batch) if logs else ():
            for log in logs:
                self.logs.write(log, item, 0, self._round)
            self._shelf.release(item)

    def _combine(self, combined: Combined, batch: Batch) -> None:
        merged, size, before = 0, combined.size, len(combined)
        try:
            merged = combined.add(batch)
        finally:  # also when a merge failed: what is counted is what is there
            self._count(len(combined) - before)
            self.merged += merged
        grown = max(0, combined.size - size)
        if combined.size > self._memory_bytes // 2:
            self.seal()
        self._shelf.relieve(grown)

    def _count(self, by: int) -> None:
        if self.in_rounds:
            self.waiting += by
        else:
            self.records += by

    def seal(self) -> None:
        """Turns records that could still be merged into items, in memory as they are, and adds these to every open log.
        At a barrier this separates what belongs to the log from what does not. Spilling is left to later steps."""
        if self._combined:
            size, count = self._combined.size, len(self._combined)
            rows = self._combined.take(count)
            self._count(-count)
            self._queue(self._shelf.keep(rows, size))

    # How they go out.

    def _take_front(self, limit: int) -> Batch:
        """The next `limit` records of the first item, at most."""
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

    def _joins(self, batch: Batch, room: int) -> bool:
        """True if the next item goes whole into one batch with `batch`. Small items do: lap by lap they would get smaller
        else."""
        if not self._ready or isinstance(self._ready[0], WaveMark):
            return False
        item = self._ready[0]
        if item.count > room:
            return False
        self._front = self._shelf.load(item)
        return joinable_as_one(batch, self._front)

    def _take_combined(self, limit: int) -> Rows | None:
        combined = self._combined
        if not combined or self.in_rounds:
            return None
        before = combined.size
        rows = combined.take(limit)
        self.records -= len(rows)
        self.taken += len(rows)
        for item in self._shelf.keep(rows, before - combined.size) if self.logs.open else ():
            self.logs.add(item)
            self._shelf.release(item)
        return rows

    def check(self) -> None:
        """Raises `InternalError` where an invariant does not hold."""
        ready = [item for item in self._ready if isinstance(item, Item)]
        later = [item for item, _ in self._later]
        holders = Counter(map(id, [*ready, *later]))
        held = {id(item): item for item in [*ready, *later]}
        for item in self.logs.items():
            holders[id(item)] += 1
            held[id(item)] = item
        self._check_counts(ready)
        for ident, item in held.items():
            if item.uses != holders[ident]:
                raise InternalError(f"Q4: an item is held {holders[ident]} times and counts {item.uses}")
        memory = sum(item.size for item in held.values() if item.in_memory)
        spilled = sum(item.size for item in held.values() if not item.in_memory)
        if (memory, spilled) != (self._shelf.memory, self._shelf.spilled):
            raise InternalError(f"Q7: {(memory, spilled)} bytes, counted {(self._shelf.memory, self._shelf.spilled)}")
        self.logs.check()

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
