"""View of sessions in arrays for checkpoints: the front above their table (`state.tables.Front`)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tailrace.elements.slottables import Slots, places_by_slot
from tailrace.state.tables import FrozenColumns
from tailrace.task.channels.key_readers import settled_keys
from tailrace.task.operators.windows.sessionstate import SessionState

Array = np.ndarray[Any, Any]


class SessionFront:
    """Front of the sessions, above the table key -> {start: (end, order, accumulators)}."""

    def __init__(self, state: SessionState) -> None:
        self.state = state

    def entries(self) -> int:
        """Number of keys that have sessions."""
        return int(np.count_nonzero(self.state.has()))

    about = entries

    def everything(self) -> dict[Any, Any]:
        """All keys that have sessions, each with its sessions."""
        found = FrozenSessions(self.state, self.state.live, np.empty(0, np.int64))
        return found.take(len(found))

    def cut(self) -> FrozenColumns | None:
        """Copies of the sessions written since the last cut; None if there are none."""
        state = self.state
        dirty, there = state.dirty, state.has()
        deleted = np.flatnonzero(dirty & state.below & ~there)
        live = state.live
        written = live[dirty[state.key[live]]]
        state.below = np.where(dirty, there, state.below)
        state.dirty = np.zeros_like(dirty)
        return FrozenSessions(state, written, deleted) if len(written) or len(deleted) else None

    def take_back(self, columns: FrozenColumns, taken: int) -> None:
        """Counts what is left of a cut as written again, with the keys that were taken last."""
        assert isinstance(columns, FrozenSessions)
        keys = columns.remaining()
        self.state.dirty[keys] = self.state.below[keys] = True

    def take_written(self) -> tuple[dict[Any, Any], list[Any]]:
        """Entries written since the last cut, and the keys that have no sessions any more."""
        columns = self.cut()
        if columns is None:
            return {}, []
        limit = len(columns)
        return columns.take(limit), columns.drop(limit)


class FrozenSessions:
    """Copies of sessions, key by key, and deleted keys."""

    def __init__(self, state: SessionState, slots: Slots, deleted: Slots) -> None:
        slots = slots[places_by_slot(state.key[slots])]
        self._keys = state.keys
        self._of_key, self._starts = state.key[slots], state.start[slots]
        self._ends, self._orders = state.end[slots], state.order[slots]
        self._accumulators = state.accumulators
        self._held = [one.at(slots) for one in state.accumulators]
        parted = np.ones(len(slots), np.bool_)
        parted[1:] = self._of_key[1:] != self._of_key[:-1]
        self._begins = np.append(np.flatnonzero(parted), len(slots))
        """Index at which the sessions of each key begin; at last the number of all sessions."""
        self._at = self._last = 0
        """Number of keys that are used up (`_at`), and how many were before the last `take` (`_last`)."""
        self._deleted = deleted
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._begins) - 1 - self._at + self.drops

    @property
    def drops(self) -> int:
        """Number of deleted keys that are left."""
        return len(self._deleted) - self._dropped

    def take(self, limit: int) -> dict[Any, Any]:
        """The next `limit` keys at most, with all their sessions."""
        self._last, self._at = self._at, min(self._at + limit, len(self._begins) - 1)
        if self._at == self._last:
            return {}
        begins = self._begins[self._last : self._at + 1]
        part = slice(int(begins[0]), int(begins[-1]))
        keys = settled_keys(self._keys.keys(self._of_key[begins[:-1]]))
        values = [
            one.values([array[part] for array in arrays])
            for one, arrays in zip(self._accumulators, self._held, strict=True)
        ]
        orders = self._orders[part].tolist()
        states = zip(*values, strict=True) if values else [()] * len(orders)
        sessions = [
            (end, order, state if order > 0 else None)
            for end, order, state in zip(self._ends[part].tolist(), orders, states, strict=True)
        ]
        starts = self._starts[part].tolist()
        parts = pairwise((begins - begins[0]).tolist())
        return {
            key: dict(zip(starts[a:b], sessions[a:b], strict=True)) for key, (a, b) in zip(keys, parts, strict=True)
        }

    def drop(self, limit: int) -> list[Any]:
        """The next `limit` keys at most that have no sessions any more."""
        slots = self._deleted[self._dropped : self._dropped + limit]
        self._dropped += len(slots)
        return settled_keys(self._keys.keys(slots)) if len(slots) else []

    def remaining(self) -> Slots:
        """Slots of the keys that are left, of the keys that were taken last, and of all deleted keys."""
        return np.concatenate([self._of_key[self._begins[self._last : -1]], self._deleted])
