"""Random expressions of SQL, and a table with the values at which they are hard."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

UTC = dt.UTC
D, T = dt.date, dt.datetime
_VALUES: dict[str, tuple[str, list[Any]]] = {
    "y": ("tinyint", [0, 1, -1, 127, -128, 5]),
    "h": ("smallint", [0, 3, -3, 32767, -32768]),
    "i": ("int", [0, 1, -1, 2, 7, -7, 2**31 - 1, -(2**31), 100]),
    "j": ("int", [3, -3, 0, 1, -1, 10, 2]),
    "l": ("bigint", [0, 1, -5, 2**53 + 1, 2**63 - 1, -(2**63), 86_400]),
    "f": ("float", [0.0, -0.0, 1.5, -2.25, math.nan, math.inf, 16777216.0, 0.1, 3.4e38]),
    "d": ("double", [0.0, -0.0, 1.5, -2.5, 0.1, math.nan, math.inf, -math.inf, 1e300, 5e-324, 2.5]),
    "n": ("decimal(10,2)", [Decimal(one) for one in ("0.00", "1.50", "-2.25", "99999999.99", "-0.01", "2.50")]),
    "o": (
        "decimal(38,10)",
        [Decimal(one) for one in ("0", "1.5", "-9999999999999999999999999999.9999999999", "2E-10")],
    ),
    "m": ("decimal(5,4)", [Decimal(one) for one in ("0.0000", "1.2345", "-9.9999", "0.5000", "-0.5000")]),
    "s": (
        "string",
        ["", "a", "Tea", "tea ", " jam", "a_b%c", "línea", "日本語", "x\ny", "12", "-7", "2024-05-01", "\\", "😀a"],
    ),
    "r": ("string", ["a", "te", "b", "", "true", "1.5", "1e3", "aa%", "Z"]),
    "b": ("boolean", [True, False]),
    "c": ("boolean", [False, True]),
    "t": (
        "date",
        [D(2024, 2, 29), D(1970, 1, 1), D(1969, 12, 31), D(1, 1, 1), D(9999, 12, 31), D(2023, 1, 1), D(2020, 12, 28)],
    ),
    "u": ("date", [D(2024, 3, 1), D(1582, 10, 10), D(2000, 1, 1)]),
    "w": (
        "timestamp_ntz",
        [T(2024, 3, 10, 2, 30), T(1969, 12, 31, 23, 59, 59, 999_999), T(2024, 5, 1), T(1900, 1, 1, 0, 0, 0, 1)],
    ),
    "z": (
        "timestamp",
        [
            T(2024, 3, 10, 7, 30, tzinfo=UTC),
            T(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            T(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
        ],
    ),
    "v": ("interval day to second", [dt.timedelta(0), dt.timedelta(minutes=5), dt.timedelta(days=-1, microseconds=1)]),
}
_KINDS = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(5,4)": pa.decimal128(5, 4),
    "decimal(38,10)": pa.decimal128(38, 10),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "interval day to second": pa.duration("us"),
}
SCHEMA = pa.schema([("id", pa.int32()), *((name, _KINDS[kind]) for name, (kind, _) in _VALUES.items())])
DDL = ", ".join(["id int", *(f"{name} {kind}" for name, (kind, _) in _VALUES.items())])


_LETTERS_OF_TEXTS = "aAzZ09_% \\'\"\t\n\r\u00a0\u3000ßİıſéÉǆŁΣςσ日本😀\u200d👧\u0301\ufeff\x00\x1f\x7f٣１"
_NUMBERS_AS_TEXTS = [
    "+5", " 12 ", "1e3", "1d", "1.5F", "0x1F", "nan", "NaN", "-Infinity", "inf", "1.", "-.5", "2024-2-9", "2024-02-30",
    " 2024-01-01 ", "99999999999999999999", "1_000", "TRUE", "t", "１２", "12\u00a0", "\t7\n", "9223372036854775807",
    "-9223372036854775808", "9223372036854775808", "1e400", "4.9e-324", "-0", "0012", "+", "-", ".", "e5", "0000-01-01",
    "10000-01-01", "2024-01-01T00:00:00", "2024", "2024-05", "127", "128", "32768", "2147483648", "1e-400", "1 2",
]  # fmt: skip
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def _any_value(rng: random.Random, kind: str) -> Any:
    """A value from the whole range of a type, often from its ends."""
    if kind in _BITS:
        end = 2 ** (_BITS[kind] - 1)
        return rng.choice((-end, end - 1, -end + 1, end - 2, 0, -1, rng.randrange(-end, end), rng.randint(-100, 100)))
    if kind in ("float", "double"):
        code, size = ("f", 4) if kind == "float" else ("d", 8)
        bits = float(struct.unpack(code, rng.randbytes(size))[0])
        return rng.choice((bits, bits, float(rng.randint(-(2**53), 2**53)), rng.randint(-9, 9) / 2))
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(","))
        digits = rng.choice((precision, rng.randint(1, precision)))
        return Decimal(rng.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale, Context(prec=60))
    if kind == "string":
        drawn = "".join(rng.choice(_LETTERS_OF_TEXTS) for _ in range(rng.randint(0, 6)))
        return rng.choice((drawn, drawn, rng.choice(_NUMBERS_AS_TEXTS)))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "date":
        return D.fromordinal(rng.choice((1, 719_163, 719_162, 3_652_059, rng.randint(1, 3_652_059))))
    if kind == "interval day to second":
        return dt.timedelta(microseconds=rng.choice((1, -1, 10**6, rng.randint(-(10**17), 10**17))))
    first, last = T(1, 1, 2), T(9999, 12, 30)
    micros = rng.choice((0, 1, rng.randint(0, (last - first) // dt.timedelta(microseconds=1))))
    made = rng.choice((first, T(1970, 1, 1), T(1883, 11, 18))) + dt.timedelta(microseconds=rng.choice((0, 1, 999_999)))
    made = rng.choice((made, last, first + dt.timedelta(microseconds=micros)))
    return made.replace(tzinfo=UTC) if kind == "timestamp" else made


def table(rng: random.Random, count: int, *, wild: bool = False) -> pa.RecordBatch:
    """Records with drawn values, a sixth of them null: those at which expressions are hard, or with `wild` any."""
    columns: list[list[Any]] = [list(range(count))]
    for kind, values in _VALUES.values():
        made = [_any_value(rng, kind) if wild else rng.choice(values) for _ in range(count)]
        columns.append([None if rng.random() < 0.17 else value for value in made])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


_NUMBERS = ["y", "h", "i", "j", "l", "f", "d", "n", "m", "o"]
_LITERALS = {
    "number": [
        "0",
        "1",
        "2",
        "-1",
        "7",
        "1.5",
        "0.25",
        "-2.5",
        "1e2",
        "3L",
        "2.5D",
        "3000000000",
        "5Y",
        "-128Y",
        "1.10BD",
        "0.0D",
        "NULL",
    ],
    "text": ["'a'", "'te'", "''", "'a' 'b'", '"x"', "'a\\nb'", "'\\''", "'日本'", "NULL", "r'a\\b'"],
    "truth": ["true", "false", "cast(NULL as boolean)"],
    "date": ["date '2024-02-29'", "date '1582-10-10'", "t", "u"],
    "wall": ["timestamp_ntz '2024-03-10 02:30:00'", "w"],
    "instant": ["timestamp '2024-03-10 07:30:00Z'", "timestamp '2024-03-10 07:30:00+05:30'", "z"],
    "span": ["interval '5' minute", "interval 2 hours", "interval -90 seconds", "interval '1' day", "v"],
}
_FIELDS = {
    "number": _NUMBERS,
    "text": ["s", "r"],
    "truth": ["b", "c"],
    "date": ["t", "u"],
    "wall": ["w"],
    "instant": ["z"],
    "span": ["v"],
}
_TEXTS = {
    "number": r"""
        N + N ; N - N ; N * N ; N / N ; N % N ; N div N ; - N ; abs(N) ; pmod(N, N) ; N & N ; N | N ; N ^ N ; ~ N ;
        sign(N) ; sqrt(N) ; round(N) ; round(N, 1) ; floor(N) ; ceil(N) ; greatest(N, N) ; least(N, N, N) ;
        case when B then N else N end ; case when B then N when B then N end ; case N when N then N else N end ;
        if(B, N, N) ; coalesce(N, N) ; nvl(N, N) ; nullif(N, N) ; nvl2(N, N, N) ; cast(N as int) ; cast(N as bigint) ;
        cast(N as double) ; cast(N as float) ; cast(N as decimal(10,2)) ; cast(N as decimal(20,4)) ;
        cast(N as tinyint) ; cast(B as int) ; cast(S as int) ; cast(S as double) ; length(S) ; octet_length(S) ;
        year(D) ; month(D) ; day(D) ; dayofweek(D) ; weekday(D) ; dayofyear(D) ; quarter(D) ; weekofyear(D) ;
        hour(W) ; nanvl(d, N) ; extract(year from D) ; extract(week from D) ; extract(dow from D) ;
        extract(doy from D) ; extract(minute from W) ; minute(W) ; second(W) ; year(W) ; datediff(D, D) ;
        unix_seconds(Z) ; unix_millis(Z) ;
        unix_micros(Z) ; cast(Z as bigint) ; mod(N, N) ; case when N <> 0 then N / N end
    """,
    "text": r"""
        S || S ; concat(S, S, S) ; trim(S) ; lpad(S, 3, '*') ; rpad(S, 2) ; lpad(S, 0) ; reverse(S) ; ltrim(S) ;
        rtrim(S) ; substring(S, 2) ; substring(S, -2, 1) ;
        substring(S, 0, 2) ; substr(S, -5, 3) ; left(S, 2) ; right(S, 2) ; left(S, -1) ; replace(S, 'a', 'bb') ;
        replace(S, 'a') ; coalesce(S, S) ; case when B then S else S end ; cast(N as string) ; cast(B as string) ;
        cast(D as string) ; nullif(S, S) ; lower(S) ; upper(S) ; greatest(S, S)
    """,
    "truth": r"""
        N = N ; N == N ; N < N ; N <= N ; N > N ; N >= N ; N <> N ; N != N ; N <=> N ; N between N and N ;
        N in (N, N) ; N not in (N, N, N) ; N is null ; N is not null ; N is distinct from N ; S = S ; S < S ; S >= S ;
        S <=> S ; S in ('a', S) ; S between S and S ; S like 'a%' ; S like '_' ; S like 'a\_b\%c' ; S not like '%a%' ;
        S rlike '^[a-z]+' ; S rlike 'a|b' ; S rlike '\\d{2}' ; S rlike r'\w' ; startswith(S, 'a') ; endswith(S, 'a') ;
        contains(S, 'e') ; B and B ; B or B ; not B ; ! B ; B = B ; B < B ; B is true ; B is not false ; B <=> B ;
        isnan(N) ; isnull(N) ; isnotnull(S) ; cast(N as boolean) ; D = D ; D < D ; D between D and D ;
        D > '2024-01-01' ; W < W ; W = W ; Z = Z ; Z <= Z ; D = W ; V < V ; case when B then B end ; coalesce(B, B) ;
        if(B, B, B) ; j <> 0 and N / j > N ; j = 0 or i % j = N
    """,
    "date": r"""
        D + N ; last_day(D) ; D - N ; date_add(D, N) ; date_sub(D, N) ; trunc(D, 'month') ; trunc(D, 'week') ;
        trunc(D, 'YEAR') ;
        trunc(D, 'quarter') ; cast(W as date) ; cast(S as date) ; coalesce(D, D) ; case when B then D else D end ;
        greatest(D, D) ; to_date(S) ; date_add(D, j)
    """,
    "wall": r"""
        W + V ; W - V ; V + W ; cast(D as timestamp_ntz) ; coalesce(W, W) ; if(B, W, W) ; least(W, W)
    """,
    "instant": r"""
        Z + interval '5' minute ; Z - interval 3 hours ; timestamp_seconds(N) ; timestamp_millis(N) ;
        timestamp_micros(N) ; cast(l as timestamp) ; coalesce(Z, Z) ; case when B then Z end
    """,
    "span": r"""
        W - W ; D - D ; V + V ; V - V ; - V ; coalesce(V, V)
    """,
}
"""Kind of a value -> rules, with a letter for each value in them."""
RULES = {kind: [one.strip() for one in text.split(";")] for kind, text in _TEXTS.items()}
_LETTERS = {"N": "number", "S": "text", "B": "truth", "D": "date", "W": "wall", "Z": "instant", "V": "span"}


def expression(rng: random.Random, kind: str, depth: int) -> str:
    """A drawn expression. Operators in it have parentheses mostly, not always."""
    if depth == 0:
        return rng.choice(_FIELDS[kind] if rng.random() < 0.7 else _LITERALS[kind])
    return _filled(rng, rng.choice(RULES[kind]), depth)


def _filled(rng: random.Random, rule: str, depth: int) -> str:
    out = []
    quoted = False
    for at, letter in enumerate(rule):
        quoted ^= letter == "'"
        alone = not rule[at - 1 : at].isalpha() and not rule[at + 1 : at + 2].isalpha()
        if quoted or letter not in _LETTERS or not alone:
            out.append(letter)
            continue
        inner = expression(rng, _LETTERS[letter], rng.choice((0, depth - 1)))
        out.append(f"({inner})" if " " in inner and rng.random() < 0.7 else inner)
    return "".join(out)


_SIGNS = ["+", "-", "*", "%", "div", "&", "|", "^", "=", "<", ">", "<=>", "and", "or", "||"]
_SIGNS += ["is null and", "between i and j and", "<> -", "* -", "not in (1, 2) or", "in (3) and not", "= not"]


def chain(rng: random.Random) -> str:
    """Operators without parentheses. sqlglot groups some in another way than Spark."""
    out = [rng.choice(["", "", "", "", "", "not ", "- ", "~ ", "! "])]
    for _ in range(rng.randint(2, 5)):
        out += [rng.choice(["i", "j", "h", "y", "1", "2", "b", "c", "s", "r", "l"]), rng.choice(_SIGNS)]
    return " ".join((*out, rng.choice(["i", "j", "b", "2"])))


def expressions(rng: random.Random, count: int) -> list[str]:
    """Each rule with columns once, and drawn ones."""
    simple = [_filled(rng, rule, 1) for rules in RULES.values() for rule in rules]
    kinds = list(RULES)
    return simple + [expression(rng, rng.choice(kinds), rng.choice((1, 2, 2, 3))) for _ in range(count)]


def query(rng: random.Random) -> str:
    """A whole query: results that use each other, `*`, names in letters of any size, and a condition."""
    items = [f"{expression(rng, kind, rng.choice((0, 1, 2)))} as {name}" for kind, name in _drawn_results(rng)]
    if rng.random() < 0.5:
        items.append(
            rng.choice(("r1 is null as r9", "coalesce(R1, r1) as R9", "`r1` as `r 9`", "I as r9", "`J` as r9"))
        )
    star = rng.choice(("*", "* except (s, R, z)", "id", "ID as id", "Stream.id"))
    condition = f" where {expression(rng, 'truth', rng.choice((1, 2, 3)))}" if rng.random() < 0.8 else ""
    return f"select {', '.join((star, *items))} from stream{condition}"


def _drawn_results(rng: random.Random) -> list[tuple[str, str]]:
    return [(rng.choice(list(RULES)), f"r{at}") for at in range(1, rng.randint(2, 4))]
