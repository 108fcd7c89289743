"""Typed values: expressions of `pyarrow.compute` with the types that Spark gives them, and casts between these types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from tailrace.api.sql.tree import Constant, NotTranslated
from tailrace.elements.columns.expressions import require

BOOLEAN, STRING, DATE, SPAN = pa.bool_(), pa.string(), pa.date32(), pa.duration("us")
INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
INSTANT, WALL = pa.timestamp("us", "UTC"), pa.timestamp("us")
"""Spark's TIMESTAMP and TIMESTAMP_NTZ."""

_NAMES: dict[pa.DataType, str] = {
    pa.null(): "void", BOOLEAN: "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", INT: "int", LONG: "bigint",
    FLOAT: "float", DOUBLE: "double", STRING: "string", pa.binary(): "binary", DATE: "date", INSTANT: "timestamp",
    WALL: "timestamp_ntz", SPAN: "interval",
}  # fmt: skip
_INTEGERS = (pa.int8(), pa.int16(), INT, LONG)
_DIGITS = {pa.int8(): 3, pa.int16(): 5, INT: 10, LONG: 20}
"""Type of integers -> the digits of Spark's decimal for it."""
DAY = 86_400_000_000
"""Microseconds of a day."""


@dataclass(frozen=True)
class Typed:
    """An expression with its type. `value` is the value of a literal, as it is written; `literal` is true for one."""

    expr: Any
    kind: pa.DataType
    literal: bool = False
    value: Any = None


def name_of(kind: pa.DataType) -> str:
    """The name of a type in Spark's SQL; Arrow's, where Spark has none."""
    return f"decimal({kind.precision},{kind.scale})" if t.is_decimal(kind) else _NAMES.get(kind, str(kind))


def constant(value: Any, kind: pa.DataType) -> Typed:
    """A constant of this type."""
    return Typed(pc.scalar(pa.scalar(value, kind)), kind, True, value)


def column(expr: Any, kind: pa.DataType) -> Typed:
    """A column, in the type of Spark that has its values; of its own type if there is none."""
    plain = {pa.large_string(): STRING, pa.large_binary(): pa.binary(), pa.date64(): DATE}.get(kind, kind)
    if t.is_duration(kind) and kind.unit != "ns":
        plain = SPAN
    if t.is_timestamp(kind) and kind.unit != "ns":
        plain = WALL if kind.tz is None else INSTANT
    # A DataFrame's batches have the zone of its session: instants are cast also where UTC is expected.
    return Typed(expr if plain == kind != INSTANT else expr.cast(plain), plain)


def is_integer(kind: pa.DataType) -> bool:
    """True for the integers that Spark has."""
    return kind in _INTEGERS


def is_number(kind: pa.DataType) -> bool:
    """True for the numbers that Spark has."""
    return is_integer(kind) or kind in (FLOAT, DOUBLE) or is_decimal(kind)


def is_decimal(kind: pa.DataType) -> bool:
    """True for decimals of at most 38 digits with none beyond their point on the left."""
    return bool(t.is_decimal128(kind)) and 0 <= kind.scale <= kind.precision


def is_known(kind: pa.DataType) -> bool:
    """True for a type whose values have functions here."""
    return kind in _NAMES or is_decimal(kind)


def decimal_for(value: Typed) -> pa.DataType:
    """The decimal type that Spark makes of an integer: as narrow as the number, for one that is written."""
    if value.literal and value.value is not None:
        return pa.decimal128(max(len(str(abs(value.value))), 1), 0)
    return pa.decimal128(_DIGITS[value.kind], 0)


def widest(one: pa.DataType, two: pa.DataType, at: str) -> pa.DataType:
    """The decimal type that holds the values of two of them. Raises `NotTranslated` if there is none."""
    scale = max(one.scale, two.scale)
    precision = max(one.precision - one.scale, two.precision - two.scale) + scale
    if precision > 38:
        raise NotTranslated(
            f"{name_of(one)} and {name_of(two)} have no common type of at most 38 digits", at, "cast one of them"
        )
    return pa.decimal128(precision, scale)


def common(values: Sequence[Typed], what: str, at: str) -> pa.DataType:
    """The type to which Spark converts values that are put together. Raises `NotTranslated` if there is none, or it depends
    on more than the values."""
    kinds = [value for value in values if not t.is_null(value.kind)]
    if not kinds:
        return pa.null()
    found = kinds[0].kind
    for value in kinds[1:]:
        found = _common_of_two(found, value, what, at)
    if not is_known(found):
        raise NotTranslated(f"{what} of {found} is not translated", at)
    return found


def _common_of_two(found: pa.DataType, value: Typed, what: str, at: str) -> pa.DataType:
    kind = value.kind
    if found == kind:
        return found
    both = {found, kind}
    if is_number(found) and is_number(kind):
        if is_integer(found) and is_integer(kind):
            return max(found, kind, key=_INTEGERS.index)
        if both & {FLOAT, DOUBLE}:
            return DOUBLE
        one, two = (pa.decimal128(_DIGITS[one], 0) if is_integer(one) else one for one in (found, kind))
        return widest(one, two, at)
    if both == {DATE, WALL}:
        return WALL
    if INSTANT in both and both & {DATE, WALL}:
        raise NotTranslated(
            f"{what} of {name_of(found)} and {name_of(kind)} depends on the time zone of a session", at,
            "give both one type before, by to_columns or map_batches",
        )  # fmt: skip
    raise NotTranslated(f"{what} of {name_of(found)} and {name_of(kind)} is not translated", at, "cast one of them")


# Constants and types by name.


def number(digits: str, at: str, *, exact: bool = False) -> Constant:
    """A number with the type that Spark gives it."""
    if re.fullmatch(r"-?[0-9]+", digits) and not exact:
        value = int(digits)
        for kind in (pa.int32(), pa.int64()):
            if -(1 << (kind.bit_width - 1)) <= value < 1 << (kind.bit_width - 1):
                return Constant(at, value, kind)
    if "e" in digits.lower() and not exact:
        return Constant(at, float(digits), pa.float64())
    number = Decimal(digits)
    exponent = number.as_tuple().exponent
    scale = max(0, -int(exponent))
    precision = max(len(number.as_tuple().digits), scale, 1)
    if precision > 38:
        raise NotTranslated(f"{digits} has too many digits for a decimal", at)
    return Constant(at, number, pa.decimal128(precision, scale))


_NAMED = {
    **{name: kind for kind, name in _NAMES.items() if name not in ("void", "interval")},
    "byte": pa.int8(), "short": pa.int16(), "integer": INT, "long": LONG, "real": FLOAT, "timestamp_ltz": INSTANT,
}  # fmt: skip
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\(([0-9]+)(?:,([0-9]+))?\))?")


def type_named(text: str) -> pa.DataType | None:
    """The type of this name in Spark's SQL; None for one that has no functions here."""
    text = text.lower().replace(" ", "")
    found = _DECIMAL.fullmatch(text)
    if found is None:
        return _NAMED.get(text)
    precision, scale = int(found[1] or 10), int(found[2] or 0)
    return pa.decimal128(precision, scale) if 1 <= precision <= 38 and scale <= precision else None


# Casts.


def convert(value: Typed, kind: pa.DataType, at: str) -> Typed:
    """The value in another type, as Spark casts it. Raises `NotTranslated` for a cast that is not known to be Spark's."""
    here = value.kind
    if here == kind:
        return value
    if t.is_null(here):
        return constant(None, kind)
    cast = _between_numbers(value, kind) if is_number(here) and is_number(kind) else _CASTS.get((here, kind))
    if callable(cast):
        cast = cast(value.expr)
    if cast is None and is_decimal(here) and kind == STRING and here.scale <= 6:
        cast = value.expr.cast(STRING)  # with more places Arrow writes an exponent
    if cast is None and is_integer(here):
        cast = {BOOLEAN: value.expr != pa.scalar(0, here), STRING: value.expr.cast(STRING)}.get(kind)
    if cast is None and is_number(kind) and here == BOOLEAN:
        one, zero = constant(1, INT), constant(0, INT)
        return convert(Typed(pc.if_else(value.expr, one.expr, zero.expr), INT), kind, at)
    if cast is None and here == STRING and is_integer(kind):
        cast = value.expr.cast(kind)
    if cast is None:
        zone = (here == INSTANT) != (kind == INSTANT) and {here, kind} & {DATE, WALL, STRING}
        why = "depends on the time zone of a session" if zone else "is not translated"
        raise NotTranslated(f"a cast from {name_of(here)} to {name_of(kind)} {why}", at)
    return Typed(cast, kind)


def loosely(expr: Any, kind: pa.DataType) -> Any:
    """A cast to a type of floats that rounds to the nearest."""
    return expr.cast(kind, safe=False)


def _between_numbers(value: Typed, kind: pa.DataType) -> Any:
    expr, here = value.expr, value.kind
    if kind in (FLOAT, DOUBLE):
        return expr.cast(kind) if is_decimal(here) or (here, kind) == (FLOAT, DOUBLE) else loosely(expr, kind)
    if here in (FLOAT, DOUBLE):
        if is_decimal(kind):
            return None
        return pc.trunc(expr.cast(DOUBLE) if here == FLOAT else expr).cast(kind)
    if is_decimal(here) and is_integer(kind):
        return pc.trunc(expr).cast(kind) if here.scale else expr.cast(kind)
    if is_decimal(here) and kind.scale < here.scale:
        return pc.round(expr, ndigits=kind.scale, round_mode="half_towards_infinity").cast(kind)
    return expr.cast(kind)


def _date_of(text: Any) -> Any:
    """A date from text. Spark takes more forms; what has another one fails."""
    checked = require(
        text, pc.match_substring_regex(text, "^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}$"), "a text is no date as yyyy-mm-dd"
    )
    return pc.strptime(checked, format="%Y-%m-%d", unit="s").cast(DATE)


_REAL = r"(?i)^(?:-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|-?inf(?:inity)?)$"
"""Texts of numbers that Java and Arrow read alike."""


def _number_of(text: Any) -> Any:
    return require(text, pc.match_substring_regex(text, _REAL), "a text is no number that Spark and Arrow read alike")


_CASTS: dict[tuple[pa.DataType, pa.DataType], Any] = {
    (BOOLEAN, STRING): lambda x: x.cast(STRING),
    (STRING, pa.binary()): lambda x: x.cast(pa.binary()),
    (STRING, FLOAT): lambda x: _number_of(x).cast(FLOAT),
    (STRING, DOUBLE): lambda x: _number_of(x).cast(DOUBLE),
    (STRING, DATE): _date_of,
    (DATE, STRING): lambda x: x.cast(STRING),
    (DATE, WALL): lambda x: x.cast(WALL),
    (WALL, DATE): lambda x: pc.floor_temporal(x, unit="day").cast(DATE),
    (INSTANT, LONG): lambda x: pc.floor_temporal(x, unit="second").cast(pa.timestamp("s", "UTC")).cast(LONG),
    (LONG, INSTANT): lambda x: x.cast(pa.timestamp("s")).cast(WALL).cast(LONG).cast(INSTANT),
}
"""Pair of types (from, to) -> the cast of an expression."""
