"""Batches that wait or are logged: in memory up to a budget, the rest as frames in a spill. Each is held as often as it
is needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.frame_codec import ChannelId, decode, encode_batch, encoded_size
from tailrace.elements.spills import FrameSpill
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.task.channels.copies import unpicklable

FRAME_RECORDS = 4096
FRAME_BYTES = 256 << 10
"""Limits of one item, approximately, and as far as records can be parted: it is read, spilled or logged in one step."""
_SAMPLE_EVERY = 32
NOWHERE = ChannelId(0, 0, 0)
"""Channel of the frames of a spill or of a log. They never travel; the task that restores them decides where their
records go."""


def frame_of(batch: Batch, who: str, subtask: int, why: str) -> bytes:
    """Batch as one frame. Raises `UserCodeError` for a record that cannot be pickled; `why` is the purpose of the frame."""
    try:
        return encode_batch(NOWHERE, 0, 0, 0, batch)
    except Exception as error:
        raise unpicklable(batch.to_rows().values, error, who, subtask, why) from error


class SpillPlace(NamedTuple):
    """Place and purpose of a spill."""

    what: str
    """Content of the spill, in words, for errors."""
    folder: str | None = None
    """Folder of the worker's machine; None: the one for temporary files."""
    stored: bool = False
    """True if the spill is in the storage of checkpoints instead."""


MakeSpill = Callable[[SpillPlace], FrameSpill]


class MemorySpill:
    """Spill in memory, for harnesses and the simulator."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.held = 0
        """Number of bytes that are stored and not released."""
        self.appended = 0
        """Number of bytes that were ever stored."""
        self._next = 0

    def append(self, data: bytes) -> int:
        self._next += 1
        self.stored[self._next] = data
        self.held += len(data)
        self.appended += len(data)
        return self._next

    def read(self, ref: int) -> bytes:
        return self.stored[ref]

    def release(self, ref: int) -> None:
        self.held -= len(self.stored.pop(ref))

    def close(self) -> None:
        self.stored.clear()
        self.held = 0


class Item:
    """Some records in exactly one form: a batch, a frame in memory, or a frame in the spill."""

    __slots__ = ("at", "batch", "count", "data", "ref", "size", "uses")

    def __init__(
        self, count: int, size: int, *, batch: Batch | None = None, data: bytes | None = None, ref: Any = None
    ) -> None:
        self.count = count
        self.size = size
        """Bytes: exact for frames, estimated for a batch."""
        self.batch = batch
        self.data = data
        self.ref = ref
        self.uses = 1
        self.at: tuple[ChannelId, int] | None = None
        """Channel where the records wait, and the number of the first one there; None: it does not matter."""

    @property
    def in_memory(self) -> bool:
        return self.ref is None


class Shelf:
    """All items of one queue and of its logs.

    Invariant Q7: `memory` and `spilled` are the sizes of the items that have a holder, each counted once.
    Invariant Q8: an item is freed, in memory and in the spill, with the last of its holders.
    Invariant Q9: `memory` is at most `budget`, but for what `keep` was given and `relieve` has not spilled yet.
    """

    def __init__(self, who: str, subtask: int, make_spill: Callable[[], FrameSpill], budget: int) -> None:
        self.who = who
        self.subtask = subtask
        self.budget = budget
        self.memory = 0
        self.spilled = 0
        self.stored = 0
        """Number of records that have ever gone to the disk at once."""
        self.on_inexact: Callable[[], None] | None = None
        """Called for records that wait and do not come back from their frame as they are; None if that does not matter."""
        self._make_spill = make_spill
        self._spill: FrameSpill | None = None
        self._excess: deque[Item] = deque()
        """Items that were kept whatever the budget, the oldest first."""
        self._record_bytes = 0.0
        self._unsampled = 0

    # Making items. The caller is their first holder.

    def place(self, batch: Batch) -> list[Item]:
        """Batch as items: in memory if the budget allows, else in the spill."""
        items: list[Item] = []
        for piece, size in self._pieces(batch, self._size_of(batch)):
            if self.memory + size <= self.budget:
                items.append(self._hold(Item(len(piece), size, batch=piece)))
            else:
                items += [self._store(count, data) for count, data in self.encode(piece, "go to the disk")]
        return items

    def keep(self, batch: Batch, size: int) -> list[Item]:
        """Batch that is in memory already, as items in memory, whatever the budget: nothing is encoded."""
        while self._excess and not self._excess[0].uses:
            self._excess.popleft()
        items = [self._hold(Item(len(part), size, batch=part)) for part, size in self._pieces(batch, size)]
        self._excess.extend(items)
        return items

    def relieve(self, arrived: int) -> None:
        """Spills rather more than `arrived` bytes of what was kept beyond the budget, so that this ends."""
        while self._excess and self.memory > self.budget and arrived >= 0:
            item = self._excess[-1]  # the newest is needed last
            if item.uses and item.in_memory:
                arrived -= item.size + 1
                self.spill(item)
            self._excess.pop()

    def restore(self, data: bytes, count: int) -> Item:
        """Frame as an item, without decoding it."""
        if self.memory + len(data) <= self.budget:
            return self._hold(Item(count, len(data), data=data))
        return self._store(count, data)

    def spill(self, item: Item) -> None:
        """Moves an item to the spill, for all of its holders at once: it stays one item, whatever its frame's size."""
        if item.batch is not None:
            self.look(item.batch)
        data = item.data or frame_of(self.load(item), self.who, self.subtask, "go to the disk")
        item.ref = self._disk().append(data)
        item.batch = item.data = None
        self.memory -= item.size
        item.size = len(data)
        self.spilled += item.size

    def refer(self, count: int, size: int, *, batch: Batch | None = None, data: bytes | None = None) -> Item:
        """Item of `size` bytes for records that another object holds in memory, whatever the budget."""
        return self._hold(Item(count, size, batch=batch, data=data))

    # Holding and reading them.

    def hold(self, item: Item) -> None:
        item.uses += 1

    def release(self, item: Item) -> None:
        item.uses -= 1
        if item.uses:
            return
        if item.in_memory:
            self.memory -= item.size
        else:
            self.spilled -= item.size
            self._disk().release(item.ref)
        item.batch = item.data = None

    def load(self, item: Item) -> Batch:
        """Records of an item."""
        if item.batch is not None:
            return item.batch
        return decode(self.frame(item) or b"").batch()

    def frame(self, item: Item) -> bytes | None:
        """Frame of an item; None if the item is a batch."""
        return item.data if item.in_memory else self._disk().read(item.ref)

    def encode(self, batch: Batch, why: str) -> list[tuple[int, bytes]]:
        """Batch as frames, each with its count; more than one only if the batch is much larger than its estimate was.

        Raises `UserCodeError` for a record that cannot be pickled; `why` is the purpose of the frames.
        """
        self.look(batch)
        data = frame_of(batch, self.who, self.subtask, why)
        count = len(batch)
        if isinstance(batch, Rows):
            self._record_bytes = len(data) / count
        if len(data) <= 2 * FRAME_BYTES or count == 1:
            return [(count, data)]
        return [frame for piece, _ in self._pieces(batch, len(data)) for frame in self.encode(piece, why)]

    def look(self, batch: Batch) -> None:
        """Calls `on_inexact` if records that are objects here do not come back from a frame as they are: another task may
        go on with what the frame gives."""
        if self.on_inexact is not None and isinstance(batch, Rows) and not comes_back(batch.values):
            self.on_inexact()

    def close(self) -> None:
        self._excess.clear()
        self.memory = self.spilled = 0
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def _disk(self) -> FrameSpill:
        if self._spill is None:
            self._spill = self._make_spill()
        return self._spill

    def _hold(self, item: Item) -> Item:
        self.memory += item.size
        return item

    def _store(self, count: int, data: bytes) -> Item:
        item = Item(count, len(data), ref=self._disk().append(data))
        self.spilled += item.size
        self.stored += count
        return item

    def _size_of(self, batch: Batch) -> int:
        """Approximate size of a batch, in bytes: exact for columns, by the last sample for rows."""
        if isinstance(batch, Columns):
            return max(1, encoded_size(batch))
        if not self._record_bytes or self._unsampled >= _SAMPLE_EVERY:
            self._unsampled = 0
            self._record_bytes = encoded_size(batch) / len(batch)
        self._unsampled += 1
        return max(1, int(self._record_bytes * len(batch)))

    def _pieces(self, batch: Batch, size: int) -> list[tuple[Batch, int]]:
        """Batch cut so that each piece is at most about a frame, as far as records can be parted; the pieces with their
        sizes."""
        count = len(batch)
        most = max(1, min(FRAME_RECORDS, FRAME_BYTES * count // max(1, size)))
        if count <= most + most // 4:
            return [(batch, size)]
        cuts = [*range(0, count, most), count]
        return [(batch.slice(a, b), max(1, size * (b - a) // count)) for a, b in pairwise(cuts)]
