"""Guards of functions of Arrow that are exact for a part of the values only. A guard refuses the other values, or computes
them in another way. It is called with the arguments and the options of a call, and returns the result. At least one of the
arguments is an array."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from tailrace.elements.columns.casts import array_as
from tailrace.elements.columns.kinds import NUMBERS, family, plain_type
from tailrace.elements.columns.misfit import Misfit

Said = Mapping[str, pa.Scalar]
"""Options of a call by name, as they are in an expression."""
Guard = Callable[[Any, list[Any], Any, Said], Any]
"""The type of guards, `guard(function, arguments, options, said)`. A guard raises `TypeError` for types that it refuses, and
`ArrowInvalid` for values."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_FIRST, _LAST = -62_135_596_800, 253_402_300_799
"""First and last second of the years 1 to 9999, in seconds since 1970."""
_RULES_END = 2_145_916_799
"""Last second of 2037. Arrow knows the listed clock changes of a time zone, but not the rule for later years."""
_STEADY = ("UTC", "Etc/UTC", "GMT", "Z")


def plainly(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A call without a check: the function is exact."""
    return function.call(given, options)


# Numbers.


def quotient(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A division. For whole numbers it checks for overflow. For floats it does not: it would refuse a division by zero."""
    if all(t.is_integer(one.type) for one in given):
        function = pc.get_function("divide_checked")
    return function.call(given, options)


def shift_left(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A shift to the left that checks for overflow: Arrow checks the number of bits, but not the bits that are lost."""
    made = function.call(given, options)
    back = pc.get_function("shift_right_checked").call([made, given[1]])
    if pc.any(pc.not_equal(back, given[0])).as_py():
        raise pa.ArrowInvalid("overflow")
    return made


def round_value(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A rounding. Decimals are rounded with one more digit: Arrow drops the error for a result that does not fit if the next
    one fits. With more than 38 digits it rounds wrongly, so such types are refused."""
    [column] = given
    kind = column.type
    if not t.is_decimal(kind):
        return function.call(given, options)
    if kind.precision > 38:
        raise TypeError(f"it is not exact for {kind}; cast it to a type of at most 38 digits")
    narrow = _exactly(column, pa.decimal128(min(kind.precision, 37), kind.scale))
    made = function.call([narrow.cast(pa.decimal128(narrow.type.precision + 1, kind.scale))], options)
    return _exactly(made, kind)


def _exactly(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column cast to another type without a change of values. Raises `ArrowInvalid` for a value that does not fit."""
    try:
        return array_as(column, kind, "")
    except Misfit as error:
        why = str(error.args[0]).removeprefix("column '' is declared ")
        raise pa.ArrowInvalid(f"it is to be {why}") from None


# Times.


def _is_zoned(kind: pa.DataType) -> bool:
    return t.is_timestamp(kind) and kind.tz is not None and kind.tz not in _STEADY


def _check_range(column: Any, least: int, most: int, what: str) -> None:
    numbers = column
    if not t.is_integer(column.type):
        numbers = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    if isinstance(numbers, pa.Scalar):
        ends = [numbers.as_py()] * 2
    else:
        ends = list(pc.min_max(numbers).as_py().values())
    if ends[0] is not None and (ends[0] < least or ends[1] > most):
        raise pa.ArrowInvalid(f"a value of {column.type} is out of range: {what}")


def check_calendar(column: Any, zoned: bool = False) -> None:
    """Raises `ArrowInvalid` for a time in a year for which Arrow's calendar, or its clock of the time zone, is wrong."""
    kind = column.type
    if t.is_date(kind):
        per = 1000 * _DAY if t.is_date64(kind) else 1
        _check_range(
            column, _FIRST // _DAY * per, (_LAST // _DAY + 1) * per - 1, "the calendar has the years 1 to 9999"
        )
    elif t.is_timestamp(kind):
        per, zoned = _PER_SECOND[kind.unit], zoned or _is_zoned(kind)
        first = max((_FIRST + (2 * _DAY if zoned else 0)) * per, -(2**63) + 2 * _DAY * per)
        last = (_RULES_END if zoned else _LAST) * per + per - 1
        years = "1 to 2037: Arrow does not know the clocks of time zones in later ones" if zoned else "1 to 9999"
        _check_range(column, first, min(last, 2**63 - 1 - 2 * _DAY * per), f"the calendar has the years {years}")


def calendar(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A function of dates, or of the clock of a time zone: times out of the calendar's range are refused."""
    for column in given:
        check_calendar(column)
    return function.call(given, options)


def add_duration(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A sum or difference. A duration of more than a day with a time of day of 32 bits is refused: Arrow reads only 32 bits
    of the duration."""
    for time, span in (given, given[::-1]):
        if t.is_time32(time.type) and t.is_duration(span.type):
            most = _DAY * _PER_SECOND[span.type.unit]
            counted = pc.if_else(pc.is_valid(time), span, pa.scalar(None, span.type))
            _check_range(counted, -most, most, "a time of day moves within its day")
    return function.call(given, options)


def second(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """The second on the wall clock: time zones had offsets with seconds, which Arrow drops."""
    [column] = given
    check_calendar(column)
    return function.call([pc.local_timestamp(column)] if _is_zoned(column.type) else given, options)


def zone_assumed(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """Wall clock times taken as times of a zone, in the range for which Arrow knows the clocks of zones."""
    check_calendar(given[0], zoned=True)
    return function.call(given, options)


def nanoseconds_between(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """The nanoseconds between times that are less than 292 years apart; others are refused."""
    apart = calendar(pc.get_function("microseconds_between"), given, None, constants)
    _check_range(apart.cast(pa.duration("us")), -(2**63) // 1000 + 1, 2**63 // 1000 - 1, "overflow of nanoseconds")
    return function.call(given, options)


_UNITS = (
    "nanosecond",
    "microsecond",
    "millisecond",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "quarter",
    "year",
)
"""Units of time in the order of Arrow's numbers for them."""
_FINEST = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}


def unit_bound(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """The beginning, or the end, of a unit of time. Zones whose clocks change are refused: the wall clock time may occur
    twice, or never."""
    [column] = given
    kind = column.type
    if _is_zoned(kind):
        raise TypeError(
            f"it is not exact for {kind}, where clocks change; apply pc.local_timestamp before, or cast to UTC"
        )
    finest = "day" if t.is_date(kind) else _FINEST[kind.unit]
    unit = _UNITS[constants["unit"].as_py()]
    if _UNITS.index(unit) < _UNITS.index(finest):
        raise TypeError(f"a {unit} is finer than {kind}; give a unit from {finest} on")
    if unit in ("month", "quarter", "year") and (
        constants["multiple"].as_py() != 1 or function.name == "ceil_temporal"
    ):
        raise TypeError(f"it is not known to be exact for units of {unit}; use pc.floor_temporal with multiple=1")
    if constants["calendar_based_origin"].as_py():
        raise TypeError("calendar_based_origin=True is not known to be exact; use map_batches")
    made = calendar(function, given, options, constants)
    check_calendar(made)
    return made


_FIELD = re.compile("%(.?)")
_FIELDS = frozenset("YmdHMSFTyjbB%")
"""Fields that a format of `strptime` may have: all that can be read and written without a time zone."""


def parse_time(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A time from text. Arrow takes the 31st of February for a day in March, so the result is written as text and compared.
    Leading zeros of a number may be missing."""
    form: str = constants["format"].as_py()
    if not set(_FIELD.findall(form)) <= _FIELDS:
        raise TypeError(f"the format {form!r} is not known to be exact; it may have {', '.join(sorted(_FIELDS))}")
    made = function.call(given, options)
    written = pc.strftime(made.cast(pa.timestamp("s")), format=form)
    if pc.any(pc.not_equal(_bare(written), _bare(given[0].cast(pa.string())))).as_py():
        raise pa.ArrowInvalid(f"there is a text that is no such time in the format {form!r}")
    return made


def _bare(texts: Any) -> Any:
    return pc.replace_substring_regex(pc.utf8_lower(texts), r"(^|[^0-9])0+([0-9])", r"\1\2")


# Texts, choices and casts.


_ASSERTIONS = re.compile(r"\\[AbBQ]|\^")
_SKIPPED = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\\[^AbBQ]", re.DOTALL)
"""Patterns for a look at a regular expression. `_ASSERTIONS` finds parts that depend on the text before a match, or may (a
quotation). `_SKIPPED` finds sets of characters and escapes, in which these signs have another meaning."""


def each_match(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A function of all matches of an expression. After a match Arrow takes the rest for a new text that begins there, and
    after an empty match it may never end: such expressions are refused. (To replace all matches Arrow uses RE2, which is
    right.)"""
    pattern, most = _text(constants["pattern"]), constants.get("max_replacements")
    if most is None or most.as_py() not in (None, -1):
        if found := _ASSERTIONS.search(_SKIPPED.sub("", pattern)):
            raise TypeError(f"{found[0]} in {pattern!r} is taken to hold behind each match, too; use map_batches")
        if pc.match_substring_regex(pa.array([""]), pattern)[0].as_py():
            raise TypeError(f"{pattern!r} may match nothing, and that is not known to be exact; use map_batches")
    return function.call(given, options)


def each_place(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A function of all places of a text in another one. An empty text is refused: Arrow does not go on after it, or counts
    bytes."""
    if not _text(constants["pattern"]):
        raise TypeError("an empty pattern is everywhere, and that is not known to be exact; use map_batches")
    return function.call(given, options)


def _text(option: pa.Scalar) -> str:
    given = option.as_py()
    return given.decode() if isinstance(given, bytes) else str(given)


def join_texts(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """Texts joined with another text between them. The option to skip nulls is refused: Arrow drops whole records then."""
    if "null_handling" in constants and constants["null_handling"].as_py() == _SKIP:
        raise TypeError("null_handling='skip' loses records; use 'replace', with null_replacement=''")
    return function.call(given, options)


_SKIP = 1
"""Arrow's number for `skip`."""


def choose(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """One of the arguments after the first. Numbers out of range are refused: Arrow reads only some of their bits."""
    _check_range(given[0], 0, len(given) - 2, "it is the number of no argument")
    return function.call(given, options)


_ACROSS = frozenset(
    (
        ("boolean", "integer"), ("boolean", "text"), ("integer", "text"), ("text", "integer"), ("text", "float"),
        ("text", "bytes"), ("date", "timestamp"), ("timestamp", "date"), ("date", "text"), ("integer", "timestamp"),
        ("timestamp", "integer"), ("integer", "duration"), ("duration", "integer"), ("date", "integer"), ("time", "integer"),
        ("null", "null"),
    )
)  # fmt: skip
"""Pairs of families (from, to) between which Arrow casts exactly or refuses. Within one family `casts` does it."""


def _read_numbers(texts: Any, target: pa.DataType) -> Any:
    """Numbers from their digits. Digits of the base 16 are refused: Arrow takes the bits of `0xff` for a signed number.
    Numbers that are too large or small for a float are refused: Arrow makes them infinite or zero."""
    if pc.any(pc.match_substring_regex(texts, "[xX]")).as_py():
        raise pa.ArrowInvalid("a number has digits of the base 16: read it in map_batches")
    made = texts.cast(target)
    if t.is_floating(target):
        wide = made.cast(pa.float64())
        lost = pc.and_(pc.is_inf(wide), pc.match_substring_regex(texts, "[0-9]"))
        lost = pc.or_(lost, pc.and_(pc.equal(wide, 0.0), pc.match_substring_regex(texts, "^[^eE]*[1-9]")))
        if pc.any(lost).as_py():
            raise pa.ArrowInvalid(f"a number is out of the range of {target}, and no {target} is near it")
    return made


def cast(function: Any, given: list[Any], options: Any, constants: Said) -> Any:
    """A cast that changes no value, or refuses it. If an option allows loss, Arrow casts without a check."""
    [column], target = given, plain_type(constants["to_type"].type)
    if any(one.as_py() for name, one in constants.items() if name.startswith("allow_")):
        return function.call(given, options)
    here, there = family(column.type), family(target)
    if column.type == target:
        return column
    if (here, there) == ("decimal", "float"):
        return _read_numbers(column.cast(pa.string()), target)  # by its digits: to the nearest
    if here == "text" and there in ("integer", "float"):
        return _read_numbers(column, target)
    if here == "null" or here == there or {here, there} <= NUMBERS:
        return _exactly(column, target)
    if (here, there) not in _ACROSS or _is_zoned(column.type) or _is_zoned(target):
        raise TypeError(f"a cast from {column.type} to {target} is not known to be exact; use map_batches")
    if here in ("date", "timestamp") and there in ("date", "timestamp", "text"):
        check_calendar(column)
    return function.call(given, options)
