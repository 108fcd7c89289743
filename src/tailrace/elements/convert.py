"""From columns to rows: the rows of a record batch are named tuples with the names of its columns (as `DataFrame` rows
are). The way back is in `elements.columns`.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

from tailrace.elements.columns.kinds import has_map
from tailrace.elements.columns.misfit import Misfit

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
    """The records of a batch as named tuples. A batch without columns gives empty tuples. Raises `Misfit` for a value that
    Python cannot hold."""
    names = tuple(batch.schema.names)
    kind = row_type(names)
    if not batch.num_columns:
        return [kind() for _ in range(batch.num_rows)]
    columns = [plain_values(column, name) for column, name in zip(batch.columns, names, strict=True)]
    # What `_make` does, without a call of Python's for each record.
    return list(map(tuple.__new__, repeat(kind), zip(*columns, strict=True)))


def plain_values(column: pa.Array, name: str = "") -> list[Any]:
    """A column as Python objects; numbers and times without nulls take the short way through numpy. A map is a dict.
    Raises `Misfit`, with the `name` of the column, for a value that Python cannot hold: a time after the year 9999."""
    try:
        return _plain_values(column)
    except (ValueError, OverflowError, KeyError, TypeError, ArithmeticError) as error:
        raise Misfit(
            f"column {name!r} of {column.type} has a value that Python cannot hold: {error}; cast the column before, for "
            f"example a time to int64"
        ) from None


def _plain_values(column: pa.Array) -> list[Any]:
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
    result = column.to_pylist(maps_as_pydicts="strict" if has_map(kind) else None)
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


def field_getter(name: str, example: Any) -> Callable[[Any], Any]:
    """The fastest way to read field `name` from records like `example`: a mapping, a named tuple, or an object."""
    if isinstance(example, Mapping):
        return itemgetter(name)
    fields = getattr(type(example), "_columns", None) or getattr(type(example), "_fields", None)
    if fields is not None and name in fields:
        return itemgetter(fields.index(name))
    return attrgetter(name)
