"""Aggregating a record batch by Arrow, so that Python only sees its distinct keys."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.aggregates import BuiltinAggregate
from tailrace.elements.batches import Columns, Times
from tailrace.elements.columns.arrays import REFUSALS, column_of_values
from tailrace.elements.columns.decimal_arithmetic import EXACT
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.rows import plain_values
from tailrace.errors import UserCodeError
from tailrace.task.channels.key_readers import column_of
from tailrace.task.operators.base import OperatorTask

_WINDOW, _TIME, _PLACE = "__window", "__time", "__place"


@dataclass
class GroupedBatch:
    """The distinct keys (and windows) of one batch, with partial accumulators."""

    key_names: list[str]
    tupled: bool
    """True if keys are tuples: keys of several columns, or of a list of one column. The key group is that of the tuple."""
    key_columns: list[pa.Array]
    windows: Times | None
    """Start of the window of each group."""
    times: Times | None
    answers: list[list[pa.Array]]
    """For each aggregate, the results of its Arrow functions, by group."""
    narrow: list[pa.DataType | None]
    """For each aggregate that was summed in a wider type, the type that its sums are to have; else None."""
    input_types: list[pa.DataType | None]
    """Types of the columns that are aggregated."""
    aggregates: list[BuiltinAggregate]
    result_types: list[pa.DataType]
    first: np.ndarray[Any, Any] | None = None
    """Position of the first record of each group, if there are windows. Windows begin in that order."""

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
        arrays = [one_zero(_column(task, batch, name)) for name in key_names]
        if windows is not None:
            names.append(_WINDOW)
            arrays.append(pa.array(windows, pa.int64()))
        by = list(names)
        requested: list[tuple[Any, str]] = []
        wide: dict[int, pa.DataType | None] = {}
        inputs: dict[int, pa.DataType] = {}
        for i, aggregate in enumerate(aggregates):
            if aggregate.of is None:
                continue
            names.append(f"v{i}")
            column = _column(task, batch, aggregate.of)
            inputs[i] = column.type
            if "sum" in aggregate.arrow:
                column, wide[i] = _summable(task, aggregate.of, column)
            arrays.append(column)
            requested.extend((f"v{i}", one) for one in aggregate.arrow)
        if any(aggregate.of is None for aggregate in aggregates):
            requested.append(([], "count_all"))  # once, however many callers need it
        if batch.times is not None:
            names.append(_TIME)
            arrays.append(pa.array(batch.times, pa.int64()))
            requested.append((_TIME, "max"))
        if windows is not None:
            names.append(_PLACE)
            arrays.append(pa.array(np.arange(len(windows))))
            requested.append((_PLACE, "min"))
        try:
            table = pa.table(arrays, names=names).group_by(by, use_threads=False).aggregate(requested)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            kinds = ", ".join(f"{field.name} {field.type}" for field in batch.data.schema)
            what = (
                f"Arrow cannot aggregate these columns ({kinds}): {error}; cast them, or aggregate in rows (to_rows())"
            )
            raise task.user_error(error.with_traceback(None), what=what) from error
        named = (key_names, not isinstance(key, str))
        return cls._read(table.combine_chunks(), named, by, aggregates, (wide, inputs), batch.times is not None)

    @classmethod
    def _read(
        cls,
        table: pa.Table,
        named: tuple[list[str], bool],
        by: list[str],
        aggregates: list[Any],
        kinds: tuple[dict[int, pa.DataType | None], dict[int, pa.DataType]],
        timed: bool,
    ) -> GroupedBatch:
        """Reads the table that Arrow has grouped. `named`: the names of the keys, and True if keys are tuples. `kinds`:
        the result types of aggregates that were summed in a wider type, and the types of all aggregated columns."""
        wide, inputs = kinds

        def column(name: str) -> pa.Array:
            return table.column(name).combine_chunks()

        all_answers, types = [], []
        for i, aggregate in enumerate(aggregates):
            prefix = f"v{i}_" if aggregate.of is not None else ""
            answers = [column(f"{prefix}{one}") for one in aggregate.arrow]
            all_answers.append(answers)
            types.append(aggregate.result_type(_kinds(answers, wide.get(i)), inputs.get(i)))
        narrow, input_types = [[one.get(i) for i in range(len(aggregates))] for one in (wide, inputs)]
        windows = column(_WINDOW).to_numpy() if _WINDOW in by else None
        times = column(f"{_TIME}_max").to_numpy() if timed else None
        keys = [column(name) for name in by if name != _WINDOW]
        first = None if windows is None else column(f"{_PLACE}_min").to_numpy()
        return cls(*named, keys, windows, times, all_answers, narrow, input_types, aggregates, types, first)

    def keys(self) -> list[Any]:
        """The distinct keys as Python values."""
        lists = list(map(plain_values, self.key_columns, self.key_names))
        return list(zip(*lists, strict=True)) if self.tupled else lists[0]

    def partials(self) -> list[list[Any]]:
        """For each aggregate the partial accumulators of the distinct keys."""
        found = []
        for aggregate, answers, narrow in zip(self.aggregates, self.answers, self.narrow, strict=True):
            lists = list(map(plain_values, answers))
            if narrow is not None and pa.types.is_integer(narrow):
                lists = list(map(_whole, lists))
            nulls = any(answer.null_count for answer in answers)
            found.append(aggregate.partials(lists, _kinds(answers, narrow), nulls))
        return found


def _kinds(answers: list[pa.Array], narrow: pa.DataType | None) -> list[pa.DataType]:
    return [narrow or answer.type for answer in answers]


def _column(task: OperatorTask, batch: Columns, name: str) -> pa.Array:
    return column_of(batch, name, task.node.name, task.ctx.subtask)


def one_zero(column: pa.Array) -> pa.Array:
    """A key column in which 0.0 and -0.0 are one value, and all NaNs are: Arrow groups by their bits."""
    if not pa.types.is_floating(column.type) or column.type == pa.float16():
        return column
    return pc.if_else(
        pc.is_nan(column), pa.scalar(float("nan"), column.type), pc.add(column, pa.scalar(0.0, column.type))
    )


def _summable(task: OperatorTask, name: str, column: pa.Array) -> tuple[pa.Array, pa.DataType | None]:
    """Column in a type in which Arrow sums it exactly, and the type of the result if Arrow's sum has another one. Arrow
    sums in 64 bits, or in 38 digits, and wraps around silently. Raises `UserCodeError` for a sum that may exceed 76
    digits."""
    kind = column.type
    if pa.types.is_integer(kind) and _largest(column) * len(column) >= 1 << 63:
        return column.cast(pa.decimal128(38, 0)), pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()
    if not pa.types.is_decimal(kind):
        return column, None
    most = 76 if pa.types.is_decimal256(kind) else 38
    if kind.bit_width < 128:
        column = column.cast(pa.decimal128(38, kind.scale))
    if kind.precision + len(str(len(column))) <= most or _largest(column, kind.scale) * len(column) < 10**most:
        return column, None
    if most == 76:
        what = f"the sum of {name!r} may not fit into 76 digits; aggregate in rows (to_rows()) instead"
        raise task.user_error(OverflowError(what), what=what)
    return column.cast(pa.decimal256(76, kind.scale)), pa.decimal128(38, kind.scale)


def _largest(column: pa.Array, scale: int = 0) -> int:
    """The largest absolute value, in units of the last digit."""
    ends = pc.min_max(column)
    found = [abs(ends[end].as_py() or 0) for end in ("min", "max")]
    return max(int(EXACT.scaleb(value, scale)) if isinstance(value, Decimal) else value for value in found)


def _whole(values: list[Any]) -> list[Any]:
    return [None if value is None else int(value) for value in values]


def _doubles(column: Any, kind: pa.DataType) -> pa.Array | None:
    """Results as a column of doubles; None for another type, or if Arrow finds a number that is not exactly a double."""
    with suppress(*REFUSALS):
        return pa.array(column, kind) if pa.types.is_float64(kind) else None
    return None


def result_arrays(task: OperatorTask, names: Any, columns: list[Any], types: list[pa.DataType]) -> list[pa.Array]:
    """Results as arrays of their types. Raises `UserCodeError` for a result that does not fit (a sum above 64 bits)."""
    arrays = []
    for name, column, kind in zip(names, columns, types, strict=True):
        try:
            array = _doubles(column, kind)
            arrays.append(column_of_values(column, pa.field(name, kind)) if array is None else array)
        except Misfit as error:
            what = f"a result does not fit its column: {error}; or aggregate in rows (to_rows())"
            raise UserCodeError(what, operator=task.node.name, subtask=task.ctx.subtask) from error
    return arrays
