"""Errors for values that a column cannot hold, with advice."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.errors import TailraceError, short_repr


class Misfit(TailraceError, ValueError):
    """A value that a column cannot hold unchanged. `row` is the index of its record in the batch; None if not known."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row

    def __reduce__(self) -> tuple[Any, ...]:
        return (Misfit, (self.args[0], self.row))


def refusal(value: Any, kind: pa.DataType, path: str, why: str) -> Misfit:
    """The error for a `value` that does not fit the column at `path` of this type, with a type that would take it."""
    taker = type_for(value)
    advice = f"; {taker} would take it" if taker is not None and taker != kind else ""
    return Misfit(f"column {path!r} is declared {kind}, and {short_repr(value, 80)} does not fit: {why}{advice}")


def type_for(value: Any) -> pa.DataType | None:
    """The narrowest common type that holds this value unchanged; None if there is none to advise."""
    if isinstance(value, np.generic):
        return _numpy_type(value)
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -(1 << 63) <= value < 1 << 63 else _decimal(Decimal(int(value)))
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, Decimal):
        return _decimal(value) if value.is_finite() else None
    if isinstance(value, datetime):
        return _timestamp(value)
    for base, kind in _SIMPLE:
        if isinstance(value, base):
            return kind
    return None


_SIMPLE: list[tuple[Any, pa.DataType]] = [
    (str, pa.string()),
    ((bytes, bytearray, memoryview), pa.binary()),
    (date, pa.date32()),
    (time, pa.time64("us")),
    (timedelta, pa.duration("us")),
]


def _numpy_type(value: np.generic) -> pa.DataType | None:
    if isinstance(value, np.datetime64 | np.timedelta64) and np.isnat(value):
        return None
    try:
        found: pa.DataType = pa.from_numpy_dtype(value.dtype)
    except (pa.ArrowNotImplementedError, ValueError, TypeError):
        return None
    return found


def _timestamp(value: datetime) -> pa.DataType | None:
    if value != value:  # NaT of pandas, which is a datetime that is no time
        return None
    unit = "ns" if getattr(value, "nanosecond", 0) else "us"
    return pa.timestamp(unit, None if value.utcoffset() is None else "UTC")


def _decimal(value: Decimal) -> pa.DataType | None:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    return pa.decimal128(precision, scale) if precision <= 38 else None
