"""Declared types of state as texts, as checkpoints hold them, and the check which new type may follow an old one."""

from __future__ import annotations

import re
from typing import Any

from tailrace.elements.valueclasses import Shapes, declared_classes

_ANYTHING = frozenset(("", "object", "Any"))
_WIDER = frozenset((("bool", "int"), ("bool", "float"), ("int", "float"), ("int", "complex"), ("float", "complex")))
"""(type of numbers, type that takes each of its values as it is)."""


def type_name(type_: Any) -> str:
    """The text of a declared type, for people."""
    if isinstance(type_, tuple):
        return ", ".join(map(type_name, type_))
    return type_.__qualname__ if isinstance(type_, type) else str(type_)


def value_type(text: str) -> str:
    """The text of the type of values, of a text with types of keys and values."""
    return _parts(text, ",")[-1]


def goes_on(old: str, new: str) -> bool:
    """True if state that was declared as `old` may be read as declared by `new`: each value of the old type is one of the
    new type, as far as both say it."""
    then, now = _parts(_plain(old), ","), _parts(_plain(new), ",")
    if len(then) != len(now):  # one of them does not name types of keys and values
        return old in _ANYTHING or new in _ANYTHING
    return all(map(_fits, then, now))


def takes(old: str, encoding: str, classes: Shapes, new: Any) -> bool:
    """True if state that was declared as `old` and encoded as `encoding` may be read as the declared type `new`. For classes
    that msgspec has encoded, only their fields are compared; their names may have changed."""
    return goes_on(old, type_name(new)) or (encoding == "msgspec" and bool(classes) and bool(declared_classes(new)))


def _fits(old: str, new: str) -> bool:
    if old == new or old in _ANYTHING or new in _ANYTHING:
        return True
    choices = _choices(new)
    return all(any(_fits_one(one, other) for other in choices) for one in _choices(old))


def _fits_one(old: str, new: str) -> bool:
    if old == new or new in _ANYTHING or (old, new) in _WIDER:
        return True
    (origin, then), (other, now) = _split(old), _split(new)
    if origin != other:
        return False
    if not then or not now:  # one of them does not name the types of its parts
        return True
    return len(then) == len(now) and all(map(_fits, then, now))


def _choices(text: str) -> list[str]:
    """The types that a union takes."""
    origin, inner = _split(text)
    if origin == "Optional":
        return [*(one for part in inner for one in _choices(part)), "None"]
    if origin == "Union":
        return [one for part in inner for one in _choices(part)]
    return ["None" if one == "NoneType" else one for one in _parts(text, "|")]


def _split(text: str) -> tuple[str, list[str]]:
    origin, bracket, rest = text.partition("[")
    return origin.strip(), _parts(rest[:-1], ",") if bracket and text.endswith("]") else []


def _parts(text: str, between: str) -> list[str]:
    """The parts of a text between the separators, without splitting inside brackets."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == between and not depth:
            found.append(text[start:at].strip())
            start = at + 1
    return [*found, text[start:].strip()]


def _plain(text: str) -> str:
    """The text without names of modules, which are part of a class in some places only, and with one name for each type."""
    return re.sub(
        r"\b(List|Dict|Set|Tuple|FrozenSet)\b", lambda name: name[0].lower(), re.sub(r"(?:[\w<>]+\.)+", "", text)
    )


def other_class(state: str, why: object, uid: str) -> str:
    """A sentence for the user: the classes of the values of a state have changed."""
    return (
        f"values of state {state!r} in the checkpoint cannot be read: {why}; or leave the state behind: "
        f"allow_dropped_state=[{uid!r}]"
    )


def other_type(state: str, old: str, new: str, uid: str) -> str:
    """A sentence for the user: a state is declared as another type now."""
    return (
        f"state {state!r} was declared as {old} and is declared as {new} now, which does not take each of its values; "
        f"declare the type that it had, or both ({old} | {new}), give the new state another name, or leave the old one "
        f"behind: allow_dropped_state=[{uid!r}]"
    )
