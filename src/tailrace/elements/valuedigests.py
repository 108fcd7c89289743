"""Hashes over the values of the records of a channel, by which two executions of the channel are compared.

Frames cannot be compared as bytes: what several records of a frame share is pickled once, and frames end elsewhere when
records are sent a second time. So each value is written in a form that depends on nothing else: as pickle writes it, but
nothing is written as a reference to what came before. Columns are hashed array by array.

Numbers, texts, bytes, tuples, lists, dictionaries, sets, dataclasses, named tuples and the values of Arrow have such a
form. An object of another class counts with the name of its class.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from io import BytesIO
from itertools import chain
from operator import attrgetter, is_
from typing import Any
from uuid import UUID
from zlib import crc32
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.batches import Batch, Columns
from tailrace.elements.columns.kinds import plain_type
from tailrace.elements.rows import Row

_AT_ONCE = 256
"""Number of records that are written at once: no more of them are in memory in this form."""
_PROTOCOL = 3
"""Protocol of pickle without frames. Lists of up to `_AT_ONCE` items are written in one piece."""
_WITH_FOLD = 4
"""Protocol of pickle in which a time has its `fold`."""
_HEAD_OF_ONE, _HEAD, _TAIL = 3, 4, 2
"""Number of bytes before the first item of a list with one item, or with more items, and behind its last item."""
_BUILTIN = b"cbuiltins\n"
"""The bytes by which the name of a built-in type begins, which few values need."""
_SETS = _BUILTIN + b"set\n", _BUILTIN + b"frozenset\n"
"""The bytes by which pickle begins a set, whose items it writes in no certain order."""

Parts = Callable[[Any], Any]

_PLAIN = frozenset((type(None), bool, int, float, str, bytes, bytearray, tuple, list, dict, set, frozenset))
"""Types that pickle writes by itself."""
_KNOWN: dict[type, Parts] = {
    complex: lambda one: ("complex", one.real, one.imag),
    UUID: lambda one: ("UUID", one.int),
    deque: lambda one: ("deque", [*one]),
    **dict.fromkeys((Counter, OrderedDict, defaultdict), lambda one: (type(one).__name__, [*one.items()])),
    **dict.fromkeys(
        (date, datetime, time, timedelta, timezone, ZoneInfo, Decimal, Fraction, range, slice),
        lambda one: (type(one).__name__, one.__reduce_ex__(_WITH_FOLD)[1]),
    ),
}
_ITEMS = frozenset("?bhilqBHILQefdFDSUMm")
"""Types of numpy whose items are nothing but their bytes."""

_parts_of: dict[type, Parts | None] = {}
_MOST_CLASSES = 4_096
"""Maximum number of classes in the cache. Notebooks define classes again and again: old ones must not stay for ever."""


def parts_of(kind: type) -> Parts | None:
    """The function that returns the parts of an object that count, behind the name of its class; None for a class whose
    objects are written as they are, or have no certain parts."""
    try:
        return _parts_of[kind]
    except KeyError:
        pass
    if len(_parts_of) >= _MOST_CLASSES:
        _parts_of.clear()
    found = _parts_of[kind] = _find_parts(kind)
    return found


def _find_parts(kind: type) -> Parts | None:
    if kind in _PLAIN or kind in _KNOWN:
        return _KNOWN.get(kind)
    name = kind.__qualname__
    if issubclass(kind, Row):
        return tuple  # whether a row has the names of its columns depends on the other records of its frame
    if issubclass(kind, tuple):
        return lambda one: (name, *one)
    if issubclass(kind, Enum):
        return lambda one: (name, one._value_)
    names = _field_names(kind)
    if names is None:
        return None
    return attrgetter("__class__.__qualname__", *names) if names else lambda one: (name,)


def _field_names(kind: type) -> list[str] | None:
    """The names of the fields that an object is made of: all that count for `==`, and all that its constructor takes. The
    others hold what is calculated from these. None for a class that declares no fields."""
    if issubclass(kind, msgspec.Struct):
        return [*kind.__struct_fields__]
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind) if one.compare or one.init]
    declared = getattr(kind, "__attrs_attrs__", None)
    return None if declared is None else [one.name for one in declared if one.eq or one.init]


class ValueWriter:
    """The writer of the form of values that their hash is made of. It is for one thread."""

    def __init__(self) -> None:
        self.opaque: dict[str, None] = {}
        """Names of the classes whose objects counted with no more than that name, since this was last cleared."""
        self._forms = _Forms(self.opaque)
        self._begin()

    def _begin(self) -> None:
        self._buffer = BytesIO()
        self._pickler = pickle.Pickler(self._buffer, _PROTOCOL)
        self._pickler.fast = True  # no references to what was written before
        self._pickler.memo = {id(tuple): (0, tuple)}  # each object begins with this reference
        self._pickler.dispatch_table = self._forms

    def write(self, values: list[Any]) -> bytes | memoryview:
        """The values as bytes, one after the other: at least one of them, and at most `_AT_ONCE`."""
        try:
            parts = _in_parts(values)
            data = self._dump(parts)
            if _has_sets(data):
                data = self._dump(list(map(self._sort_sets, parts)))
                if _has_sets(data):  # a text looks like one
                    return b"".join(map(self._write_alone, values))
        except Exception:
            return b"".join(map(self._write_alone, values))
        return memoryview(data)[_HEAD if len(values) > 1 else _HEAD_OF_ONE : -_TAIL]

    def _dump(self, values: list[Any]) -> bytes:
        self._buffer.seek(0)
        self._buffer.truncate()
        try:
            self._pickler.dump(values)
        except BaseException:
            self._begin()  # it would still count how deep it was
            raise
        return self._buffer.getvalue()

    def _write_alone(self, value: Any) -> bytes | memoryview:
        """One of several values, of which one cannot be written."""
        try:
            data = self._dump(list(map(self._sort_sets, _in_parts([value]))))
        except Exception:
            name = type(value).__qualname__
            self.opaque[name] = None
            return f"an object of {name}".encode()
        return memoryview(data)[_HEAD_OF_ONE:-_TAIL]

    def _sort_sets(self, value: Any) -> Any:
        """A value with lists in the place of sets; the value itself if there are none in it."""
        kind = type(value)
        if kind is set or kind is frozenset:
            kinds = set(map(type, value))
            if len(kinds) == 1 and kinds <= _SORTABLE:
                return "a set", sorted(value)
            return "a set", sorted(self._dump([self._sort_sets(one)]) for one in value)
        if kind in _ATOMS:
            return value
        before = value
        if kind is dict:
            before = [*chain.from_iterable(value.items())]
        elif kind is not list and kind is not tuple:
            parts = parts_of(kind)
            if parts is None:
                return value
            before = parts(value)
        items = list(map(self._sort_sets, before))
        if all(map(is_, items, before)):
            return value
        return ("a dict", items) if kind is dict else items if kind is list else tuple(items)


_ATOMS = frozenset((type(None), bool, int, float, str, bytes, bytearray))
_SORTABLE = frozenset((int, str, bytes))
"""Types whose values have one order."""


def _has_sets(data: bytes) -> bool:
    return _BUILTIN in data and any(map(data.__contains__, _SETS))


def _in_parts(values: list[Any]) -> list[Any]:
    """Records in their parts. They are mostly of one class, for which nothing is looked up record by record."""
    kinds = set(map(type, values))
    if kinds <= _PLAIN:
        return values
    if len(kinds) == 1:
        parts = parts_of(kinds.pop())
        return values if parts is None else list(map(parts, values))
    known = {kind: parts_of(kind) for kind in kinds}
    return [value if (parts := known[type(value)]) is None else parts(value) for value in values]


class _Forms(dict[type, Callable[[Any], Any]]):
    """The dispatch table of a pickler: for each class that pickle does not write by itself, the function that returns what
    is written of an object."""

    def __init__(self, opaque: dict[str, None]) -> None:
        super().__init__()
        self._opaque = opaque

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if issubclass(kind, type):
            raise KeyError(kind)  # the object is a class with a metaclass, which is written by its name
        if len(self) >= _MOST_CLASSES:
            self.clear()
        made = self[kind] = self._find(kind)
        return made

    def _find(self, kind: type) -> Callable[[Any], Any]:
        if issubclass(kind, np.ndarray | np.generic):
            return self._array
        parts = parts_of(kind)
        return self._name if parts is None else lambda one: (tuple, (parts(one),))

    def _array(self, one: Any) -> Any:
        dtype = one.dtype
        if dtype.char not in _ITEMS:
            return self._name(one)
        return tuple, ((dtype.str, one.shape, one.tobytes()),)

    def _name(self, one: Any) -> Any:
        name = type(one).__qualname__
        self._opaque[name] = None
        return tuple, ((name,),)


@dataclass(slots=True)
class ValueDigest:
    """A rolling hash over the values of the records of a channel. Two executions with equal values have an equal `value`.
    If the values or their order differ, the chance of that is one in four billion."""

    rows: int = 0
    """The hash of the records that came in rows."""
    columns: dict[str, int] = field(default_factory=dict)
    """The hashes of the arrays of records that came in columns, by their place in the schema."""
    layout: str = ""
    """The names and types of the columns of the newest record; empty for a row."""
    over: bool = False
    """True if values are not hashed any more, since their form had grown too large: `value` is None from then on."""

    def add(self, batch: Batch, first: int, most: int, writer: ValueWriter) -> None:
        """Adds the next records; the first one has the number `first` on the channel. If they take more than `most` bytes
        in their form, the hash ends."""
        if self.over:
            return
        layout = ""
        if isinstance(batch, Columns):
            layout = ",".join(f"{one.name}:{one.type}" for one in batch.data.schema)
        if layout != self.layout:
            self.layout = layout
            self.rows = crc32(f"{first} {layout}".encode(), self.rows)
        if isinstance(batch, Columns):
            for at, array in enumerate(batch.data.columns):
                self._add_array(str(at), array, writer)
            return
        values = batch.values
        for at in range(0, len(values), _AT_ONCE):
            data = writer.write(values[at : at + _AT_ONCE])
            self.rows = crc32(data, self.rows)
            most -= len(data)
            if most < 0:
                self.over, self.columns = True, {}
                return

    def _add_array(self, place: str, array: pa.Array, writer: ValueWriter) -> None:
        for name, data in _leaves(place, array, writer):
            self.columns[name] = crc32(data, self.columns.get(name, 0))

    @property
    def value(self) -> int | None:
        """The hash of all values so far; None if it is not known."""
        if self.over:
            return None
        return crc32(repr(sorted(self.columns.items())).encode(), self.rows) if self.columns else self.rows


_Leaf = tuple[str, Any]
_PRESENT = memoryview(b"\x01" * 16_384)
"""Flags of values that are not null."""


def _leaves(place: str, array: pa.Array, writer: ValueWriter) -> Iterator[_Leaf]:
    """The contents of an array as bytes, each part with its place: they follow from the values alone. What lies behind
    nulls, before the array's offset and behind its end does not count. Of several arrays, the parts of one place make up
    that of the arrays as one."""
    array = _plain(array)
    kind, count = array.type, len(array)
    if pa.types.is_null(kind) or not count:
        return
    yield f"{place} valid", _flags(array)
    if pa.types.is_boolean(kind):
        yield place, np.asarray(array.fill_null(False)).tobytes()
    elif kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        yield from _texts(place, array)
    elif pa.types.is_struct(kind):
        for at, child in enumerate(array.flatten()):
            yield from _leaves(f"{place}.{at}", child, writer)
    elif pa.types.is_map(kind) or isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        yield from _lists(place, array, writer)
    elif _is_fixed(kind):
        yield place, _zero_nulls(array, kind.bit_width // 8)
    else:
        writer.opaque[str(kind)] = None


def _plain(array: pa.Array) -> pa.Array:
    """The array without an encoding: of dictionaries, runs, views and types of extensions."""
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _plain(array.dictionary_decode())
    if isinstance(array, pa.RunEndEncodedArray):
        return _plain(pc.run_end_decode(array))
    if array.type in (pa.string_view(), pa.binary_view()):
        return array.cast(plain_type(array.type))
    return array


def _is_fixed(kind: pa.DataType) -> bool:
    """True for a type whose values lie behind each other, with one size in whole bytes."""
    is_one = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return not kind.num_fields and is_one


def _flags(array: pa.Array) -> memoryview | bytes:
    if not array.null_count and len(array) <= len(_PRESENT):
        return _PRESENT[: len(array)]
    return np.asarray(array.is_valid()).tobytes()


def _zero_nulls(array: pa.Array, size: int) -> bytes | memoryview:
    data = array.buffers()[1]
    if data is None:
        return bytes(size * len(array))
    start = array.offset * size
    held = memoryview(data)[start : start + size * len(array)]
    if not array.null_count:
        return held
    items = np.frombuffer(held, np.uint8).reshape(len(array), size).copy()
    items[np.asarray(array.is_null())] = 0
    return items.tobytes()


def _texts(place: str, array: pa.Array) -> Iterator[_Leaf]:
    if array.null_count:
        array = array.fill_null(b"" if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type) else "")
    _, offsets, data = array.buffers()
    size = np.int64 if array.type in (pa.large_string(), pa.large_binary()) else np.int32
    ends = np.frombuffer(offsets, size)[array.offset : array.offset + len(array) + 1]
    yield f"{place} lengths", np.diff(ends).tobytes()
    yield place, b"" if data is None else memoryview(data)[int(ends[0]) : int(ends[-1])]


def _lists(place: str, array: pa.Array, writer: ValueWriter) -> Iterator[_Leaf]:
    if pa.types.is_map(array.type):
        present = array.filter(array.is_valid()) if array.null_count else array
        lengths = np.zeros(len(array), np.int32)
        ends = np.asarray(present.offsets)
        lengths[np.asarray(array.is_valid())] = np.diff(ends)
        children = [child.slice(int(ends[0]), int(ends[-1] - ends[0])) for child in (present.keys, present.items)]
    else:
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
        children = [array.flatten()]
    yield f"{place} lengths", lengths.tobytes()
    for at, child in enumerate(children):
        yield from _leaves(f"{place}[{at}]", child, writer)
