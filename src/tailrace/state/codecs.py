"""The encoding and decoding of values of state, and the layout of a block of entries.

A value is pickled (protocol 5), or encoded by msgspec if its declaration requests it: by `encoding="msgspec"`, or by a
declared type that is a `msgspec.Struct`. Keys are always pickled; keys that are objects of classes in a way of their own
(`elements.keypickling`).

A block: version (u8), 3 zero bytes, length of the head (u32), number of single values (u32), all little-endian; the head,
a pickle of (keys, values, keys of single values, deleted keys); a u32 length for each single value; the single values.
Values that cannot change are pickled together in the head, which is fast and stores a text that occurs often only once.
Other values are encoded one by one: objects of two keys must not come back as one object.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Collection
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple, Optional
from uuid import UUID

import msgspec

from tailrace.elements.keypickling import dump_keys
from tailrace.elements.valueclasses import Shapes, check_encoded, declared_classes, encoded_shape
from tailrace.elements.valuepickling import ClassNotes, loader
from tailrace.errors import CheckpointCorrupt, ConfigError
from tailrace.state.declarations import type_name
from tailrace.state.msgspec_roundtrip import check_came_back

VERSION = 2
_HEAD = struct.Struct("<BxxxII")
_PLAIN: frozenset[type] = frozenset(
    (type(None), bool, int, float, complex, str, bytes, Decimal, datetime, date, timedelta, UUID)
)
_FROZEN = (tuple, frozenset)
_TUPLES = {tuple}

Encode = Callable[[Any], bytes]
Decode = Callable[[Any], Any]


class StampedValue(msgspec.Struct, frozen=True, gc=False):
    """A value of state with a time to live, and the time of its last write. The garbage collector does not look at it: a
    cycle that leads through a value does not lead through here."""

    value: Any
    stamp: int
    """Int64 microseconds (`state.ttl`)."""


def immutable(value: Any) -> bool:
    """True if a value certainly cannot be changed in place: a plain one, or a tuple or frozen set of immutable values."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind in _FROZEN:
        return _PLAIN.issuperset(map(type, value)) or all(map(immutable, value))
    return kind is StampedValue and immutable(value.value)


def all_immutable(values: Collection[Any]) -> bool:
    """True if values certainly cannot be changed in place, without a look at each of them: all of them are plain, or all are
    tuples of plain ones."""
    kinds = set(map(type, values))
    return _PLAIN.issuperset(kinds) or (kinds == _TUPLES and _PLAIN.issuperset(map(type, chain.from_iterable(values))))


class Codec(NamedTuple):
    """The encoding of the values of one table."""

    name: str
    encode: Encode
    decode: Decode
    notes: ClassNotes
    """The classes of the values that the codec has encoded."""


def pickled_key(key: Any) -> bytes:
    """The bytes of a single key."""
    return dump_keys(key)


def pickle_codec() -> Codec:
    """The codec that pickles each value by itself."""
    notes = ClassNotes()
    return Codec("pickle", notes.dumps, pickle.loads, notes)


def codec_for(kind: str, type_: Any, encoding: str | None, name: str) -> Codec:
    """The codec of a declaration. Raises `ConfigError` for an unknown encoding, or a type that msgspec does not support."""
    if encoding not in (None, "pickle", "msgspec"):
        raise ConfigError(f'state {name!r}: encoding must be "pickle" or "msgspec", not {encoding!r}')
    structs = [one for one in _parts(type_) if _is_struct(one)]
    if encoding == "pickle" or (encoding is None and not structs):
        return pickle_codec()
    return msgspec_codec(kind, type_, encoding, name)


def decoder(encoding: str, kind: str, type_: Any, name: str, classes: Shapes = ()) -> Decode:
    """The function that decodes values of a checkpoint, which has encoded them as `encoding`, under the current declaration.
    `classes` are the shapes of their classes at that time. Raises `ChangedClass` if the classes have changed and the
    values cannot be told apart."""
    if encoding == "pickle":
        return loader(classes)
    check_encoded(classes, type_)
    return msgspec_codec(kind, type_, encoding, name).decode


def msgspec_codec(kind: str, type_: Any, encoding: str | None, name: str) -> Codec:
    """The codec that uses the msgpack encoding of msgspec. It decodes every value right after encoding it, and compares the
    two: msgspec checks the declared type only when it decodes. Otherwise a restore would be the first to find that a
    checkpoint holds another value. A check of the declared type alone does not suffice: under `str` msgspec also encodes
    a `Decimal`, which comes back as a text."""
    whole: Any = _plain(type_)
    if kind == "list":
        whole = list[whole]
    elif kind == "map":
        key, value = type_ if isinstance(type_, tuple) else (object, object)
        whole = dict[_plain(key), _plain(value)]  # type: ignore[misc]
    elif whole is not Any:
        whole = Optional[whole]  # noqa: UP045 - not every type takes `|`
    try:
        decode = msgspec.msgpack.Decoder(whole).decode
    except TypeError as error:
        raise ConfigError(f"state {name!r}: msgspec cannot take its type {type_name(type_)}: {error}") from error
    plain = msgspec.msgpack.Encoder().encode
    check = _checker(kind, type_) if any(map(_is_struct, _parts(type_))) else None

    def encode(value: Any) -> bytes:
        if check is not None:
            check(value)
        data = plain(value)
        check_came_back(value, decode(data))
        return data

    notes = ClassNotes()
    notes.add(shape for one in declared_classes(type_) if (shape := encoded_shape(one)) is not None)
    return Codec("msgspec", encode, decode, notes)


def _plain(type_: Any) -> Any:
    return Any if type_ is object else type_


def _parts(type_: Any) -> tuple[Any, ...]:
    return type_ if isinstance(type_, tuple) else (type_,)


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _checker(kind: str, type_: Any) -> Callable[[Any], None]:
    if kind == "map":
        pairs = [(which, one) for which, one in zip(("keys", "values"), type_, strict=True) if _is_struct(one)]

        def check(value: Any) -> None:
            for which, one in pairs:
                _only(one, set(map(type, getattr(value, which)())))
    elif kind == "list":

        def check(value: Any) -> None:
            _only(type_, set(map(type, value)))
    else:

        def check(value: Any) -> None:
            if value is not None:
                _only(type_, {type(value)})

    return check


def _only(expected: type, found: set[type]) -> None:
    if not found <= {expected}:
        others = ", ".join(sorted(type_name(one) for one in found - {expected}))
        raise TypeError(
            f'it is declared as {type_name(expected)} and holds {others}; declare what it holds, or encoding="pickle"'
        )


# Blocks.


class Entries(NamedTuple):
    """The content of a block."""

    keys: list[Any]
    values: list[Any]
    """One value for each of `keys`; none of them can be changed in place."""
    single_keys: list[Any]
    singles: list[Any]
    """Encoded values, one for each of `single_keys`."""
    deleted: list[Any]


def pack(entries: Entries) -> bytes:
    """The bytes of a block."""
    keys, values, single_keys, singles, deleted = entries
    head = dump_keys((keys, values, single_keys, deleted))
    lengths = struct.pack(f"<{len(singles)}I", *map(len, singles))
    return b"".join((_HEAD.pack(VERSION, len(head), len(singles)), head, lengths, *singles))


def unpack(data: bytes | memoryview) -> Entries:
    """The entries of a block. Raises `CheckpointCorrupt`; errors of unpickling the head are passed on."""
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise CheckpointCorrupt(f"a block of state is cut short: it has {len(view)} bytes")
    version, length, count = _HEAD.unpack(view[: _HEAD.size])
    if version != VERSION:
        raise CheckpointCorrupt(f"a block of state is of version {version}; this tailrace reads version {VERSION}")
    at = _HEAD.size + length
    keys, values, single_keys, deleted = pickle.loads(view[_HEAD.size : at])
    lengths = struct.unpack(f"<{count}I", view[at : at + 4 * count])
    at += 4 * count
    singles = []
    for size in lengths:
        singles.append(view[at : at + size])
        at += size
    return Entries(keys, values, single_keys, singles, deleted)
