"""Aggregating a record batch by the slots of its keys, if these are known record by record: a few passes over arrays in
place of Arrow's hash table. It finds the groups and partial accumulators that Arrow would find, in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.api.aggregates import Count, Max, Mean, Min, Sum
from tailrace.elements.batches import Columns
from tailrace.elements.keyslots import KeySlots
from tailrace.elements.slottables import Slots
from tailrace.task.operators.aggregates.arrow import GroupedBatch

Array = np.ndarray[Any, Any]


class SlotGrouping:
    """Grouping for batches of one schema, like the batch of `pattern`, which Arrow has grouped."""

    def __init__(self, schema: pa.Schema, pattern: GroupedBatch) -> None:
        self.schema = schema
        self.pattern = replace(pattern, key_columns=[], answers=[], times=None)
        self._kinds = [type(aggregate) for aggregate in pattern.aggregates]
        self.possible = all(map(_possible, self._kinds, pattern.input_types))
        self._first = np.zeros(0, np.int64)

    def group(
        self, batch: Columns, keys: KeySlots, windows: Windows | None = None
    ) -> tuple[GroupedBatch, Slots] | None:
        """Groups of a batch, by key, or by key and window if windows are given; and the slots of their keys. None if the
        batch has to be grouped in another way."""
        if not self.possible or batch.data.schema != self.schema:
            return None
        values = [None if one.of is None else batch.data.column(one.of) for one in self.pattern.aggregates]
        if any(one is not None and one.null_count for one in values):
            return None
        slots = keys.of_records([batch.data.column(name) for name in self.pattern.key_names])
        if slots is None:
            return None
        places, count = (slots, keys.count) if windows is None else windows.places(slots, keys.count)
        if count > _MOST:
            return None
        codes, chosen = self._codes(places, count)
        direct = codes is places
        counts = np.bincount(codes, minlength=count if direct else len(chosen))
        answers = []
        for kind, column in zip(self._kinds, values, strict=True):
            numbers = None if column is None else column.to_numpy(zero_copy_only=False)
            found = _answers(kind, numbers, codes, counts)
            if found is None:
                return None
            answers.append(found if not direct else [one[chosen] for one in found])
        arrays = [[pa.array(one) for one in found] for found in answers]
        heads = None if direct else chosen
        chosen = chosen if direct else places.take(chosen)
        if windows is not None:
            return self._by_window(windows, chosen, keys.count, arrays, _first(places, count, chosen, heads))
        times = None
        if batch.times is not None:
            times = np.full(len(counts), np.iinfo(np.int64).min)
            np.maximum.at(times, codes, batch.times)
            times = times[chosen] if direct else times
        return replace(self.pattern, key_columns=keys.columns(chosen), times=times, answers=arrays), chosen

    def _by_window(
        self, windows: Windows, chosen: Slots, count: int, answers: list[list[pa.Array]], first: Array
    ) -> tuple[GroupedBatch, Slots]:
        """Groups at some places, by key and window. Only the slots give their keys."""
        which, slots = np.divmod(chosen, count) if windows.several else (0, chosen)
        starts = np.full(len(slots), windows.low) + which * windows.slide
        return replace(self.pattern, windows=starts, answers=answers, first=first), slots

    def _codes(self, slots: Slots, count: int) -> tuple[Slots, Slots]:
        """Group of each record, and which groups occur. With few slots, the group of a record is its slot, and the second
        array has the slots that occur. Else groups are numbered in order of first appearance, and the second array has
        the positions of their first records."""
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


class Windows:
    """Windows of the records of a batch, by their starts."""

    def __init__(self, starts: Array, slide: int) -> None:
        self.starts, self.slide = starts, slide
        self.low, high = int(starts.min()), int(starts.max())
        self.several = high != self.low
        self._count = (high - self.low) // slide + 1
        """Number of windows from the first to the last, including those without records."""

    def places(self, slots: Slots, count: int) -> tuple[Slots, int]:
        """One number for the slot (out of `count`) and the window of each record; and how many numbers there are."""
        if not self.several:
            return slots, count
        numbers = self._count * count
        if numbers > _MOST:
            return slots, numbers
        # Not by the difference of two starts, which may be above 64 bits.
        return slots + (self.starts // self.slide - self.low // self.slide) * count, numbers


_MOST = 1 << 21
"""Largest number of groups for which passes over all of them are made."""


def _first(places: Slots, count: int, chosen: Slots, heads: Slots | None) -> Array:
    """Position of the first record of each chosen place."""
    if heads is not None:
        return heads
    first = np.empty(count, np.int64)
    first[places[::-1]] = np.arange(len(places) - 1, -1, -1)  # of several the last one stays: the first record
    found: Array = first[chosen]
    return found


def _possible(kind: type, of: pa.DataType | None) -> bool:
    """True if passes over arrays give what Arrow gives. For extremes of floats they do not, because of NaN and -0.0."""
    if kind is Count:
        return True
    if kind in (Min, Max):
        return bool(of == pa.int64())
    return kind in (Sum, Mean) and of in (pa.int64(), pa.float64())


def _answers(kind: type, values: Array | None, codes: Array, counts: Array) -> list[Array] | None:
    """Results that Arrow's functions for an aggregate would give; None if a sum might not fit 64 bits."""
    if values is None:
        return [counts]
    if kind in (Min, Max):
        return [_extremes(kind is Max, values, codes, len(counts))]
    if values.dtype == np.float64:
        sums = np.bincount(codes, weights=values, minlength=len(counts))
    else:
        # Not `abs`: it overflows for the least integer.
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


def answers_by_code(
    batch: Columns, aggregates: list[Any], kinds: list[pa.DataType | None], codes: Array, count: int
) -> list[list[pa.Array]] | None:
    """Results of the aggregates' Arrow functions for `count` groups, of which `codes` has that of each record; None if Arrow
    itself has to find them."""
    columns = [None if one.of is None else batch.data.column(one.of) for one in aggregates]
    of_kinds = list(map(type, aggregates))
    if not all(map(_possible, of_kinds, kinds)) or any(one is not None and one.null_count for one in columns):
        return None
    counts = np.bincount(codes, minlength=count)
    found = []
    for kind, column in zip(of_kinds, columns, strict=True):
        numbers = None if column is None else column.to_numpy(zero_copy_only=False)
        answers = _answers(kind, numbers, codes, counts)
        if answers is None:
            return None
        found.append([pa.array(one) for one in answers])
    return found
