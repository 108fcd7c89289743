"""Sessions of keys in columns without aggregates: their bounds, for an operator that keeps the records itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.keyslots import key_slots
from tailrace.elements.slottables import Slots
from tailrace.elements.timestamps import is_late
from tailrace.state.backend import Backend
from tailrace.state.format import SESSIONS
from tailrace.task.operators.aggregates.accumulators import NotInArrays
from tailrace.task.operators.windows.sessionbatch import BatchGroups, Opened
from tailrace.task.operators.windows.sessionfront import SessionFront
from tailrace.task.operators.windows.sessionload import load
from tailrace.task.operators.windows.sessionstate import SessionState

Array = np.ndarray[Any, Any]
_EXACT = 2**52
"""Number of microseconds up to which a float of seconds stands for the nearest one."""


def gaps_in(column: pa.Array) -> Array | None:
    """The gap of each record in microseconds; None if one is no number of seconds above zero."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) or column.null_count:
        return None
    found = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) * 1e6
    return np.rint(found).astype(np.int64) if ((found > 0.5) & (found <= _EXACT)).all() else None


def merge_all(state: SessionState, keys: Slots, times: Array, reached: int, add: Any) -> Array:
    """Adds the records of a batch that are not late: first those in time, then those that these let in. `add(some)` adds the
    records in these places. Returns the mask of the records that were added."""
    merged = np.zeros(len(times), np.bool_)
    some = np.flatnonzero(~is_late(times, reached))
    while True:
        if len(some):
            add(some)
            merged[some] = True
        left = np.flatnonzero(~merged)
        some = left[state.welcome(keys[left], times[left], reached)] if len(left) else left
        if not len(some):
            return merged


def groups_of(state: SessionState, keys: Slots, starts: Array, gaps: Any, orders: Array) -> BatchGroups:
    """The sessions that records open or add to."""
    here = np.zeros(state.keys.count, np.bool_)
    here[keys] = True
    opened = Opened(state.open_of(np.flatnonzero(here)), state.key, state.start, state.end)
    return BatchGroups.of(keys, starts, starts + gaps, orders, opened)


class SessionBounds:
    """The bounds of the sessions of one operator in one subtask, open ones and emitted ones, as state."""

    def __init__(self, backend: Backend, names: tuple[str, ...], tupled: bool, reach: int) -> None:
        self._names, self._tupled, self._reach = [*names], tupled, reach
        self._table = backend.table(SESSIONS.name, kind=SESSIONS.kind)
        self.state: SessionState | None = None
        """None before keys are known."""
        self._order = 0

    def load(self, columns: list[pa.Array]) -> SessionState:
        """The sessions, for keys in columns like these. Raises `NotInArrays` if keys of the table are of other types."""
        if self.state is None:
            keys = key_slots(columns, self._names, True, self._tupled)
            if keys is None:
                raise NotInArrays
            state = SessionState(keys, [], [], self._reach)
            load(state, self._table, self._names, columns)
            self._order = int(np.abs(state.order).max())
            self._table.front = SessionFront(state)
            self.state = state
        return self.state

    def add(self, columns: list[pa.Array], times: Array, gaps: Any, reached: int) -> Array:
        """Adds records of these keys, times and gaps; returns the mask of those that are not late."""
        state = self.load(columns)
        keys = state.keys.slots(columns)
        state.grow_keys()

        def add(some: Slots) -> None:
            own = gaps if isinstance(gaps, int) else gaps[some]
            state.merge(groups_of(state, keys[some], times[some], own, self._order + 1 + some), [])

        merged = merge_all(state, keys, times, reached, add)
        self._order += len(times)
        return merged

    def next_time(self) -> int | None:
        """Time at which the first session is to be emitted or forgotten, or None."""
        return None if self.state is None else self.state.next_time()

    def take(self, time: int, limit: int) -> tuple[list[pa.Array], Array, Array] | None:
        """Takes sessions that are over at a time, at most `limit`, in order of their ends: keys, starts and ends; None if
        there are none."""
        slots = np.empty(0, np.int64) if self.state is None else self.state.due(time, limit)
        if self.state is None or not len(slots):
            return None
        keys = self.state.keys.columns(self.state.key[slots])
        bounds = self.state.start[slots], self.state.end[slots]
        self.state.emit(slots)
        return keys, *bounds

    def forget(self, time: int, limit: int) -> bool:
        """Forgets sessions that nothing can touch any more. True if no session is over any more."""
        state = self.state
        if state is None:
            return True
        if state.ends.any_due(time, state.end):
            return False
        over = state.forget(time, limit)
        if self._table.frozen is None:
            state.tidy()
        return over
