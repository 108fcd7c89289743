"""Types and values for the functions of Arrow: ends of ranges, zeros of both signs, NaN, far dates, characters of several
code points. Values are exact: times are numbers of their units."""

from __future__ import annotations

import math
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from search.value_shapes import decimal_type

SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
INTEGERS = [*SIGNED, *UNSIGNED]
FLOATS = [pa.float32(), pa.float64()]
HALF = [pa.float16()]
TEXTS = [pa.string(), pa.large_string()]
BYTES = [pa.binary(), pa.large_binary()]
UNITS = ("s", "ms", "us", "ns")
NAIVE = [pa.timestamp(unit) for unit in UNITS]
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Monrovia")
ZONED = [pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES]
DATES = [pa.date32(), pa.date64()]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
DURATIONS = [pa.duration(unit) for unit in UNITS]
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY = 86_400

_CHARACTERS = [
    "a", "Z", "ä", "ß", "ÿ", "0", "9", " ", "\t", "\n", "\0", "_", "%", ".", "\\", "Ω", "ς", "σ", "İ", "ı", "ǆ", "ǅ", "ﬁ",
    "e\u0301", "é", "한", "\u1112\u1161\u11ab", "中", "٣", "½", "²", "Ⅷ", "\u00a0", "\u2003", "\u200b", "\ufeff", "😀",
    "👨\u200d👩\u200d👧", "𝔸", "\U00010400", "\uffff", "\U0010ffff",
]  # fmt: skip


def decimals(random: Random) -> pa.DataType:
    """A type of decimals, of any width."""
    return decimal_type(random)


def value(random: Random, kind: pa.DataType) -> Any:
    """An exact value of a type; sometimes None."""
    if random.random() < 0.12 or t.is_null(kind):
        return None
    if t.is_boolean(kind):
        return random.random() < 0.5
    if t.is_integer(kind):
        return _integer(random, kind)
    if t.is_floating(kind):
        return _float(random, kind)
    if t.is_decimal(kind):
        return _decimal(random, kind)
    if t.is_string(kind) or t.is_large_string(kind):
        return text(random)
    if t.is_fixed_size_binary(kind):
        return random.randbytes(kind.byte_width)
    if t.is_binary(kind) or t.is_large_binary(kind):
        return random.choice([text(random).encode(), random.randbytes(random.randint(0, 5))])
    if t.is_struct(kind):
        return {field.name: value(random, field.type) for field in kind}
    if t.is_map(kind):
        keys = [one for _ in range(random.randint(0, 3)) if (one := value(random, kind.key_type)) is not None]
        return [(key, value(random, kind.item_type)) for key in keys]
    if kind.num_fields:
        count = kind.list_size if t.is_fixed_size_list(kind) else random.randint(0, 4)
        return [value(random, kind.value_type) for _ in range(count)]
    return _time(random, kind)


def text(random: Random) -> str:
    """A text, often short, sometimes a time."""
    if random.random() < 0.1:
        year, month, day = (
            random.choice([1, 33, 1969, 2024, 9999]),
            random.choice([1, 2, 4, 12]),
            random.choice([1, 28, 29, 30, 31]),
        )
        pattern = random.choice(["{:04d}-{:02d}-{:02d}", "{:04d}{:02d}{:02d}", "{:04d}-{:02d}-{:02d}T23:59:07"])
        return pattern.format(year, month, day)
    return "".join(random.choices(_CHARACTERS, k=random.choice([0, 1, 1, 2, 3, 6, 14])))


def limits(kind: pa.DataType) -> tuple[int, int]:
    """The smallest and the largest value of a type of whole numbers."""
    bits = kind.bit_width
    return (0, (1 << bits) - 1) if t.is_unsigned_integer(kind) else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _integer(random: Random, kind: pa.DataType) -> int:
    low, high = limits(kind)
    drawn = [low, high, low + 1, high - 1, 0, 1, max(low, -1), 2**53 + 1, random.randint(low, high)]
    drawn += [random.randint(max(low, -9), 9), random.randint(0, 70), 1 << random.randint(0, kind.bit_width - 1)]
    return max(low, min(high, random.choice(drawn)))


def _float(random: Random, kind: pa.DataType) -> float:
    drawn = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        0.1,
        1e30,
        -1e-30,
        2.0**53,
        2.0**24,
        1e308,
        5e-324,
        math.nan,
    ]
    drawn += [
        math.inf,
        -math.inf,
        random.uniform(-9, 9),
        random.uniform(-9, 9),
        random.gauss(0, 1e6),
        4503599627370497.5,
    ]
    return to_float(random.choice(drawn), kind)


def to_float(number: float, kind: pa.DataType) -> float:
    """The nearest float of this type."""
    with np.errstate(all="ignore"):
        return float(FLOAT_OF[kind.bit_width](number))


FLOAT_OF: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}
"""The floats of numpy by their number of bits."""


def _decimal(random: Random, kind: pa.DataType) -> Decimal:
    most = 10**kind.precision - 1
    drawn = [0, 1, -1, most, -most, most // 2, random.randint(-most, most), random.randint(-999, 999), 5, 50, -25, 150]
    whole = random.choice(drawn)
    whole = max(-most, min(most, whole))
    return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -kind.scale))


_SECONDS = [
    0, -1, 951_782_399, 951_782_400, 1_709_164_800, 1_729_990_799, 1_729_990_800, 1_729_994_400, 1_711_846_799,
    1_711_846_800, 1_704_067_199, 1_735_689_599, -62_135_596_800, 253_402_300_799, -2_208_988_800, -5_000_000_000,
    4_102_444_799, 32_503_679_999, 2_145_916_799, 2_145_916_800,
]  # fmt: skip
"""Seconds since 1970 at ends of years, leap days and changes of clocks, and the ends of Python's calendar."""


def _time(random: Random, kind: pa.DataType) -> int:
    if t.is_date(kind):
        days = random.choice(_SECONDS) // DAY + random.randint(-3, 3)
        days = max(-719_162, min(2_932_896, days)) if random.random() < 0.97 else random.choice([-(2**31), 2**31 - 1])
        return days if t.is_date32(kind) else days * DAY * 1000
    per = PER_SECOND[kind.unit]
    if t.is_time(kind):
        return random.choice([0, DAY * per - 1, random.randrange(DAY * per), random.randrange(DAY) * per])
    if random.random() < 0.05:
        return random.choice([-(2**63) + 1, 2**63 - 1, random.randint(-(2**62), 2**62)])
    if t.is_duration(kind):
        near, wide = random.randint(-(10**9), 10**9), random.choice([-1, 1]) * 2**32  # its low 32 bits are zero
        return random.choice(
            [0, 1, -1, near, random.randint(-(10**6), 10**6) * per, wide, wide + random.randrange(DAY)]
        )
    seconds = random.choice(_SECONDS) + random.choice([0, 0, random.randint(-90_000, 90_000), random.randint(0, 10**9)])
    units = max(-62_135_596_800, min(253_402_300_799, seconds)) * per + random.choice([0, 0, random.randrange(per)])
    return max(-(2**63) + 1, min(2**63 - 1, units))
