"""From rows to columns and back.

Rows of a record batch are named tuples with the names of its columns (as `DataFrame` rows are). Columns are made from
named tuples, mappings, dataclass-like objects with the schema's fields as attributes, or plain tuples in the schema's
order.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any

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
    return list(map(make, zip(*[_values(column) for column in batch.columns], strict=True)))


def _values(column: pa.Array) -> list[Any]:
    """A column as Python objects; numbers without nulls take the short way through numpy."""
    kind = column.type
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_float32(kind)):
        result: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return result
    result = column.to_pylist()
    return result


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
            raise ValueError(f"column {name!r} is declared {field.type}, and a value does not fit: {error}") from error
        if not field.nullable and array.null_count:
            raise ValueError(f"column {name!r} must not be null, and a value is None")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column_lists(values: list[Any], names: list[str]) -> list[Any]:
    if not values:
        return [[] for _ in names]
    first = values[0]
    if isinstance(first, Mapping):
        return [[v.get(name) for v in values] for name in names]
    fields = getattr(type(first), "_columns", None) or getattr(type(first), "_fields", None)
    if fields is not None and set(names) <= set(fields) and all(type(v) is type(first) for v in values):
        at = {name: i for i, name in enumerate(fields)}
        return [[v[i] for v in values] for i in (at[name] for name in names)]
    if isinstance(first, tuple | list):
        return _by_position(values, names)
    if len(names) == 1 and not hasattr(first, names[0]):
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
