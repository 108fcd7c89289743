"""Keys: one canonical form, one hash, and the key group that follows from it.

Equal keys hash equally, whether a record comes as a Python object or in an Arrow column, on every machine and in every
version. The group of a key decides where its state, timers and log entries live, and files outlive processes; so what
`canonical_bytes` and `key_hash` return is a file format. It is frozen by golden vectors as `KEY_FORMAT`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from operator import is_
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

from tailrace.elements.intkeys import hashes
from tailrace.elements.keyclasses import MemberClass, RecordClass, Refusal, key_class
from tailrace.elements.timestamps import steady
from tailrace.errors import TailraceError, shortened

KEY_FORMAT = 2
"""The version of the canonical bytes and of their hash. Another byte or another hash is another version. Version 1 took
both passes of an hour that the clock repeats for the first one."""

MAX_GROUPS = 1 << 16
"""The largest `max_parallelism`: a batch holds its key groups as uint16."""

NAN = float("nan")
"""The one NaN that `plain_key` puts in place of every other, so that a dictionary finds it again by identity."""

Groups = np.ndarray[Any, np.dtype[np.uint16]]
_Codes = np.ndarray[Any, np.dtype[np.int64]]


class UnsupportedKey(TailraceError, TypeError):
    """A value was used as a key that has no canonical form."""


# --- the canonical form ---------------------------------------------------------------------------------------------


def canonical_bytes(key: object) -> bytes:
    """The bytes of a key. Keys that Python calls equal give equal bytes, but for the two passes of a repeated hour.

    Frozen as KEY_FORMAT = 2. One tag byte, then the payload; `int` stands for a big-endian two's complement integer of
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

    All u64 are big-endian. The name of a class is `module:qualname` in UTF-8, and so is that of a member. A numpy scalar is
    the Python value it stands for, a member of an Enum that is another of these types as well (IntEnum, StrEnum) its value,
    a pandas Timestamp or Timedelta with whole microseconds the datetime or timedelta it equals. An aware datetime is the
    instant that its fold says, whatever its zone: Python calls both passes of a repeated hour equal within one zone, and
    neither equal to the instant in another. Raises `UnsupportedKey` for everything else.
    """
    encode = _ENCODERS.get(type(key))
    if encode is None:
        encode = _inherited_encoder(key)
    return encode(key)


def key_hash(key: object) -> int:
    """The 64-bit hash of a key: XXH64 with seed 0 of its canonical bytes."""
    # XXH64 and not XXH3: no slower at this size, and every language that may ever read our files has it.
    return xxh64_intdigest(canonical_bytes(key))


def key_group(key: object, max_parallelism: int) -> int:
    """The key group of a key, below `max_parallelism`."""
    return key_hash(key) % max_parallelism


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
        raise _unsupported(key, f"its exponent is beyond {_MAX_EXPONENT:,}", "round it, or use str(key)")
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
        raise _unsupported(key, f"a field has no value ({error})", "set every field when it is made") from error
    parts = [b"r", known.prefix]
    for field, item in zip(known.fields, items, strict=True):
        encoded = canonical_bytes(item)
        if encoded == b"x":
            raise _nan_in(key, field)
        parts += (_LENGTH.pack(len(encoded)), encoded)
    return b"".join(parts)


def _nan_in(key: object, field: str) -> UnsupportedKey:
    # Within a tuple NaNs are found by identity. A dataclass compares its fields one by one, in newer versions of Python.
    return _unsupported(key, f"its field {field!r} is a NaN, which equals nothing", "put None there, or use a tuple")


def _encode_member(key: Enum) -> bytes:
    known = key_class(type(key))
    assert isinstance(known, MemberClass)
    if not known.known(key):
        raise _unsupported(key, "it is no member with a name of its own", "use key.value")
    return b"o" + known.prefix + str.encode(key._name_, "utf-8", "surrogatepass")


def _encode_date(key: date) -> bytes:
    return b"d" + _int_bytes(date.toordinal(key))


def _encode_datetime(key: datetime) -> bytes:
    days = date.toordinal(key) - _UNIX_DAY
    seconds = (key.hour * 60 + key.minute) * 60 + key.second
    wall = days * _DAY + seconds * _SECOND + key.microsecond
    # A tzinfo may answer None; Python then calls the datetime naive, and so do we.
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


# A subclass is looked up in this order, so what is a subclass itself comes before its base: bool, datetime.
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
    if isinstance(key, np.generic):
        return _scalar_encoder(key)
    kind: Any = type(key)
    known = key_class(kind)
    if isinstance(known, RecordClass):
        return _encode_record
    if isinstance(known, MemberClass):
        return _encode_member
    for base, encode in _ENCODERS.items():
        if isinstance(key, base):
            if kind.__eq__ is base.__eq__ or _is_plain_pandas_time(key):
                return encode
            name = base.__name__
            raise _unsupported(key, f"it redefines the == of {name}", f"convert it to a plain {name}, or use a tuple")
    if isinstance(known, Refusal):
        raise _unsupported(key, known.why, known.advice)
    raise _unsupported(key, "it has no canonical form", _advice(key))


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
    raise _unsupported(key, "it has no canonical form", _advice(key))


def _is_plain_pandas_time(key: object) -> bool:
    """Whether a datetime or timedelta with an == of its own is one of pandas that the standard types can hold."""
    # By its attributes, because nothing down here needs pandas. NaT says that it has NaN nanoseconds.
    if isinstance(key, datetime):
        return bool(getattr(key, "nanosecond", None) == 0)
    return isinstance(key, timedelta) and bool(getattr(key, "nanoseconds", None) == 0)


_ANYTHING = (
    "key by a str, bytes, int, float, Decimal, date, datetime, timedelta, UUID, None, a member of an Enum, or a tuple or a "
    "frozen dataclass of these"
)


def _advice(key: object) -> str:
    """What to do about a key of an unsupported type."""
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


def _unsupported(key: object, why: str, advice: str) -> UnsupportedKey:
    kind = type(key)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return UnsupportedKey(f"{shortened(key, 80)} of type {name} cannot be a key: {why}; {advice}")


# --- who owns which group -------------------------------------------------------------------------------------------


def owner(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key group. Groups next to each other have the same owner or neighbours."""
    return group * parallelism // max_parallelism


def group_range(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups that a subtask owns: exactly those for which `owner` names it."""
    _check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise ValueError(f"there is no subtask {subtask} at parallelism {parallelism}")
    # owner(g) >= s exactly if g * p >= s * max, so the first group of s is s * max / p rounded up.
    start = -(-subtask * max_parallelism // parallelism)
    stop = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(start, stop)


def owners(parallelism: int, max_parallelism: int) -> Groups:
    """The owner of every key group, to be indexed with an array of groups."""
    _check_parallelism(parallelism, max_parallelism)
    # uint16 like the groups: numpy sorts 16-bit integers by radix, and records get sorted by these.
    return (np.arange(max_parallelism, dtype=np.int64) * parallelism // max_parallelism).astype(np.uint16)


def _check_parallelism(parallelism: int, max_parallelism: int) -> None:
    if not 1 <= parallelism <= max_parallelism <= MAX_GROUPS:
        raise ValueError(
            f"need 1 <= parallelism <= max_parallelism <= {MAX_GROUPS}, have {parallelism} and {max_parallelism}"
        )


# --- groups of many keys --------------------------------------------------------------------------------------------

# Why a dictionary may answer for canonical_bytes. A key q finds the entry of a stored key k when both have one hash and
# q == k, or when they are one object. Their groups are the same because then their canonical bytes are:
#
# - None, str, bytes, date, timedelta, UUID are equal only to their own kind and by value. A subclass with another ==
#   is not supported, but for the times of pandas: with whole microseconds they equal, and hash as, the standard ones.
# - int, bool, float, Decimal are compared exactly, as rational numbers, across types. So is the canonical form.
# - datetime: naive never equals aware. With one tzinfo the wall clocks are compared and fold ignored; with two the
#   instants, and a datetime whose offset depends on fold (in a repeated or skipped hour) equals nothing. Such a datetime
#   is never stored, and it equals none that is: within its zone they have other wall clocks.
# - NaN equals nothing, so it is never stored: each new NaN object would only take up room.
# - tuples are equal item by item, or by identity of an item: the same holds for the bytes.
# - An object of a frozen dataclass equals only one of the very same class with equal fields, a member of a plain Enum only
#   itself. One that is stored has fields that may be stored.
#
# numpy is the exception: its numbers round the other side, or themselves, before they compare, so that
# np.int64(-2**61 - 1) == -2.0**61. Nothing of numpy is stored, only plain twins; so let q be of numpy and k plain, with
# equal hashes, and q == k after rounding but not exactly. A hash is the number modulo P = 2**61 - 1 with its sign,
# except that -1 becomes -2 and the infinities have 314159 and -314159. These aside, q - k is a multiple of P, and
# not 0. Yet below 2**64 rounding to 24 bits or more moves an integer by less than 2**40 < P (as does rounding to 11
# bits, or it overflows to infinity), and rounding a float moves it by at most itself, that is by 2**53 < P units of its
# last place, which is a power of two and so prime to P. Hence a number is stored only below 2**64 and outside the
# special hashes; -2 to 2 are exact in every type of numpy.
#
# What is not a key but equals one (Fraction(1, 2), memoryview(b"a")) may get that key's group from the cache instead of
# an error. Looking at the type of every key would cost a third of the time and change no result that is not an error.

_MISTAKABLE_HASHES = frozenset((hash(-2), hash(float("inf")), hash(float("-inf"))))
_NEVER = object()
_STORED_AS_THEY_ARE = frozenset((str, bytes, type(None), bool, date, timedelta, UUID))

_LOOKUP_ERRORS = (TypeError, ValueError, ArithmeticError, AttributeError)
# What the hash or the == of a key may raise: a list, a generic timedelta64, a signalling NaN, an integer of numpy
# against a Decimal, a dataclass with a field that was never set.


class KeyGroups(dict[object, int]):
    """Key to key group, for one `max_parallelism`: a bounded cache in front of `key_group`.

    It is a dictionary so that a hit costs no Python code. Use `groups_of` and `group_of`; `self[key]` raises a bare
    `TypeError` for a key without a hash.
    """

    __slots__ = ("_dense", "limit", "max_parallelism")

    def __init__(self, max_parallelism: int, limit: int = 1 << 18) -> None:
        _check_parallelism(1, max_parallelism)
        if limit < 1:
            raise ValueError(f"the cache needs room for at least one key, not {limit}")
        super().__init__()
        self.max_parallelism = max_parallelism
        self.limit = limit
        self._dense = np.empty(0, np.uint16)
        """The groups of 0, 1, 2, …, as far as they were asked for."""

    def __missing__(self, key: object) -> int:
        group = key_group(key, self.max_parallelism)
        stored = _stored_form(key)
        if stored is not _NEVER:
            if len(self) >= self.limit:
                # To forget all is cheap per key, and the keys in use come back at once.
                self.clear()
            self[stored] = group
        return group

    def group_of(self, key: object) -> int:
        """The group of one key. Raises `UnsupportedKey`."""
        try:  # suppress() would cost several times the lookup
            return self[key]
        except _LOOKUP_ERRORS:
            pass
        return key_group(key, self.max_parallelism)

    def groups_of(self, keys: Iterable[object]) -> Groups:
        """The groups of many keys, in order (not writeable). Raises `UnsupportedKey`."""
        listed = keys if isinstance(keys, list) else list(keys)
        layout = f"={len(listed)}H"
        # Over lists of 4,096 keys pack() beat np.fromiter, np.array and array, by up to a fifth.
        with suppress(*_LOOKUP_ERRORS):
            return np.frombuffer(struct.pack(layout, *map(self.__getitem__, listed)), np.uint16)
        return np.frombuffer(struct.pack(layout, *map(self.group_of, listed)), np.uint16)

    def groups_of_integers(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Groups:
        """The groups of many integers. Small ones, which are most keys, come from a table."""
        if not len(numbers):
            return np.empty(0, np.uint16)
        low, high = int(numbers.min()), int(numbers.max())
        if low == _LOWEST:
            return self.groups_of(numbers.tolist())
        if low >= 0 and len(self._dense) <= high < _DENSE:
            known = len(self._dense)
            fresh = np.arange(known, min(known + max(_GROWTH // 8, known), known + _GROWTH), dtype=np.int64)
            self._dense = np.concatenate([self._dense, self._hashed(fresh)])
        groups: Groups = self._dense[numbers] if low >= 0 and high < len(self._dense) else self._hashed(numbers)
        return groups

    def _hashed(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Groups:
        return (hashes(numbers) % np.uint64(self.max_parallelism)).astype(np.uint16)


_DENSE = 1 << 20
"""Integers below this have their groups in a table, of two bytes each."""
_GROWTH = 1 << 16
"""So many are added to the table at once: a step must stay short."""
_LOWEST = -(1 << 63)


def _stored_form(key: object) -> object:
    """The plain twin of a supported key that the cache may store, or `_NEVER`."""
    if type(key) is int:
        return _unless_mistakable(key)
    if type(key) in _STORED_AS_THEY_ARE:
        return key
    if isinstance(key, datetime):
        return key if steady(key) is key else _NEVER
    if isinstance(key, tuple):
        items = []
        for item in tuple.__iter__(key):
            items.append(_stored_form(item))
            if items[-1] is _NEVER:
                return _NEVER
        # The very same tuple where it will do: a lookup compares by identity first.
        return key if type(key) is tuple and all(map(is_, items, key)) else tuple(items)
    known = key_class(type(key))
    if isinstance(known, RecordClass):
        return _with_parts(known, key, _stored_form)
    if isinstance(key, np.generic) and not isinstance(key, str | bytes):
        key = key.item()
    if isinstance(key, int):
        return _unless_mistakable(int.__pos__(key))
    if isinstance(key, float):
        return _unless_mistakable(float.__pos__(key))
    if isinstance(key, Decimal):
        if not Decimal.is_finite(key):
            return _NEVER
        numerator, denominator = Decimal.as_integer_ratio(key)
        # Integers of numpy cannot be compared with a Decimal, so where an int will do the cache holds that.
        return _unless_mistakable(numerator if denominator == 1 else key)
    return key


def storable(number: int | float | Decimal) -> bool:
    """Whether a dictionary that holds this number finds it by what equals it only, whatever of numpy is looked up."""
    return number != number or _unless_mistakable(number) is not _NEVER


def _unless_mistakable(number: int | float | Decimal) -> object:
    """The number, or `_NEVER` if a different number of numpy might be taken for it, or if it is a NaN."""
    if -2 <= number <= 2:
        return number
    return number if -(1 << 64) < number < 1 << 64 and hash(number) not in _MISTAKABLE_HASHES else _NEVER


# --- groups of columns ----------------------------------------------------------------------------------------------


def groups_of_arrow(array: Any, cache: KeyGroups) -> Groups:
    """The key groups of an Arrow array or chunked array, or of a list of them: a composite key, which is a tuple.

    The groups are those that the same records would get as rows: each distinct value is taken as the Python object
    that a row holds (a null is None) and goes through the same cache. Raises `UnsupportedKey`.
    """
    if isinstance(array, pa.Array) and pa.types.is_integer(array.type) and not array.null_count:
        if array.type != pa.uint64():
            return cache.groups_of_integers(array.to_numpy().astype(np.int64, copy=False))
    if isinstance(array, pa.Array | pa.ChunkedArray):
        codes, values = _codes_of(array)
        return cache.groups_of(values)[codes]
    codes, keys = _composite_codes([_codes_of(column) for column in array])
    return cache.groups_of(keys)[codes]


def _codes_of(column: Any) -> tuple[_Codes, list[Any]]:
    """A column as Python values, and for each record the place of its value. A value may occur more than once."""
    if isinstance(column, pa.Array):
        return _chunk_codes(column)
    all_codes, all_values = [np.empty(0, np.int64)], list[Any]()
    for chunk in column.chunks:
        codes, values = _chunk_codes(chunk)
        all_codes.append(codes + len(all_values))
        all_values += values
    return np.concatenate(all_codes), all_values


def _chunk_codes(chunk: Any) -> tuple[_Codes, list[Any]]:
    if isinstance(chunk, pa.DictionaryArray):
        codes, dictionary = _only_used(_indices(chunk), chunk.dictionary)
    else:
        try:
            encoded = chunk.dictionary_encode()
        except pa.ArrowNotImplementedError:  # UUIDs, small decimals; lists and structs, which groups_of will refuse
            return np.arange(len(chunk)), _python_values(chunk)
        codes, dictionary = _indices(encoded), encoded.dictionary
    values = _python_values(dictionary)
    values.append(None)  # where _indices puts the nulls
    return codes, values


def _indices(encoded: Any) -> _Codes:
    """The indices of a dictionary array; a null points behind the end of the dictionary."""
    indices = encoded.indices.cast(pa.int64()).fill_null(len(encoded.dictionary))
    codes: _Codes = indices.to_numpy(zero_copy_only=False)
    return codes


def _only_used(codes: _Codes, dictionary: Any) -> tuple[_Codes, Any]:
    """The same values from a dictionary without the unused ones, which rows would never see (and may not be keys)."""
    used = np.zeros(len(dictionary) + 1, np.bool_)
    used[codes] = True
    if used[:-1].all():
        return codes, dictionary
    try:
        values = dictionary.take(pa.array(np.flatnonzero(used[:-1])))
    except pa.ArrowNotImplementedError:  # views of text and bytes, each of which may be a key
        return codes, dictionary
    # Where there are nulls, their place is in use and so stays behind the last value.
    places = np.cumsum(used) - 1
    return places[codes], values


def _python_values(array: Any) -> list[Any]:
    """The values as rows hold them."""
    kind = array.type
    if array.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        numbers: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return numbers
    try:
        values: list[Any] = array.to_pylist()
    except (OverflowError, ValueError) as error:  # a time that Python's calendar does not have
        raise UnsupportedKey(
            f"a value of a column of type {kind} cannot be a key: {error}; cast the column, for example to int64"
        ) from error
    return values


def _composite_codes(columns: Sequence[tuple[_Codes, list[Any]]]) -> tuple[_Codes, list[tuple[Any, ...]]]:
    """The distinct tuples of several columns, and for each record the place of its tuple."""
    if not columns:
        raise ValueError("a composite key needs at least one column")
    if len({len(codes) for codes, _ in columns}) != 1:
        raise ValueError(f"the columns of a key differ in length: {[len(codes) for codes, _ in columns]}")
    if 2 * max(len(values) for _, values in columns) > len(columns[0][0]):
        # Most records have a tuple of their own; to look for the others costs more than it saves.
        return np.arange(len(columns[0][0])), _tuples(columns)
    combined, size = columns[0][0], len(columns[0][1])
    for codes, values in columns[1:]:
        if size * len(values) >= 1 << 63:
            combined, size = _dense(combined)
        combined = combined * len(values) + codes
        size *= len(values)
    combined, size = _dense(combined)
    example = np.empty(size, np.int64)
    example[combined] = np.arange(len(combined))  # for each distinct tuple, some record that has it
    return combined, _tuples([(codes[example], values) for codes, values in columns])


def _tuples(columns: Sequence[tuple[_Codes, list[Any]]]) -> list[tuple[Any, ...]]:
    return list(zip(*[map(values.__getitem__, codes.tolist()) for codes, values in columns], strict=True))


def _dense(codes: _Codes) -> tuple[_Codes, int]:
    """The same partition of the records with codes from 0, and how many codes there are."""
    encoded = pa.array(codes).dictionary_encode()
    return _indices(encoded), len(encoded.dictionary)


# --- keys of state --------------------------------------------------------------------------------------------------

_PLAIN = frozenset((int, str, bytes, type(None), bool, date, timedelta, UUID))
"""Types of keys that a dictionary compares as keys are compared."""


def plain_key(key: Any) -> Any:
    """The key in a form in which a dictionary finds it again, and takes no other for it; also inside tuples and
    dataclasses, and the same object where nothing is to be done.

    A NaN is `NAN`, because dictionaries compare by identity first. A scalar of numpy is the Python value that it stands
    for: numpy rounds when it compares. A datetime in an hour that is repeated or skipped has a fixed offset, so that it is
    compared as the instant it is. Named tuples and dataclasses keep their class.
    """
    if type(key) in _PLAIN:
        return key
    if isinstance(key, tuple):
        return _plain_tuple(key)
    if isinstance(key, datetime):
        return steady(key)
    if isinstance(key, np.number | np.bool_) and not isinstance(key, np.timedelta64):
        key = key.item()
    if isinstance(key, float):
        return key if key == key else NAN
    if isinstance(key, Decimal):
        return NAN if Decimal.is_nan(key) else key
    return _plain_object(key)


def _plain_object(key: Any) -> Any:
    known = key_class(type(key))
    if not isinstance(known, RecordClass) or _PLAIN.issuperset(map(type, known.parts(key))):
        return key
    return _with_parts(known, key, plain_key)


def _with_parts(known: RecordClass, key: Any, form: Callable[[Any], Any]) -> Any:
    """An object of a dataclass with each field in this form: the very same one where that will do, `_NEVER` where a field
    has none."""
    parts = known.parts(key)
    items = tuple(map(form, parts))
    if all(map(is_, items, parts)):
        return key
    return _NEVER if any(item is _NEVER for item in items) else known.made(items, known.more(key))


def parts_of(key: Any) -> tuple[Any, ...]:
    """What a key is compared by: the items of a tuple, the fields of a dataclass. Nothing for any other key."""
    if isinstance(key, tuple):
        return tuple(tuple.__iter__(key))
    known = key_class(type(key))
    return known.parts(key) if isinstance(known, RecordClass) else ()


def _plain_tuple(key: tuple[Any, ...]) -> tuple[Any, ...]:
    if _PLAIN.issuperset(map(type, tuple.__iter__(key))):
        return key
    items = tuple(map(plain_key, tuple.__iter__(key)))
    if all(map(is_, items, tuple.__iter__(key))):
        return key
    if type(key) is tuple:
        return items
    try:
        # Not through the class: its __new__ may want anything.
        made = tuple.__new__(type(key), items)
    except TypeError:
        return items  # a struct sequence of C cannot be made so; a plain tuple equals it
    if hasattr(key, "__dict__"):
        made.__dict__.update(key.__dict__)  # rows of Spark carry their field names there
    return made
