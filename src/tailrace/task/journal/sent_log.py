"""Log of what a worker has sent to other workers, for a worker that takes the place of one of them: on each channel
everything behind the barrier of the oldest checkpoint that a worker may be restored from.

A frame is kept as the bytes that went, not as a copy of them. What has no room in memory goes to a spill, the oldest
first, and comes back frame by frame, as the credit of a new reader allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tailrace.elements.frame_codec import decode, encode_batch, encode_marker
from tailrace.elements.markers import TIMES, Barrier, EndOfInput, IdleChannel, Marker
from tailrace.elements.spills import FrameSpill
from tailrace.errors import InternalError
from tailrace.task.channels.spilling import NOWHERE, Item, Shelf
from tailrace.task.journal.digests import Digest

WHAT = "what is kept for workers that are replaced, by StandbyConfig(spill=...),"
"""Purpose of the spill, in words, for errors."""


AT_LEAST, AT_ONCE = 512, 8
"""Number of elements that are not needed any more and are let go when a checkpoint is complete, and with each element
that goes then."""


class Keeping:
    """Frames that a worker keeps, of all its channels.

    Invariant O4: at most `budget` bytes of them are in memory; every frame is on one channel, kept or about to go once
    more.
    """

    def __init__(self, make_spill: Callable[[], FrameSpill], budget: int) -> None:
        self._shelf = Shelf("", 0, make_spill, budget)
        self.budget = budget
        self._in_memory: deque[Item] = deque()
        """Frames in memory, the oldest first; some of them are not needed any more."""
        self.channels: list[SentLog] = []

    @property
    def memory(self) -> int:
        """Bytes in memory."""
        return self._shelf.memory

    @property
    def spilled(self) -> int:
        """Bytes in the spill."""
        return self._shelf.spilled

    def keep(self, count: int, data: bytes) -> Item:
        """Keeps a frame of `count` records."""
        item = self._shelf.refer(count, len(data), data=data)
        waiting = self._in_memory
        waiting.append(item)
        if self._shelf.memory > self._shelf.budget:
            for channel in self.channels:
                channel.let_go()
        while waiting and (self._shelf.memory > self._shelf.budget or not waiting[0].uses):
            oldest = waiting.popleft()
            if oldest.uses:
                self._shelf.spill(oldest)
        return item

    def frame(self, item: Item) -> bytes:
        """Frame as it went."""
        data = self._shelf.frame(item)
        assert data is not None
        return data

    def release(self, item: Item) -> None:
        """Lets go of a frame that is not needed again."""
        self._shelf.release(item)

    def close(self) -> None:
        """Releases everything."""
        self._in_memory.clear()
        self._shelf.close()

    def check(self, held: list[Item]) -> None:
        """Raises `InternalError` where O4 does not hold. `held`: the frames that all channels have."""
        memory = sum(item.size for item in held if item.in_memory)
        spilled = sum(item.size for item in held if not item.in_memory)
        if (memory, spilled) != (self.memory, self.spilled) or memory > self._shelf.budget:
            raise InternalError(
                f"O4: {(memory, spilled)} bytes are kept in memory and in the spill, {(self.memory, self.spilled)} are "
                f"counted, and {self._shelf.budget} may be in memory"
            )


class SentLog:
    """Log of one channel: what went there, in order, barriers too."""

    def __init__(self, keeping: Keeping, times_in_facts: bool = False) -> None:
        """`times_in_facts`: whether readers have the event time of the channel in their histories. Then its markers count
        neither for the place on the channel nor for its digest."""
        self.keeping, self._times_in_facts = keeping, times_in_facts
        keeping.channels.append(self)
        self._went: deque[tuple[int, Marker | Item]] = deque()
        self._first = self._unwanted = 0
        """Number of the first element of the log (`_first`), and of the first one that may be needed (`_unwanted`)."""
        self._barriers: deque[tuple[int, int]] = deque()
        """(checkpoint, number of its barrier)."""

    def add(self, seq: int, count: int, payload: bytes | Marker | Item) -> bytes | Marker:
        """Adds what goes, perhaps once more: a marker, or a frame of `count` records. Returns what is to be sent."""
        if self._first < self._unwanted:
            self.let_go(AT_ONCE)
        if isinstance(payload, bytes):
            self._went.append((seq, self.keeping.keep(count, payload)))
            return payload
        if isinstance(payload, Barrier):
            self._barriers.append((payload.checkpoint, self._first + len(self._went)))
        self._went.append((seq, payload))
        return payload if isinstance(payload, Marker) else self.keeping.frame(payload)

    def complete(self, checkpoint: int) -> None:
        """Takes note that a checkpoint is complete: no worker restores an older one, so what went before its barrier is
        not needed again. That may be very much, so it is let go a little at a time."""
        behind = next((number + 1 for mine, number in self._barriers if mine == checkpoint), None)
        if behind is None and self._went and isinstance(self._went[-1][1], EndOfInput):
            behind = self._first + len(self._went)  # it was read to its end before the cut
        if behind is not None:
            self._unwanted = max(self._unwanted, behind)
            while self._barriers and self._barriers[0][1] < behind:
                self._barriers.popleft()
            self.let_go(AT_LEAST)

    def let_go(self, most: int | None = None) -> None:
        """Lets go of elements that are not needed, of at most `most`."""
        count = self._unwanted - self._first
        for _ in range(count if most is None else min(most, count)):
            one = self._went.popleft()[1]
            self._first += 1
            if isinstance(one, Item):
                self.keeping.release(one)

    def go_again(self, came: int) -> list[tuple[int, Marker | Item, int]]:
        """Elements that a new reader of the channel lacks, each with its charge: it has only the first `came` records and
        markers. They are kept when they go. What was made again may lie in other frames than what went (see
        `task.failover.parallel_replay`): a frame of which a part has come is parted. Checkpoints under way were given up:
        their barriers do not go once more. Nor does what a reader with event time in its history has read: that the channel
        was idle for a while."""
        self.let_go()
        ends = (Barrier, IdleChannel) if self._times_in_facts else Barrier
        elements = deque(one for one in self._went if not isinstance(one[1], ends))
        self._went = deque()
        self._barriers.clear()
        while elements and came:
            seq, one = elements.popleft()
            count = one.count if isinstance(one, Item) else self._counts(one)
            if count > came:
                assert isinstance(one, Item)
                one, rest = self._split(one, came)
                elements.appendleft((seq + came, rest))
                count = came
            self._went.append((seq, one))
            came -= count
        return [(seq, one, one.size if isinstance(one, Item) else 0) for seq, one in elements]

    def _split(self, item: Item, at: int) -> tuple[Item, Item]:
        """Frame as two, in its place."""
        front, back = split_frame(self.keeping.frame(item), at)
        self.keeping.release(item)
        return self.keeping.keep(at, front), self.keeping.keep(item.count - at, back)

    def digest(self, count: int) -> Digest:
        """Digest of the first `count` records and markers; of fewer if there are fewer."""
        digest = Digest()
        for _, one in self.elements():
            if digest.count >= count:
                break
            if not isinstance(one, Marker) or self._counts(one):
                frame = decode(encode_marker(NOWHERE, 0, 0, 0, one) if isinstance(one, Marker) else one)
                digest.add(frame if frame.count else frame.marker(), count - digest.count)
        return digest

    def _counts(self, marker: Marker) -> bool:
        """True if a marker counts for the place on the channel."""
        return not isinstance(marker, (Barrier, *TIMES) if self._times_in_facts else Barrier)

    def elements(self) -> Iterator[tuple[int, bytes | Marker]]:
        """All elements that went and may be needed, each with the number of its first record, or of the next one for a
        marker. Spilled frames are read."""
        self.let_go()
        for seq, one in self._went:
            yield seq, one if isinstance(one, Marker) else self.keeping.frame(one)

    def frame_with(self, number: int) -> tuple[int, bytes]:
        """The frame that has the record of this number, with the number of its first record."""
        for seq, one in reversed(self._went):
            if seq <= number and isinstance(one, Item):
                return seq, self.keeping.frame(one)
        raise InternalError(f"Y5: record {number} is not kept any more", ())

    def clear(self) -> None:
        """Lets go of everything."""
        self._unwanted = self._first + len(self._went)
        self._barriers.clear()
        self.let_go()

    def items(self) -> list[Item]:
        """All frames of the log, also those that are not needed any more and were not let go yet."""
        return [one for _, one in self._went if isinstance(one, Item)]


def split_frame(data: bytes, at: int) -> tuple[bytes, bytes]:
    """A frame of records split into two: its first `at` records, and the other ones."""
    frame = decode(data)
    batch, place = frame.batch(), (frame.channel, frame.incarnation, frame.attempt)
    front, back = batch.slice(0, at), batch.slice(at, len(batch))
    return encode_batch(*place, frame.seq, front), encode_batch(*place, frame.seq + at, back, frame.digest)
