"""Comparisons as Spark makes them: NaN is equal to itself and larger than all other numbers."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from tailrace.api.sql.tree import NotTranslated
from tailrace.api.sql.typed import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    Typed,
    common,
    constant,
    convert,
    is_decimal,
    name_of,
)

_PLAIN: dict[str, Any] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


def compare(sign: str, a: Typed, b: Typed, at: str) -> Typed:
    """A comparison; null where one of the values is."""
    a, b = _alike(a, b, sign, at)
    if sign == "<=>":
        both_null = pc.and_kleene(pc.is_null(a.expr), pc.is_null(b.expr))
        return Typed(pc.coalesce(compare("=", a, b, at).expr, both_null), BOOLEAN)
    if t.is_null(a.kind) or t.is_null(b.kind):
        return constant(None, BOOLEAN)
    if sign in ("!=", "<>"):
        return Typed(pc.invert(compare("=", a, b, at).expr), BOOLEAN)
    sign = "=" if sign == "==" else sign
    plain = _PLAIN[sign](a.expr, b.expr)
    if a.kind not in (FLOAT, DOUBLE) or (_is_usual(a) and _is_usual(b)):
        return Typed(plain, BOOLEAN)
    nan, other = pc.is_nan(a.expr), pc.is_nan(b.expr)
    more = {
        "=": pc.and_kleene(nan, other), "<": pc.and_kleene(pc.invert(nan), other), "<=": other,
        ">": pc.and_kleene(nan, pc.invert(other)), ">=": nan,
    }[sign]  # fmt: skip
    # Of null and NaN the plain comparison is null, and so is the result.
    either_null = pc.or_kleene(pc.is_null(a.expr), pc.is_null(b.expr))
    return Typed(pc.if_else(either_null, pc.scalar(pa.scalar(None, BOOLEAN)), pc.or_kleene(plain, more)), BOOLEAN)


def _is_usual(value: Typed) -> bool:
    """True for a constant that is a number."""
    return value.literal and value.value is not None and not math.isnan(value.value)


def _alike(a: Typed, b: Typed, sign: str, at: str) -> tuple[Typed, Typed]:
    """Both values in the type in which Spark compares them."""
    for one, two in ((a, b), (b, a)):
        if one.kind == STRING and one.literal and two.kind == DATE and one.value is not None:
            day = constant(_day(one.value, at), DATE)
            return (day, two) if one is a else (two, day)
    kind = common((a, b), f"`{sign}`", at)
    return _literal_as(a, kind, at), _literal_as(b, kind, at)


def _literal_as(value: Typed, kind: pa.DataType, at: str) -> Typed:
    """The value in another type; a number that is written stays a constant."""
    if value.literal and isinstance(value.value, int) and not isinstance(value.value, bool) and kind in (FLOAT, DOUBLE):
        return constant(float(value.value), kind)
    if value.literal and kind == DOUBLE and is_decimal(value.kind) and value.value is not None:
        return constant(float(value.value), kind)
    return convert(value, kind, at)


def _day(text: str, at: str) -> date:
    try:
        if len(text) != 10:
            raise ValueError(text)
        return date.fromisoformat(text)
    except ValueError:
        raise NotTranslated(f"{text!r} is compared with a date", at, "write it as date '2024-05-01'") from None


def either(values: list[Typed], at: str) -> Typed:
    """True if the first value is equal to one of the others."""
    first, *others = values
    if any(one.kind == STRING for one in values) and any(one.kind == DATE for one in values):
        raise NotTranslated("`in` of date and string is not translated", at, "write dates as date '2024-05-01'")
    kind = common(values, "`in`", at)
    same = [compare("=", convert(first, kind, at), _literal_as(one, kind, at), at).expr for one in others]
    while len(same) > 1:  # a tree that is not deep
        pairs = [same[at : at + 2] for at in range(0, len(same), 2)]
        same = [pc.or_kleene(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return Typed(same[0], BOOLEAN)


def extreme(name: str, values: list[Typed], at: str) -> Typed:
    """`greatest` and `least`: of the values that are not null."""
    kind = common(values, name, at)
    if kind in (FLOAT, DOUBLE, STRING, BOOLEAN, pa.binary(), pa.null()):
        raise NotTranslated(f"{name} of {name_of(kind)} is not translated", at, "use case when")
    function: Any = pc.max_element_wise if name == "greatest" else pc.min_element_wise
    return Typed(function(*(convert(one, kind, at).expr for one in values)), kind)
