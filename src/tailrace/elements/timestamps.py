"""Time inside Tailrace: int64 microseconds since the epoch. The API speaks seconds, `timedelta` and `datetime`.

A float stands for the whole number of microseconds that is the same float as seconds, where there is one. What lies between
two microseconds is cut off for a record's timestamp (`floor_micros`) and rounded up for a timer (`ceil_micros`). So what a
user compares as floats comes out as it does here: a record lies in its window, and no timer fires before its time.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from math import isfinite
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

NO_TIME = -(2**63)
"""A record without a timestamp (the null of a timestamp array)."""
MIN_TIME = NO_TIME + 1
"""Before every timestamp: the watermark of a channel before its first one."""
MAX_TIME = 2**63 - 1
"""After every timestamp: the watermark of a channel that has ended."""
LAST_TIME = MAX_TIME - 1
"""The watermark of a loop whose input has ended, and which goes on: every event-time timer is due."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Seconds = float | int | timedelta
Time = float | int | timedelta | datetime | date
Rounding = Literal["nearest", "down", "up"]


def micros(value: Time, rounding: Rounding = "nearest") -> int:
    """An instant or a span as int microseconds.

    Numbers are seconds; a `timedelta` is itself; a `datetime` counts from 1970-01-01 UTC, and a naive one is taken as
    UTC; a `date` is its midnight in UTC. Raises `TypeError` for anything else and `OverflowError` outside the range of
    int64.
    """
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        result = _of_span(aware - _EPOCH, rounding)
    elif isinstance(value, timedelta):
        result = _of_span(value, rounding)
    elif isinstance(value, int):
        result = value * 1_000_000
    elif isinstance(value, date):
        result = (value.toordinal() - _EPOCH.toordinal()) * 86_400_000_000
    else:
        result = _of_number(value, rounding)
    if not MIN_TIME <= result <= MAX_TIME:
        raise OverflowError(f"{value!r} lies outside the range of int64 microseconds")
    return result


def floor_micros(value: Time) -> int:
    """The timestamp of a record as int microseconds: the last one that is not later, as floats of seconds too. Takes and
    raises what `micros` does."""
    return micros(value, "down")


def ceil_micros(value: Time) -> int:
    """The time of a timer as int microseconds: the first one that is not earlier, as floats of seconds too. Takes and
    raises what `micros` does."""
    return micros(value, "up")


FINE = 2.0**32
"""Up to so many seconds neighbouring floats are less than a microsecond apart."""


def floor_of_floats(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """`floor_micros` of each float. Raises `OverflowError` for those that are not finite or too large."""
    scaled = values * 1e6
    if not np.isfinite(scaled).all() or (np.abs(scaled) >= 2.0**63).any():
        raise OverflowError("a timestamp is not finite or outside the range of int64 microseconds")
    whole = np.rint(scaled).astype(np.int64)
    whole -= whole / 1e6 > values
    for i in np.flatnonzero(np.abs(values) >= FINE):
        whole[i] = floor_micros(float(values[i]))
    return whole


def _of_span(span: timedelta, rounding: Rounding) -> int:
    """Of a subclass that is finer than a microsecond, as that of pandas is, what lies between two is cut off or rounded
    up."""
    whole, rest = divmod(span, _MICROSECOND)
    return whole + bool(rest) if rounding == "up" else whole


def _of_number(value: Any, rounding: Rounding) -> int:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"a time must be a number of seconds, a timedelta or a datetime, not {type(value).__name__} {value!r}"
        ) from None
    if not isfinite(number):
        raise OverflowError(f"a time must be a finite number of seconds, not {value!r}")
    if not isfinite(number * 1_000_000):
        raise OverflowError(f"{value!r} lies outside the range of int64 microseconds")
    nearest = round(number * 1_000_000)
    exact = isinstance(value, Decimal)  # as a float it may be a neighbour
    if rounding == "nearest" or (nearest / 1_000_000 == number and not exact):
        return nearest
    numerator, denominator = (value if exact else number).as_integer_ratio()
    below, rest = divmod(numerator * 1_000_000, denominator)
    if rounding == "down":
        return below + 1 if not exact and (below + 1) / 1_000_000 <= number else below
    return below if not rest or (not exact and below / 1_000_000 >= number) else below + 1


def seconds(time: int) -> float:
    """int microseconds as float seconds."""
    return time / 1_000_000


def steady(value: datetime) -> datetime:
    """The same instant, with a fixed offset where its wall clock time occurs twice or never in its zone.

    Within one zone Python compares wall clocks: both passes of the hour that is repeated in autumn are equal to it. With
    fixed offsets they are the instants that they are.
    """
    if value.tzinfo is None or type(value.tzinfo) is timezone or getattr(value.tzinfo, "key", "") == "UTC":
        return value
    offset = value.utcoffset()
    if offset is None or value.replace(fold=1 - value.fold).utcoffset() == offset:
        return value
    return value.replace(tzinfo=timezone(offset), fold=0)


def age_of(seconds: float) -> str:
    """A time span for people, in its largest unit with a tenth: `12.5 s`, `3.2 min`, `5.0 h`, `4.1 days`."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def isoformat(time: int) -> str:
    """An instant for people and for progress reports, as Spark writes it (UTC, milliseconds, `Z`)."""
    if time <= MIN_TIME:
        return "-inf"
    if time == MAX_TIME:
        return "end"
    try:
        text = (_EPOCH + time * _MICROSECOND).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{seconds(time)} s"
    return text.replace("+00:00", "Z")
