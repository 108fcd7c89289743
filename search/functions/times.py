"""References for times: a calendar and clocks in whole numbers; time zones by `zoneinfo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from search.functions.cases import COMPARISONS, Call, Case, OrRefused, Refused, alike, of
from search.functions.draws import (
    DATES,
    DAY,
    DURATIONS,
    NAIVE,
    PER_SECOND,
    TEXTS,
    TIMES,
    UNITS,
    ZONED,
    ZONES,
)
from search.functions.draws import value as any_value

_EPOCH = datetime(1970, 1, 1)
_FIRST, _LAST = -62_135_596_800, 253_402_300_799
"""First and last second since 1970 in Python's calendar."""
RULES_END = 2_145_916_799
"""The last second of 2037: Arrow knows the clocks of time zones up to there."""


class Wall(NamedTuple):
    """A time on the wall: days since 1970, units of its clock per second, and the number of these units since midnight."""

    days: int
    per: int
    clock: int

    @property
    def date(self) -> date:
        """Calendar date of this time."""
        return date.fromordinal(self.days + 719_163)


def _offset(kind: pa.DataType, value: int) -> int:
    """Seconds between UTC and the wall of a zone."""
    seconds = value // PER_SECOND[kind.unit]
    if kind.tz == "UTC":
        return 0
    if not _FIRST + 2 * DAY <= seconds <= RULES_END or abs(value) > 2**63 - 2 * DAY * PER_SECOND[kind.unit]:
        raise Refused("the clocks of that year are not known")
    there = (_EPOCH.replace(tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(ZoneInfo(kind.tz))
    found = there.utcoffset()
    assert found is not None
    return int(found.total_seconds())


def wall(kind: pa.DataType, value: int) -> Wall:
    """A date, a timestamp or a time of day on the wall. Raises `Refused` for a year that Python does not have."""
    if t.is_date(kind):
        per, units = (1, value * DAY) if t.is_date32(kind) else (1000, value)
    elif t.is_time(kind):
        return Wall(0, PER_SECOND[kind.unit], value)
    else:
        per = PER_SECOND[kind.unit]
        units = value + (_offset(kind, value) * per if kind.tz is not None else 0)
    days, clock = divmod(units, DAY * per)
    if not -719_162 <= days <= 2_932_896 or (t.is_timestamp(kind) and abs(value) > 2**63 - 2 * DAY * per):
        raise Refused("no such year")
    return Wall(days, per, clock)


def _date(function: Callable[[date, Call], Any]) -> Callable[..., Any]:
    return lambda call, value: function(wall(call.kinds[0], value).date, call)


def _clock(function: Callable[[Wall], Any]) -> Callable[..., Any]:
    return lambda call, value: function(wall(call.kinds[0], value))


def _part(per: int, of_: int) -> Callable[[Wall], int]:
    return lambda one: one.clock * per // one.per % of_


def _week_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    zero, start = random.random() < 0.5, random.randint(1, 7)
    return pc.DayOfWeekOptions(count_from_zero=zero, week_start=start), (zero, start)


def _day_of_week(one: date, call: Call) -> int:
    zero, start = call.options
    return (one.isoweekday() - start) % 7 + (0 if zero else 1)


def _us_year(one: date) -> tuple[int, int]:
    """Year and week of the American epidemiological calendar: a week begins on Sunday, and the first one has at least four
    days of its year."""
    sunday = one.toordinal() - one.isoweekday() % 7
    year = date.fromordinal(max(1, sunday + 3)).year
    first = date(year, 1, 4).toordinal()
    start = first - date.fromordinal(first).isoweekday() % 7
    return year, (sunday - start) // 7 + 1


def _iso(one: date) -> dict[str, int]:
    year, week, day = one.isocalendar()
    return {"iso_year": year, "iso_week": week, "iso_day_of_week": day}


def _leap(one: date) -> bool:
    return one.year % 4 == 0 and (one.year % 100 != 0 or one.year % 400 == 0)


# Differences.


def _between(unit: Fraction) -> Callable[..., Any]:
    """Number of whole units that a clock passes on its way from one time to the other."""

    def reference(call: Call, a: int, b: int) -> int:
        def count(kind: pa.DataType, value: int) -> int:
            one = wall(kind, value)
            return int((one.days * DAY + Fraction(one.clock, one.per)) // unit)

        return _long(count(call.kinds[1], b) - count(call.kinds[0], a))

    return reference


def _long(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise Refused(number)
    return number


def _calendar_between(count: Callable[[date], int]) -> Callable[..., Any]:
    return lambda call, a, b: count(wall(call.kinds[1], b).date) - count(wall(call.kinds[0], a).date)


def _weeks(call: Call, a: int, b: int) -> int:
    start = call.options[1]

    def week(kind: pa.DataType, value: int) -> int:
        one = wall(kind, value).date
        return (one.toordinal() - (one.isoweekday() - start) % 7) // 7

    return week(call.kinds[1], b) - week(call.kinds[0], a)


# Rounding.

_FIXED = {"nanosecond": Fraction(1, 10**9), "microsecond": Fraction(1, 10**6), "millisecond": Fraction(1, 1000),
          "second": Fraction(1), "minute": Fraction(60), "hour": Fraction(3600), "day": Fraction(DAY)}  # fmt: skip
_MONTHS = {"month": 1, "quarter": 3, "year": 12}


def _floor_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    unit = random.choice([*_FIXED, *_MONTHS, "week"])
    multiple = 1 if unit in _MONTHS else random.choice([1, 1, 1, 2, 3, 7])
    monday = random.random() < 0.5
    return pc.RoundTemporalOptions(multiple, unit, week_starts_monday=monday), (multiple, unit, monday)


def _floor(call: Call, value: int) -> int:
    multiple, unit, monday = call.options
    kind = call.kinds[0]
    one = wall(kind, value)
    if unit in _MONTHS:
        months = (one.date.year - 1970) * 12 + one.date.month - 1
        months -= months % (multiple * _MONTHS[unit])
        year, month = 1970 + months // 12, months % 12 + 1
        if year < 1:
            raise Refused("no such year")
        return _back(kind, Fraction(date(year, month, 1).toordinal() - 719_163) * DAY)
    if unit == "week":
        start = 3 if monday else 4  # the 1st of January 1970 was a Thursday
        days = one.days + start
        return _back(kind, Fraction(days - days % (7 * multiple) - start) * DAY)
    seconds = one.days * DAY + Fraction(one.clock, one.per)
    size = _FIXED[unit] * multiple
    return _back(kind, seconds // size * size)


def _floored_within(call: Call, value: int) -> int:
    found = _floor(call, value)
    wall(call.kinds[0], found)
    return found


def _back(kind: pa.DataType, seconds: Fraction) -> int:
    """Seconds on the wall as a number of the type's units."""
    if t.is_date32(kind):
        return int(seconds // DAY)
    per = 1000 if t.is_date64(kind) else PER_SECOND[kind.unit]
    units = seconds * per
    if units.denominator != 1:
        raise Refused("no whole number of units")
    return _long(int(units))


# Time zones.


def _assume(call: Call, value: int) -> int:
    zone, ambiguous, nonexistent = call.options
    kind = call.kinds[0]
    seconds, rest = divmod(value, PER_SECOND[kind.unit])
    if not _FIRST + 2 * DAY <= seconds <= RULES_END or abs(value) > 2**63 - 2 * DAY * PER_SECOND[kind.unit]:
        raise Refused("the clocks of that year are not known")
    naive = _EPOCH + timedelta(seconds=seconds)
    early = _instant(naive, ZoneInfo(zone), 0)
    late = _instant(naive, ZoneInfo(zone), 1)
    if early < late and ambiguous == "raise":
        raise Refused("ambiguous")
    if early > late:
        if nonexistent == "raise":
            raise Refused("there is no such time")
        raise Refused("moved")
    chosen = early if early == late or ambiguous == "earliest" else late
    return _long(chosen * PER_SECOND[kind.unit] + rest)


def _instant(naive: datetime, zone: ZoneInfo, fold: int) -> int:
    found = naive.replace(tzinfo=zone, fold=fold).utcoffset()
    assert found is not None
    return int((naive - _EPOCH - found).total_seconds() // 1)


def _assume_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    zone = random.choice(ZONES)
    ambiguous = random.choice(["raise", "earliest", "latest"])
    return pc.AssumeTimezoneOptions(zone, ambiguous=ambiguous), (zone, ambiguous, "raise")


def _local(call: Call, value: int) -> int:
    kind = call.kinds[0]
    wall(kind, value)
    return _long(value + (_offset(kind, value) * PER_SECOND[kind.unit] if kind.tz is not None else 0))


def _dst(call: Call, value: int) -> bool:
    kind = call.kinds[0]
    wall(kind, value)
    seconds = value // PER_SECOND[kind.unit]
    there = (_EPOCH.replace(tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(ZoneInfo(kind.tz))
    return bool(there.dst())


def _shift(sign: int) -> Callable[..., Any]:
    """Sum or difference of times and durations, in the finer unit of both."""

    def reference(call: Call, a: int, b: int) -> int:
        found = []
        for kind, value in zip(call.kinds, (a, b), strict=True):
            found.append(_long_fraction(Fraction(value) / _per(kind) * _units(call.result)))
        return _back_in_range(call.result, _long(found[0] + sign * found[1]))

    return reference


def _units(kind: pa.DataType) -> int:
    return 1000 if t.is_date64(kind) else PER_SECOND[kind.unit]


def _long_fraction(number: Fraction) -> int:
    if number.denominator != 1:
        raise Refused(number)
    return _long(int(number))


def _back_in_range(kind: pa.DataType, number: int) -> int:
    if t.is_time(kind) and not 0 <= number < DAY * PER_SECOND[kind.unit]:
        raise Refused("no time of day")
    return number


def _compare(function: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def reference(call: Call, a: int, b: int) -> Any:
        one, other = (Fraction(value) / _per(kind) for kind, value in zip(call.kinds, (a, b), strict=True))
        made = function(one, other)
        return made if call.kinds[0] == call.kinds[1] else OrRefused(made)

    return reference


def _per(kind: pa.DataType) -> Fraction:
    if t.is_date(kind):
        return Fraction(1, DAY) if t.is_date32(kind) else Fraction(1000)
    return Fraction(PER_SECOND[kind.unit])


_FORMATS = ["%Y-%m-%d", "%H:%M", "%j", "%d.%m.%y", "%a %b", "%A %B", "%F", "%I %p", "%%", "%G-W%V-%u", "%w"]


def _format(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    form = random.choice(_FORMATS)
    return pc.StrftimeOptions(form), form


def _format_time(call: Call, value: int) -> str:
    one = wall(call.kinds[0], value)
    seconds = one.clock // one.per
    made = datetime(*one.date.timetuple()[:3], seconds // 3600, seconds // 60 % 60, seconds % 60)
    form = (
        call.options.replace("%F", "%Y-%m-%d")
        .replace("%Y", f"{made.year:04d}")
        .replace("%G", f"{made.isocalendar()[0]:04d}")
    )
    return made.strftime(form)


def _ceil_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    unit, multiple = random.choice([*_FIXED, "week"]), random.choice([1, 1, 1, 2, 3, 7])
    monday, strictly = random.random() < 0.5, random.random() < 0.5
    options = pc.RoundTemporalOptions(multiple, unit, week_starts_monday=monday, ceil_is_strictly_greater=strictly)
    return options, (multiple, unit, monday, strictly)


def _ceil(call: Call, value: int) -> int:
    multiple, unit, monday, strictly = call.options
    kind = call.kinds[0]
    one = wall(kind, value)
    start = Fraction((3 if monday else 4) * DAY if unit == "week" else 0)
    size = (Fraction(7 * DAY) if unit == "week" else _FIXED[unit]) * multiple
    seconds = one.days * DAY + Fraction(one.clock, one.per) + start
    made = -(-seconds // size) * size
    if made == seconds and strictly:
        made += size
    found = _back(kind, made - start)
    wall(kind, found)
    return found


def _parse_options(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    form = random.choice(["%Y-%m-%d", "%Y-%m-%d", "%F", "%d.%m.%Y %H:%M", "%Y%m%d", "%Y-%m-%dT%H:%M:%S"])
    unit = random.choice(["s", "us"])
    return pc.StrptimeOptions(form, unit), (form, unit)


def _day_or_text(random: Random, kind: pa.DataType) -> Any:
    if random.random() < 0.1:
        return any_value(random, kind)
    day = random.choice([1, 9, 28, 28, 29, 30, 31, 32]) if random.random() < 0.4 else random.randint(1, 28)
    return f"{random.choice([1, 33, 1969, 2024, 9999]):04d}-{random.choice([1, 2, 4, 12]):02d}-{day:02d}"


def _parse(call: Call, value: str) -> int:
    form, unit = call.options
    try:
        made = datetime.strptime(value, form.replace("%F", "%Y-%m-%d"))
    except ValueError:
        raise Refused("no such time") from None
    if made.strftime(form.replace("%F", "%Y-%m-%d").replace("%Y", f"{made.year:04d}")) != value:
        raise Refused("written in another way")
    return int((made - _EPOCH).total_seconds()) * PER_SECOND[unit]


_UTC = [pa.timestamp(unit, "UTC") for unit in UNITS]
CALENDAR = [*DATES, *NAIVE, *ZONED]
STAMPS = [*NAIVE, *ZONED]
_SAME_UNIT = [*NAIVE, *(pa.timestamp(unit, "Europe/Berlin") for unit in UNITS)]


def _pair(random: Random) -> list[pa.DataType]:
    """Two types for a difference: of one kind, in any units."""
    family = random.choice([NAIVE, DURATIONS, TIMES, DATES, [pa.timestamp(unit, "Europe/Berlin") for unit in UNITS]])
    return [random.choice(family), random.choice(family)]


def _with_duration(random: Random) -> list[pa.DataType]:
    return [
        random.choice([*NAIVE, *DURATIONS, *TIMES, *(pa.timestamp(unit, "UTC") for unit in UNITS)]),
        random.choice(DURATIONS),
    ]


CASES: dict[str, Case] = {
    "year": Case(of(CALENDAR), _date(lambda one, call: one.year)),
    "month": Case(of(CALENDAR), _date(lambda one, call: one.month)),
    "day": Case(of(CALENDAR), _date(lambda one, call: one.day)),
    "quarter": Case(of(CALENDAR), _date(lambda one, call: (one.month + 2) // 3)),
    "day_of_year": Case(of(CALENDAR), _date(lambda one, call: one.timetuple().tm_yday)),
    "day_of_week": Case(of(CALENDAR), _date(_day_of_week), _week_options),
    "iso_year": Case(of(CALENDAR), _date(lambda one, call: one.isocalendar()[0])),
    "iso_week": Case(of(CALENDAR), _date(lambda one, call: one.isocalendar()[1])),
    "iso_calendar": Case(of(CALENDAR), _date(lambda one, call: _iso(one))),
    "us_year": Case(of(CALENDAR), _date(lambda one, call: _us_year(one)[0])),
    "us_week": Case(of(CALENDAR), _date(lambda one, call: _us_year(one)[1])),
    "year_month_day": Case(of(CALENDAR), _date(lambda o, call: {"year": o.year, "month": o.month, "day": o.day})),
    "is_leap_year": Case(of(CALENDAR), _date(lambda one, call: _leap(one))),
    "hour": Case(of([*STAMPS, *TIMES]), _clock(lambda one: one.clock // one.per // 3600)),
    "minute": Case(of([*STAMPS, *TIMES]), _clock(lambda one: one.clock // one.per // 60 % 60)),
    "second": Case(of([*STAMPS, *TIMES]), _clock(lambda one: one.clock // one.per % 60)),
    "millisecond": Case(of([*STAMPS, *TIMES]), _clock(_part(10**3, 1000))),
    "microsecond": Case(of([*STAMPS, *TIMES]), _clock(_part(10**6, 1000))),
    "nanosecond": Case(of([*STAMPS, *TIMES]), _clock(_part(10**9, 1000))),
    "subsecond": Case(of([*STAMPS, *TIMES]), _clock(lambda one: one.clock % one.per / one.per)),
    "is_dst": Case(of(ZONED), _dst),
    "local_timestamp": Case(of(STAMPS), _local),
    "assume_timezone": Case(of(NAIVE), _assume, _assume_options),
    "strftime": Case(of([*NAIVE, *DATES, *ZONED]), _format_time, _format),
    "floor_temporal": Case(of([*NAIVE, *DATES, *_UTC]), _floored_within, _floor_options),
    "ceil_temporal": Case(of([*NAIVE, *DATES, *_UTC]), _ceil, _ceil_options),
    "strptime": Case(of(TEXTS), _parse, _parse_options, values=_day_or_text),
    "nanoseconds_between": Case(alike([*DATES, *_SAME_UNIT, *TIMES], 2), _between(Fraction(1, 10**9))),
    "microseconds_between": Case(alike([*DATES, *_SAME_UNIT, *TIMES], 2), _between(Fraction(1, 10**6))),
    "milliseconds_between": Case(alike([*DATES, *_SAME_UNIT, *TIMES], 2), _between(Fraction(1, 10**3))),
    "seconds_between": Case(alike([*DATES, *_SAME_UNIT, *TIMES], 2), _between(Fraction(1))),
    "minutes_between": Case(alike([*DATES, *_SAME_UNIT, *TIMES], 2), _between(Fraction(60))),
    "hours_between": Case(alike([*DATES, *_SAME_UNIT, *TIMES], 2), _between(Fraction(3600))),
    "days_between": Case(alike([*DATES, *_SAME_UNIT], 2), _calendar_between(date.toordinal)),
    "weeks_between": Case(alike([*DATES, *_SAME_UNIT], 2), _weeks, _week_options),
    "quarters_between": Case(
        alike([*DATES, *_SAME_UNIT], 2), _calendar_between(lambda d: d.year * 4 + (d.month - 1) // 3)
    ),
    "years_between": Case(alike([*DATES, *_SAME_UNIT], 2), _calendar_between(lambda d: d.year)),
    "add": Case(_with_duration, _shift(1)),
    "subtract": Case(lambda random: random.choice([_pair, _with_duration])(random), _shift(-1)),
    **{name: Case(_pair, _compare(function)) for name, function in COMPARISONS.items()},
}
