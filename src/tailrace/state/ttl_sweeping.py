"""The removal of entries whose lifetime is over, a few at a time.

There is no timer for an entry. A sweep goes through the key groups of a table, on disk through the range of each, and looks
at the times of the last writes. Where it stands is no state: what it removes no call would be given any more, so a sweep
that begins anew after a restore changes no result. A removed entry counts as deleted, and checkpoints hold that.

On disk entries are removed one by one, and not as a range. Only the times of all writes tell that a range is over, and
checkpoints name each deleted key. The removal from the database takes 1 of the 25 microseconds that this costs for an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.elements.timestamps import MIN_TIME
from tailrace.state.memory_tables import Stored
from tailrace.state.tables import MISSING, StateTable
from tailrace.state.ttl import living, size_of, stamps_in, stamps_of
from tailrace.state.ttl_lifetimes import Lifetime

_PORTION = 32
_PARTS = 8
"""Between the begins of two sweeps is at least the lifetime, divided by this number."""


class Sweeper:
    """The sweeps of one table, one after the other."""

    def __init__(self, table: StateTable, lifetime: Lifetime) -> None:
        self._table = table
        self._lifetime = lifetime
        self._walk: Iterator[tuple[Any, int]] | None = None
        """The entries that the sweep under way has not looked at, each with the time of its oldest write."""
        self._next_at = MIN_TIME
        """The time before which no sweep begins."""
        self._earliest = self._begun = MIN_TIME
        """The time at which the first entry is over that the sweep has left; the time at which it began."""

    def go_on(self, limit: int) -> None:
        """Looks at up to `limit` more entries."""
        lifetime, now = self._lifetime, self._lifetime.swept_at()
        if now is None:
            return
        if self._walk is None:
            if now < self._next_at:
                return
            self._walk = self._entries()
            self._begun, self._earliest = now, now + lifetime.span
        for _ in range(limit):
            found = next(self._walk, None)
            if found is None:
                self._walk = None
                self._next_at = max(self._earliest, self._begun + lifetime.span // _PARTS)
                return
            key, stamp = found
            if lifetime.is_over(key, stamp, now):
                self._remove(key, now)
            else:
                self._earliest = min(self._earliest, lifetime.end_of(stamp))

    def end(self) -> None:
        """Ends the sweep under way: the table is closed."""
        self._walk = None

    def _entries(self) -> Iterator[tuple[Any, int]]:
        table, kind = self._table, self._table.kind
        for key in list(table.top):
            held = table.top.get(key, MISSING)
            if held is not MISSING:
                yield key, min(stamps_of(kind, held))
        for group in sorted(table.base.alive):
            for keys, values, encoded in table.base.scan(group, _PORTION):
                for key, held in zip(keys, encoded if values is None else values, strict=True):
                    data = held.data if type(held) is Stored else held
                    stamps = stamps_in(kind, data) if values is None or data is not held else stamps_of(kind, held)
                    if stamps:  # else a layer above has removed the last value in place
                        yield key, min(stamps)

    def _remove(self, key: Any, now: int) -> None:
        """Removes what is over of an entry. A layer above may have a newer value than the one that the sweep has found."""
        table, lifetime, kind = self._table, self._lifetime, self._table.kind
        held = table.peek(key, MISSING)
        if held is MISSING:
            return
        lives = lifetime.lives(key, now)
        left = living(kind, held, lives)
        if left is held:
            return
        lifetime.expired(size_of(kind, held) - (0 if left is None else size_of(kind, left)))
        if left is None:
            table.drop(key)
        else:  # values of the old entry go into the new one: they are handed out
            table.top[key] = living(kind, table.get(key), lives)
