"""Arithmetic with Spark's types and errors: numbers, and times with intervals."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from tailrace.api.sql.tree import NotTranslated
from tailrace.api.sql.typed import (
    DATE,
    DAY,
    DOUBLE,
    FLOAT,
    INSTANT,
    INT,
    LONG,
    SPAN,
    WALL,
    Typed,
    common,
    constant,
    convert,
    decimal_for,
    is_decimal,
    is_integer,
    is_number,
    name_of,
    widest,
)
from tailrace.elements.columns.expressions import require

_SIGN_DIGITS = 34
"""Digits to which Spark rounds a decimal whose sign it changes."""
_MATHS: dict[str, Any] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


def _not_translated(sign: str, a: Typed, b: Typed, at: str) -> NotTranslated:
    return NotTranslated(f"`{sign}` of {name_of(a.kind)} and {name_of(b.kind)} is not translated", at)


def calculate(sign: str, a: Typed, b: Typed, at: str) -> Typed:
    """A sum, a difference or a product."""
    if t.is_null(a.kind) or t.is_null(b.kind):
        a, b = (convert(one, two.kind, at) if t.is_null(one.kind) else one for one, two in ((a, b), (b, a)))
    if not (is_number(a.kind) and is_number(b.kind)):
        return _of_times(sign, a, b, at)
    if is_decimal(a.kind) != is_decimal(b.kind) and not {a.kind, b.kind} & {FLOAT, DOUBLE}:
        a, b = (one if is_decimal(one.kind) else convert(one, decimal_for(one), at) for one in (a, b))
    if is_decimal(a.kind) and is_decimal(b.kind):
        kind = _decimal_of(sign, a.kind, b.kind, at)
        return Typed(_MATHS[sign](a.expr, b.expr), kind)
    kind = common((a, b), f"`{sign}`", at)
    return Typed(_MATHS[sign](convert(a, kind, at).expr, convert(b, kind, at).expr), kind)


def _decimal_of(sign: str, a: pa.DataType, b: pa.DataType, at: str) -> pa.DataType:
    if sign == "*":
        precision, scale = a.precision + b.precision + 1, a.scale + b.scale
    else:
        wide = max(a.precision - a.scale, b.precision - b.scale)
        scale = max(a.scale, b.scale)
        precision = wide + scale + 1
    if precision > 38:
        raise NotTranslated(
            f"`{sign}` of {name_of(a)} and {name_of(b)} has more than 38 digits, and Spark would round it", at,
            "cast one of them to fewer digits",
        )  # fmt: skip
    return pa.decimal128(precision, scale)


def _of_times(sign: str, a: Typed, b: Typed, at: str) -> Typed:
    kinds = a.kind, b.kind
    if sign == "+" and kinds[0] in (INT, SPAN, pa.int16(), pa.int8()) and kinds[1] in (DATE, WALL, INSTANT):
        a, b, kinds = b, a, kinds[::-1]
    if sign == "*":
        raise _not_translated(sign, a, b, at)
    if kinds[0] == DATE and kinds[1] in (INT, pa.int16(), pa.int8()):
        return add_days(a, b, at, sign)
    if sign == "-" and kinds in ((DATE, DATE), (WALL, WALL)):
        return Typed(pc.subtract(a.expr, b.expr) if kinds[0] == WALL else _days_apart(a, b), SPAN)
    if sign == "-" and kinds == (INSTANT, INSTANT):
        raise NotTranslated(
            "the time between two timestamps depends on the time zone of a session", at, "use unix_micros"
        )
    if kinds == (SPAN, SPAN) or kinds == (WALL, SPAN):
        return Typed(_MATHS[sign](a.expr, b.expr), kinds[0])
    if kinds == (INSTANT, SPAN):
        if not b.literal or abs(b.value) >= DAY:
            raise NotTranslated(
                "a timestamp and an interval of days depend on the time zone of a session", at,
                "write the interval as a constant below one day, or use a timestamp_ntz",
            )  # fmt: skip
        return Typed(_MATHS[sign](a.expr, b.expr), INSTANT)
    raise _not_translated(sign, a, b, at)


def _days_apart(a: Typed, b: Typed) -> Any:
    return pc.multiply(pc.days_between(b.expr, a.expr), pc.scalar(DAY)).cast(SPAN)


def days_between(end: Typed, start: Typed, at: str) -> Typed:
    """The days from one date to another."""
    for one in (end, start):
        if one.kind != DATE:
            raise NotTranslated(f"datediff of {name_of(one.kind)} is not translated", at, "cast to a date")
    return Typed(pc.days_between(start.expr, end.expr).cast(INT), INT)


def add_days(date: Typed, days: Typed, at: str, sign: str = "+") -> Typed:
    """A date some days on."""
    if date.kind != DATE or days.kind not in (INT, pa.int16(), pa.int8()):
        raise NotTranslated(f"`{sign}` of {name_of(date.kind)} and {name_of(days.kind)} days is not translated", at)
    seconds = pc.multiply(convert(days, LONG, at).expr, pc.scalar(86_400)).cast(pa.duration("s"))
    return Typed(_MATHS[sign](date.expr.cast(pa.timestamp("s")), seconds).cast(DATE), DATE)


def divide(a: Typed, b: Typed, at: str) -> Typed:
    """A quotient: of integers too it is a double. A division by zero fails."""
    if t.is_null(a.kind) or t.is_null(b.kind):
        return constant(None, DOUBLE)
    if not (is_number(a.kind) and is_number(b.kind)):
        raise _not_translated("/", a, b, at)
    if is_decimal(a.kind) or is_decimal(b.kind):
        if not {a.kind, b.kind} & {FLOAT, DOUBLE}:
            raise NotTranslated("a division of decimals is not translated", at, "cast one of them to double")
    one, two = (convert(x, DOUBLE, at).expr for x in (a, b))
    return Typed(require(pc.divide(one, two), or_null(two != pc.scalar(0.0), one), "division by zero"), DOUBLE)


def or_null(holds: Any, *given: Any) -> Any:
    """A condition that need not hold where one of the values is null."""
    for one in given:
        holds = pc.or_kleene(holds, pc.is_null(one))
    return holds


def _integers(sign: str, a: Typed, b: Typed, at: str) -> tuple[Any, Any, pa.DataType]:
    if not (is_integer(a.kind) and is_integer(b.kind)):
        raise _not_translated(sign, a, b, at)
    kind = common((a, b), f"`{sign}`", at)
    return convert(a, kind, at).expr, convert(b, kind, at).expr, kind


def quotient(a: Typed, b: Typed, at: str) -> Typed:
    """The whole part of a quotient of integers."""
    _integers("div", a, b, at)
    return Typed(pc.divide(convert(a, LONG, at).expr, convert(b, LONG, at).expr), LONG)


def remainder(a: Typed, b: Typed, at: str) -> Typed:
    """The rest of a division of integers, with the sign of the dividend."""
    one, two, kind = _integers("%", a, b, at)
    return Typed(_rest(one, two, kind), kind)


def _rest(one: Any, two: Any, kind: pa.DataType) -> Any:
    # The least integer has no quotient by -1, but a rest: 0, as by 1.
    safe = pc.if_else(two == pa.scalar(-1, kind), pc.scalar(pa.scalar(1, kind)), two)
    return pc.subtract(one, pc.multiply(pc.divide(one, safe), safe))


def positive_remainder(a: Typed, b: Typed, at: str) -> Typed:
    """The rest of a division of integers as `pmod` gives it."""
    one, two, kind = _integers("pmod", a, b, at)
    rest = _rest(one, two, kind)
    return Typed(pc.if_else(rest < pa.scalar(0, kind), _rest(pc.add(rest, two), two, kind), rest), kind)


def negative(a: Typed, at: str) -> Typed:
    """A number or an interval with the other sign."""
    if not (is_number(a.kind) or a.kind == SPAN):
        raise NotTranslated(f"`-` of {name_of(a.kind)} is not translated", at)
    if a.kind == SPAN:
        return Typed(pc.subtract(pc.scalar(pa.scalar(0, SPAN)), a.expr), SPAN)
    _check_digits(a, "`-`", at)
    return Typed(pc.negate(a.expr), a.kind)


def absolute(a: Typed, at: str) -> Typed:
    """A number without its sign."""
    if not is_number(a.kind):
        raise NotTranslated(f"abs of {name_of(a.kind)} is not translated", at)
    _check_digits(a, "abs", at)
    return Typed(pc.abs(a.expr), a.kind)


def _check_digits(a: Typed, what: str, at: str) -> None:
    """Raises `NotTranslated` for a decimal that Spark rounds when it changes its sign."""
    if is_decimal(a.kind) and a.kind.precision > _SIGN_DIGITS:
        raise NotTranslated(
            f"{what} of {name_of(a.kind)} is not translated: Spark rounds it to {_SIGN_DIGITS} digits", at,
            f"cast it to {_SIGN_DIGITS} digits",
        )  # fmt: skip


def bits(sign: str, a: Typed, b: Typed, at: str) -> Typed:
    """A function of the bits of integers."""
    one, two, kind = _integers(sign, a, b, at)
    function: Any = {"&": pc.bit_wise_and, "|": pc.bit_wise_or, "^": pc.bit_wise_xor}[sign]
    return Typed(function(one, two), kind)


def bits_not(a: Typed, at: str) -> Typed:
    """An integer with all bits turned over."""
    if not is_integer(a.kind):
        raise NotTranslated(f"`~` of {name_of(a.kind)} is not translated", at)
    return Typed(pc.bit_wise_not(a.expr), a.kind)


def root(a: Typed, at: str) -> Typed:
    """The square root; NaN of a negative number."""
    if not is_number(a.kind):
        raise NotTranslated(f"sqrt of {name_of(a.kind)} is not translated", at)
    return Typed(pc.sqrt(convert(a, DOUBLE, at).expr), DOUBLE)


def to_whole(name: str, a: Typed, at: str) -> Typed:
    """`floor` and `ceil`."""
    if is_integer(a.kind):
        return convert(a, LONG, at)
    function: Any = pc.floor if name == "floor" else pc.ceil
    if a.kind in (FLOAT, DOUBLE):
        return Typed(function(convert(a, DOUBLE, at).expr).cast(LONG), LONG)
    if not is_decimal(a.kind):
        raise NotTranslated(f"{name} of {name_of(a.kind)} is not translated", at)
    kind = pa.decimal128(min(38, a.kind.precision - a.kind.scale + 1), 0)
    wide = a.expr.cast(widest(a.kind, pa.decimal128(kind.precision, 0), at))
    return Typed(function(wide).cast(kind), kind)


def round_number(a: Typed, digits: Typed | None, at: str) -> Typed:
    """A decimal or an integer round_number half up."""
    places = 0 if digits is None else digits.value
    if digits is not None and not (digits.literal and digits.kind == INT and digits.value is not None):
        raise NotTranslated("round with digits that are no constant is not translated", at)
    if is_integer(a.kind) and places >= 0:
        return a
    if not is_decimal(a.kind) or places < 0:
        instead = "cast it to a decimal: cast(x as decimal(18,6))" if a.kind in (FLOAT, DOUBLE) else ""
        raise NotTranslated(f"round of {name_of(a.kind)} to {places} places is not translated", at, instead)
    scale = min(a.kind.scale, places)
    precision = a.kind.precision - a.kind.scale + 1 + scale
    if precision > 38:
        raise NotTranslated(f"round of {name_of(a.kind)} is not translated", at)
    kind = pa.decimal128(precision, scale)
    wide = a.expr.cast(widest(a.kind, kind, at))
    return Typed(pc.round(wide, ndigits=scale, round_mode="half_towards_infinity").cast(kind), kind)
