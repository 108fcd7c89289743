"""Batches of records in one of two forms, with one small interface.

`Rows` holds a list of Python objects, `Columns` a `pyarrow.RecordBatch`. Beside the values a batch has, if they are known,
one timestamp per record (int64 microseconds, `NO_TIME` for none) and one key group per record (uint16). A record that was
handed over is immutable by contract: batches are shared, sliced and logged without a copy of their records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, cast

import numpy as np
import pyarrow as pa

from tailrace.elements.rows import rows_of
from tailrace.elements.slottables import places_by_slot
from tailrace.elements.timestamps import NO_TIME

Times = np.ndarray[Any, np.dtype[np.int64]]
Groups = np.ndarray[Any, np.dtype[np.uint16]]
Form = Literal["rows", "columns"]

_FEW_TARGETS = 4
"""Number of targets up to which one pass per target is faster than a sort of the records by target."""


class Rows:
    """A batch as a list of Python objects."""

    __slots__ = ("groups", "split", "times", "values")
    form: ClassVar[Form] = "rows"

    def __init__(
        self, values: list[Any], times: Times | None = None, groups: Groups | None = None, split: int = -1
    ) -> None:
        self.values = values
        self.times = times
        self.groups = groups
        self.split = split
        """The source split that the records came from, inside the chain of a source; -1 elsewhere."""

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Rows({len(self.values)})"

    def slice(self, start: int, stop: int) -> Rows:
        """Records `start` to `stop`, sharing timestamps and key groups with this batch."""
        return Rows(self.values[start:stop], _cut(self.times, start, stop), _cut(self.groups, start, stop), self.split)

    def each(self, first: int, step: int) -> Rows:
        """Record `first`, and every `step`-th record after it."""
        every = slice(first, None, step)
        return Rows(self.values[every], _pick(self.times, every), _pick(self.groups, every))

    def partition(self, targets: np.ndarray[Any, Any], count: int) -> list[tuple[int, Rows]]:
        """The records by target (one int per record, below `count`), in order; targets without records left out."""
        # An array picks by position, without a test for each record as in a comprehension or `compress`.
        values = np.fromiter(self.values, object, len(self))
        return [
            (target, Rows(values[index].tolist(), _pick(self.times, index), _pick(self.groups, index)))
            for target, index in _positions_by_target(targets, count)
        ]

    def to_rows(self) -> Rows:
        return self


class Columns:
    """A batch as a `pyarrow.RecordBatch`."""

    __slots__ = ("data", "groups", "split", "times")
    form: ClassVar[Form] = "columns"

    def __init__(
        self, data: pa.RecordBatch, times: Times | None = None, groups: Groups | None = None, split: int = -1
    ) -> None:
        self.data = data
        self.times = times
        self.groups = groups
        self.split = split

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def __repr__(self) -> str:
        return f"Columns({self.data.num_rows} x {self.data.num_columns})"

    def slice(self, start: int, stop: int) -> Columns:
        """Records `start` to `stop`, without copying."""
        data = self.data.slice(start, stop - start)
        return Columns(data, _cut(self.times, start, stop), _cut(self.groups, start, stop), self.split)

    def partition(self, targets: np.ndarray[Any, Any], count: int) -> list[tuple[int, Columns]]:
        """The records by target (one int per record, below `count`), in order; targets without records left out."""
        if len(self) and count > 0 and (targets == targets[0]).all():
            return [(int(targets[0]), Columns(self.data, self.times, self.groups))]
        return [
            (target, Columns(self.data.take(pa.array(index)), _pick(self.times, index), _pick(self.groups, index)))
            for target, index in _positions_by_target(targets, count)
        ]

    def to_rows(self) -> Rows:
        """The batch as rows with names (see `elements.rows`)."""
        return Rows(rows_of(self.data), self.times, self.groups, self.split)


Batch = Rows | Columns
"""A batch, whatever its form."""


def _cut(array: Any, start: int, stop: int) -> Any:
    return None if array is None else array[start:stop]


def _pick(array: Any, where: np.ndarray[Any, Any] | slice) -> Any:
    return None if array is None else array[where]


def _positions_by_target(targets: np.ndarray[Any, Any], count: int) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Each target that occurs, with the positions of its records in order."""
    if count > _FEW_TARGETS:
        return _runs(targets)
    found = [(target, (targets == target).nonzero()[0]) for target in range(count)]
    return [(target, index) for target, index in found if len(index)]


def _runs(targets: np.ndarray[Any, Any]) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Each target that occurs, with the positions of its records in order, by a stable sort: for many targets."""
    order = places_by_slot(targets)
    ordered = targets[order]
    if not len(ordered):
        return []
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    return [(int(ordered[a]), order[a:b]) for a, b in pairwise(bounds)]


def joinable(a: Batch, b: Batch) -> bool:
    """True if `concat` can make one batch of two: rows and rows, or columns of one schema."""
    if isinstance(a, Rows) or isinstance(b, Rows):
        return type(a) is type(b)
    return isinstance(b, Columns) and bool(a.data.schema == b.data.schema)


def concat(batches: Sequence[Batch]) -> Batch:
    """Several batches as one; they must be `joinable`. The result has key groups if every part has them.

    It has timestamps if any part has them: a part without timestamps gets `NO_TIME`.
    """
    if len(batches) == 1:
        return batches[0]
    times, known = _join_times(batches), [b.groups for b in batches if b.groups is not None]
    groups = np.concatenate(known) if len(known) == len(batches) else None
    if isinstance(batches[0], Rows):
        values: list[Any] = []
        for batch in cast(Sequence[Rows], batches):
            values += batch.values
        return Rows(values, times, groups)
    data = pa.concat_batches([b.data for b in cast(Sequence[Columns], batches)])
    return Columns(data, times, groups)


def join(batches: Sequence[Batch]) -> list[Batch]:
    """The batches in their order, with neighbours joined where they are `joinable`."""
    runs: list[list[Batch]] = []
    for batch in batches:
        if runs and joinable(runs[-1][-1], batch):
            runs[-1].append(batch)
        else:
            runs.append([batch])
    return [concat(run) for run in runs]


def _join_times(batches: Sequence[Batch]) -> Times | None:
    if all(b.times is None for b in batches):
        return None
    parts = [np.full(len(b), NO_TIME, np.int64) if b.times is None else b.times for b in batches]
    return np.concatenate(parts)
