"""Exact conversion of Python values to Arrow arrays.

If all values are of types that Arrow takes exactly or refuses, Arrow converts them at once. All other values go one by one
through `single_values`. So do the values of a column that Arrow refused, to find the value that does not fit. Nested types
are taken apart level by level, and each level goes this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from itertools import chain
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.columns.decimal_arithmetic import EXACT
from tailrace.elements.columns.encoding import encode
from tailrace.elements.columns.kinds import LISTS, family, plain_type
from tailrace.elements.columns.misfit import Misfit, refusal
from tailrace.elements.columns.named_records import column_lists, names_of
from tailrace.elements.columns.single_values import FITTINGS, DoesNotFit

REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError)
"""Errors of Arrow for a value that it does not take."""

_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
"""Bits of a decimal type -> maximum number of its digits."""
_NONE = type(None)
_EXACT: dict[str, frozenset[type]] = {
    "integer": frozenset((int, _NONE)),
    "float": frozenset((int, float, _NONE)),
    "decimal": frozenset((int, Decimal, _NONE)),
    "boolean": frozenset((bool, _NONE)),
    "text": frozenset((str, _NONE)),
    "bytes": frozenset((bytes, _NONE)),
    "date": frozenset((date, _NONE)),
    "timestamp": frozenset((datetime, _NONE)),
    "duration": frozenset((timedelta, _NONE)),
    "time": frozenset((time, _NONE)),
    "null": frozenset((_NONE,)),
    "interval": frozenset((pa.MonthDayNano, _NONE)),
}
"""Family of types -> the Python types that Arrow takes exactly or refuses, called as in `_at_once`."""


def column_of_values(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Values as a column of this field. Raises `Misfit` with the index of the first value that does not fit."""
    try:
        array = array_of(values, field.type, field.name)
        check_field(array, field, field.name)
    except Misfit:
        for at, value in enumerate(values):
            try:
                check_field(array_of([value], field.type, field.name), field, field.name)
            except Misfit as error:
                raise Misfit(error.args[0], at) from None
        raise
    return array


def check_field(array: pa.Array, field: pa.Field, path: str, allowed: int = 0) -> None:
    """Raises `Misfit` if a field that is not nullable has more than `allowed` nulls."""
    if not field.nullable and array.null_count > allowed:
        raise Misfit(f"column {path!r} must not be null, and a value is None")


def array_of(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Values as an array of this type. Raises `Misfit` for a value that does not fit."""
    plain = plain_type(kind)
    what = family(plain)
    if what in _NESTED:
        array = _NESTED[what](values, plain, path)
    elif what == "other":
        array = _foreign(values, plain, path)
    else:
        array = _scalars(values, plain, path, what)
    return array if array.type == kind else encode(array, kind, path)


def _scalars(values: Sequence[Any], kind: pa.DataType, path: str, what: str) -> pa.Array:
    if _seen_exact(values, what) or set(map(type, values)) <= _EXACT[what]:
        try:
            array = _at_once(values, kind, what)
        except REFUSALS:
            array = None
        if array is not None:
            return array
    return _one_by_one(values, kind, path, what)


def _seen_exact(values: Sequence[Any], what: str) -> bool:
    """True if a test that is faster than a look at every type shows that Arrow takes all values exactly or refuses them."""
    try:
        if what == "integer":
            return type(_total(values)) is int  # there may be truth values among them, which Arrow refuses
        if what == "float":
            return type(_total(values)) in (float, int)  # there may be truth values among them; see `_doubles`
        if what == "text":
            return "".join(values) is not None
    except (TypeError, ValueError, ArithmeticError):  # there is a None, or something else
        return False
    return what in ("boolean", "decimal")  # Arrow is strict for these


def _total(values: Sequence[Any]) -> Any:
    with np.errstate(all="ignore"):  # only its type matters
        return sum(values)


def _doubles(values: Sequence[Any]) -> pa.Array | None:
    """Floats and integers as doubles; None if there are truth values among them, which Arrow would take as 0 and 1."""
    array = pa.array(values, pa.float64())
    numbers = array.to_numpy(zero_copy_only=False)
    suspects = np.flatnonzero((numbers == 0) | (numbers == 1)).tolist()
    return None if any(type(values[at]) is bool for at in suspects) else array


def _one_by_one(values: Sequence[Any], kind: pa.DataType, path: str, what: str) -> pa.Array:
    fit, fitted = FITTINGS[what], list[Any]()
    for value in values:
        try:
            fitted.append(None if value is None else fit(value, kind))
        except DoesNotFit as error:
            raise refusal(value, kind, path, str(error)) from None
    counted = what in ("timestamp", "duration", "time")  # these come as numbers of their units
    try:
        if counted:
            return pa.array(fitted, pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(kind)
        return pa.array(fitted, kind)
    except REFUSALS as error:
        raise Misfit(f"column {path!r} is declared {kind}, and a value does not fit: {error}") from None


def _at_once(values: Sequence[Any], kind: pa.DataType, what: str) -> pa.Array | None:
    """All values converted by Arrow; None if that may not be exact. Raises what Arrow raises."""
    if what == "float":
        return _doubles(values) if kind.bit_width == 64 else _narrow_floats(values, kind)
    if what == "timestamp" and not _zones_fit(values, kind):
        return None
    if what == "time" and any(value.tzinfo is not None for value in values if value is not None):
        return None
    if what in ("timestamp", "duration") and kind.unit in ("s", "ms"):
        fine = pa.duration("us") if what == "duration" else pa.timestamp("us", kind.tz)
        return pa.array(values, fine).cast(kind)
    if what == "time" and kind.unit in ("s", "ms"):
        return None  # Arrow's cast drops digits
    if what == "decimal" and _places(values) - kind.scale > _DIGITS[kind.bit_width]:
        return None  # Arrow divides by a power of ten that it cannot hold: 1E-76 became 0
    return pa.array(values, kind)


def _places(values: Sequence[Any]) -> int:
    """The maximum number of digits after the point in these decimals. Raises `ValueError` if it cannot be found."""
    try:
        with localcontext(EXACT):
            exponent = sum((value for value in values if value is not None), Decimal(0)).as_tuple().exponent
    except (ArithmeticError, TypeError, AttributeError) as error:
        raise ValueError("too many digits, or other values among them") from error
    if not isinstance(exponent, int):
        raise ValueError("not finite")
    return -exponent


def _narrow_floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    if not set(map(type, values)) <= {float, _NONE}:
        return None
    return narrow(pa.array(values, pa.float64()), kind)


def narrow(doubles: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Floats rounded to the nearest float of a narrower type; None if one has none: it would be infinite or zero."""
    array = doubles.cast(kind)
    with np.errstate(all="ignore"):
        wide = np.asarray(doubles.to_numpy(zero_copy_only=False), np.float64)
        held = np.asarray(array.to_numpy(zero_copy_only=False), np.float64)
    if (np.isinf(held) & ~np.isinf(wide)).any() or ((held == 0) & (wide != 0)).any():
        return None
    return array


_tzinfo = attrgetter("tzinfo")


def _zones_fit(values: Sequence[Any], kind: pa.DataType) -> bool:
    """True if all datetimes have zones and the type has one, or neither has. False in doubt: the values go one by one."""
    zones = list(map(_tzinfo, filter(None, values)))
    if not zones or zones.count(zones[0]) == len(zones):
        zones = zones[:1]
    if kind.tz is None:
        return all(zone is None for zone in zones)
    return all(isinstance(zone, timezone | ZoneInfo) for zone in zones)


# Nested types.


def _mask(values: Sequence[Any], kinds: set[type] | None = None) -> pa.Array | None:
    """An array that is true where values are None; None if none is. `kinds` are the types of the values, if known."""
    if _NONE not in (set(map(type, values)) if kinds is None else kinds):
        return None
    return pa.array([value is None for value in values], pa.bool_())


def lists_from(lengths: np.ndarray[Any, Any], mask: pa.Array | None, child: pa.Array, kind: pa.DataType) -> pa.Array:
    """A list array from items that lie one after the other. Where `mask` is true the list is null, of length zero."""
    large = pa.types.is_large_list(kind)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64 if large else np.int32))
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, child, type=kind, mask=mask)


def map_from(
    lengths: np.ndarray[Any, Any], mask: pa.Array | None, keys: Any, items: Any, kind: pa.DataType
) -> pa.Array:
    """A map array from keys and items that lie one after the other. Where `mask` is true the map is null, of length zero."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)


def struct_from(children: list[pa.Array], mask: pa.Array | None, kind: pa.DataType, path: str, count: int) -> pa.Array:
    """A struct array from arrays of its fields, which are null where the struct is. Raises `Misfit` for another null in a
    field that is not nullable."""
    absent = 0 if mask is None else int(pc.sum(mask).as_py() or 0)
    for child, field in zip(children, kind, strict=True):
        check_field(child, field, f"{path}.{field.name}", absent)
    if not children:
        rows = pa.array([{}] * count, kind)
        return rows if mask is None else pc.if_else(mask, pa.scalar(None, kind), rows)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _sequence(value: Any, kind: pa.DataType, path: str) -> Sequence[Any]:
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(value)
    if isinstance(value, list) or (isinstance(value, tuple) and names_of(value) is None):
        return value
    named = isinstance(value, tuple | Mapping)
    raise refusal(value, kind, path, f"it is of type {type(value).__name__}{', and has names' if named else ''}")


def _sequences(values: Sequence[Any], kind: pa.DataType, path: str) -> list[Sequence[Any]]:
    """Each value as a list, empty for None. Raises `Misfit` for a value that is no list."""
    if set(map(type, values)) <= {list, _NONE}:
        return [value or () for value in values]
    return [() if value is None else _sequence(value, kind, path) for value in values]


def _lengths(parts: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.fromiter(map(len, parts), np.int64, len(parts))


def _list(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    kinds = set(map(type, values))
    parts = values if kinds == {list} else _sequences(values, kind, path)
    child = array_of(list(chain.from_iterable(parts)), kind.value_type, f"{path}[]")
    check_field(child, kind.value_field, f"{path}[]")
    return lists_from(_lengths(parts), _mask(values, kinds), child, kind)


def _fixed_list(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    parts = _sequences(values, kind, path)
    for value, part in zip(values, parts, strict=True):
        if value is not None and len(part) != kind.list_size:
            raise refusal(value, kind, path, f"it has {len(part)} items, not {kind.list_size}")
    blank = (None,) * kind.list_size
    whole = [blank if value is None else part for value, part in zip(values, parts, strict=True)]
    child = array_of(list(chain.from_iterable(whole)), kind.value_type, f"{path}[]")
    absent = sum(value is None for value in values) * kind.list_size
    check_field(child, kind.value_field, f"{path}[]", absent)
    return fixed_list_from(child, _mask(values), kind, len(values))


def fixed_list_from(child: pa.Array, mask: pa.Array | None, kind: pa.DataType, count: int) -> pa.Array:
    """Lists of one size from items that lie one after the other. A null list has items too."""
    if not kind.list_size:  # Arrow would divide by it
        return pa.array([None if null else [] for null in (mask or pa.repeat(False, count)).to_pylist()], kind)
    return pa.FixedSizeListArray.from_arrays(child, type=kind, mask=mask)


def _map(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    kinds = set(map(type, values))
    if kinds <= {dict, _NONE}:
        parts: Sequence[Any] = [value or () for value in values] if _NONE in kinds else values
        names = list(chain.from_iterable(parts))
        held = list(chain.from_iterable(value.values() for value in values if value))
    else:
        parts = [[] if value is None else _pairs(value, kind, path) for value in values]
        names = [key for key, _ in chain.from_iterable(parts)]
        held = [item for _, item in chain.from_iterable(parts)]
    keys, items = array_of(names, kind.key_type, f"{path}.key"), array_of(held, kind.item_type, f"{path}.value")
    check_field(keys, kind.key_field, f"{path}.key")
    check_field(items, kind.item_field, f"{path}.value")
    return map_from(_lengths(parts), _mask(values, kinds), keys, items, kind)


def _pairs(value: Any, kind: pa.DataType, path: str) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in value):
        return value
    raise refusal(value, kind, path, f"it is of type {type(value).__name__}: no dict, and no list of pairs")


def _struct(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    names = [field.name for field in kind]
    mask = _mask(values)
    present = list(values) if mask is None else [value for value in values if value is not None]
    try:
        columns = column_lists(present, names, plain=False)
    except Misfit as error:
        raise Misfit(f"column {path!r}: {error}") from None
    if mask is not None:
        columns = [_spread(column, values) for column in columns]
    children = [
        array_of(column, field.type, f"{path}.{field.name}") for column, field in zip(columns, kind, strict=True)
    ]
    return struct_from(children, mask, kind, path, len(values))


def _spread(column: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The items of a column in order, at the places where `values` has values, and None elsewhere."""
    items = iter(column)
    return [None if value is None else next(items) for value in values]


def _foreign(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Values as an array of a type that this module does not know (UUIDs, tensors). Arrow converts them there and back.
    Raises `Misfit` for a value that Arrow refuses or changes."""
    try:
        array = pa.array(values, kind)
        back = array.to_pylist()
    except REFUSALS as error:
        raise Misfit(f"column {path!r} is declared {kind}, and a value does not fit: {error}") from None
    for value, held in zip(values, back, strict=True):
        if type(value) is not type(held) or value != held:
            raise refusal(value, kind, path, f"it would be {held!r}")
    return array


_NESTED: dict[str, Callable[[Sequence[Any], pa.DataType, str], pa.Array]] = {
    "list": _list,
    "fixed list": _fixed_list,
    "map": _map,
    "struct": _struct,
}
assert set(_NESTED) > LISTS
