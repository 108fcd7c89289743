"""The table of functions that are translated, by Spark's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow.compute as pc

from tailrace.api.sql import arithmetic, comparison, dates, texts
from tailrace.api.sql.texts import number
from tailrace.api.sql.tree import NotTranslated
from tailrace.api.sql.typed import BOOLEAN, DOUBLE, FLOAT, Typed, constant, convert, is_number, name_of

LAZY = ("and", "or", "when", "coalesce")
"""Functions that compute an argument only where those before require it."""
ALIASES: dict[str, str] = {
    "if": "when", "ifnull": "coalesce", "nvl": "coalesce", "mod": "%", "ceiling": "ceil", "lcase": "lower", "ucase": "upper",
    "substr": "substring", "char_length": "length", "character_length": "length", "len": "length",
    "==": "=", "<>": "!=", "!": "not",
    "||": "concat", "dateadd": "date_add", "datediff": "date_diff", "signum": "sign", "regexp": "rlike",
    "regexp_like": "rlike", "date": "to_date",
}  # fmt: skip
"""Another name of a function -> its name here."""
REWRITTEN = ("between", "nullif", "nvl2", "isnotnull")
"""Functions that stand for calls of others (`translation`)."""


@dataclass(frozen=True)
class SqlFunction:
    """A function: the least and the largest number of its arguments, and what makes the result of them and the place.
    `fails` is true if it may fail for some values."""

    least: int
    most: int
    make: Callable[..., Typed]
    fails: bool = False


def _logical_not(a: Typed, at: str) -> Typed:
    return Typed(pc.invert(condition(a, "not", at)), BOOLEAN)


def condition(a: Typed, what: str, at: str) -> Any:
    """The expression of a truth value. Raises `NotTranslated` for another type."""
    if a.kind == BOOLEAN:
        return a.expr
    if a.literal and a.value is None:
        return constant(None, BOOLEAN).expr
    raise NotTranslated(
        f"{what} of {name_of(a.kind)}, which is no truth value, is not translated", at, "compare it with something"
    )


def _isnan(a: Typed, at: str) -> Typed:
    if a.kind not in (FLOAT, DOUBLE):
        raise NotTranslated(f"isnan of {name_of(a.kind)} is not translated", at)
    return Typed(pc.coalesce(pc.is_nan(a.expr), pc.scalar(False)), BOOLEAN)


def _nanvl(a: Typed, b: Typed, at: str) -> Typed:
    if not {a.kind, b.kind} <= {FLOAT, DOUBLE}:
        raise NotTranslated(f"nanvl of {name_of(a.kind)} and {name_of(b.kind)} is not translated", at)
    kind = FLOAT if a.kind == b.kind == FLOAT else DOUBLE
    one, other = (convert(x, kind, at).expr for x in (a, b))
    return Typed(pc.if_else(pc.coalesce(pc.is_nan(one), pc.scalar(False)), other, one), kind)


def _sign(a: Typed, at: str) -> Typed:
    if not is_number(a.kind) or a.kind == FLOAT:
        raise NotTranslated(f"sign of {name_of(a.kind)} is not translated", at)
    found = convert(a, DOUBLE, at).expr
    zero = pc.scalar(0.0)
    # 0.0 and NaN, whose sign is themselves.
    one = pc.if_else(found > zero, pc.scalar(1.0), pc.if_else(found < zero, pc.scalar(-1.0), found))
    return Typed(one, DOUBLE)


def _substring(a: Typed, start: Typed, length: Typed | None = None, *, at: str) -> Typed:
    size = None if length is None else number(length, "the length of a substring", at)
    return texts.part(a, number(start, "the start of a substring", at), size, at)


def _left_part(a: Typed, count: Typed, at: str) -> Typed:
    return texts.part(a, 1, number(count, "the length of left", at), at)


def _right(a: Typed, count: Typed, at: str) -> Typed:
    size = number(count, "the length of right", at)
    return texts.part(a, -size, None, at) if size > 0 else texts.part(a, 1, 0, at)


def _with_name(function: Any, name: str) -> Callable[..., Typed]:
    return lambda *given, at: function(name, *given, at)


def _with_place(function: Any) -> Callable[..., Typed]:
    return lambda *given, at: function(*given, at)


def _several(function: Any) -> Callable[..., Typed]:
    return lambda *given, at: function(list(given), at)


def _optional(function: Any, places: int) -> Callable[..., Typed]:
    """A function whose last argument may be left out."""
    return lambda *given, at: function(*given, *(None,) * (places - len(given)), at)


def _padding(name: str) -> Callable[..., Typed]:
    return lambda a, size, fill=None, *, at: texts.pad(name, a, size, fill, at)


_MANY = 10_000
_each = {
    **{sign: SqlFunction(2, 2, _with_name(arithmetic.calculate, sign), True) for sign in "+-*"},
    **{sign: SqlFunction(2, 2, _with_name(arithmetic.bits, sign)) for sign in "&|^"},
    **{
        sign: SqlFunction(2, 2, _with_name(comparison.compare, sign))
        for sign in ("=", "!=", "<", "<=", ">", ">=", "<=>")
    },
    **{name: SqlFunction(2, _MANY, _several(partial(comparison.extreme, name))) for name in ("greatest", "least")},
    **{name: SqlFunction(1, 1, _with_name(texts.change_case, name), True) for name in ("upper", "lower")},
    **{name: SqlFunction(1, 1, _with_name(texts.trim, name)) for name in ("trim", "ltrim", "rtrim")},
    **{name: SqlFunction(2, 2, _with_name(texts.contains, name)) for name in ("contains", "startswith", "endswith")},
    **{
        name: SqlFunction(1, 1, _with_name(dates.date_part, name), True)
        for name in (*dates.DATE_PARTS, *dates.TIME_PARTS)
    },
    **{
        name: SqlFunction(1, 1, _with_name(dates.since_1970, name), True)
        for name in ("unix_seconds", "unix_millis", "unix_micros")
    },
    **{
        name: SqlFunction(1, 1, _with_name(dates.instant_of, name), True)
        for name in ("timestamp_seconds", "timestamp_millis", "timestamp_micros")
    },
    **{name: SqlFunction(1, 1, _with_name(arithmetic.to_whole, name), True) for name in ("floor", "ceil")},
}
FUNCTIONS: dict[str, SqlFunction] = {
    **_each,
    "/": SqlFunction(2, 2, _with_place(arithmetic.divide), True),
    "div": SqlFunction(2, 2, _with_place(arithmetic.quotient), True),
    "%": SqlFunction(2, 2, _with_place(arithmetic.remainder), True),
    "pmod": SqlFunction(2, 2, _with_place(arithmetic.positive_remainder), True),
    "negative": SqlFunction(1, 1, _with_place(arithmetic.negative), True),
    "~": SqlFunction(1, 1, _with_place(arithmetic.bits_not)),
    "abs": SqlFunction(1, 1, _with_place(arithmetic.absolute), True),
    "sign": SqlFunction(1, 1, _with_place(_sign)),
    "sqrt": SqlFunction(1, 1, _with_place(arithmetic.root)),
    "round": SqlFunction(1, 2, _optional(arithmetic.round_number, 2), True),
    "not": SqlFunction(1, 1, _with_place(_logical_not)),
    "in": SqlFunction(2, _MANY, _several(comparison.either)),
    "isnull": SqlFunction(1, 1, lambda a, at: Typed(pc.is_null(a.expr), BOOLEAN)),
    "nanvl": SqlFunction(2, 2, _with_place(_nanvl)),
    "isnan": SqlFunction(1, 1, _with_place(_isnan)),
    "concat": SqlFunction(1, _MANY, _several(texts.join)),
    "length": SqlFunction(1, 1, _with_place(texts.length)),
    "octet_length": SqlFunction(1, 1, _with_place(texts.bytes_of)),
    "substring": SqlFunction(2, 3, _substring),
    "left": SqlFunction(2, 2, _with_place(_left_part)),
    "right": SqlFunction(2, 2, _with_place(_right)),
    "like": SqlFunction(2, 2, _with_place(texts.like)),
    "rlike": SqlFunction(2, 2, _with_place(texts.rlike)),
    "replace": SqlFunction(2, 3, _optional(texts.replace, 3)),
    "lpad": SqlFunction(2, 3, _padding("lpad")),
    "rpad": SqlFunction(2, 3, _padding("rpad")),
    "reverse": SqlFunction(1, 1, _with_place(texts.reverse)),
    "last_day": SqlFunction(1, 1, _with_place(dates.last_day), True),
    "date_add": SqlFunction(2, 2, lambda a, b, at: arithmetic.add_days(a, b, at), True),
    "date_sub": SqlFunction(2, 2, lambda a, b, at: arithmetic.add_days(a, b, at, "-"), True),
    "date_diff": SqlFunction(2, 2, _with_place(arithmetic.days_between), True),
    "trunc": SqlFunction(2, 2, _with_place(dates.truncate), True),
    "to_date": SqlFunction(1, 1, _with_place(dates.from_days), True),
}
"""Name of a function in small letters -> how it is translated."""

_AGGREGATES = "sum count avg mean min max first last collect_list collect_set any_value stddev variance count_if"
_OTHER = "it gives other values when a job goes on after a failure"
_CLOCKS = "now current_timestamp current_date curdate localtimestamp unix_timestamp"
_MATHS = ("exp", "ln", "log", "log10", "log2", "pow", "power", "sin", "cos", "tan")
_RANKS = "row_number rank dense_rank ntile percent_rank"
_ZONED = (
    "from_unixtime to_timestamp date_format date_trunc from_utc_timestamp to_utc_timestamp timestamp to_unix_timestamp"
)
INSTEAD: dict[str, str] = {
    **dict.fromkeys(_AGGREGATES.split(), "it is an aggregate: use key_by(...).aggregate(...)"),
    **dict.fromkeys(_RANKS.split(), "use key_by(...).top(n, by=...), or window(...).rank(by=...)"),
    **dict.fromkeys(("lag", "lead"), "use key_by(...).lag(n)"),
    **dict.fromkeys(("explode", "explode_outer", "posexplode"), "use explode(column)"),
    **dict.fromkeys(("window", "session_window"), "use key_by(...).window(tr.Tumbling(...)), or tr.Session(...)"),
    **dict.fromkeys(("rand", "randn", "uuid", "shuffle"), f"{_OTHER}; use sample, or map"),
    **dict.fromkeys(_CLOCKS.split(), f"{_OTHER}; use ctx.call in process"),
    **dict.fromkeys(_ZONED.split(), "it depends on the time zone of a session; use map_batches"),
    **dict.fromkeys(_MATHS, "its last digits differ between Arrow and Java; use map_batches"),
    "monotonically_increasing_id": "use process and a tr.OperatorState",
}  # fmt: skip
"""Name of a function that is not translated -> what to do."""
