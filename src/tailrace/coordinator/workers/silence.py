"""The silence of workers: one that has given no sign of life for as long as its lease is declared lost. The other half is
`runtime.worker.heartbeat`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush, heapreplace
from typing import TypeVar

from tailrace.coordinator.workers.places import WorkerPlace

T = TypeVar("T", bound=WorkerPlace)


def declared_lost(places: Iterable[T], now: int, lease: int) -> list[tuple[T, str]]:
    """The places of these whose workers have given no sign of life for `lease` (int64 microseconds), and so count as lost;
    each with the reason in words."""
    return [
        (place, f"has given no sign of life for {(now - place.received_at) / 1e6:.0f} s")
        for place in places
        if place.connected and place.silent_at(lease) <= now
    ]


class LongestSilence:
    """The worker that has been silent for longest. The coordinator looks it up behind each message, and there may be
    thousands in a second. So a place is looked at again only where it seemed to be that one, and has given a sign of life
    since.

    Invariant R2: each place that is connected is in here once, with a time at which a sign of life came, or one before.
    """

    def __init__(self) -> None:
        self._received: list[tuple[int, int]] = []
        """A heap of (time of the last sign of life, place), with the times at the last look at each."""
        self._inside: set[int] = set()

    def add(self, place: WorkerPlace) -> None:
        """Adds a place that a worker holds now."""
        if place.index not in self._inside:
            self._inside.add(place.index)
            heappush(self._received, (place.received_at, place.index))

    def longest(self, at: Callable[[int], WorkerPlace]) -> WorkerPlace | None:
        """The connected place whose last sign of life is the oldest; None where no place is connected."""
        while self._received:
            received_at, index = self._received[0]
            place = at(index)
            if not place.connected:
                heappop(self._received)
                self._inside.discard(index)
            elif place.received_at == received_at:
                return place
            else:
                heapreplace(self._received, (place.received_at, index))
        return None
