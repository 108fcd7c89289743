"""Conversion of sessions from entries into arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.columns.arrays import REFUSALS, column_of_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.state.tables import StateTable
from tailrace.task.operators.aggregates.accumulators import NotInArrays
from tailrace.task.operators.aggregates.arrow import one_zero
from tailrace.task.operators.windows.sessionstate import SessionState


def load(state: SessionState, table: StateTable, names: list[str], columns: list[pa.Array]) -> None:
    """Loads all sessions of a table into empty arrays, for keys in columns like these. Raises `NotInArrays` for keys and
    values that arrays cannot hold."""
    entries = list(table.items())
    keys = state.keys.slots(_key_columns(state, [key for key, _ in entries], names, columns))
    state.grow_keys()
    if state.keys.count < len(entries):  # two keys are one in these types
        raise NotInArrays
    rows = [
        (key, start, end, order, one)
        for key, (_, sessions) in zip(keys.tolist(), entries, strict=True)
        for start, (end, order, one) in sessions.items()
    ]
    if not rows:
        return
    *bounds, states = zip(*rows, strict=True)
    slots = state.take_slots(len(rows))
    for array, values in zip((state.key, state.start, state.end, state.order), bounds, strict=True):
        array[slots] = values
    opened = np.flatnonzero(state.order[slots] > 0)
    if len(opened):
        held = zip(*[states[at] for at in opened.tolist()], strict=True)
        for one, found in zip(state.accumulators, held, strict=True):
            one.store(slots[opened], one.arrays_of(list(found)))
    state.put(slots)
    state.below[keys] = True


def _key_columns(state: SessionState, keys: list[Any], names: list[str], columns: list[pa.Array]) -> list[pa.Array]:
    """Keys of the state as columns like these. Raises `NotInArrays`."""
    if state.keys.tupled and not all(type(key) is tuple and len(key) == len(names) for key in keys):
        raise NotInArrays
    lists = [[key[i] for key in keys] for i in range(len(names))] if state.keys.tupled else [keys]
    fields = [pa.field(name, one.type) for name, one in zip(names, columns, strict=True)]
    try:
        return [one_zero(column_of_values(one, field)) for one, field in zip(lists, fields, strict=True)]
    except (Misfit, *REFUSALS) as error:
        raise NotInArrays from error
