"""Aggregating a record batch by the slots of its keys, where these are known record by record: a few passes over arrays, in
place of Arrow's hash table. The same groups, in another order, and the same partial accumulators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.api.aggregates import Count, Max, Mean, Min, Sum
from tailrace.elements.batches import Columns
from tailrace.elements.keyslots import KeySlots
from tailrace.elements.slottables import Slots
from tailrace.task.operators.arrow import GroupedBatch

Array = np.ndarray[Any, Any]


class SlotGrouping:
    """Groups batches like `pattern`, which Arrow has grouped, of this schema."""

    def __init__(self, schema: pa.Schema, pattern: GroupedBatch) -> None:
        self.schema = schema
        self.pattern = replace(pattern, key_columns=[], answers=[], times=None)
        self._kinds = [type(aggregate) for aggregate in pattern.aggregates]
        self.possible = all(map(_possible, self._kinds, pattern.input_types))
        self._first = np.zeros(0, np.int64)

    def group(self, batch: Columns, keys: KeySlots) -> tuple[GroupedBatch, Slots] | None:
        """The groups of a batch, and their slots. None where it has to be grouped in another way."""
        if not self.possible or batch.data.schema != self.schema:
            return None
        values = [None if one.of is None else batch.data.column(one.of) for one in self.pattern.aggregates]
        if any(one is not None and one.null_count for one in values):
            return None
        columns = [batch.data.column(name) for name in self.pattern.key_names]
        slots = keys.of_records(columns)
        if slots is None:
            return None
        codes, chosen = self._codes(slots, keys.count)
        groups = len(chosen) if codes is not slots else keys.count
        counts = np.bincount(codes, minlength=groups)
        answers = []
        for kind, column in zip(self._kinds, values, strict=True):
            numbers = None if column is None else column.to_numpy(zero_copy_only=False)
            found = _answers(kind, numbers, codes, counts)
            if found is None:
                return None
            answers.append(found)
        times = None
        if batch.times is not None:
            times = np.full(groups, np.iinfo(np.int64).min)
            np.maximum.at(times, codes, batch.times)
        if codes is slots:
            answers = [[one[chosen] for one in found] for found in answers]
            times = None if times is None else times[chosen]
        else:
            chosen = slots.take(chosen)
        arrays = [[pa.array(one) for one in found] for found in answers]
        return replace(self.pattern, key_columns=keys.columns(chosen), times=times, answers=arrays), chosen

    def _codes(self, slots: Slots, count: int) -> tuple[Slots, Slots]:
        """For each record its group. Where there are few slots that is its slot itself, and the slots that occur are told.
        Else groups are numbered in order of first appearance, and the places of the first records are told."""
        if count <= 2 * len(slots):
            occurs = np.zeros(count, np.bool_)
            occurs[slots] = True
            return slots, np.flatnonzero(occurs)
        if len(self._first) < count:
            self._first = np.zeros(2 * count, np.int64)
        first, places = self._first, np.arange(len(slots))
        first[slots[::-1]] = places[::-1]  # of several the last one stays: the first record
        heads = np.flatnonzero(first.take(slots) == places)
        first[slots.take(heads)] = places[: len(heads)]
        return first.take(slots), heads


def _possible(kind: type, of: pa.DataType | None) -> bool:
    """Whether passes over arrays give what Arrow gives: of floats the least is another thing, with NaN and -0.0."""
    if kind is Count:
        return True
    if kind in (Min, Max):
        return bool(of == pa.int64())
    return kind in (Sum, Mean) and of in (pa.int64(), pa.float64())


def _answers(kind: type, values: Array | None, codes: Array, counts: Array) -> list[Array] | None:
    """What Arrow would answer to the questions of an aggregate; None where a sum might not fit 64 bits."""
    if values is None:
        return [counts]
    if kind in (Min, Max):
        return [_extremes(kind is Max, values, codes, len(counts))]
    if values.dtype == np.float64:
        sums = np.bincount(codes, weights=values, minlength=len(counts))
    else:
        # Not `abs`: that of the least integer is none.
        if max(int(values.max()), -int(values.min())) * len(values) >= 1 << 63:
            return None
        sums = np.zeros(len(counts), np.int64)
        np.add.at(sums, codes, values)
    return [counts, sums] if kind is Mean else [sums]


def _extremes(largest: bool, values: Array, codes: Array, groups: int) -> Array:
    limits = np.iinfo(np.int64)
    found = np.full(groups, limits.min if largest else limits.max)
    (np.maximum if largest else np.minimum).at(found, codes, values)
    return found
