"""Times at which something is due for slots of arrays. A time may move on without a word: it is looked at when the old one
comes."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from tailrace.elements.slottables import Slots, grow

Array = np.ndarray[Any, Any]
_NOWHERE = -(2**63)


class Agenda:
    """Slots in groups by the spans of time in which they are due.

    Invariant T8: each slot on the agenda is in the group of its `place`, whose span begins at or before its time; a slot
    that a group has and that has another place is not there any more.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        """Length of the span of a group (int64 microseconds)."""
        self.place = np.zeros(0, np.int64)
        """By slot, the number of its group."""
        self._groups: dict[int, list[Slots]] = {}
        self._heap: list[int] = []

    def grow(self, count: int) -> None:
        """Makes room for `count` slots."""
        before = len(self.place)
        self.place = grow(self.place, count)
        self.place[before:] = _NOWHERE

    def put(self, slots: Slots, times: Array) -> None:
        """Puts slots on the agenda, or moves them."""
        places = times // self.width
        self.place[slots] = places
        if not len(slots):
            return
        if (places == places[0]).all():
            self._put(int(places[0]), slots)
            return
        sequence = np.argsort(places, kind="stable")
        found, begins = np.unique(places[sequence], return_index=True)
        for place, part in zip(found.tolist(), np.split(slots[sequence], begins[1:]), strict=True):
            self._put(place, part)

    def _put(self, place: int, slots: Slots) -> None:
        group = self._groups.get(place)
        if group is None:
            self._groups[place] = [slots]
            heapq.heappush(self._heap, place)
        else:
            group.append(slots)

    def drop(self, slots: Slots) -> None:
        """Takes slots off the agenda."""
        self.place[slots] = _NOWHERE

    def next_time(self, times: Array) -> int | None:
        """The earliest time of a slot, by the times of all slots; None if there is no slot."""
        while self._heap:
            slots = self._first(times)
            if len(slots):
                return int(times[slots].min())
        return None

    def _first(self, times: Array) -> Slots:
        """The slots of the first group. Slots whose time has moved on are put where they belong; an empty group goes."""
        place = self._heap[0]
        slots: Slots = np.concatenate(self._groups[place])
        slots = slots[self.place[slots] == place]
        later = times[slots] // self.width > place
        moved, slots = slots[later], slots[~later]
        if len(slots):
            self._groups[place] = [slots]
        else:
            del self._groups[heapq.heappop(self._heap)]
        self.put(moved, times[moved])
        return slots

    def begins_by(self, time: int) -> bool:
        """True if a slot may be due at `time`."""
        return bool(self._heap) and self._heap[0] * self.width <= time

    def any_due(self, time: int, times: Array) -> bool:
        """True if a slot is due at `time`."""
        while self.begins_by(time):
            slots = self._first(times)
            if len(slots):
                return bool(times[slots].min() <= time)
        return False

    def due(self, time: int, times: Array, limit: int) -> Slots:
        """Takes slots that are due at `time`: at least the first `limit` of them, or all. The caller puts those back that it
        does not want."""
        found: list[Slots] = []
        enough = 0
        while enough < limit and self.begins_by(time):
            slots = self._first(times)
            if not len(slots):
                continue
            late = times[slots] > time
            # A slot that was dropped and put back is in a group twice.
            ripe = np.unique(slots[~late])
            self.drop(ripe)
            found.append(ripe)
            enough += len(ripe)
            if late.any():  # what is due later begins in the midst of this group
                self._groups[self._heap[0]] = [slots[late]]
                break
            del self._groups[heapq.heappop(self._heap)]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def check(self, slots: Slots, times: Array) -> None:
        """Raises `AssertionError` unless exactly these slots are on the agenda, each in its group, at or before its time."""
        listed = {place: set(np.concatenate(group).tolist()) for place, group in self._groups.items()}
        assert sorted(slots.tolist()) == np.flatnonzero(self.place != _NOWHERE).tolist()
        assert all(slot in listed[int(self.place[slot])] for slot in slots.tolist())
        assert (self.place[slots] <= times[slots] // self.width).all()
        assert sorted(self._heap) == sorted(self._groups)
