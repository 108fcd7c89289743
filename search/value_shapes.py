"""Random types of columns, values for them, and the many ways in which Python may hold one value. For the search in
`search.values`."""

from __future__ import annotations

import math
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as t

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "+05:30"]
NAMES = [
    "x", "_1", "_2", "_id", "_fields", "_make", "_asdict", "_replace", "count", "index", "asDict", "class", "None", "self",
    "a b", "a.b", "0x", "", " ", "%s", "{x}", "n\nl", "ünï", "日本", "ﬁ", "__class__", "__len__", "__fields__", "__x",
]  # fmt: skip
"""Names of columns, each of which is a different name to Python."""
NO_VALUES = [
    pd.NaT, pd.NA, np.datetime64("NaT"), np.timedelta64("NaT", "s"), np.timedelta64(1, "M"), pd.Period("2024-01"),
    pd.Interval(0, 1), np.complex128(1j), np.ma.masked, pd.Series([1]), np.array([[1]]), object(),
]  # fmt: skip
"""Values of numpy, pandas and Python that no column holds."""
_MOMENTS = [0, 1_711_846_800, 1_729_990_800, 1_730_613_600, -1_693_706_400, 1_700_000_000]
"""Seconds since 1970, at and around changes of the clock."""
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000}
_EPOCH = datetime(1970, 1, 1)
_DECIMALS = [
    (getattr(pa, name), digits)
    for name, digits in (("decimal32", 9), ("decimal64", 18), ("decimal128", 38), ("decimal256", 76))
    if hasattr(pa, name)  # the narrow ones came with pyarrow 19
]
_LIST_TYPES = (pa.list_, pa.large_list)
_named: Any = namedtuple


def scalar_type(random: Random) -> pa.DataType:
    """A type without other types in it."""
    unit = random.choice(list(_UNITS))
    scale = random.randint(0, 9)
    return random.choice(
        [
            pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
            pa.float16(), pa.float32(), pa.float64(), pa.decimal256(60, 20), decimal_type(random, scale),
            pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(4), pa.date32(),
            pa.timestamp(unit), pa.timestamp(unit, random.choice(ZONES)), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
            pa.duration(unit), pa.null(),
        ]
    )  # fmt: skip


def decimal_type(random: Random, scale: int | None = None) -> pa.DataType:
    """A type of decimals of any width."""
    made, most = random.choice(_DECIMALS)
    precision = random.randint(1 if scale is None else min(max(scale, 1), most), most)
    return made(precision, random.randint(0, precision) if scale is None else min(scale, precision))


def wild_decimal(random: Random) -> Decimal:
    """A decimal with more digits than types have, before or behind the point."""
    digits = random.choice([random.randrange(10 ** random.randint(1, 99)), 10 ** random.randint(0, 80)])
    return Decimal((random.randint(0, 1), tuple(map(int, str(digits))), random.randint(-99, 9)))


def encoded_type(random: Random) -> pa.DataType:
    """A type that encodes its values in another way than the plain one."""
    return random.choice(
        [
            pa.dictionary(pa.int16(), pa.string()), pa.dictionary(pa.int32(), pa.int64()), pa.string_view(),
            pa.binary_view(), pa.run_end_encoded(pa.int32(), pa.string()), pa.list_view(pa.int64()),
            pa.list_view(pa.timestamp("s")), pa.large_list_view(pa.string_view()),
            pa.struct([("v", pa.list_view(pa.int8()))]),
        ]
    )  # fmt: skip


def any_type(random: Random, depth: int = 2) -> pa.DataType:
    """A type of any kind, nested at most `depth` times; encoded at the top only, where Arrow can make it."""
    kind = random.randint(0, 9) if depth else 9
    if kind == 0:
        return random.choice(_LIST_TYPES)(any_type(random, depth - 1))
    if kind == 1:
        return pa.list_(any_type(random, depth - 1), random.randint(0, 3))
    if kind == 2:
        key = random.choice([pa.string(), pa.int32(), pa.date32()])
        return pa.map_(key, any_type(random, depth - 1))
    if kind == 3:
        fields = [pa.field(f"f{i}", any_type(random, depth - 1)) for i in range(random.randint(1, 3))]
        return pa.struct(fields)
    return encoded_type(random) if kind == 4 and depth == 2 else scalar_type(random)


def value_of(random: Random, kind: pa.DataType) -> Any:
    """A value of a type, as rows hold it; sometimes None."""
    if random.random() < 0.15 or t.is_null(kind):
        return None
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return value_of(random, kind.value_type)
    if t.is_boolean(kind):
        return random.random() < 0.5
    if t.is_integer(kind):
        return _integer(random, kind)
    if t.is_floating(kind):
        return _float(random, kind)
    if t.is_decimal(kind):
        return _decimal(random, kind)
    if t.is_string(kind) or t.is_large_string(kind) or kind == pa.string_view():
        return random.choice(["", "a", "ab", "\0", "ä\U0001f600", " ", str(random.randint(0, 9))])
    if t.is_fixed_size_binary(kind):
        return random.randbytes(kind.byte_width)
    if t.is_binary(kind) or t.is_large_binary(kind) or kind == pa.binary_view():
        return random.randbytes(random.randint(0, 3))
    return _time_value(random, kind) if kind.num_fields == 0 else _nested_value(random, kind)


def _integer(random: Random, kind: pa.DataType) -> int:
    bits = kind.bit_width
    low, high = (0, (1 << bits) - 1) if t.is_unsigned_integer(kind) else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return random.choice([low, high, 0, 1, random.randint(low, high), random.randint(0, 20), max(low, -1)])


def _float(random: Random, kind: pa.DataType) -> float:
    drawn = random.choice(
        [0.0, -0.0, 1.0, 0.1, -1.5, 1e30, 1e-30, 2.0**53, math.nan, math.inf, -math.inf, random.uniform(-9, 9)]
    )
    with np.errstate(over="ignore"):
        return drawn if kind.bit_width == 64 else float((np.float16 if kind.bit_width == 16 else np.float32)(drawn))


def _decimal(random: Random, kind: pa.DataType) -> Decimal:
    most = 10**kind.precision - 1
    whole = random.choice([0, 1, -1, most, -most, random.randint(-most, most), random.randint(-99, 99) % (most + 1)])
    digits = tuple(map(int, str(abs(whole))))
    return Decimal((int(whole < 0), digits, -kind.scale))


def _time_value(random: Random, kind: pa.DataType) -> Any:
    if t.is_date(kind):
        return random.choice([date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), date(2024, 2, 29)])
    per_second = _UNITS[kind.unit]
    if t.is_timestamp(kind):
        units = random.choice(_MOMENTS) * per_second + random.randint(-7_200 * per_second, 7_200 * per_second)
        wall = _EPOCH + timedelta(microseconds=units * (1_000_000 // per_second))
        return wall if kind.tz is None else wall.replace(tzinfo=UTC).astimezone(pa.lib.string_to_tzinfo(kind.tz))
    micros = 1_000_000 // per_second
    if t.is_duration(kind):
        return timedelta(microseconds=random.choice([0, 1, -1, random.randint(-(10**9), 10**9)]) * micros)
    return (datetime.min + timedelta(microseconds=random.randrange(86_400 * per_second) * micros)).time()


def _nested_value(random: Random, kind: pa.DataType) -> Any:
    if t.is_struct(kind):
        return {field.name: value_of(random, field.type) for field in kind}
    if t.is_map(kind):
        keys = [value_of(random, kind.key_type) for _ in range(random.randint(0, 3))]
        return {key: value_of(random, kind.item_type) for key in keys if key is not None}
    count = kind.list_size if t.is_fixed_size_list(kind) else random.randint(0, 3)
    return [value_of(random, kind.value_type) for _ in range(count)]


def spelt(random: Random, value: Any, kind: pa.DataType) -> Any:
    """A value as a user's program may hold it: equal, maybe of another Python type."""
    if value is None or random.random() < 0.4:
        return value
    if t.is_struct(kind):
        items = {field.name: spelt(random, value[field.name], field.type) for field in kind}
        turned = dict(random.sample(list(items.items()), len(items)))
        return random.choice([turned, _named("P", turned)(**turned), tuple(items.values())])
    if t.is_map(kind):
        return random.choice([value, list(value.items())])
    if isinstance(value, list):
        made = [spelt(random, one, kind.value_type) for one in value]
        return random.choice([made, tuple(made)])
    return random.choice([value, *_others(value, kind)])


def _others(value: Any, kind: pa.DataType) -> list[Any]:
    if isinstance(value, bool):
        return [np.bool_(value)]
    if isinstance(value, int):
        return [Decimal(value), np.int64(value) if -(1 << 63) <= value < 1 << 63 else np.uint64(value)]
    if isinstance(value, float):
        return [np.float64(value), *([int(value)] if math.isfinite(value) and value == int(value) and value else [])]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return [value.astimezone(zone) for zone in (UTC, ZoneInfo("Asia/Tokyo"), timezone(timedelta(hours=-3)))]
    if isinstance(value, bytes) and not t.is_dictionary(kind):
        return [bytearray(value)]
    return [np.str_(value)] if isinstance(value, str) and not value.endswith("\0") else []


def same(a: Any, b: Any) -> bool:
    """True where two values of rows are one, in type too. A NaN equals itself, and times have the same instant and
    zone."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (a != a and b != b)
    if isinstance(a, datetime):
        return (a.replace(tzinfo=None), a.fold, a.utcoffset()) == (b.replace(tzinfo=None), b.fold, b.utcoffset())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(map(str, a)) == list(map(str, b)) and all(map(same, a.values(), b.values()))
    return bool(a == b)


def alike(a: Any, b: Any) -> bool:
    """True where two values are equal, whatever their types: what a column may make of a value."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, float) and isinstance(b, float) and a != a and b != b:
        return True
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(value, b[name]) for name, value in a.items())
    if isinstance(a, datetime) and isinstance(b, datetime) and a.tzinfo is not None and b.tzinfo is not None:
        return a.astimezone(UTC) == b.astimezone(UTC)
    return bool(a == b)
