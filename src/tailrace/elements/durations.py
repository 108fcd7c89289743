"""Durations as users give them: seconds, a `timedelta`, or a text such as `"5 minutes"`."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any

from tailrace.elements.timestamps import micros

Duration = float | int | timedelta | str

_UNITS = {
    "us": 1, "microsecond": 1, "ms": 1_000, "millisecond": 1_000, "s": 10**6, "sec": 10**6, "second": 10**6,
    "m": 60 * 10**6, "min": 60 * 10**6, "minute": 60 * 10**6, "h": 3_600 * 10**6, "hour": 3_600 * 10**6,
    "d": 86_400 * 10**6, "day": 86_400 * 10**6, "w": 604_800 * 10**6, "week": 604_800 * 10**6,
}  # fmt: skip
"""Unit -> microseconds. Months and years have no fixed length."""
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zµ]+)\s*", re.IGNORECASE)
WANTED = "seconds, a timedelta, or a text such as '5 minutes', '1h 30m' or '500 ms'"


def span_micros(value: Any) -> int:
    """A duration as int microseconds: a number of seconds, a `timedelta`, or a text of numbers with units, from `us` to
    `weeks`. Raises `TypeError` for anything else and `OverflowError` outside the range of int64."""
    if isinstance(value, str):
        return micros(_parse(value))
    if isinstance(value, bool | datetime | date):
        raise TypeError(f"a duration must be {WANTED}, not a {type(value).__name__}")
    try:
        return micros(value)
    except TypeError:
        raise TypeError(f"a duration must be {WANTED}, not {type(value).__name__} {value!r}") from None


def span_seconds(value: Any) -> float:
    """A duration as float seconds. Takes and raises what `span_micros` does."""
    return span_micros(value) / 1e6


def _parse(text: str) -> timedelta:
    at, total = 0, Fraction(0)
    while (found := _PART.match(text, at)) is not None:
        unit = found[2].lower().replace("µ", "u")
        size = _UNITS.get(unit) or (_UNITS.get(unit[:-1]) if unit.endswith("s") and len(unit) > 2 else None)
        if size is None:
            raise TypeError(f"a duration must be {WANTED}, not {text!r}: the unit {found[2]!r} is not known")
        total += Fraction(found[1]) * size
        at = found.end()
    if at != len(text) or not at:
        raise TypeError(f"a duration must be {WANTED}, not {text!r}")
    if total.denominator != 1:
        raise TypeError(f"a duration is a whole number of microseconds, which {text!r} is not")
    try:
        return timedelta(microseconds=int(total))
    except OverflowError:
        raise OverflowError(f"{text!r} is too long") from None
