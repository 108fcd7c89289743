"""Shapes of the classes whose objects are in state and in records of a checkpoint: the names of the classes, their fields or
members, and the way by which objects of one version of a class become objects of the next.

Pickle and msgspec write many objects by position (named tuples, frozen dataclasses with slots, structs), and members of an
Enum by their values. If fields changed places, or an Enum got new values, written objects would become other ones without
any error. So a checkpoint records the shape of each class that it has objects of. If the class of that name has another
shape now, objects are mapped by the names of their fields and members if that is exact, else refused:

- a field that is gone is left out, and a new field gets its default. Both at once are refused: that may be one field under
  another name;
- members of an Enum are found by their names; one that is gone is refused;
- a class that pickles itself (`__reduce__`, `__getstate__`, `__setstate__`) is not checked: it must read its old pickles.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from itertools import chain
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID

import msgspec

from tailrace.elements.defaults import defaults_of, left_out
from tailrace.errors import TailraceError

Form = Literal[
    "object",
    "attributes",
    "slots",
    "listed",
    "tuple",
    "struct",
    "keywords",
    "enum",
    "flag",
    "own",
    "map",
    "array",
    "choice",
]
"""The form in which objects of a class are written. By pickle: an `object` of a plain class, a dataclass or class of attrs
with `attributes` or `slots`, a frozen dataclass with slots (`listed`), a named `tuple`, a `struct` (`keywords` if some of
its fields are keyword-only), an `enum`, a `flag`, or as the class itself defines (`own`). By msgspec: as a `map` of names,
as an `array`, or a `choice` of values."""
_NAMED = ("object", "attributes", "slots", "listed")
"""Forms whose objects are restored from a state with names, or with values in the order of the fields."""
_STRUCTS = ("struct", "keywords")
_CALLED: Mapping[str, str] = {
    "object": "a plain class",
    "attributes": "a class with fields",
    "slots": "a class with fields in slots",
    "listed": "a frozen dataclass with slots",
    "tuple": "a named tuple",
    "struct": "a msgspec.Struct",
    "keywords": "a msgspec.Struct",
    "enum": "an Enum",
    "flag": "a Flag",
    "own": "a class with pickling of its own",
    "map": "encoded by the names of its fields",
    "array": "encoded by the order of its fields",
    "choice": "an Enum",
}
_PLAIN = (int, str, bytes, float, bool, type(None), complex, Decimal, date, datetime, time, timedelta, UUID)
_NOTHING: Any = object()


class ChangedClass(TailraceError, TypeError):
    """The class of a written object is gone, or is another one now."""


class ClassShape(msgspec.Struct, frozen=True, array_like=True):
    """The shape of a class as a checkpoint records it."""

    name: str
    """Name of the class, `module:qualname`."""
    form: Form
    fields: tuple[str, ...] = ()
    """Names of the fields in their order, or of the members of an Enum."""
    values: tuple[str, ...] = ()
    """Values of the members of an Enum as texts; a text is empty if the value has no distinct one."""
    written: tuple[str, ...] = ()
    """Tag of a `msgspec.Struct` that msgspec encodes, and the defaults that msgspec leaves out."""


Shapes = tuple[ClassShape, ...]


def class_named(name: str, error: type[TailraceError] = ChangedClass) -> type:
    """The class of a name `module:qualname`. Raises `error` if there is none."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as missing:
        what = f"class {dotted_name(name)} is gone, or nothing in the dataflow refers to it ({missing})"
        if module == "__main__":  # state outlives scripts, and each script is of that name
            what += "; it is a class of the script that ran then: start that one, or import the class into this one"
        raise error(what) from missing
    if not isinstance(found, type):
        raise error(f"class {dotted_name(name)} is gone: that name is a {type(found).__name__} now")
    return found


def dotted_name(name: str) -> str:
    """The name of a class for users, with a dot for the colon."""
    return name.replace(":", ".")


def merge(some: Iterable[ClassShape], others: Iterable[ClassShape]) -> Shapes:
    """The shapes of both, each class once."""
    return tuple({(one.name, one.form): one for one in (*some, *others)}.values())


# Shapes.


_known: dict[type, ClassShape | None] = {}
_MOST = 4_096
"""Maximum number of classes in the cache. Notebooks define classes again and again: old ones must not stay for ever."""


def pickled_shape(kind: type) -> ClassShape | None:
    """The shape of a class whose objects are pickled. None for classes of Python itself, and for classes whose objects a
    function of their own makes: a shape would not describe their pickles."""
    try:
        return _known[kind]
    except KeyError:
        pass
    if len(_known) >= _MOST:
        _known.clear()
    found = _known[kind] = _pickled_shape(kind)
    return found


def _pickled_shape(kind: type) -> ClassShape | None:
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        return None
    name = f"{kind.__module__}:{kind.__qualname__}"
    if issubclass(kind, Enum):
        return _enum(kind, name, "flag" if issubclass(kind, Flag) else "enum")
    own_state = _writes_itself(kind)
    if issubclass(kind, msgspec.Struct):
        fields: tuple[str, ...] = kind.__struct_fields__
        by_msgspec = kind.__reduce__ is msgspec.Struct.__reduce__ and not own_state
        if not by_msgspec:
            return ClassShape(name, "own")
        ways = {one.kind for one in inspect.signature(kind).parameters.values()}
        return ClassShape(name, "keywords" if inspect.Parameter.KEYWORD_ONLY in ways else "struct", fields)
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return None  # a function of the class's library makes its objects
    named = getattr(kind, "_fields", None)
    if issubclass(kind, tuple) and isinstance(named, tuple):
        return ClassShape(name, "tuple", named) if _lists_its_fields(kind) else ClassShape(name, "own")
    found = field_names(kind)
    slots = tuple(_slots(kind))
    if found is not None and getattr(kind, "__getstate__", None) is _LISTS_FIELDS:
        return ClassShape(name, "listed", found)
    if own_state and not hasattr(kind, "__attrs_attrs__"):
        return ClassShape(name, "own")
    if found is None:
        return ClassShape(name, "object", slots)
    return ClassShape(name, "slots" if slots else "attributes", found)


_LISTS_FIELDS = getattr(dataclasses, "_dataclass_getstate", None)
"""Method by which a frozen dataclass with slots writes its objects: the values of its fields in their order."""

_SETS_FIELDS = getattr(dataclasses, "_dataclass_setstate", None)
"""Method by which a frozen dataclass with slots reads its objects."""


def _lists_its_fields(kind: type) -> bool:
    """True if a named tuple is written as its fields in their order: by the method that its library made with them."""
    makes = next(base for base in kind.__mro__ if "_fields" in vars(base))
    return getattr(kind, "__getnewargs__", None) is vars(makes).get("__getnewargs__")


def _writes_itself(kind: type) -> bool:
    own: Any = kind.__getstate__
    plain = own is object.__getstate__ and not hasattr(kind, "__setstate__")
    return not plain or hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__")


def encoded_shape(kind: type) -> ClassShape | None:
    """The shape of a class whose objects msgspec encodes; None for all other classes."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if issubclass(kind, Enum):
        return _enum(kind, name, "choice")
    if issubclass(kind, msgspec.Struct):
        form: Form = "array" if kind.__struct_config__.array_like else "map"
        return ClassShape(name, form, kind.__struct_encode_fields__, (), (_tag(kind), *_left_out(kind)))
    if is_typeddict(kind):
        return ClassShape(name, "map", tuple(kind.__annotations__))
    if issubclass(kind, tuple):
        named = getattr(kind, "_fields", None)
        return ClassShape(name, "array", named) if isinstance(named, tuple) else None
    found = field_names(kind)
    return None if found is None else ClassShape(name, "map", found)


def _tag(kind: type[msgspec.Struct]) -> str:
    """The tag by which msgspec recognises objects of a class, as text; empty if there is none."""
    config = kind.__struct_config__
    return "" if config.tag is None else f"{config.tag_field} = {config.tag!r}"


def _left_out(kind: type[msgspec.Struct]) -> list[str]:
    """The fields that msgspec leaves out if they have their defaults, each with its default."""
    if not kind.__struct_config__.omit_defaults:
        return []
    made = defaults_of(kind, encoded=True).items()
    return [f"{name} = {_default_text(make)}" for name, make in made if left_out(make)]


def _default_text(make: Callable[[], Any]) -> str:
    """The default of a field as a text: the bytes that msgspec writes for it. So it does not depend on the field's type,
    which another version may change."""
    try:
        return msgspec.msgpack.encode(make(), order="deterministic").hex()
    except (TypeError, msgspec.MsgspecError):  # `UNSET`, say, which is never written
        return "none"


def _enum(kind: type[Enum], name: str, form: Form) -> ClassShape:
    members = kind.__members__
    return ClassShape(name, form, tuple(members), tuple(value_text(one._value_) for one in members.values()))


def value_text(value: Any) -> str:
    """The value of a member as a text that distinguishes it from other values, in any process; empty if there is none."""
    kind = type(value)
    if kind in _PLAIN:
        return f"{kind.__name__} {value!r}"
    if kind is dict:
        parts = _value_texts(chain.from_iterable(value.items()))
    elif kind in (tuple, list):
        parts = _value_texts(value)
    elif kind in (set, frozenset):
        parts = sorted(_value_texts(value))
    else:
        names = kind.__struct_fields__ if isinstance(value, msgspec.Struct) else field_names(kind)
        parts = [""] if names is None else _value_texts(getattr(value, name, None) for name in names)
    return "" if "" in parts else f"{'' if kind is tuple else kind.__name__}({', '.join(parts)})"


def _value_texts(values: Iterable[Any]) -> list[str]:
    return list(map(value_text, values))


def field_names(kind: type) -> tuple[str, ...] | None:
    """The names of the fields of a dataclass or a class of attrs; None for other classes."""
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(one.name for one in dataclasses.fields(kind))
    of_attrs = getattr(kind, "__attrs_attrs__", None)
    return None if of_attrs is None else tuple(one.name for one in of_attrs)


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


# Classes that have changed.


class Renewal:
    """The mapping of objects of an older shape of a class to objects of today's class."""

    def __init__(self, old: ClassShape, kind: type, defaults: Mapping[str, Callable[[], Any]]) -> None:
        self.old = old
        self.kind = kind
        self.defaults = defaults
        """Name of a new field -> function that makes its default."""
        now = pickled_shape(kind)
        self.now = frozenset[str]() if now is None else frozenset(now.fields)
        self.complete = now is not None and now.form != "object"
        """True if an object must have all of its fields. An object of a plain class has the attributes that are set."""
        self.leaves_out = self.complete or not kind.__dictoffset__
        """True if fields that are gone are left out. An object of a plain class may keep them as attributes."""

    def renew(self, held: dict[str, Any]) -> dict[str, Any]:
        """The fields of an object of today's class by name, from the written ones; with attributes that are no fields."""
        gone = frozenset(self.old.fields) - self.now if self.leaves_out else ()
        kept = {name: value for name, value in held.items() if name not in gone}
        return kept | {name: make() for name, make in self.defaults.items() if name not in kept}


def renewal(old: ClassShape) -> Renewal | None:
    """The mapping of objects of this shape to the class of that name now; None if they need none. Raises `ChangedClass` if
    there is no exact mapping, or the class is gone."""
    kind = class_named(old.name)
    now = pickled_shape(kind)
    if now == old:
        return None
    if now is None or now.form == "own":
        _check_order(old, kind)
        return None  # the class reads its old pickles itself
    if now.form != old.form and not any(now.form in alike and old.form in alike for alike in (_NAMED, _STRUCTS)):
        raise _other(old, f"was {_CALLED[old.form]} there, and is {_CALLED[now.form]} now")
    if now.form in ("enum", "flag"):
        return _members(old, now, kind)
    if now.form == old.form and now.form != "listed" and now.form in _NAMED and set(now.fields) == set(old.fields):
        return None  # fields are written by their names, so their order does not matter
    unknown = old.form == "object" and now.form != "object"
    added = _new_fields(old, now, unknown)
    defaults = defaults_of(kind)
    if not unknown:
        _check_defaults(old, added, defaults)
    if not old.fields and now.form in _NAMED and not unknown and added:
        raise _other(old, f"had no fields there, and has {_list_of(now.fields)} now")
    return Renewal(old, kind, {name: defaults[name] for name in added if name in defaults})


def _check_order(old: ClassShape, kind: type) -> None:
    """Raises `ChangedClass` if a class that now pickles itself would get values by position that were written in another
    order of its fields. Of these, a `__setstate__` reads only the values of a frozen dataclass with slots."""
    own_state = getattr(kind, "__setstate__", _SETS_FIELDS) is not _SETS_FIELDS
    if old.form not in ("tuple", *_STRUCTS) and (old.form != "listed" or own_state):
        return
    fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None) or field_names(kind) or ()
    if fields[: len(old.fields)] != old.fields:
        raise _other(
            old,
            f"had the fields {_list_of(old.fields)} there, written in this order, and has pickling of its own now, "
            f"with the fields {_list_of(fields)}",
        )


ENCODED = ("map", "array", "choice")
"""Forms of classes whose objects msgspec has encoded under a declared type."""


def misfits(shapes: Iterable[ClassShape], declared: Any = object) -> list[str]:
    """The reasons why objects of these shapes cannot be read now, a sentence for each changed class. `declared`: the type,
    or several types, that their state is declared as now."""
    shapes, wrong = list(shapes), list[str]()
    try:
        check_encoded([shape for shape in shapes if shape.form in ENCODED], declared)
    except ChangedClass as error:
        wrong.append(str(error))
    for shape in shapes:
        try:
            if shape.form not in ENCODED:
                renewal(shape)
        except ChangedClass as error:
            wrong.append(str(error))
    return wrong


def declared_classes(declared: Any) -> list[type]:
    """The classes that msgspec knows of a declared type: the classes that it names, and the declared types of their
    fields."""
    found: dict[type, None] = {}
    waiting = list(declared) if isinstance(declared, tuple) else [declared]
    looked_at = list[Any]()
    while waiting:
        one = waiting.pop()
        # Types that stand for another type: a generic class, `NewType`, a variable, `type X = ...`.
        others = [get_origin(one), *(getattr(one, name, None) for name in ("__supertype__", "__bound__", "__value__"))]
        waiting += [*get_args(one), *(other for other in others if other is not None and other not in looked_at)]
        looked_at += others
        if isinstance(one, type) and one not in found and encoded_shape(one) is not None:
            found[one] = None
            if not issubclass(one, Enum):
                waiting += get_type_hints(one).values()
    return list(found)


def check_encoded(shapes: Iterable[ClassShape], declared: Any) -> None:
    """Raises `ChangedClass` if msgspec would read objects of these shapes as other objects under a declared type, or not at
    all. A class may have another name now: the class that the type names in its place."""
    kinds = {f"{one.__module__}:{one.__qualname__}": one for one in declared_classes(declared)}
    there = tuple(sorted({one.__qualname__ for one in kinds.values()}))
    moved = list[ClassShape]()
    for shape in shapes:
        if shape.name in kinds:
            _check_encoded(shape, kinds.pop(shape.name))
        else:
            moved.append(shape)
    left = list(kinds.values())
    for shape in moved:
        named = [kind for kind in left if kind.__qualname__ == shape.name.partition(":")[2]]
        kind = next(iter(named or left), None)
        if kind is not None:
            left.remove(kind)
            _check_encoded(shape, kind)
        elif there:
            raise _other(shape, f"is not in the declared type any more, which has {_list_of(there)}")


def _members(old: ClassShape, now: ClassShape, kind: type) -> Renewal | None:
    texts = dict(zip(now.fields, now.values, strict=True))
    held = _own_names(old)
    gone = [name for name in held if name not in texts]
    if gone:
        raise _other(old, f"had a member {gone[0]} there, and has none now; members are known by their names")
    moved = [name for name, text in held.items() if texts[name] != text]
    if not moved:
        return None
    if now.form == "flag" or "" in old.values:
        raise _other(old, f"has another value for {moved[0]} now, and what was written cannot be found by names")
    return Renewal(old, kind, {})


def _own_names(old: ClassShape) -> dict[str, str]:
    """Name of a member of an Enum -> its value, without aliases."""
    found: dict[str, str] = {}
    for name, text in zip(old.fields, old.values, strict=True):
        if text == "" or text not in found.values():
            found[name] = text
    return found


def _check_encoded(old: ClassShape, kind: type) -> None:
    now = encoded_shape(kind)
    if now is not None and msgspec.structs.replace(now, name=old.name) == old:
        return
    if now is None or now.form != old.form:
        raise _other(
            old, f"was {_CALLED[old.form]} there, and is {'another' if now is None else _CALLED[now.form]} now"
        )
    if old.written and now.written:
        _check_written(old, now, kind)
    if now.form == "choice":
        if _members(old, now, kind) is not None:
            raise _other(old, "has other values for its members now, and msgspec writes values")
    elif now.form == "array":
        if now.fields[: len(old.fields)] != old.fields:
            raise _other(
                old,
                f"had the fields {_list_of(old.fields)} there, in this order, and has {_list_of(now.fields)} now; what is "
                f"encoded as an array takes new fields at its end only",
            )
        _check_defaults(old, list(now.fields[len(old.fields) :]), defaults_of(kind, encoded=True))
    else:
        _check_defaults(old, _new_fields(old, now, False), defaults_of(kind, encoded=True))
        strict = issubclass(kind, msgspec.Struct) and kind.__struct_config__.forbid_unknown_fields
        if strict and not set(old.fields) <= set(now.fields):
            raise _other(
                old, f"had the fields {_list_of(old.fields)} there, and forbids others than {_list_of(now.fields)}"
            )


def _check_written(old: ClassShape, now: ClassShape, kind: type) -> None:
    if old.written[0] != now.written[0]:
        was, tag = (one or "no tag" for one in (old.written[0], now.written[0]))
        raise _other(
            old, f"was written with {was} there, and is read with {tag} now, by which msgspec knows its objects"
        )
    defaults = {name: _default_text(make) for name, make in defaults_of(kind, encoded=True).items()}
    for one in old.written[1:]:
        name, _, text = one.partition(" = ")
        if name in now.fields and defaults.get(name) != text:
            raise _other(
                old, f"left out {name!r} where it had its default there (omit_defaults), which is another one now"
            )


def _new_fields(old: ClassShape, now: ClassShape, unknown: bool) -> list[str]:
    """The new fields. Raises `ChangedClass` if fields are gone too: a new field may be one of these under another name.
    With `unknown`, for an old plain class, it does not: the attributes of its objects are not known."""
    added = [name for name in now.fields if name not in old.fields]
    gone = [name for name in old.fields if name not in now.fields]
    if added and gone and not unknown:
        raise _other(
            old,
            f"had the fields {_list_of(old.fields)} there, and has {_list_of(now.fields)} now: {gone[0]!r} is gone and "
            f"{added[0]!r} is new, which may be one field under another name. Keep the old one, or leave it out in one "
            f"start and add the new one in the next",
        )
    return added


def _check_defaults(old: ClassShape, added: list[str], defaults: Mapping[str, Callable[[], Any]]) -> None:
    for name in added:
        if name not in defaults:
            raise _other(old, f"had no field {name!r} there, and it has no default: give it one")


def _other(old: ClassShape, what: str) -> ChangedClass:
    return ChangedClass(f"class {dotted_name(old.name)} {what}")


def _list_of(fields: tuple[str, ...]) -> str:
    return f"({', '.join(fields)})"
