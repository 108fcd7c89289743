"""Merging of feedback that waits, by key: what a loop would do record by record, it does once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from tailrace.elements.batches import Batch, Rows
from tailrace.elements.frame_codec import encoded_size
from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import message_of
from tailrace.task.channels.key_readers import are_plain, key_of_state
from tailrace.task.contract.usercode import raised_text, user_error

_SAMPLE_EVERY = 32
_SAMPLED = 32
_NO_GROUP = -1
_NONE = object()


@dataclass(frozen=True)
class Combiner:
    """Functions that merge waiting feedback: `key` reads the keys of rows, `merge` makes one record of two of one key,
    the one that has waited and the new one."""

    key: Callable[[Rows], list[Any]]
    merge: Callable[[Any, Any], Any]


class Combined:
    """Waiting records, one per key, in the order in which their keys came.

    Invariant M1: a key has one record, merged from all that came of it since it was taken last, in their order.
    Invariant M2: what was given out is never changed: a merge puts a new value in the place of the old one.
    """

    def __init__(self, combiner: Combiner, who: str, subtask: int) -> None:
        self.combiner = combiner
        self.who = who
        self.subtask = subtask
        self._values: dict[Any, Any] = {}
        """Key -> record."""
        self._times: dict[Any, int] = {}
        """Key -> timestamp, of those that have one."""
        self._order: deque[Any] = deque()
        """Keys in their order: a dictionary does not forget its oldest entries in constant time."""
        self._groups: deque[int] = deque()
        """Key group of each key, in the order of the keys."""
        self.measured: Callable[[int], int] = int
        """Size in bytes to go by, of a measured one. What is merged depends on it (`FeedbackQueue.seal`)."""
        self._record_bytes = 0.0
        self._unsampled = _SAMPLE_EVERY

    def measure_anew(self) -> None:
        """Forgets the measured sizes: a task that goes on from here has none of them."""
        self._record_bytes, self._unsampled = 0.0, _SAMPLE_EVERY

    def __len__(self) -> int:
        return len(self._values)

    @property
    def size(self) -> int:
        """Approximate size of the records, in bytes."""
        return int(self._record_bytes * len(self._values))

    def add(self, batch: Batch) -> int:
        """Takes records in; returns how many of them were merged into one that was there. Raises `UserCodeError` for what
        the user's `merge` raises."""
        rows = batch.to_rows()
        keys = self._keys(rows)
        count = len(rows)
        groups = repeat(_NO_GROUP, count) if rows.groups is None else rows.groups.tolist()
        waiting, merge, before = self._values, self.combiner.merge, len(self._values)
        touched: dict[Any, None] = {}
        for key, value, group in zip(keys, rows.values, groups, strict=True):
            there = waiting.get(key, _NONE)
            if there is _NONE:
                waiting[key] = value
                self._order.append(key)
                self._groups.append(group)
                continue
            try:
                waiting[key] = merge(there, value)
            except Exception as error:
                what = f"merging waiting feedback raised {raised_text(error)}"
                raise user_error(error, self.who, self.subtask, value, what=what) from error
            touched[key] = None
        if rows.times is not None:
            self._stamp(keys, rows.times.tolist())
        if touched:
            self._check_keys(list(touched))
        self._sample(keys)
        return count - (len(waiting) - before)

    def _stamp(self, keys: list[Any], times: list[int]) -> None:
        """Gives each merged record the latest timestamp of its parts."""
        found = self._times
        for key, time in zip(keys, times, strict=True):
            if time != NO_TIME and time > found.get(key, NO_TIME):
                found[key] = time

    def take(self, limit: int) -> Rows:
        """The `limit` oldest records."""
        order, of_each = self._order, self._groups
        if limit >= len(order):
            keys, groups, values = list(order), list(of_each), list(self._values.values())
            for one in (order, of_each, self._values):
                one.clear()
        else:
            keys = [order.popleft() for _ in range(limit)]
            groups = [of_each.popleft() for _ in range(limit)]
            values = list(map(self._values.pop, keys))
        times = [self._times.pop(key, NO_TIME) for key in keys] if self._times else []
        return Rows(
            values,
            None if all(time == NO_TIME for time in times) else np.array(times, np.int64),
            None if _NO_GROUP in groups else np.array(groups, np.uint16),
        )

    def _keys(self, rows: Rows) -> list[Any]:
        found = self.combiner.key(rows)
        if are_plain(found):
            return found
        keys = list(map(key_of_state, found))
        for key, value in zip(keys, rows.values, strict=True):
            try:
                hash(key)
            except TypeError as error:
                what = f"a key to combine feedback by must be hashable: {message_of(error)}"
                raise user_error(error, self.who, self.subtask, value, what=what) from error
        return keys

    def _check_keys(self, merged: list[Any]) -> None:
        """Raises `UserCodeError` if a merged record has not the key of its parts: it waits in their place, and goes where
        they were to go."""
        rows = Rows([self._values[key] for key in merged])
        for key, found, value in zip(merged, self._keys(rows), rows.values, strict=True):
            if found not in (key,):  # the same object, a NaN, equals itself
                what = (
                    f"merge of records with the key {key!r} returned one with the key {found!r}; it must keep the key"
                )
                raise user_error(ValueError(what), self.who, self.subtask, value, what=what, permanent=True)

    def _sample(self, keys: list[Any]) -> None:
        """Measures now and then how large merged records are: they may grow by merging."""
        self._unsampled += 1
        if self._unsampled < _SAMPLE_EVERY:
            return
        self._unsampled = 0
        values = [self._values[key] for key in keys[:_SAMPLED]]
        size = self.measured(encoded_size(Rows(values)))
        self._record_bytes = max(1.0, size / len(values) + 10)  # and its time and group
