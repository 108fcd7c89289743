"""Time inside Tailrace: int64 microseconds since the epoch. The API takes seconds, `timedelta` and `datetime`.

A float stands for the whole number of microseconds that is that float in seconds, if there is one. A time between two
microseconds is rounded down for a record's timestamp (`floor_micros`) and up for a timer (`ceil_micros`). So comparisons of
floats by the user agree with comparisons here: a record lies in its window, and no timer fires before its time.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from math import isfinite
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

NO_TIME = -(2**63)
"""Timestamp of a record without one (the null of a timestamp array)."""
MIN_TIME = NO_TIME + 1
"""Time before every timestamp: the watermark of a channel before its first one."""
MAX_TIME = 2**63 - 1
"""Time after every timestamp: the watermark of a channel that has ended."""
FAR_AHEAD = 60_000_000
"""Event time by which an input or a split is ahead of another, from which on users are shown that this one holds it back
(int64 microseconds)."""
LAST_TIME = MAX_TIME - 1
"""Watermark of a loop whose input has ended while the loop goes on: every event-time timer is due."""

_END = MAX_TIME / 1_000_000
"""The float of the last times, `seconds(MAX_TIME)`. In microseconds it rounds to one behind them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Time = float | int | timedelta | datetime | date
Rounding = Literal["nearest", "down", "up"]


def micros(value: Time, rounding: Rounding = "nearest") -> int:
    """An instant or a span as int microseconds.

    Numbers are seconds, and a `timedelta` is a span. A `datetime` counts from 1970-01-01 UTC; a naive one is taken as UTC. A
    `date` is its midnight in UTC. Raises `TypeError` for anything else and `OverflowError` outside the range of int64.
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
        if isinstance(value, float) and abs(value) == _END:
            return MAX_TIME if value > 0 else MIN_TIME
        raise OverflowError(f"{value!r} lies outside the range of int64 microseconds")
    return result


def floor_micros(value: Time) -> int:
    """The timestamp of a record as int microseconds: the last one that is not later, also compared as floats of seconds.
    Takes and raises what `micros` does."""
    return micros(value, "down")


def ceil_micros(value: Time) -> int:
    """The time of a timer as int microseconds: the first one that is not earlier, also compared as floats of seconds. Takes
    and raises what `micros` does."""
    return micros(value, "up")


FINE = 2.0**32
"""Number of seconds up to which neighbouring floats are less than a microsecond apart."""


def floor_of_floats(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The `floor_micros` of each float. Raises `OverflowError` if one is not finite or too large."""
    if len(values) and np.abs(values).max() < FINE:  # so none is NaN
        whole = np.rint(values * 1e6).astype(np.int64)
        whole -= whole / 1e6 > values
        return whole
    end = np.abs(values) == _END
    scaled = np.where(end, 0.0, values) * 1e6 if end.any() else values * 1e6
    if not np.isfinite(scaled).all() or (np.abs(scaled) >= 2.0**63).any():
        raise OverflowError("a timestamp is not finite or outside the range of int64 microseconds")
    whole = np.rint(scaled).astype(np.int64)
    whole -= whole / 1e6 > values
    for i in np.flatnonzero(np.abs(values) >= FINE):
        whole[i] = floor_micros(float(values[i]))
    return whole


def _of_span(span: timedelta, rounding: Rounding) -> int:
    """A span as int microseconds. A subclass that is finer than a microsecond, as in pandas, is rounded down or up."""
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
    exact = isinstance(value, Decimal)  # the nearest float may be a neighbour of it
    if rounding == "nearest" or (nearest / 1_000_000 == number and not exact):
        return nearest
    numerator, denominator = (value if exact else number).as_integer_ratio()
    below, rest = divmod(numerator * 1_000_000, denominator)
    if rounding == "down":
        return below + 1 if not exact and (below + 1) / 1_000_000 <= number else below
    return below if not rest or (not exact and below / 1_000_000 >= number) else below + 1


def is_late(times: npt.NDArray[np.int64], watermark: int) -> npt.NDArray[np.bool_]:
    """Mask of the times whose records are late: event time has reached `watermark`, so nothing as old was expected any
    more."""
    return times <= watermark


def seconds(time: int) -> float:
    """A time in int microseconds as float seconds."""
    return time / 1_000_000


def steady(value: datetime) -> datetime:
    """The instant of `value`, with a fixed offset if its wall clock time occurs twice or never in its zone.

    Within one zone Python compares wall clocks: both passes of the hour that is repeated in autumn are equal. With fixed
    offsets Python compares them as instants.
    """
    if value.tzinfo is None or type(value.tzinfo) is timezone or getattr(value.tzinfo, "key", "") == "UTC":
        return value
    offset = value.utcoffset()
    if offset is None or value.replace(fold=1 - value.fold).utcoffset() == offset:
        return value
    return value.replace(tzinfo=timezone(offset), fold=0)


def age_of(seconds: float) -> str:
    """A time span as text for users, in its largest unit with a tenth: `12.5 s`, `3.2 min`, `5.0 h`, `4.1 days`."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def isoformat(time: int) -> str:
    """An instant as text for users and progress reports, as Spark writes it (UTC, milliseconds, `Z`)."""
    if time <= MIN_TIME:
        return "-inf"
    if time == MAX_TIME:
        return "end"
    try:
        text = (_EPOCH + time * _MICROSECOND).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{seconds(time)} s"
    return text.replace("+00:00", "Z")
