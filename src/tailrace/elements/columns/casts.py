"""Exact casts of columns from one type to another.

Where Arrow casts exactly or refuses, Arrow casts. Where it may round, the result is compared with the original. Everything
else goes through Python values, so that a column takes the values from columns that it takes from rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.columns.arrays import (
    REFUSALS,
    array_of,
    check_field,
    fixed_list_from,
    lists_from,
    map_from,
    narrow,
    struct_from,
)
from tailrace.elements.columns.encoding import encode, plain_array
from tailrace.elements.columns.kinds import LISTS, NUMBERS, family, is_plain, plain_type
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.named_records import check_names
from tailrace.elements.columns.pythonlists import python_list


def column_as(array: pa.Array, field: pa.Field) -> pa.Array:
    """A column as a column of this field. Raises `Misfit` with the index of the first value that does not fit."""
    path = field.name
    try:
        made = array_as(array, field.type, path)
        check_field(made, field, path)
    except Misfit as error:
        for at in range(len(array)):
            try:
                check_field(array_as(array.slice(at, 1), field.type, path), field, path)
            except Misfit as found:
                raise Misfit(found.args[0], at) from None
        raise error
    return made


def array_as(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """An array of this type with the values of `array`. Raises `Misfit` for a value that does not fit."""
    if array.type == kind:
        return array
    plain, target = plain_array(array, path), plain_type(kind)
    if plain.type != target:
        plain = _as(plain, target, path)
    return plain if target == kind and is_plain(kind) else encode(plain, kind, path)


def _as(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    here, there = family(array.type), family(kind)
    if here == "null":
        return pa.nulls(len(array), kind)
    if not (here == there or {here, there} <= NUMBERS or {here, there} <= LISTS) or here == "other":
        raise Misfit(
            f"column {path!r} is declared {kind}, and its values are of {array.type}; cast them, or declare that type"
        )
    if here == "timestamp" and (array.type.tz is None) != (kind.tz is None):
        zone = "without a time zone" if array.type.tz is None else "with a time zone"
        raise Misfit(
            f"column {path!r} is declared {kind}, and its values are of {array.type}, {zone}; cast them, or declare that "
            f"type"
        )
    try:
        made = _NESTED[there](array, kind, path) if there in _NESTED else _scalars(array, kind, here, there)
    except REFUSALS as error:
        if isinstance(error, Misfit):
            raise
        made = None  # Arrow refuses too much: for example integers above 2**53 that a double can hold
    return array_of(python_values(array, path), kind, path) if made is None else made


def python_values(array: pa.Array, path: str) -> list[Any]:
    """The values of an array as Python objects. Raises `Misfit` for a time that Python's calendar does not have."""
    try:
        values: list[Any] = python_list(array)
    except (ValueError, OverflowError, ArithmeticError) as error:
        raise Misfit(f"column {path!r} of {array.type} has a value that Python cannot hold: {error}") from None
    return values


def _scalars(array: pa.Array, kind: pa.DataType, here: str, there: str) -> pa.Array | None:
    """The array cast to this type, if that is exact; else None. Raises what Arrow raises."""
    if here == "float" and there == "float":
        return array.cast(kind) if kind.bit_width > array.type.bit_width else narrow(array.cast(pa.float64()), kind)
    if here == "integer" and there == "decimal":
        digits = 20  # any integer of 64 bits
        return _scalars(array.cast(pa.decimal128(digits, 0)), kind, "decimal", "decimal")
    if {here, there} == {"decimal", "float"}:
        return None
    made = array.cast(kind)
    exact = here == there == "integer" or (here == there == "decimal" and _holds_digits(kind, array.type))
    return made if exact or made.cast(array.type).equals(array) else None


def _holds_digits(kind: pa.DataType, given: pa.DataType) -> bool:
    """True if type `kind` has room for the digits of every decimal of type `given`, before and after the point. Arrow
    rescales other decimals without a check of the bits that it loses."""
    wide = kind.bit_width >= given.bit_width and kind.scale >= given.scale
    return bool(wide and kind.precision - kind.scale >= given.precision - given.scale)


def _compact(array: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """(compact, mask): the array without an offset and without items behind its nulls, and where it is null."""
    compact = array.take(pa.array(np.arange(len(array))))
    return compact, compact.is_null() if compact.null_count else None


def _list(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    lengths, child = _items(array, kind.value_field, path)
    return lists_from(lengths, array.is_null() if array.null_count else None, child, kind)


def _items(array: pa.Array, field: pa.Field, path: str) -> tuple[np.ndarray[Any, Any], pa.Array]:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    child = array_as(array.flatten(), field.type, f"{path}[]")
    check_field(child, field, f"{path}[]")
    return np.asarray(lengths, np.int64), child


def _fixed_list(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    lengths, child = _items(array, kind.value_field, path)
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if (lengths[present] != kind.list_size).any():
        raise Misfit(f"column {path!r} is declared {kind}, and a list has another length")
    if present.all():
        return fixed_list_from(child, None, kind, len(array))
    first = np.cumsum(np.where(present, kind.list_size, 0)) - kind.list_size
    places = first[:, None] + np.arange(kind.list_size)
    index = pa.array(places.ravel(), mask=np.repeat(~present, kind.list_size))
    return fixed_list_from(child.take(index), array.is_null(), kind, len(array))


def _map(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    compact, mask = _compact(array)
    lengths = np.diff(compact.offsets)
    keys = array_as(compact.keys, kind.key_type, f"{path}.key")
    items = array_as(compact.items, kind.item_type, f"{path}.value")
    check_field(keys, kind.key_field, f"{path}.key")
    check_field(items, kind.item_field, f"{path}.value")
    return map_from(np.asarray(lengths, np.int64), mask, keys, items, kind)


def _struct(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    have = [field.name for field in array.type]
    check_names(have, [field.name for field in kind], f"column {path!r}")
    parts = dict(zip(have, array.flatten(), strict=True))
    children = [array_as(parts[field.name], field.type, f"{path}.{field.name}") for field in kind]
    return struct_from(children, array.is_null() if array.null_count else None, kind, path, len(array))


_NESTED: dict[str, Callable[[pa.Array, pa.DataType, str], pa.Array]] = {
    "list": _list,
    "fixed list": _fixed_list,
    "map": _map,
    "struct": _struct,
}
