"""A log of small entries, in order, that has room in memory for the newest ones only: older ones go to a spill, many in one
piece. The logs of a process share one budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tailrace.elements.spills import FrameSpill

EACH = 48
"""Bytes in memory for each entry beside its own."""

_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class EntryMemory:
    """The memory that all entry logs of a process share, and the spill behind it.

    Invariant Y17: at most `budget` bytes of entries are in memory once a log has taken what it was given.
    """

    def __init__(self, budget: int = 0, make_spill: Callable[[], FrameSpill] | None = None) -> None:
        """`budget`: in bytes; 0: no limit, and no spill."""
        assert make_spill is not None or not budget
        self._budget, self._make_spill = budget, make_spill
        self.memory = self.spilled = 0
        """Bytes of entries in memory, and in the spill."""
        self._logs: list[EntryLog] = []
        self._spill: FrameSpill | None = None

    @property
    def has_spill(self) -> bool:
        """True if there is a spill, whose pieces are in this process only."""
        return self._spill is not None

    def enter(self, log: EntryLog) -> None:
        """Adds a log that shares the memory."""
        self._logs.append(log)

    def take(self, size: int) -> None:
        """Counts bytes that a log has taken. Beyond the budget, the largest logs go to the spill, until half of the budget
        is free: a piece of the spill has many entries."""
        self.memory += size
        if not self._budget or self.memory <= self._budget:
            return
        for log in sorted(self._logs, key=lambda log: (-log.memory, log.number)):
            if self.memory > self._budget // 2:
                log.spill()

    def store(self, data: bytes) -> Any:
        """Stores a piece of a log. Returns its reference."""
        if self._spill is None:
            assert self._make_spill is not None
            self._spill = self._make_spill()
        self.spilled += len(data)
        return self._spill.append(data)

    def load(self, ref: Any) -> bytes:
        """A piece that was stored."""
        assert self._spill is not None
        return self._spill.read(ref)

    def release(self, ref: Any, size: int) -> None:
        """Releases a piece of so many bytes."""
        assert self._spill is not None
        self.spilled -= size
        self._spill.release(ref)

    def forget(self) -> None:
        """Forgets all logs, which are empty and not used any more."""
        self._logs.clear()

    def close(self) -> None:
        """Releases the spill. The logs are not used any more."""
        self.forget()
        if self._spill is not None:
            self._spill.close()
            self._spill = None


class _Piece(NamedTuple):
    """Entries in the spill."""

    ref: Any
    entries: int
    size: int


class EntryLog:
    """The entries of one log, which are counted from the first one that was not dropped."""

    def __init__(self, memory: EntryMemory, number: int = 0) -> None:
        """`number`: the place of the log among those of the same size, when some have to go to the spill."""
        self._shared, self.number = memory, number
        self._pieces: deque[_Piece] = deque()
        """The oldest entries, in the spill."""
        self._dropped = 0
        """The number of entries of the first piece that were dropped."""
        self._stored = 0
        """The number of entries in pieces, without those that were dropped."""
        self._recent: list[bytes] = []
        self.memory = 0
        """Bytes of its entries in memory."""
        memory.enter(self)

    def __len__(self) -> int:
        return self._stored + len(self._recent)

    def extend(self, entries: list[bytes]) -> None:
        """Appends entries."""
        self._recent += entries
        self._count(_size(entries))

    def part(self, start: int, stop: int) -> list[bytes]:
        """Entries from `start` to `stop`."""
        found: list[bytes] = []
        behind = -self._dropped
        for piece in self._pieces:
            at, behind = behind, behind + piece.entries
            if behind > start and at < stop:
                found += _decode(self._shared.load(piece.ref))[max(0, start - at) : stop - at]
        return found + self._recent[max(0, start - self._stored) : max(0, stop - self._stored)]

    def drop(self, count: int) -> None:
        """Drops the first entries."""
        stored = min(count, self._stored)
        self._stored -= stored
        self._dropped += stored
        while self._pieces and self._dropped >= self._pieces[0].entries:
            piece = self._pieces.popleft()
            self._dropped -= piece.entries
            self._shared.release(piece.ref, piece.size)
        gone = self._recent[: count - stored]
        del self._recent[: count - stored]
        self._count(-_size(gone))

    def spill(self) -> None:
        """Moves all entries that are in memory to the spill."""
        if not self._recent:
            return
        data, entries = msgspec.msgpack.encode(self._recent), self._recent
        self._pieces.append(_Piece(self._shared.store(data), len(entries), len(data)))
        self._stored += len(entries)
        self._recent = []
        self._count(-_size(entries))

    def _count(self, size: int) -> None:
        self.memory += size
        self._shared.take(size)


def _size(entries: list[bytes]) -> int:
    return sum(map(len, entries)) + EACH * len(entries)
