"""Groups of the records of a batch that belong to one session, by a few passes over arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.elements.slottables import Slots, places_by_slot

Array = np.ndarray[Any, Any]
_LARGEST = 2**62
_LIMITS = np.iinfo(np.int64)
_DENSE = 4
"""Number of keys for each record of a batch up to which there are passes over all keys."""


class Opened:
    """Open sessions of some keys, by their slots."""

    def __init__(self, slots: Slots, keys: Slots, starts: Array, ends: Array) -> None:
        self.slots, self.keys, self.starts, self.ends = slots, keys[slots], starts[slots], ends[slots]


class BatchGroups:
    """Sessions that a batch opens or adds to. Arrays have an entry for each of them, in no particular order."""

    def __init__(self, codes: Slots, keys: Slots, starts: Array, ends: Array, orders: Array) -> None:
        self.codes = codes
        """By record, the number of its session."""
        self.keys, self.starts, self.ends = keys, starts, ends
        self.orders = np.full(len(keys), _LIMITS.max)
        """Order of the first record of each session."""
        np.minimum.at(self.orders, codes, orders)
        self.targets: Slots = np.full(len(keys), -1, np.int64)
        """Slot of the open session that goes on; -1 for a new session."""
        self.absorbed: dict[int, list[int]] = {}
        """Number of a session -> slots of other open sessions that become a part of it."""

    @classmethod
    def of(cls, keys: Slots, starts: Array, ends: Array, orders: Array, opened: Opened) -> BatchGroups:
        """Groups of records with these keys, starts, ends and orders. `opened`: the open sessions of their keys."""
        return _one_of_each(keys, starts, ends, orders, opened) or _in_sequence(keys, starts, ends, orders, opened)


def _one_of_each(keys: Slots, starts: Array, ends: Array, orders: Array, opened: Opened) -> BatchGroups | None:
    """Groups of records of which all of a key are in one session, without a sort; None if there may be more sessions of a
    key."""
    count = int(max(keys.max(), opened.keys.max(initial=0))) + 1
    if count > _DENSE * len(keys):
        return None
    first, last, latest = (np.full(count, one) for one in (_LIMITS.max, _LIMITS.min, _LIMITS.min))
    np.minimum.at(first, keys, starts)
    np.maximum.at(last, keys, starts)
    np.maximum.at(latest, keys, ends)
    occur = np.flatnonzero(latest != _LIMITS.min)
    if (last[occur] - first[occur]).max() > (ends - starts).min():
        return None
    held = np.full(count, -1, np.int64)
    held[opened.keys] = np.arange(len(opened.keys))
    if np.count_nonzero(held != -1) < len(opened.keys):
        return None
    to = np.zeros(count, np.int64)
    to[occur] = np.arange(len(occur))
    made = BatchGroups(to[keys], occur, first[occur], latest[occur], orders)
    which = held[occur]
    which[which != -1] = np.where(
        (opened.starts <= latest[opened.keys]) & (first[opened.keys] <= opened.ends), np.arange(len(opened.keys)), -1
    )[which[which != -1]]
    goes_on = np.flatnonzero(which != -1)
    which = which[goes_on]
    made.targets[goes_on] = opened.slots[which]
    made.starts[goes_on] = np.minimum(made.starts[goes_on], opened.starts[which])
    made.ends[goes_on] = np.maximum(made.ends[goes_on], opened.ends[which])
    return made


def _in_sequence(keys: Slots, starts: Array, ends: Array, orders: Array, opened: Opened) -> BatchGroups:
    """Groups of records and open sessions in the sequence of their starts, key by key."""
    count = len(keys)
    all_keys = np.concatenate([keys, opened.keys])
    all_starts, all_ends = np.concatenate([starts, opened.starts]), np.concatenate([ends, opened.ends])
    sequence = places_by_slot(all_keys, all_starts)
    sorted_starts = all_starts[sequence]
    begins, reached = _heads(all_keys[sequence], sorted_starts, all_ends[sequence])
    heads = np.flatnonzero(begins)
    numbers = np.empty(len(sequence), np.int64)
    numbers[sequence] = np.cumsum(begins) - 1
    touched = np.zeros(len(heads), np.bool_)
    touched[numbers[:count]] = True
    to = np.cumsum(touched) - 1
    heads, last = heads[touched], np.append(heads[1:], len(sequence))[touched] - 1
    made = BatchGroups(to[numbers[:count]], all_keys[sequence[heads]], sorted_starts[heads], reached[last], orders)
    mine = np.flatnonzero(touched[numbers[count:]])
    mine = mine[np.argsort(opened.starts[mine], kind="stable")]
    codes, slots = to[numbers[count:][mine]], opened.slots[mine]
    made.targets[codes[::-1]] = slots[::-1]  # of several the first one stays
    others = made.targets[codes] != slots
    for code, slot in zip(codes[others].tolist(), slots[others].tolist(), strict=True):
        made.absorbed.setdefault(code, []).append(slot)
    return made


def _heads(keys: Slots, starts: Array, ends: Array) -> tuple[Array, Array]:
    """Mask of the items that begin a session, and the latest end from there to each item. Items are ordered by key, then by
    start."""
    begins = np.ones(len(keys), np.bool_)
    of_key = np.cumsum(np.concatenate([[False], keys[1:] != keys[:-1]]))
    low = int(starts.min())
    span = int(ends.max()) - low + 1
    if span * (int(of_key[-1]) + 1) < _LARGEST:
        # Each key has a span of its own, so that one pass finds the latest ends of all.
        shift = of_key * span - low
        latest = np.maximum.accumulate(ends + shift)
        begins[1:] = starts[1:] + shift[1:] > latest[:-1]
        return begins, latest - shift
    rank = np.empty(len(keys), np.int64)
    by_end = np.lexsort((ends, of_key))
    rank[by_end] = np.arange(len(keys))
    latest = ends[by_end][np.maximum.accumulate(rank)]
    begins[1:] = (of_key[1:] != of_key[:-1]) | (starts[1:] > latest[:-1])
    return begins, latest
