"""Feedback that waits, merged by key: what a loop would do one after the other, it does once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailrace.elements.batches import Batch, Rows
from tailrace.elements.frames import encoded_size
from tailrace.elements.timestamps import NO_TIME
from tailrace.task.history import Facts
from tailrace.task.keys import settled
from tailrace.task.usercode import user_error

_SAMPLE_EVERY = 32
_SAMPLED = 32
_NO_GROUP = -1


@dataclass(frozen=True)
class Combiner:
    """How waiting feedback is merged: `key` reads the keys of rows, `merge` makes one record of two of one key, the one
    that has waited and the new one."""

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
        self._cells: OrderedDict[Any, list[Any]] = OrderedDict()
        """Key -> [value, time, group]. An OrderedDict forgets its oldest entries in constant time, a dict does not."""
        self.sizes: Facts | None = None
        """Where is kept how many bytes records are: what is merged depends on that (`FeedbackQueue.seal`)."""
        self._record_bytes = 0.0
        self._unsampled = _SAMPLE_EVERY

    def measure_anew(self) -> None:
        """What was found out so far is forgotten: who goes on from here has none of it."""
        self._record_bytes, self._unsampled = 0.0, _SAMPLE_EVERY

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def size(self) -> int:
        """About how many bytes they are."""
        return int(self._record_bytes * len(self._cells))

    def add(self, batch: Batch) -> int:
        """Takes records in, and says how many of them went into one that was there. Raises `UserCodeError` for what the
        user's `merge` raises."""
        rows = batch.to_rows()
        keys = self._keys(rows)
        count = len(rows)
        times = [NO_TIME] * count if rows.times is None else rows.times.tolist()
        groups = [_NO_GROUP] * count if rows.groups is None else rows.groups.tolist()
        cells, merge, before = self._cells, self.combiner.merge, len(self._cells)
        touched: dict[Any, None] = {}
        for key, value, time, group in zip(keys, rows.values, times, groups, strict=True):
            cell = cells.get(key)
            if cell is None:
                cells[key] = [value, time, group]
                continue
            try:
                cell[0] = merge(cell[0], value)
            except Exception as error:
                what = f"merging waiting feedback raised {type(error).__name__}: {error}"
                raise user_error(error, self.who, self.subtask, value, what=what) from error
            cell[1] = max(cell[1], time)  # NO_TIME is below every time
            touched[key] = None
        if touched:
            self._check_keys(list(touched))
        self._sample(keys)
        return count - (len(cells) - before)

    def take(self, limit: int) -> Rows:
        """The `limit` oldest records."""
        cells = self._cells
        if limit >= len(cells):
            taken = list(cells.values())
            cells.clear()
        else:
            taken = [cells.popitem(last=False)[1] for _ in range(limit)]
        values = [cell[0] for cell in taken]
        times = [cell[1] for cell in taken]
        groups = [cell[2] for cell in taken]
        return Rows(
            values,
            None if all(time == NO_TIME for time in times) else np.array(times, np.int64),
            None if _NO_GROUP in groups else np.array(groups, np.uint16),
        )

    def _keys(self, rows: Rows) -> list[Any]:
        keys = list(map(settled, self.combiner.key(rows)))
        for key, value in zip(keys, rows.values, strict=True):
            try:
                hash(key)
            except TypeError as error:
                what = f"a key to combine feedback by must be hashable: {error}"
                raise user_error(error, self.who, self.subtask, value, what=what) from error
        return keys

    def _check_keys(self, merged: list[Any]) -> None:
        """What was merged has the key of its parts: it waits in their place, and where they were to go. Raises
        `UserCodeError`."""
        rows = Rows([self._cells[key][0] for key in merged])
        for key, found, value in zip(merged, self._keys(rows), rows.values, strict=True):
            if found not in (key,):  # the same object, a NaN, equals itself
                what = (
                    f"merge of records with the key {key!r} returned one with the key {found!r}; it must keep the key"
                )
                raise user_error(ValueError(what), self.who, self.subtask, value, what=what, permanent=True)

    def _sample(self, keys: list[Any]) -> None:
        """Looks now and then at how large merged records are: they may grow by merging."""
        self._unsampled += 1
        if self._unsampled < _SAMPLE_EVERY:
            return
        self._unsampled = 0
        values = [self._cells[key][0] for key in keys[:_SAMPLED]]
        size = encoded_size(Rows(values))
        if self.sizes is not None:
            size = self.sizes.as_kept(size)
        self._record_bytes = max(1.0, size / len(values) + 10)  # and its time and group
