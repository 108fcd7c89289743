"""Exact conversion of single values to a type, with the reason if a value does not fit.

It is slow. `arrays` uses it for values of types that Arrow would not take exactly, and to find the value that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, Inexact
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.columns.decimal_arithmetic import EXACT

_EPOCH_NAIVE = datetime(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


class DoesNotFit(Exception):
    """The reason why a value does not fit. A caller that knows column and type makes a `Misfit` of it."""


def _number(value: Any) -> Any:
    """A number as a plain int or float, not of a subclass, or as a Decimal. Raises `DoesNotFit` for anything else."""
    if isinstance(value, np.number) and not isinstance(value, np.timedelta64 | np.complexfloating | np.longdouble):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, Decimal):
        return value
    raise DoesNotFit(f"it is of type {type(value).__name__}")


def _finite(number: Any) -> Any:
    if not isinstance(number, int) and not (
        number.is_finite() if isinstance(number, Decimal) else abs(number) < float("inf")
    ):
        raise DoesNotFit("it is not finite")
    return number


def fit_integer(value: Any, kind: pa.DataType) -> int:
    number = _finite(_number(value))
    whole = int(number)
    if whole != number:
        raise DoesNotFit("it has a fraction")
    bits = kind.bit_width
    low, high = (0, 1 << bits) if pa.types.is_unsigned_integer(kind) else (-(1 << bits - 1), 1 << bits - 1)
    if not low <= whole < high:
        raise DoesNotFit(f"it is out of the range of {bits} bits")
    return whole


_FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}


def fit_float(value: Any, kind: pa.DataType) -> float:
    """A number as a float of the type. A float is rounded to the nearest one of 32 or 16 bits; any other number must be
    equal. Raises `DoesNotFit` for a float that would be infinite or zero."""
    number = _number(value)
    if isinstance(number, Decimal) and number.is_nan():
        raise DoesNotFit("it is not a number")
    try:
        double = float(number)
    except OverflowError:
        raise DoesNotFit(f"it is out of the range of {kind}") from None
    with np.errstate(all="ignore"):
        held = float(_FLOATS[kind.bit_width](double))
    if isinstance(number, float):
        if (abs(held) == float("inf") and held != number) or (held == 0 and number != 0):
            raise DoesNotFit(f"it is out of the range of {kind}")
    elif held != number:
        raise DoesNotFit(f"no {kind} is equal to it")
    return double if kind.bit_width == 64 else held


def fit_decimal(value: Any, kind: pa.DataType) -> Decimal:
    number = Decimal(_finite(_number(value)))
    try:
        held = EXACT.quantize(number, Decimal((0, (1,), -kind.scale)))
    except Inexact:
        raise DoesNotFit(f"it has more than {kind.scale} digits after the decimal point") from None
    except ArithmeticError:
        raise DoesNotFit("it has too many digits") from None
    if not held.is_zero() and held.adjusted() + 1 > kind.precision - kind.scale:
        raise DoesNotFit(f"it has more than {kind.precision - kind.scale} digits before the decimal point")
    return held


def fit_boolean(value: Any, kind: pa.DataType) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise DoesNotFit(f"it is of type {type(value).__name__}")
    return bool(value)


def fit_text(value: Any, kind: pa.DataType) -> str:
    if not isinstance(value, str):
        raise DoesNotFit(f"it is of type {type(value).__name__}")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DoesNotFit("it contains half a surrogate pair") from None
    return text


def fit_bytes(value: Any, kind: pa.DataType) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise DoesNotFit(f"it is of type {type(value).__name__}")
    data = bytes(value)
    if pa.types.is_fixed_size_binary(kind) and len(data) != kind.byte_width:
        raise DoesNotFit(f"it has {len(data)} bytes, not {kind.byte_width}")
    return data


def fit_date(value: Any, kind: pa.DataType) -> date:
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] == "D":
        value = value.item()
    if not isinstance(value, date) or isinstance(value, datetime):
        raise DoesNotFit(f"it is of type {type(value).__name__}")
    return value


def _in_units(nanos: int, kind: pa.DataType) -> int:
    units, rest = divmod(nanos, _UNIT_NANOS[kind.unit])
    if rest:
        raise DoesNotFit(f"it is not a whole number of {_UNIT_NAMES[kind.unit]}")
    return _in_range(units, kind)


def _in_range(units: int, kind: pa.DataType) -> int:
    if not -(1 << 63) < units < 1 << 63:
        raise DoesNotFit(f"it is out of the range of {kind}")
    return units


def _numpy_nanos(value: Any) -> int:
    """A datetime64 or timedelta64 in nanoseconds. Raises `DoesNotFit` for NaT, and for units without a fixed length."""
    if np.isnat(value):
        raise DoesNotFit("it is not a time (NaT); use None")
    unit, step = np.datetime_data(value.dtype)
    nanos = {"W": 604_800 * 10**9, "D": 86_400 * 10**9, "h": 3_600 * 10**9, "m": 60 * 10**9, **_UNIT_NANOS}.get(unit)
    if nanos is None:
        raise DoesNotFit(f"a {type(value).__name__} in units of {unit} has no fixed length")
    return int(value.astype(np.int64)) * step * nanos


def fit_timestamp(value: Any, kind: pa.DataType) -> int:
    """An instant or a wall clock time in units of the type since 1970. Raises `DoesNotFit`."""
    if isinstance(value, np.datetime64) and kind.tz is None:
        return _in_units(_numpy_nanos(value), kind)
    if not isinstance(value, datetime):
        raise DoesNotFit(f"it is of type {type(value).__name__}")
    if value != value:
        raise DoesNotFit("it is not a time (NaT); use None")
    aware = value.utcoffset() is not None
    if aware and kind.tz is None:
        raise DoesNotFit("it has a time zone, and the column has none")
    if not aware and kind.tz is not None:
        raise DoesNotFit("it has no time zone, and the column has one; give it one: value.replace(tzinfo=datetime.UTC)")
    below = int(getattr(value, "nanosecond", 0))
    if below:
        value = value.to_pydatetime(warn=False)  # type: ignore[attr-defined]
    since = value - _EPOCH if aware else value.replace(tzinfo=None) - _EPOCH_NAIVE
    return _in_units(_nanos(since) + below, kind)


def _nanos(span: timedelta) -> int:
    return ((span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds) * 1_000


def fit_duration(value: Any, kind: pa.DataType) -> int:
    if isinstance(value, np.timedelta64):
        return _in_units(_numpy_nanos(value), kind)
    if not isinstance(value, timedelta):
        raise DoesNotFit(f"it is of type {type(value).__name__}")
    if value != value:
        raise DoesNotFit("it is not a time (NaT); use None")
    return _in_units(_nanos(value) + int(getattr(value, "nanoseconds", 0)), kind)


def fit_time(value: Any, kind: pa.DataType) -> int:
    if not isinstance(value, time):
        raise DoesNotFit(f"it is of type {type(value).__name__}")
    if value.tzinfo is not None:
        raise DoesNotFit("it has a time zone, and the column has none")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _in_units((seconds * 1_000_000 + value.microsecond) * 1_000, kind)


def fit_nothing(value: Any, kind: pa.DataType) -> None:
    raise DoesNotFit("the column can hold only null")


def fit_interval(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, pa.MonthDayNano):
        raise DoesNotFit(f"it is of type {type(value).__name__}")
    return value


FITTINGS: dict[str, Callable[[Any, pa.DataType], Any]] = {
    "integer": fit_integer,
    "float": fit_float,
    "decimal": fit_decimal,
    "boolean": fit_boolean,
    "text": fit_text,
    "bytes": fit_bytes,
    "date": fit_date,
    "timestamp": fit_timestamp,
    "duration": fit_duration,
    "time": fit_time,
    "null": fit_nothing,
    "interval": fit_interval,
}
"""Family of types (`kinds.family`) -> function that fits a value into a type. It raises `DoesNotFit`."""
