"""Windows of two inputs in columns that are over, with all their records, and their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.columns.joined import grouped_schema
from tailrace.task.operators.joins.kept import KeptColumnsTask
from tailrace.task.operators.stores.places import KeptPlaces

Array = np.ndarray[Any, Any]
_RESULTS = 1 << 16
"""Number of results of a batch at most."""


class GatheredSide:
    """The records of one input, window by window, in the order in which they came."""

    def __init__(self, places: KeptPlaces | None, data: pa.RecordBatch | None, counts: Array) -> None:
        self.places, self.data, self.counts = places, data, counts
        self.begins = np.cumsum(counts) - counts

    @classmethod
    def of(cls, places: KeptPlaces, windows: Array, count: int) -> GatheredSide:
        """The records in these places, with the number of the window of each."""
        if not len(windows):
            return cls(None, None, np.zeros(count, np.int64))
        places = places.some(np.lexsort((places.seqs(), windows)))
        return cls(places, places.data(), np.bincount(windows, minlength=count))

    def part(self, begin: int, end: int) -> GatheredSide:
        """The records of the windows from one to before another."""
        counts = self.counts[begin:end]
        total = int(counts.sum())
        if self.places is None or self.data is None or not total:
            return GatheredSide(None, None, counts)
        first = int(self.begins[begin])
        return GatheredSide(self.places.some(slice(first, first + total)), self.data.slice(first, total), counts)

    def take(self, rows: Array) -> pa.RecordBatch:
        """Some of the records."""
        assert self.data is not None
        return self.data.take(pa.array(rows))


class Gathered:
    """Windows that are over, in their order, with the records of both inputs and the times of results."""

    def __init__(self, sides: tuple[GatheredSide, GatheredSide], times: Array) -> None:
        self.sides, self.times = sides, times

    def __len__(self) -> int:
        return len(self.times)

    def split(self, limit: int) -> tuple[Gathered, Gathered | None]:
        """The first windows, and the others, if there are some."""
        if len(self) <= limit:
            return self, None
        first, second = self.sides
        parts = [
            Gathered((first.part(begin, end), second.part(begin, end)), self.times[begin:end])
            for begin, end in ((0, limit), (limit, len(self)))
        ]
        return parts[0], parts[1]


def emit(task: KeptColumnsTask, windows: Gathered) -> None:
    """Emits the results of windows."""
    first, second = windows.sides
    if task.how == "group":
        task.send(_lists(task, windows), windows.times)
    elif task.filters:
        chosen = np.flatnonzero(np.repeat((second.counts > 0) == (task.how == "semi"), first.counts))
        if len(chosen):
            task.send(first.take(chosen), np.repeat(windows.times, first.counts)[chosen])
    else:
        for data, times in _pairs(task, windows):
            task.send(data, times)


def _pairs(task: KeptColumnsTask, windows: Gathered) -> Iterator[tuple[pa.RecordBatch, Array]]:
    """Pairs of the records of each window, in the order of the first records, then of the second."""
    first, second = windows.sides
    alone = task.how in ("left", "full"), task.how in ("right", "full")
    left = np.where((first.counts == 0) & alone[1], 1, first.counts)
    right = np.where((second.counts == 0) & alone[0], 1, second.counts)
    counts = left * right
    ends = np.cumsum(counts)
    for begin in range(0, int(ends[-1]) if len(ends) else 0, _RESULTS):
        numbers = np.arange(begin, min(begin + _RESULTS, int(ends[-1])))
        window = np.searchsorted(ends, numbers, "right")
        inside = numbers - (ends - counts)[window]
        ours, theirs = (
            side.begins[window] + at for side, at in zip((first, second), np.divmod(inside, right[window]), strict=True)
        )
        has = first.counts[window] > 0, second.counts[window] > 0
        found, order = [], []
        for kind, (a, b) in (
            (has[0] & has[1], (ours, theirs)),
            (has[0] & ~has[1], (ours, None)),
            (~has[0], (None, theirs)),
        ):
            at = np.flatnonzero(kind)
            if len(at):
                pair = [None if rows is None else side.take(rows[at]) for side, rows in ((first, a), (second, b))]
                found.append(task.rows_of(*pair))
                order.append(at)
        data = found[0]
        if len(found) > 1:
            back = np.argsort(np.concatenate(order), kind="stable")
            data = pa.concat_batches(found).take(pa.array(back))
        yield data, windows.times[window]


def _lists(task: KeptColumnsTask, windows: Gathered) -> pa.RecordBatch:
    """The key of each window, and the lists of its records."""
    schemas = task.schema(0), task.schema(1)
    schema = grouped_schema(task.keys.names, *schemas)
    has = windows.sides[0].counts > 0
    order = np.argsort(np.concatenate([np.flatnonzero(has), np.flatnonzero(~has)]), kind="stable")
    heads = [
        side.take(side.begins[some]) if some.any() else None
        for side, some in zip(windows.sides, (has, ~has), strict=True)
    ]
    arrays = []
    for at, field in enumerate(schema):
        if at < len(task.keys.names[0]):
            keys = [
                one.column(one.schema.get_field_index(names[at])).cast(field.type)
                for one, names in zip(heads, task.keys.names, strict=True)
                if one is not None
            ]
            arrays.append(pa.concat_arrays(keys).take(pa.array(order)))
            continue
        side, fields = windows.sides[at - len(task.keys.names[0])], list(schemas[at - len(task.keys.names[0])])
        ends = pa.array(np.concatenate([[0], np.cumsum(side.counts)]), pa.int32())
        if side.data is None:
            values: pa.Array = pa.array([], pa.struct(fields))
        else:
            values = pa.StructArray.from_arrays(side.data.columns, fields=fields)
        arrays.append(pa.ListArray.from_arrays(ends, values, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
