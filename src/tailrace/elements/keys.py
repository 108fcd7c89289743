"""The canonical form of a key, and the hash that follows from it. `elements.keygroups` makes the key group of that.

Equal keys hash equally, whether a record comes as a Python object or in an Arrow column, on every machine and in every
version. The group of a key decides where its state, timers and log entries live, and files outlive processes; so what
`canonical_bytes` and `key_hash` return is a file format, which golden vectors freeze.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
from xxhash import xxh64_intdigest

from tailrace.elements.keyclasses import KeyRefusal, MemberClass, RecordClass, key_class
from tailrace.errors import TailraceError, message_of, short_repr


class UnsupportedKey(TailraceError, TypeError):
    """A value without a canonical form was used as a key."""


def canonical_bytes(key: object) -> bytes:
    """The canonical bytes of a key. Keys that Python calls equal have equal bytes, except the passes of a repeated hour.

    One tag byte, then the payload; `int` stands for a big-endian two's complement integer of
    `bit_length // 8 + 1` bytes.

    ===  =============================  =====================================================================
    tag  keys                           payload
    ===  =============================  =====================================================================
    n    None                           nothing
    i    bool, int, integral float and  int
         Decimal, -0.0 as 0
    q    any other finite float or      the value as a reduced fraction with a positive denominator: u64 length
         Decimal                        of the numerator, numerator as int, denominator as int
    p m  inf, -inf                      nothing
    x    every NaN                      nothing
    s    str                            UTF-8; lone surrogates are encoded like other code points
    b    bytes                          the bytes
    t    tuple, named tuple             for each item: u64 length of its canonical bytes, its canonical bytes
    d    date                           int: the proleptic ordinal, 1 for 0001-01-01
    w    naive datetime (wall clock)    int: microseconds from 1970-01-01 00:00
    z    aware datetime                 int: microseconds from 1970-01-01 00:00 UTC
    e    timedelta (elapsed)            int: microseconds
    u    UUID                           its 16 bytes, most significant first
    r    object of a frozen dataclass   u64 length of the name of its class, that name; then for each field what a
                                        tuple has for each item
    o    member of an Enum              u64 length of the name of its class, that name, the name of the member
    ===  =============================  =====================================================================

    All u64 are big-endian. The name of a class is `module:qualname`; it and the name of a member are in UTF-8. A numpy
    scalar counts as the Python value that it stands for. A member of an Enum that is also one of these types (IntEnum,
    StrEnum) counts as its value. A pandas Timestamp or Timedelta with whole microseconds counts as the datetime or timedelta
    that it equals. An aware datetime is the instant that its fold selects, whatever its zone. (In Python both passes of a
    repeated hour are equal within one zone, and neither is equal to the instant in another zone.) Raises `UnsupportedKey`
    for everything else.
    """
    encode = _ENCODERS.get(type(key))
    if encode is None:
        encode = _inherited_encoder(key)
    return encode(key)


PLAINLY_DESCRIBED: frozenset[type] = frozenset((int, str, bytes, type(None)))
"""Types whose keys `DescribedKeys` reads exactly from their canonical bytes. Subclasses are not among them."""


class DescribedKeys:
    """The keys that can be read from their canonical bytes: an int, a text, bytes and None, and a tuple or an object of a
    frozen dataclass of these. Other keys cannot: 1.0 has the bytes of 1."""

    def __init__(self) -> None:
        self._classes: dict[bytes, RecordClass] = {}
        """Prefix of canonical bytes -> class. Of two classes of one name only keys of the first can be read."""

    def __contains__(self, key: object) -> bool:
        kind = type(key)
        if kind in PLAINLY_DESCRIBED:
            return True
        if kind is tuple:
            parts: Any = key
        else:
            known = key_class(kind)
            if not isinstance(known, RecordClass) or known.more(key) is not None:
                return False
            if self._classes.setdefault(known.prefix, known) is not known:
                return False
            parts = known.parts(key)
        return PLAINLY_DESCRIBED.issuperset(map(type, parts)) or all(part in self for part in parts)

    def read(self, data: bytes, start: int = 0) -> Any:
        """The key with these canonical bytes, from `start` on."""
        tag = data[start]
        if tag == _INTEGER:
            return int.from_bytes(data[start + 1 :], "big", signed=True)
        if tag == _TEXT:
            return data[start + 1 :].decode("utf-8", "surrogatepass")
        if tag == _BYTES:
            return data[start + 1 :]
        if tag == _TUPLE:
            return self._parts(data, start + 1)
        if tag == _RECORD:
            end = start + 9 + int.from_bytes(data[start + 1 : start + 9], "big")
            return self._classes[data[start + 1 : end]].make(self._parts(data, end), None)
        return None

    def _parts(self, data: bytes, at: int) -> tuple[Any, ...]:
        parts: list[Any] = []
        size, number = len(data), int.from_bytes
        while at < size:
            start = at + 8
            at = start + number(data[at:start], "big")
            tag = data[start]
            if tag == _INTEGER:
                parts.append(number(data[start + 1 : at], "big", signed=True))
            elif tag == _TEXT:
                parts.append(data[start + 1 : at].decode("utf-8", "surrogatepass"))
            else:
                parts.append(self.read(data[start:at]))
        return tuple(parts)


_INTEGER, _TEXT, _BYTES, _TUPLE, _RECORD = b"isbtr"


def key_hash(key: object) -> int:
    """The 64-bit hash of a key: XXH64 with seed 0 of its canonical bytes."""
    # XXH64 and not XXH3: no slower at this size, and every language that may read these files has it.
    return xxh64_intdigest(canonical_bytes(key))


_UNIX_DAY = date(1970, 1, 1).toordinal()
_DAY, _SECOND = 86_400_000_000, 1_000_000
_LENGTH = struct.Struct(">Q")

_MAX_EXPONENT = 10_000
# A Decimal of twelve characters may stand for an integer that fills the memory. The bound lies beyond every decimal of
# Arrow, SQL and IEEE 754; raising it changes no bytes.

# Every encoder calls the methods of the base class by name, because a subclass (an enum, a named tuple, a scalar of
# numpy) may have methods of its own under the same names, while it is compared by the value underneath.


def _int_bytes(value: int) -> bytes:
    return int.to_bytes(value, int.bit_length(value) // 8 + 1, "big", signed=True)


def _encode_none(_: None) -> bytes:
    return b"n"


def _encode_int(key: int) -> bytes:
    return b"i" + _int_bytes(key)


def _encode_float(key: float) -> bytes:
    try:
        return _encode_ratio(*float.as_integer_ratio(key))
    except (OverflowError, ValueError):  # infinite, not a number
        return _encode_not_finite(float.__pos__(key))


def _encode_decimal(key: Decimal) -> bytes:
    if not Decimal.is_finite(key):
        # Not through float(): it raises for a signalling NaN.
        return b"x" if Decimal.is_nan(key) else _encode_not_finite(Decimal.__float__(key))
    if Decimal.is_zero(key):
        return _encode_int(0)  # before the bound below: a zero may have any exponent
    if abs(Decimal.adjusted(key)) > _MAX_EXPONENT:
        raise _refusal(key, f"its exponent is beyond {_MAX_EXPONENT:,}", "round it, or use str(key)")
    return _encode_ratio(*Decimal.as_integer_ratio(key))


def _encode_ratio(numerator: int, denominator: int) -> bytes:
    if denominator == 1:
        return _encode_int(numerator)
    above = _int_bytes(numerator)
    return b"q" + _LENGTH.pack(len(above)) + above + _int_bytes(denominator)


def _encode_not_finite(value: float) -> bytes:
    if value != value:
        return b"x"
    return b"p" if value > 0 else b"m"


def _encode_str(key: str) -> bytes:
    return b"s" + str.encode(key, "utf-8", "surrogatepass")


def _encode_bytes(key: bytes) -> bytes:
    return b"b" + key


def _encode_tuple(key: tuple[object, ...]) -> bytes:
    parts = [b"t"]
    for item in tuple.__iter__(key):
        encoded = canonical_bytes(item)
        parts += (_LENGTH.pack(len(encoded)), encoded)
    return b"".join(parts)


def _encode_record(key: Any) -> bytes:
    known = key_class(type(key))
    assert isinstance(known, RecordClass)
    try:
        items = known.parts(key)
    except AttributeError as error:
        raise _refusal(key, f"a field has no value ({message_of(error)})", "set every field when it is made") from error
    parts = [b"r", known.prefix]
    for item in items:
        encoded = canonical_bytes(item)
        if encoded == b"x":
            raise _nan_in(key, known.fields[len(parts) // 2 - 1])
        parts += (_LENGTH.pack(len(encoded)), encoded)
    return b"".join(parts)


def _nan_in(key: object, field: str) -> UnsupportedKey:
    # Within a tuple NaNs are found by identity. A dataclass compares its fields one by one, in newer versions of Python.
    return _refusal(key, f"its field {field!r} is a NaN, which equals nothing", "put None there, or use a tuple")


def _encode_member(key: Enum) -> bytes:
    known = key_class(type(key))
    assert isinstance(known, MemberClass)
    if not known.has_name(key):
        raise _refusal(key, "it is not a member with a name of its own", "use key.value")
    return b"o" + known.prefix + str.encode(key._name_, "utf-8", "surrogatepass")


def _encode_date(key: date) -> bytes:
    return b"d" + _int_bytes(date.toordinal(key))


def _encode_datetime(key: datetime) -> bytes:
    days = date.toordinal(key) - _UNIX_DAY
    seconds = (key.hour * 60 + key.minute) * 60 + key.second
    wall = days * _DAY + seconds * _SECOND + key.microsecond
    # A tzinfo may return None; Python then treats the datetime as naive, and so does this.
    offset = key.utcoffset()
    if offset is None:
        return b"w" + _int_bytes(wall)
    # In integers: near the ends of the calendar the instant in UTC may be no datetime.
    return b"z" + _int_bytes(wall - _span(offset))


def _encode_timedelta(key: timedelta) -> bytes:
    return b"e" + _int_bytes(_span(key))


def _span(value: timedelta) -> int:
    return value.days * _DAY + value.seconds * _SECOND + value.microseconds


def _encode_uuid(key: UUID) -> bytes:
    return b"u" + key.bytes


def _encode_scalar(key: np.generic) -> bytes:
    return canonical_bytes(key.item())


# A key of a subclass gets the first encoder that fits, so bool comes before int, and datetime before date.
_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): _encode_none,
    bool: _encode_int,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    tuple: _encode_tuple,
    Decimal: _encode_decimal,
    datetime: _encode_datetime,
    date: _encode_date,
    timedelta: _encode_timedelta,
    UUID: _encode_uuid,
}


def _inherited_encoder(key: object) -> Callable[[Any], bytes]:
    """The encoder for a key that is not exactly of a supported type."""
    kind: Any = type(key)
    known = key_class(kind)
    if isinstance(known, RecordClass):
        return _encode_record
    if isinstance(key, np.generic):
        return _scalar_encoder(key)
    if isinstance(known, MemberClass):
        return _encode_member
    for base, encode in _ENCODERS.items():
        if isinstance(key, base):
            if kind.__eq__ is base.__eq__ or _is_plain_pandas_time(key):
                return encode
            name = base.__name__
            raise _refusal(key, f"it redefines the == of {name}", f"convert it to a plain {name}, or use a tuple")
    if isinstance(known, KeyRefusal):
        raise _refusal(key, known.why, known.advice)
    raise _refusal(key, "it has no canonical form", _advice(key))


def _scalar_encoder(key: np.generic) -> Callable[[Any], bytes]:
    # Not through item(): for text and bytes it drops trailing zeros, which == does not.
    if isinstance(key, str):
        return _encode_str
    if isinstance(key, bytes):
        return _encode_bytes
    # timedelta64 counts as an integer, and its item() is one or not, depending on its unit.
    whole = isinstance(key, np.integer) and not isinstance(key, np.timedelta64)
    if whole or isinstance(key, np.bool_) or (isinstance(key, np.floating) and not isinstance(key, np.longdouble)):
        return _encode_scalar
    raise _refusal(key, "it has no canonical form", _advice(key))


def _is_plain_pandas_time(key: object) -> bool:
    """True if a datetime or timedelta that defines == is one of pandas that the standard types can hold."""
    # By its attributes, because this module does not import pandas. NaT has NaN nanoseconds.
    if isinstance(key, datetime):
        return bool(getattr(key, "nanosecond", None) == 0)
    return isinstance(key, timedelta) and bool(getattr(key, "nanoseconds", None) == 0)


_ANYTHING = (
    "key by a str, bytes, int, float, Decimal, date, datetime, timedelta, UUID, None, a member of an Enum, or a tuple or a "
    "frozen dataclass of these"
)


def _advice(key: object) -> str:
    """The advice to the user for a key of an unsupported type."""
    if isinstance(key, list | bytearray | memoryview):
        return "use a tuple: tuple(key)" if isinstance(key, list) else "use bytes(key)"
    if isinstance(key, set | frozenset):
        return "use a tuple: tuple(sorted(key))"
    if isinstance(key, dict):
        return "use a tuple: tuple(sorted(key.items()))"
    if isinstance(key, Enum):
        return "use key.value or key.name"
    if isinstance(key, complex | np.complexfloating):
        return "use a tuple: (key.real, key.imag)"
    if isinstance(key, Fraction):
        return "use a tuple: (key.numerator, key.denominator)"
    if isinstance(key, np.datetime64 | np.timedelta64):
        return 'use a datetime, a date or a timedelta: key.astype("M8[us]" or "m8[us]").item()'
    if isinstance(key, np.longdouble):
        return "use float(key)"
    if isinstance(key, np.ndarray):
        return "use a tuple: tuple(key.tolist())"
    return _ANYTHING


def _refusal(key: object, why: str, advice: str) -> UnsupportedKey:
    kind = type(key)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return UnsupportedKey(f"{short_repr(key, 80)} of type {name} cannot be a key: {why}; {advice}")
