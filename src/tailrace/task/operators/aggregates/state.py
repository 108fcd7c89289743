"""State of built-in aggregates in columns, above the table of their entries (`state.tables.Front`).

Each distinct key has a slot, and the accumulators are arrays by slot. A key that comes for the first time is looked up in
the table below. At each cut, what was written goes into the table as the entries that the operator would have in rows, so
checkpoints know nothing of columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.keyslots import KeySlots, key_slots
from tailrace.elements.slottables import Slots, grow
from tailrace.state.tables import FrozenColumns, StateTable
from tailrace.task.channels.key_readers import settled_keys
from tailrace.task.operators.aggregates.accumulators import Accumulators, Array, accumulators_of
from tailrace.task.operators.aggregates.arrow import GroupedBatch


class ColumnState:
    """State in columns in front of one table; made by `new_state`.

    Invariant B6: the state of a key is in its slot where it has one, else in the table. A slot that differs from what the
    table has is `dirty`.
    """

    def __init__(self, table: StateTable, keys: KeySlots, kinds: list[Any], accumulators: list[Accumulators]) -> None:
        self.table = table
        self.keys = keys
        self.kinds = kinds
        """Types of the columns that are aggregated."""
        self.accumulators = accumulators
        self.dirty = np.zeros(0, np.bool_)
        self.unknown = np.zeros(0, np.bool_)
        """By slot, True if its key has no entry below."""
        self._filled = 0
        """Number of slots that were filled from the table."""
        self.new = 0
        """Number of slots that are `unknown`. All of them are dirty: a key gets its slot with its first batch."""
        self._frozen: Frozen | None = None

    def takes(self, batch: GroupedBatch) -> bool:
        """True if the keys and values of a batch have the types of this state."""
        return self.keys.takes(batch.key_columns) and batch.input_types == self.kinds

    def merge(self, batch: GroupedBatch, slots: Slots | None = None) -> list[pa.Array]:
        """Adds a batch; returns its results by aggregate. `slots`: the slots of its keys, if they are known. Raises
        `NotInArrays` before anything is changed."""
        if slots is None:
            slots = self.keys.slots(batch.key_columns)
        if self.keys.count > self._filled:
            self._fill()
        made, results = [], []
        for one, answers, kind in zip(self.accumulators, batch.answers, batch.result_types, strict=True):
            made.append(one.merge(slots, answers))
            results.append(one.results(made[-1], kind))
        if self._frozen is not None:
            self._frozen.keep(slots)
        for one, values in zip(self.accumulators, made, strict=True):
            one.store(slots, values)
        self.dirty[slots] = True
        return results

    def _fill(self) -> None:
        """Fills new slots with what the table has for their keys."""
        count = self.keys.count
        self.dirty, self.unknown = grow(self.dirty, count), grow(self.unknown, count)
        for one in self.accumulators:
            one.grow(count)
        slots = np.arange(self._filled, count)
        self.unknown[slots] = True
        found = list(map(self.table.get, settled_keys(self.keys.keys(slots))))
        if any(state is not None for state in found):
            known = slots[[state is not None for state in found]]
            self.unknown[known] = False
            states = zip(*[state[1:] for state in found if state is not None], strict=True)
            for one, values in zip(self.accumulators, states, strict=True):
                one.store(known, one.arrays_of(list(values)))
        self.new += int(self.unknown[slots].sum())
        self._filled = count

    # Above the table.

    def everything(self) -> None:
        """None: some entries may be in the table only."""

    def cut(self) -> FrozenColumns | None:
        """Entries written since the last cut; None if there are none. Copies nothing: a value that is overwritten before
        it was taken is kept."""
        if not self.dirty.any():
            return None
        self._frozen = made = Frozen(self.keys, self.accumulators, self.dirty, self.unknown, self.new)
        self.dirty, self.unknown = np.zeros_like(self.dirty), np.zeros_like(self.unknown)
        self.new = 0
        return made

    def take_back(self, columns: FrozenColumns, taken: int) -> None:
        """Counts what is left of a cut as written again, with the `taken` last entries that were taken."""
        assert isinstance(columns, Frozen)
        self._frozen = None
        slots, unknown = columns.remaining(taken)
        self.new += int(unknown.sum())
        self.dirty[slots] = True
        self.unknown[slots] |= unknown

    def take_written(self) -> tuple[dict[Any, Any], list[Any]]:
        """Entries written since the last cut, and no deleted keys: an aggregate deletes nothing."""
        taken = self.cut()
        self._frozen = None
        return ({} if taken is None else taken.take(len(taken))), []

    def entries(self) -> int:
        """Number of entries that the table has."""
        found = self._of_columns()
        return self.new + (self.table.behind() if found is None else found)

    def about(self) -> int:
        """Approximate number of entries that the table has; does not look at each entry."""
        found = self._of_columns()
        return self.new + (self.table.about_behind() if found is None else found)

    def _of_columns(self) -> int | None:
        """Number of entries below, if the table has a frozen layer in columns; else None."""
        frozen = self.table.frozen
        if frozen is None or frozen.columns is None:
            return None
        assert isinstance(frozen.columns, Frozen)
        return self.table.base.count + frozen.columns.new(len(frozen.entries))


class AccumulatorSnapshot:
    """Accumulators in some slots as they are now, without a copy: a value that is overwritten before it was taken is
    kept.

    Invariant B7: what is taken is what was in the slot at the cut.
    """

    def __init__(self, accumulators: list[Accumulators], waiting: Array) -> None:
        """`waiting`: by slot, True if it belongs to the snapshot. The snapshot owns the array from here on."""
        self._accumulators = accumulators
        self.waiting = waiting
        """By slot, True if it belongs to the snapshot and was not taken yet."""
        self._kept = np.zeros(len(waiting), np.bool_)
        # Nothing is written here until a value has to be kept: this takes no time, and mostly no memory.
        self._old = [[np.empty(len(waiting), array.dtype) for array in one.arrays] for one in accumulators]

    def keep(self, slots: Slots) -> None:
        """Keeps the values in slots that are about to be overwritten."""
        slots = slots[slots < len(self.waiting)]
        slots = slots[self.waiting[slots] & ~self._kept[slots]]
        for one, old in zip(self._accumulators, self._old, strict=True):
            for array, before in zip(one.arrays, old, strict=True):
                before[slots] = array[slots]
        self._kept[slots] = True

    def take(self, slots: Slots) -> list[list[Any]]:
        """Accumulators in slots of the snapshot, by aggregate, as the state holds them."""
        self.waiting[slots] = False
        kept = self._kept[slots]
        values = []
        for one, old in zip(self._accumulators, self._old, strict=True):
            pairs = zip(one.arrays, old, strict=True)
            values.append(one.values([np.where(kept, before[slots], array[slots]) for array, before in pairs]))
        return values


class Frozen:
    """Entries written in a `ColumnState` between two cuts. An entry is in the arrays of the state until it is taken."""

    def __init__(
        self, keys: KeySlots, accumulators: list[Accumulators], written: Array, unknown: Array, new: int
    ) -> None:
        self._keys = keys
        self._kept = AccumulatorSnapshot(accumulators, written)
        self._unknown = unknown
        """By slot, True if its key had no entry below at the cut."""
        self._left = int(np.count_nonzero(written))
        self._new = new
        self._slots: Slots | None = None
        self._last = np.empty(0, np.int64)
        """Slots that the last `take` returned."""
        self._at = 0

    def __len__(self) -> int:
        return self._left

    def keep(self, slots: Slots) -> None:
        """Keeps the values in slots that are about to be overwritten."""
        if self._left:
            self._kept.keep(slots)

    def take(self, limit: int) -> dict[Any, Any]:
        """The next `limit` entries at most: (key, accumulator, …), as in rows."""
        if self._slots is None:
            self._slots = np.flatnonzero(self._kept.waiting)
        self._last = slots = self._slots[self._at : self._at + limit]
        self._at += len(slots)
        self._left -= len(slots)
        self._new -= int(self._unknown[slots].sum())
        keys, values = settled_keys(self._keys.keys(slots)), self._kept.take(slots)
        return dict(zip(keys, zip(keys, *values, strict=True), strict=True))

    drops = 0

    def drop(self, limit: int) -> list[Any]:
        """No keys: an aggregate deletes nothing."""
        return []

    def new(self, taken: int) -> int:
        """Number of entries whose keys are not below, among those left and the `taken` last ones that were taken."""
        return self._new + int(self._unknown[self._last[:taken]].sum())  # they are used up from their end

    def remaining(self, taken: int) -> tuple[Slots, Array]:
        """Slots of the entries that are left and of the `taken` last ones that were taken; for each, True if its key is
        not below."""
        slots = np.concatenate([self._last[:taken], np.flatnonzero(self._kept.waiting)])
        return slots, self._unknown[slots]


def new_state(table: StateTable, batch: GroupedBatch, nulls: bool) -> ColumnState | None:
    """State in columns for batches like this one; None if their types cannot be in arrays. `nulls`: True if keys are
    known to be null now and then."""
    keys = key_slots(batch.key_columns, batch.key_names, nulls, batch.tupled)
    made = [accumulators_of(one, of) for one, of in zip(batch.aggregates, batch.input_types, strict=True)]
    accumulators = [one for one in made if one is not None]
    if keys is None or len(accumulators) < len(made):
        return None
    return ColumnState(table, keys, batch.input_types, accumulators)
