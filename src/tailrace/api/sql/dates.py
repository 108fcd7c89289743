"""Functions of dates and times. None of them depends on the time zone of a session."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.sql.arithmetic import add_days
from tailrace.api.sql.texts import constant_text
from tailrace.api.sql.tree import NotTranslated
from tailrace.api.sql.typed import DATE, INSTANT, INT, LONG, STRING, WALL, Typed, constant, convert, is_integer, name_of

_OF_DATES: dict[str, Any] = {
    "year": pc.year, "month": pc.month, "day": pc.day, "dayofmonth": pc.day, "quarter": pc.quarter,
    "dayofyear": pc.day_of_year, "weekofyear": pc.iso_week, "weekday": pc.day_of_week,
    "dayofweek": lambda x: pc.day_of_week(x, count_from_zero=False, week_start=7),
}  # fmt: skip
_OF_TIMES: dict[str, Any] = {"hour": pc.hour, "minute": pc.minute, "second": pc.second}
DATE_PARTS, TIME_PARTS = tuple(_OF_DATES), tuple(_OF_TIMES)


def date_part(name: str, a: Typed, at: str) -> Typed:
    """A part of a date or a time."""
    if a.kind == INSTANT:
        raise NotTranslated(
            f"{name} of timestamp depends on the time zone of a session", at,
            "compute it of a timestamp_ntz, which map_batches makes for a zone",
        )  # fmt: skip
    known = (DATE, WALL) if name in _OF_DATES else (WALL,)
    if a.kind not in known:
        raise NotTranslated(f"{name} of {name_of(a.kind)} is not translated", at)
    return Typed((_OF_DATES | _OF_TIMES)[name](a.expr).cast(INT), INT)


_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"), "quarter": "quarter", **dict.fromkeys(("month", "mon", "mm"), "month"),
    "week": "week",
}  # fmt: skip


def truncate(a: Typed, unit: Typed, at: str) -> Typed:
    """The first day of the unit that a date is in."""
    name = constant_text(unit, "the unit of trunc", at).lower()
    if a.kind != DATE or name not in _UNITS:
        raise NotTranslated(f"trunc of {name_of(a.kind)} to {name!r} is not translated", at)
    return Typed(pc.floor_temporal(a.expr, unit=_UNITS[name]), DATE)


def last_day(a: Typed, at: str) -> Typed:
    """The last day of the month that a date is in."""
    if a.kind != DATE:
        raise NotTranslated(f"last_day of {name_of(a.kind)} is not translated", at)
    first = Typed(pc.floor_temporal(a.expr, unit="month"), DATE)
    later = add_days(first, constant(32, INT), at)
    return add_days(Typed(pc.floor_temporal(later.expr, unit="month"), DATE), constant(1, INT), at, "-")


_PER_SECOND = {"seconds": 1, "millis": 10**3, "micros": 10**6}


def since_1970(name: str, a: Typed, at: str) -> Typed:
    """`unix_seconds`, `unix_millis` and `unix_micros`: whole units since 1970."""
    if a.kind != INSTANT:
        raise NotTranslated(f"{name} of {name_of(a.kind)} is not translated", at)
    unit = {"seconds": "s", "millis": "ms", "micros": "us"}[name.removeprefix("unix_")]
    floored = a.expr if unit == "us" else pc.floor_temporal(a.expr, unit={"s": "second", "ms": "millisecond"}[unit])
    return Typed(floored.cast(pa.timestamp(unit, "UTC")).cast(LONG), LONG)


def instant_of(name: str, a: Typed, at: str) -> Typed:
    """`timestamp_seconds`, `timestamp_millis` and `timestamp_micros` of integers."""
    if not is_integer(a.kind):
        raise NotTranslated(f"{name} of {name_of(a.kind)} is not translated", at)
    factor = 10**6 // _PER_SECOND[name.removeprefix("timestamp_")]
    micros = pc.multiply(convert(a, LONG, at).expr, pc.scalar(factor))
    return Typed(micros.cast(INSTANT), INSTANT)


def from_days(a: Typed, at: str) -> Typed:
    """`to_date` of a string as yyyy-mm-dd, of a date or of a time without a zone."""
    if a.kind not in (STRING, DATE, WALL):
        raise NotTranslated(f"to_date of {name_of(a.kind)} is not translated", at)
    return convert(a, DATE, at)


def typed_literal(value: Typed, kind: pa.DataType, at: str) -> Typed:
    """A constant with its type before it: `date '2024-05-01'`, `timestamp '2024-05-01 12:00:00Z'`."""
    text = constant_text(value, "a constant", at)
    try:
        when = datetime.fromisoformat(text)
        if kind == DATE and len(text) == 10:
            return constant(when.date(), DATE)
        if kind == WALL and when.tzinfo is None:
            return constant(when, WALL)
        if kind == INSTANT and when.tzinfo is not None:
            return constant(when.astimezone(UTC), INSTANT)
    except ValueError:
        raise NotTranslated(f"{text!r} is no {name_of(kind)} as 2024-05-01 12:00:00", at) from None
    if kind == INSTANT:
        raise NotTranslated(
            "a timestamp depends on the time zone of a session", at, "write its zone behind it: '... 12:00:00Z'"
        )
    raise NotTranslated(f"{text!r} as {name_of(kind)} is not translated", at)
