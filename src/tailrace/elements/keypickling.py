"""Keys in checkpoints: their pickles, and their way into the next version of a program.

Pickle by itself writes an object as its class describes it today, and reads it as the class of that name describes it
later. If an Enum gets new values, the result is another member; if the fields of a dataclass with slots change places, it
is another key. Neither raises an error. So a key of a class is written as the name of the class, the names of its fields,
and its fields; a member of an Enum by its name. If the class of that name is another one now, reading raises
`ChangedKeyClass`, with the difference.

In the pickle a class is a call of `found_class`, once for all keys of a block, and a key is a call of `found_key` with that
class. Both names are a part of the format.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

from tailrace.elements.keyclasses import (
    KeyClass,
    KeyRefusal,
    MemberClass,
    RecordClass,
    TupleClass,
    ValueClass,
    any_seen,
    key_class,
)
from tailrace.elements.keys import UnsupportedKey, canonical_bytes
from tailrace.elements.valueclasses import ChangedClass, class_named, dotted_name


class ChangedKeyClass(ChangedClass):
    """The class of a written key is gone, or is another one now."""


# Writing.


def dump_keys(keys: Any) -> bytes:
    """The pickle of a key, or of something plain that holds keys."""
    if not any_seen():  # most programs have no keys of classes, and a look at each object takes time
        return pickle.dumps(keys, 5)
    buffer = BytesIO()
    _Pickler(buffer).dump(keys)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, 5)
        self._written: dict[type, _Written | None] = {}

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        try:
            written = self._written[kind]
        except KeyError:
            known = key_class(kind)
            written = None if known is None or isinstance(known, KeyRefusal) else _Written(known)
            self._written[kind] = written
        if written is None or not _is_key(written.known, obj):
            return NotImplemented
        return found_key, (written, *_fields_of(written.known, obj))


class _Written:
    """A class in a pickle. It is one object for all keys of the class, so that pickle writes it once."""

    __slots__ = ("known",)

    def __init__(self, known: KeyClass) -> None:
        self.known = known

    def __reduce__(self) -> tuple[Any, ...]:
        return found_class, (_LETTERS[type(self.known)], self.known.name, getattr(self.known, "fields", ()))


_LETTERS: dict[type, str] = {RecordClass: "record", MemberClass: "member", ValueClass: "value", TupleClass: "tuple"}
_CALLED = {
    "record": "a frozen dataclass",
    "member": "an Enum",
    "value": "an Enum that equals its value",
    "tuple": "a named tuple",
}


def _is_key(known: KeyClass, obj: Any) -> bool:
    """True if an object of this class can be a key; else it is an attribute of a key."""
    if isinstance(known, MemberClass):
        return known.has_name(obj)
    try:
        return not isinstance(known, ValueClass) or bool(canonical_bytes(obj))
    except UnsupportedKey:
        return False


def _fields_of(known: KeyClass, key: Any) -> tuple[Any, ...]:
    """The part of a key that is written beside its class."""
    if isinstance(known, RecordClass):
        return known.parts(key), known.more(key)
    if isinstance(known, TupleClass):
        return tuple(tuple.__iter__(key)), dict(getattr(key, "__dict__", ())) or None
    return key._name_, canonical_bytes(key) if isinstance(known, ValueClass) else None


# Reading.


def found_class(called: str, name: str, fields: tuple[str, ...]) -> KeyClass:
    """The class of written keys. Raises `ChangedKeyClass` if it is gone or has changed."""
    known = key_class(class_named(name, ChangedKeyClass))
    if known is None or isinstance(known, KeyRefusal) or _LETTERS[type(known)] != called or known.name != name:
        raise ChangedKeyClass(f"class {dotted_name(name)} was {_CALLED[called]} there, and is {_now(known, name)}")
    now = getattr(known, "fields", ())
    if now != fields:
        raise ChangedKeyClass(
            f"class {dotted_name(name)} had the fields {_list_of(fields)} there, and has {_list_of(now)} now"
        )
    return known


def found_key(known: KeyClass, found: Any, more: Any) -> Any:
    """A key of this class, from its written parts. Raises `ChangedKeyClass` for a member that is gone."""
    if isinstance(known, RecordClass):
        return known.make(found, more)
    if isinstance(known, TupleClass):
        key: Any = tuple.__new__(known.kind, found)
        if more:
            key.__dict__.update(more)
        return key
    return _member(known, found, more)


def _member(known: MemberClass | ValueClass, name: str, canonical: bytes | None) -> Any:
    """A member of an Enum by its name; if members equal their values, the member with the written value."""
    member: Any = known.kind.__members__.get(name)
    if canonical is None:
        if member is not None and member._name_ == name:
            return member
        now = f"; {name} is another name of {member._name_} now" if member is not None else ""
        raise ChangedKeyClass(f"class {dotted_name(known.name)} had a member {name} there, and has none now{now}")
    for one in (member, *known.kind):
        if one is not None and canonical_bytes(one) == canonical:
            return one
    raise ChangedKeyClass(f"class {dotted_name(known.name)} had a member {name} there, and no member has its value now")


def _now(known: KeyClass | KeyRefusal | None, name: str) -> str:
    if isinstance(known, KeyRefusal):
        return f"now not a key: {known.why}; {known.advice}"
    if known is None:
        return "now neither a dataclass nor an Enum nor a named tuple"
    return f"now {_CALLED[_LETTERS[type(known)]]}" if known.name == name else f"now the class {dotted_name(known.name)}"


def _list_of(fields: tuple[str, ...]) -> str:
    return f"({', '.join(fields)})"
