"""Classes whose objects are keys: frozen dataclasses, Enums, named tuples; and the reasons why other classes are refused.

An object can be a key only if its class defines what it is equal to, and if the class is found by its name in another
process and in the next version of the program. That name is `module:qualname`. A class of the program itself is of the
module `__main__` everywhere: in the script, in a notebook, in each worker, and where `tailrace run` loads a file.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import FunctionType
from typing import Any

from tailrace.elements.pickling import advice
from tailrace.errors import message_of

_MOST = 4_096
"""Maximum number of classes in the cache. Notebooks define classes again and again: old ones must not stay for ever."""

Parts = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class RecordClass:
    """A frozen dataclass: an object is equal to objects of exactly its class with equal fields."""

    kind: type
    name: str
    fields: tuple[str, ...]
    parts: Callable[[Any], Parts]
    """Function that returns the fields of an object, in their order."""
    prefix: bytes
    """First canonical bytes of an object, after the tag: the name of the class."""

    def make(self, parts: Parts, more: dict[str, Any] | None) -> Any:
        """An object with these fields; `more` are attributes that are no fields. It is made without a call of the class: its
        `__init__` and `__post_init__` may require and do anything."""
        new: Any = object.__new__(self.kind)
        if more:
            new.__dict__.update(more)
        for field, part in zip(self.fields, parts, strict=True):
            object.__setattr__(new, field, part)
        return new

    def more(self, key: Any) -> dict[str, Any] | None:
        """The attributes of an object that are no fields; None if it has none."""
        held = getattr(key, "__dict__", None)
        if not held or self.fields == tuple(held):
            return None
        return {name: value for name, value in held.items() if name not in self.fields} or None


@dataclass(frozen=True, eq=False)
class MemberClass:
    """An Enum: a member is equal to itself only."""

    kind: type[Enum]
    name: str
    prefix: bytes

    def has_name(self, key: Any) -> bool:
        """True if `key` is a member with a name. A combination of flags has none."""
        return self.kind.__members__.get(key._name_) is key


@dataclass(frozen=True, eq=False)
class ValueClass:
    """An Enum that is also another type, as IntEnum and StrEnum are: a member is equal to its value."""

    kind: type[Enum]
    name: str


@dataclass(frozen=True, eq=False)
class TupleClass:
    """A named tuple: equal to the tuple of its values."""

    kind: type
    name: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class KeyRefusal:
    """The reason why the objects of a class cannot be keys, and what to do."""

    why: str
    advice: str


KeyClass = RecordClass | MemberClass | ValueClass | TupleClass

_known: dict[type, KeyClass | None] = {}
_seen = False


def any_seen() -> bool:
    """True if this process has seen a class whose objects are keys."""
    return _seen


def key_class(kind: type) -> KeyClass | KeyRefusal | None:
    """The kind of a key's class, or the reason why it is refused. None for classes that this module does not handle."""
    global _seen
    try:
        return _known[kind]
    except KeyError:
        pass
    found = _looked_at(kind)
    if not isinstance(found, KeyRefusal):  # a refusal may end when the class is bound to its name
        if len(_known) >= _MOST:
            _known.clear()
        _known[kind] = found
        _seen = _seen or found is not None
    return found


def _looked_at(kind: type) -> KeyClass | KeyRefusal | None:
    if issubclass(kind, Enum):
        return _enum(kind)
    if issubclass(kind, tuple):
        return _named_tuple(kind)
    # Classes of other libraries have `__dataclass_fields__` too, but not the parameters.
    return _record(kind) if hasattr(kind, "__dataclass_fields__") and hasattr(kind, "__dataclass_params__") else None


def class_name(kind: type) -> str:
    """The name by which a class is found again, `module:qualname`. Neither part has a colon."""
    return f"{kind.__module__}:{kind.__qualname__}"


def prefix_of(name: str) -> bytes:
    """A name as the beginning of canonical bytes. Its length comes first, so that it cannot run into the bytes after it."""
    encoded = name.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "big") + encoded


# Enums.


def _enum(kind: type[Enum]) -> MemberClass | ValueClass | KeyRefusal:
    name = class_name(kind)
    if kind.__eq__ is not object.__eq__:
        return ValueClass(kind, name)
    if kind.__hash__ is not Enum.__hash__:
        return KeyRefusal("its class defines its own hash", "leave out __hash__, or use key.name")
    return _not_found(kind) or MemberClass(kind, name, prefix_of(name))


# Named tuples.


def _named_tuple(kind: type) -> TupleClass | None:
    fields = getattr(kind, "_fields", None)
    if not isinstance(fields, tuple) or not all(isinstance(field, str) for field in fields):
        return None
    if any(getattr(kind, way) is not getattr(tuple, way) for way in ("__reduce__", "__reduce_ex__")) or _not_found(
        kind
    ):
        return None
    return TupleClass(kind, class_name(kind), fields)


# Dataclasses.


def _record(kind: type) -> RecordClass | KeyRefusal:
    params: Any = kind.__dataclass_params__  # type: ignore[attr-defined]
    fields = dataclasses.fields(kind)
    if not params.frozen:
        return KeyRefusal("it is mutable", "declare its class with @dataclass(frozen=True)")
    left_out = [field.name for field in fields if not field.compare]
    if left_out:
        return KeyRefusal(
            f"its == does not compare its field {left_out[0]!r} (compare=False)",
            f"leave {left_out[0]!r} out of the key, or let it be compared",
        )
    if not params.eq:
        return KeyRefusal(
            "its == does not compare its fields (eq=False)", "leave out eq=False, or use a tuple of its fields"
        )
    made = _as_dataclasses_make_it(tuple((field.name, field.hash) for field in fields))
    for method in ("__eq__", "__hash__"):
        if not _same_code(getattr(kind, method), getattr(made, method)):
            what = "==" if method == "__eq__" else "hash"
            return KeyRefusal(
                f"its class defines its own {what}", f"leave out {method}, or use a tuple of what makes it equal"
            )
    names = tuple(field.name for field in fields)
    return _odd_layout(kind, names) or _not_found(kind) or _description(kind, names)


def _description(kind: type, names: tuple[str, ...]) -> RecordClass:
    get: Any = attrgetter(*names) if names else None
    parts: Callable[[Any], Parts]
    if len(names) > 1:
        parts = get
    elif names:
        parts = lambda key: (get(key),)  # noqa: E731
    else:
        parts = lambda key: ()  # noqa: E731
    name = class_name(kind)
    return RecordClass(kind, name, names, parts, prefix_of(name))


@lru_cache(maxsize=256)
def _as_dataclasses_make_it(fields: tuple[tuple[str, bool | None], ...]) -> type:
    """A frozen dataclass with these fields (name, whether it counts in the hash). Its == and its hash are the ones that this
    Python generates."""
    made = [(name, object, dataclasses.field(hash=hashed)) for name, hashed in fields]
    return dataclasses.make_dataclass("Made", made, frozen=True)


def _same_code(method: Any, made: Any) -> bool:
    """True if a method does what the generated method does. File names cannot decide this: the code of a program that is
    given as text has the file name of generated code."""
    if not isinstance(method, FunctionType):
        return False
    one, other = method.__code__, made.__code__
    return (one.co_code, one.co_names, one.co_consts, one.co_varnames, one.co_freevars) == (
        other.co_code,
        other.co_names,
        other.co_consts,
        other.co_varnames,
        other.co_freevars,
    )


def _odd_layout(kind: type, fields: tuple[str, ...]) -> KeyRefusal | None:
    """The refusal of a class whose objects hold more than their fields and attributes: they could not be made again from
    these. None for any other class."""
    slots = [name for name in _slots(kind) if name not in fields and name not in ("__dict__", "__weakref__")]
    if slots:
        return KeyRefusal(f"its class has a slot {slots[0]!r} that is not a field", "make it a field, or leave it out")
    try:
        object.__new__(kind)
    except TypeError:  # a dict or a list with fields
        return KeyRefusal("its class holds more than its fields (a dict or list?)", "use a tuple of what it holds")
    return None


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            private = name.startswith("__") and not name.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{name}" if private else name


# Classes by their names.


def _not_found(kind: type) -> KeyRefusal | None:
    """The refusal of a class that pickle does not find by its name: keys are sent to other processes and written into
    checkpoints by the name of their class. None if it is found."""
    try:
        pickle.dumps(kind, 5)
    except Exception as error:
        return KeyRefusal(f"pickle does not find its class by name ({message_of(error)})", advice(error))
    return None
