"""Aggregating a record batch by Arrow, so that Python only sees its distinct keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.aggregates import BuiltinAggregate
from tailrace.elements.batches import Columns, Times
from tailrace.elements.convert import plain_values
from tailrace.task.keys import column_of
from tailrace.task.operators.base import OperatorTask

_WINDOW, _TIME = "__window", "__time"


@dataclass
class GroupedBatch:
    """The distinct keys (and windows) of one batch, in order of first appearance, with partial accumulators."""

    key_names: list[str]
    key_columns: list[pa.Array]
    windows: list[int] | None
    times: Times | None
    columns: list[list[list[Any]]]
    """For each aggregate, what Arrow answered to each of its questions, by group."""
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
        wide: dict[int, pa.DataType] = {}
        for i, aggregate in enumerate(aggregates):
            if aggregate.of is not None:
                names.append(f"v{i}")
                column = _column(task, batch, aggregate.of)
                if "sum" in aggregate.arrow and _may_wrap(column):
                    wide[i] = pa.uint64() if pa.types.is_unsigned_integer(column.type) else pa.int64()
                    column = column.cast(pa.decimal128(38, 0))
                arrays.append(column)
            asked.extend((f"v{i}" if aggregate.of is not None else [], one) for one in aggregate.arrow)
        if batch.times is not None:
            names.append(_TIME)
            arrays.append(pa.array(batch.times, pa.int64()))
            asked.append((_TIME, "max"))
        try:
            table = pa.table(arrays, names=names).group_by(by, use_threads=False).aggregate(asked)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            kinds = ", ".join(f"{field.name} {field.type}" for field in batch.data.schema)
            what = f"Arrow cannot aggregate these columns ({kinds}): {error}"
            raise task.user_error(error.with_traceback(None), what=what) from error
        return cls._read(table.combine_chunks(), key_names, by, aggregates, wide, batch.times is not None)

    @classmethod
    def _read(
        cls,
        table: pa.Table,
        key_names: list[str],
        by: list[str],
        aggregates: list[Any],
        wide: dict[int, pa.DataType],
        timed: bool,
    ) -> GroupedBatch:
        """`wide` are the aggregates of integers that were summed as decimals, with the type of their results."""

        def column(name: str) -> pa.Array:
            return table.column(name).combine_chunks()

        columns, types = [], []
        for i, aggregate in enumerate(aggregates):
            prefix = f"v{i}_" if aggregate.of is not None else ""
            answers = [column(f"{prefix}{one}") for one in aggregate.arrow]
            lists = list(map(plain_values, answers))
            columns.append(list(map(_whole, lists)) if i in wide else lists)
            types.append(aggregate.result_type([wide.get(i, answer.type) for answer in answers]))
        windows = column(_WINDOW).to_pylist() if _WINDOW in by else None
        times = column(f"{_TIME}_max").to_numpy() if timed else None
        keys = [column(name) for name in by if name != _WINDOW]
        return cls(key_names, keys, windows, times, columns, aggregates, types)

    def keys(self) -> list[Any]:
        """The distinct keys as Python values, tuples for a key of several columns."""
        lists = list(map(plain_values, self.key_columns))
        return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))

    def partials(self) -> list[list[Any]]:
        """For each aggregate the partial accumulators of the distinct keys."""
        pairs = zip(self.aggregates, self.columns, strict=True)
        return [list(map(aggregate.from_arrow, *answers)) for aggregate, answers in pairs]


def _column(task: OperatorTask, batch: Columns, name: str) -> pa.Array:
    return column_of(batch, name, task.node.name, task.ctx.subtask)


def _may_wrap(column: pa.Array) -> bool:
    """Whether Arrow's sum of the column might need more than 64 bits: it would wrap around silently."""
    if not pa.types.is_integer(column.type):
        return False
    ends = pc.min_max(column)
    largest = max(abs(ends["min"].as_py() or 0), abs(ends["max"].as_py() or 0))
    return bool(largest * len(column) >= 1 << 63)


def _whole(values: list[Any]) -> list[Any]:
    return [None if value is None else int(value) for value in values]


def result_arrays(task: OperatorTask, names: Any, columns: list[Any], types: list[pa.DataType]) -> list[pa.Array]:
    """Results as arrays of their types. One that does not fit (a sum above 64 bits) is the user's error."""
    arrays = []
    for name, column, kind in zip(names, columns, types, strict=True):
        if pa.types.is_floating(kind):
            column = [None if value is None else float(value) for value in column]
        try:
            arrays.append(pa.array(column, type=kind))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            what = f"a result of {name!r} does not fit its column of {kind}: {error}; aggregate in rows (to_rows()) instead"
            raise task.user_error(error.with_traceback(None), what=what) from error
    return arrays
