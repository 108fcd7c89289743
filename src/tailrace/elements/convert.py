"""From rows to columns and back.

Rows of a record batch are named tuples with the names of its columns (as `DataFrame` rows are). Columns are made from
named tuples, mappings, dataclass-like objects with the schema's fields as attributes, or plain tuples in the schema's
order.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

_named: Any = namedtuple  # its arguments are only known at run time, which type checkers do not accept


@lru_cache(maxsize=1024)
def row_type(names: tuple[str, ...]) -> Any:
    """The named tuple class for these column names; names Python cannot use become `_0`, `_1`, … by position."""
    made: Any = _named("Row", names, rename=True)
    made.__module__ = __name__
    made.__reduce__ = _reduce_row
    made._columns = names
    return made


def _reduce_row(row: Any) -> tuple[Any, ...]:
    # The class is made at run time, so a pickled row names its columns and the reader makes the same class again.
    return (_make_row, (type(row)._columns, tuple(row)))


def _make_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_type(names)._make(values)


def rows_of(batch: pa.RecordBatch) -> list[Any]:
    """The records of a batch as named tuples. A batch without columns gives empty tuples."""
    make = row_type(tuple(batch.schema.names))._make
    if not batch.num_columns:
        return [make(()) for _ in range(batch.num_rows)]
    return list(map(make, zip(*[plain_values(column) for column in batch.columns], strict=True)))


def plain_values(column: pa.Array) -> list[Any]:
    """A column as Python objects; numbers and times without nulls take the short way through numpy."""
    kind = column.type
    result: list[Any]
    if column.null_count == 0 and len(column):
        if pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_float32(kind):
            result = column.to_numpy(zero_copy_only=False).tolist()
            return result
        if pa.types.is_date32(kind) and _in_range(column.cast(pa.int32()), _DATES):
            result = column.to_numpy(zero_copy_only=False).tolist()
            return result
        if pa.types.is_timestamp(kind) and kind.unit == "us" and _in_range(column.cast(pa.int64()), _INSTANTS):
            result = column.to_numpy(zero_copy_only=False).tolist()
            return result if kind.tz is None else _zoned(result, pa.lib.string_to_tzinfo(kind.tz))
    result = column.to_pylist()
    return result


_DATES = (-719_162, 2_932_896)
"""The days since 1970 that a `date` can hold."""
_INSTANTS = (-62_135_596_800_000_000 + 86_400_000_000, 253_402_300_800_000_000 - 86_400_000_000 - 1)
"""The microseconds since 1970 that a `datetime` can hold in any time zone."""


def _in_range(column: pa.Array, bounds: tuple[int, int]) -> bool:
    values = column.to_numpy()
    return bool(bounds[0] <= values.min() and values.max() <= bounds[1])


def _zoned(times: list[datetime], zone: tzinfo) -> list[datetime]:
    """Naive datetimes in UTC as aware ones of a zone."""
    if str(zone) in ("UTC", "Etc/UTC"):
        return [one.replace(tzinfo=zone) for one in times]
    return [one.replace(tzinfo=UTC).astimezone(zone) for one in times]


def columns_of(values: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as one record batch of `schema`. Raises `pyarrow.ArrowInvalid` / `ArrowTypeError` / `KeyError` /
    `AttributeError` / `ValueError` naming the column where a record does not fit."""
    names = schema.names
    columns = _column_lists(values, names)
    arrays = []
    for name, field, column in zip(names, schema, columns, strict=True):
        try:
            array = pa.array(column, type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise ValueError(f"column {name!r} is declared {field.type}, and a value does not fit: {error}") from None
        if not field.nullable and array.null_count:
            raise ValueError(f"column {name!r} must not be null, and a value is None")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_PLAIN = (str, bytes, int, float, complex, Decimal, date, time, timedelta, UUID, np.generic, type(None))
"""Values of one column, though some have methods with the names of columns (`str.title`, `datetime.date`)."""


def _column_lists(values: list[Any], names: list[str]) -> list[Any]:
    if len(set(map(type, values))) != 1:  # none, or several: each record is read by its own type
        one_by_one = [_column_lists([value], names) for value in values]
        return [[columns[i][0] for columns in one_by_one] for i in range(len(names))]
    first = values[0]
    if isinstance(first, Mapping):
        return [[v.get(name) for v in values] for name in names]
    fields = getattr(type(first), "_columns", None) or getattr(type(first), "_fields", None)
    if fields is not None and set(names) <= set(fields):
        at = {name: i for i, name in enumerate(fields)}
        return [[v[i] for v in values] for i in (at[name] for name in names)]
    if isinstance(first, tuple | list):
        return _by_position(values, names)
    if len(names) == 1 and (isinstance(first, _PLAIN) or not hasattr(first, names[0])):
        return [values]  # a stream of plain values fills the one declared column
    return [[getattr(v, name) for v in values] for name in names]


def _by_position(values: list[Any], names: list[str]) -> list[Any]:
    for value in values:
        if len(value) != len(names):
            raise ValueError(
                f"a record has {len(value)} values, the schema {len(names)} ({', '.join(names)}): {value!r}"
            )
    return list(zip(*values, strict=True))


def field_getter(name: str, example: Any) -> Callable[[Any], Any]:
    """The fastest way to read field `name` from records like `example`: a mapping, a named tuple, or an object."""
    if isinstance(example, Mapping):
        return itemgetter(name)
    fields = getattr(type(example), "_columns", None) or getattr(type(example), "_fields", None)
    if fields is not None and name in fields:
        return itemgetter(fields.index(name))
    return attrgetter(name)
