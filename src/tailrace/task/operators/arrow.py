"""Aggregating a record batch by Arrow, so that Python only sees its distinct keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.api.aggregates import BuiltinAggregate
from tailrace.elements.batches import Columns, Times
from tailrace.task.operators.base import OperatorTask

_WINDOW, _TIME = "__window", "__time"


@dataclass
class GroupedBatch:
    """The distinct keys (and windows) of one batch, in order of first appearance, with partial accumulators."""

    key_names: list[str]
    key_columns: list[pa.Array]
    windows: list[int] | None
    times: Times | None
    columns: list[list[pa.Array]]
    aggregates: list[BuiltinAggregate]
    result_types: list[pa.DataType]

    @classmethod
    def of(
        cls,
        task: OperatorTask,
        batch: Columns,
        key: Any,
        aggregates: list[Any],
        windows: np.ndarray[Any, Any] | None = None,
    ) -> GroupedBatch:
        """Groups `batch` by its key columns (and `windows`, one window start per record)."""
        key_names = [key] if isinstance(key, str) else list(key)
        names = [f"k{i}" for i in range(len(key_names))]
        arrays = [_column(task, batch, name) for name in key_names]
        if windows is not None:
            names.append(_WINDOW)
            arrays.append(pa.array(windows, pa.int64()))
        by = list(names)
        asked: list[tuple[Any, str]] = []
        for i, aggregate in enumerate(aggregates):
            if aggregate.of is not None:
                names.append(f"v{i}")
                arrays.append(_column(task, batch, aggregate.of))
            asked.extend((f"v{i}" if aggregate.of is not None else [], one) for one in aggregate.arrow)
        if batch.times is not None:
            names.append(_TIME)
            arrays.append(pa.array(batch.times, pa.int64()))
            asked.append((_TIME, "max"))
        try:
            table = pa.table(arrays, names=names).group_by(by, use_threads=False).aggregate(asked)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise task.user_error(error, what=f"Arrow cannot aggregate these columns: {error}") from error
        return cls._read(table.combine_chunks(), key_names, by, aggregates, batch.times is not None)

    @classmethod
    def _read(
        cls, table: pa.Table, key_names: list[str], by: list[str], aggregates: list[Any], timed: bool
    ) -> GroupedBatch:
        def column(name: str) -> pa.Array:
            return table.column(name).combine_chunks()

        columns, types = [], []
        for i, aggregate in enumerate(aggregates):
            prefix = f"v{i}_" if aggregate.of is not None else ""
            columns.append([column(f"{prefix}{one}") for one in aggregate.arrow])
            types.append(aggregate.result_type([array.type for array in columns[-1]]))
        windows = column(_WINDOW).to_pylist() if _WINDOW in by else None
        times = column(f"{_TIME}_max").to_numpy() if timed else None
        keys = [column(name) for name in by if name != _WINDOW]
        return cls(key_names, keys, windows, times, columns, aggregates, types)

    def keys(self) -> list[Any]:
        """The distinct keys as Python values, tuples for a key of several columns."""
        lists = [column.to_pylist() for column in self.key_columns]
        return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))

    def partials(self) -> Iterator[tuple[Any, list[Any]]]:
        """Each distinct key with its partial accumulators."""
        per_aggregate = [
            list(map(aggregate.from_arrow, *[array.to_pylist() for array in arrays]))
            for aggregate, arrays in zip(self.aggregates, self.columns, strict=True)
        ]
        for i, key in enumerate(self.keys()):
            yield key, [partial[i] for partial in per_aggregate]


def _column(task: OperatorTask, batch: Columns, name: str) -> pa.Array:
    if name not in batch.data.schema.names:
        known = ", ".join(batch.data.schema.names)
        raise task.user_error(KeyError(name), what=f"there is no column {name!r}; the batch has {known}")
    return batch.data.column(name)
