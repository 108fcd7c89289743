"""Records with names: their values go into the columns of these names. No column may be missing, and no value left over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np

from tailrace.elements.columns.misfit import Misfit
from tailrace.errors import message_of, short_repr

_PLAIN = (
    str, bytes, bytearray, memoryview, int, float, complex, Decimal, date, time, timedelta, UUID, np.generic, np.ndarray,
    type(None),
)  # fmt: skip
"""Classes of values that fill one column, though some have methods with names of columns (`str.title`, `datetime.date`)."""


@lru_cache(maxsize=4096)
def declared_names(kind: Any) -> tuple[str, ...] | None:
    """The names of fields that a class of records declares: a named tuple, a row, a dataclass, a struct of msgspec, a class
    of attrs or pydantic. None for other classes."""
    found: Any = getattr(kind, "__fields__", None)
    if isinstance(found, tuple):  # a `Row` of `rows`; in PySpark each row has its names
        return found
    if issubclass(kind, tuple):
        # The second is for a struct sequence of C.
        found = getattr(kind, "_fields", None) or (hasattr(kind, "n_fields") and getattr(kind, "__match_args__", None))
        return tuple(found) if isinstance(found, tuple | list) else None
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if isinstance(getattr(kind, "__struct_fields__", None), tuple):
        return tuple(kind.__struct_fields__)
    if isinstance(getattr(kind, "__attrs_attrs__", None), tuple):
        return tuple(one.name for one in kind.__attrs_attrs__)
    if isinstance(getattr(kind, "model_fields", None), dict):
        return tuple(kind.model_fields)
    return None


def names_of(value: Any) -> tuple[str, ...] | None:
    """The names of a record's values; None if it has none: its values go by position."""
    if isinstance(value, Mapping):
        return tuple(value)
    kind: Any = type(value)
    found = declared_names(kind)
    if found is None and isinstance(value, tuple):
        fields = getattr(value, "__fields__", None)  # a Row of PySpark: each may have its own names
        return None if fields is None else tuple(fields)
    return found


def check_names(have: Sequence[str], required: Sequence[str], what: str) -> None:
    """Raises `Misfit` unless the names of a record are the names of the columns, in any order."""
    missing = [name for name in required if name not in have]
    left = [name for name in have if name not in required]
    if missing or left or len(have) != len(required):
        parts = [f"it has no {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"there is no column for {', '.join(map(repr, left))}"] if left else []
        parts = parts or [f"it has {', '.join(map(repr, have))}"]
        raise Misfit(f"{what} must have the names {', '.join(map(repr, required))}: {'; '.join(parts)}")


def column_lists(values: list[Any], names: list[str], plain: bool = True) -> list[Sequence[Any]]:
    """The values of records column by column. With `plain` a record may be the value of the only column. Raises `Misfit` for
    a record with other names."""
    if not values:
        return [[] for _ in names]
    kinds = set(map(type, values))
    if len(kinds) == 1:
        return _alike(values, names, plain)
    one_by_one = [_alike([value], names, plain) for value in values]
    return [[columns[i][0] for columns in one_by_one] for i in range(len(names))]


def _alike(values: list[Any], names: list[str], plain: bool) -> list[Sequence[Any]]:
    """The values of records of one class column by column, as `column_lists`."""
    first = values[0]
    if isinstance(first, Mapping):
        return _mappings(values, names)
    kind: Any = type(first)
    fields = declared_names(kind)
    if isinstance(first, tuple):
        if fields is None and type(first) is not tuple and any(hasattr(value, "__fields__") for value in values):
            return _rows_of_spark(values, names)
        return _by_position(values, names, names if fields is None else fields)
    if fields is not None:
        check_names(fields, names, f"a record of type {type(first).__name__}")
        return _attributes(values, names)
    if isinstance(first, list):
        return _by_position(values, names, names)
    if plain and len(names) == 1 and (isinstance(first, _PLAIN) or not hasattr(first, names[0])):
        return [values]  # a stream of plain values fills the one declared column
    if isinstance(first, _PLAIN):
        raise Misfit(f"{short_repr(first, 80)} is not a record with the columns {', '.join(map(repr, names))}")
    return _attributes(values, names)


def _mappings(values: list[Any], names: list[str]) -> list[Sequence[Any]]:
    count = len(names)
    try:
        columns: list[Sequence[Any]] = [[value[name] for value in values] for name in names]
    except KeyError:
        columns = []
    # No record has fewer names than there are columns. So none has more if the total is right.
    if not columns or sum(map(len, values)) != count * len(values):
        for at, value in enumerate(values):
            try:
                check_names(tuple(value), names, f"a record of type {type(value).__name__}")
            except Misfit as error:
                raise Misfit(error.args[0], at) from None
    return columns


def _rows_of_spark(values: list[Any], names: list[str]) -> list[Sequence[Any]]:
    first = getattr(values[0], "__fields__", None)
    if all(getattr(value, "__fields__", None) == first for value in values):
        return _by_position(values, names, names if first is None else first)
    one_by_one = [_alike([value], names, False) for value in values]
    return [[columns[i][0] for columns in one_by_one] for i in range(len(names))]


def _by_position(values: list[Any], names: list[str], fields: Sequence[str]) -> list[Sequence[Any]]:
    """The values of tuples, whose items have these names, column by column. Raises `Misfit` for one of another length."""
    if fields is not names and tuple(fields) != tuple(names):
        check_names(fields, names, f"a record of type {type(values[0]).__name__}")
    try:
        columns: list[Sequence[Any]] = list(zip(*values, strict=True))
    except ValueError:
        columns = []
    if len(columns) != len(names):
        at, value = next(((at, value) for at, value in enumerate(values) if len(value) != len(names)), (0, values[0]))
        raise Misfit(
            f"a record has {len(value)} values, the schema {len(names)} ({', '.join(names)}): {short_repr(value, 80)}",
            at,
        )
    if fields is names or tuple(fields) == tuple(names):
        return columns
    at_field = {name: i for i, name in enumerate(fields)}
    return [columns[at_field[name]] for name in names]


def _attributes(values: list[Any], names: list[str]) -> list[Sequence[Any]]:
    columns: list[Sequence[Any]] = []
    for name in names:
        try:
            columns.append([getattr(value, name) for value in values])
        except AttributeError as error:
            raise Misfit(
                f"a record of type {type(values[0]).__name__} must have an attribute for each column: {message_of(error)}"
            ) from None
    return columns
