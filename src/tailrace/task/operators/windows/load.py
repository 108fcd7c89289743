"""Conversion of windows and timers from entries into arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.columns.arrays import REFUSALS, column_of_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.keyslots import KeySlots, key_slots
from tailrace.elements.slottables import Slots
from tailrace.state.tables import StateTable
from tailrace.task.operators.aggregates.accumulators import NotInArrays, accumulators_of
from tailrace.task.operators.aggregates.arrow import GroupedBatch, one_zero
from tailrace.task.operators.timer_heap import Keyed, Timers
from tailrace.task.operators.windows.fronts import TimerFront, WindowFront
from tailrace.task.operators.windows.state import WindowState
from tailrace.task.operators.windows.timers import AS_IT_IS

_Window = tuple[Any, int, Any]
"""(key, start of a window, accumulators of the window)."""


def into_arrays(
    table: StateTable, timers: Timers, batch: GroupedBatch, nulls: bool, size: int, lateness: int
) -> WindowState:
    """All windows and timers, in arrays for batches like this one. `nulls`: True if keys are known to be null now and
    then. Raises `NotInArrays` before anything is changed: for types without arrays, for values that arrays cannot hold,
    and for timers that belong to no such window (timers of a job that allowed another lateness)."""
    made = [accumulators_of(one, of) for one, of in zip(batch.aggregates, batch.input_types, strict=True)]
    windows = [(key, start, one) for key, found in table.items() for start, one in found.items()]
    columns = _key_columns(batch, [key for key, _, _ in windows])
    nulls = nulls or any(column.null_count for column in batch.key_columns)
    keys = key_slots(columns, batch.key_names, nulls, batch.tupled)
    if keys is None or any(one is None for one in made):
        raise NotInArrays
    state = WindowState(keys, batch.aggregates, batch.input_types, size, lateness, timers.order)
    if windows:
        slots = _load_windows(state, windows, keys, columns)
        _load_timers(state, timers, {(key, start): n for (key, start, _), n in zip(windows, slots, strict=True)})
        if not state.timers[-1].is_set[slots].all():
            raise NotInArrays
    elif len(timers.table):
        raise NotInArrays
    table.front, timers.table.front = WindowFront(state), TimerFront(state)
    timers.rest()
    return state


def _key_columns(batch: GroupedBatch, keys: list[Any]) -> list[pa.Array]:
    """Keys of the state as columns like the key columns of a batch. Raises `NotInArrays`."""
    many = len(batch.key_names)
    if batch.tupled and not all(type(key) is tuple and len(key) == many for key in keys):
        raise NotInArrays
    lists = [[key[i] for key in keys] for i in range(many)] if batch.tupled else [keys]
    fields = [pa.field(name, one.type) for name, one in zip(batch.key_names, batch.key_columns, strict=True)]
    try:
        return [one_zero(column_of_values(one, field)) for one, field in zip(lists, fields, strict=True)]
    except (Misfit, *REFUSALS) as error:
        raise NotInArrays from error


def _load_windows(state: WindowState, windows: list[_Window], keys: KeySlots, columns: list[pa.Array]) -> Slots:
    of_keys = keys.slots(columns)
    slots = state.slots(of_keys, np.array([start for _, start, _ in windows], np.int64))
    if state.pairs.count < len(windows):  # two keys are one in these types
        raise NotInArrays
    for one, values in zip(state.accumulators, zip(*[found for _, _, found in windows], strict=True), strict=True):
        one.store(slots, one.arrays_of(list(values)))
    state.put(slots)
    state.below[of_keys] = True
    return slots


def _load_timers(state: WindowState, timers: Timers, slots: dict[tuple[Any, int], int]) -> None:
    """Loads the timers of the windows in these slots. Raises `NotInArrays` for a timer of no such window."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in state.timers]
    for (window, time), order in sorted(timers.table.items(), key=lambda entry: (entry[1], Keyed(entry[0][0]))):
        delays = [one.delay for one in state.timers]
        if window not in slots or time - window[1] not in delays:
            raise NotInArrays
        found[delays.index(time - window[1])].append((slots[window], window[1], order))
    for one, some in zip(state.timers, found, strict=True):
        if some:
            of_windows, starts, orders = (np.array(column, np.int64) for column in zip(*some, strict=True))
            one.set(of_windows, starts, orders)
            one.below[of_windows] = AS_IT_IS


def into_entries(state: WindowState, table: StateTable, timers: Timers) -> None:
    """Moves all windows and timers from arrays back into their tables."""
    table.settle()
    timers.table.settle()
    table.front = timers.table.front = None
    timers.rebuild()
    timers.order = max(timers.order, state.order)
