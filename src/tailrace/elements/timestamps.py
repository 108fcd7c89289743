"""Time inside Tailrace: int64 microseconds since the epoch. The API speaks seconds, `timedelta` and `datetime`."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from math import isfinite
from typing import Any

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


def micros(value: float | int | timedelta | datetime | date) -> int:
    """An instant or a span as int microseconds.

    Numbers are seconds; a `timedelta` is itself; a `datetime` counts from 1970-01-01 UTC, and a naive one is taken as
    UTC; a `date` is its midnight in UTC. Raises `TypeError` for anything else and `OverflowError` outside the range of
    int64.
    """
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        result = (aware - _EPOCH) // _MICROSECOND
    elif isinstance(value, timedelta):
        result = value // _MICROSECOND
    elif isinstance(value, int):
        result = value * 1_000_000
    elif isinstance(value, date):
        result = (value.toordinal() - _EPOCH.toordinal()) * 86_400_000_000
    else:
        result = _micros_of_number(value)
    if not MIN_TIME <= result <= MAX_TIME:
        raise OverflowError(f"{value!r} lies outside the range of int64 microseconds")
    return result


def _micros_of_number(value: Any) -> int:
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
    return round(number * 1_000_000)


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
