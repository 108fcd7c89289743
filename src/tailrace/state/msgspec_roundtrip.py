"""The check that an encoding gives the same value back: equal, and of the same types at every depth. msgspec writes a tuple
like a list, and a `Decimal` like a text. The declared type decides what comes back. If it is less exact than the value,
or differs from it, another value comes back without any error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import eq
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import astuple

_PLAIN: frozenset[type] = frozenset((type(None), bool, int, float, str, bytes, bytearray, date, timedelta, UUID))
"""Types of which two equal values are the same."""
_NOTHING: Any = object()


def check_came_back(value: Any, back: Any) -> None:
    """Raises `TypeError` if `back`, which was decoded from the bytes of `value`, is not the same value."""
    kind = type(value)
    if not (kind is type(back) and kind in _PLAIN and value == back) and not same(value, back):
        where, held, got = _first_difference(value, back)
        place = f"at {where} it holds" if where else "it is"
        raise TypeError(
            f"{place} {_text_of(held)}, which would come back from msgspec as {_text_of(got)}; declare the type in full, "
            f'so that it says {type(held).__qualname__} there, or encoding="pickle"'
        )


def same(a: Any, b: Any) -> bool:
    """True if two values are equal and of the same types at every depth. An int may have become the float that equals it: a
    declared float takes ints."""
    kind = type(a)
    if kind is not type(b):
        return kind is int and type(b) is float and a == b
    if kind in _PLAIN:
        return bool(a == b or a != a)
    if kind is list or kind is tuple:
        return _all_same(a, b)
    if kind is dict:
        return _all_same(a, b) and _all_same(a.values(), b.values())
    if isinstance(a, msgspec.Struct):
        return _each_same(astuple(a), astuple(b))
    if kind is set or kind is frozenset:
        partners = {one: one for one in b}
        return len(a) == len(b) and all(same(one, partners.get(one, _NOTHING)) for one in a)
    if kind is datetime or kind is time:
        return bool(a == b and a.tzinfo == b.tzinfo and a.fold == b.fold)
    if kind is Decimal:
        return str(a) == str(b)
    if isinstance(a, tuple):  # a named tuple
        return _all_same(a, b)
    names = _fields(kind)
    if names is None:
        return a is b or bool(a == b)
    return all(same(getattr(a, name, _NOTHING), getattr(b, name, _NOTHING)) for name in names)


def _all_same(a: Collection[Any], b: Collection[Any]) -> bool:
    """True if two collections hold the same values in the same order. Compares all items of one kind at once: most
    collections have very many plain values, or very many small tuples or structs."""
    if len(a) != len(b):
        return False
    kinds = set(map(type, a))
    if kinds == set(map(type, b)):
        if kinds <= _PLAIN and all(map(eq, a, b)):
            return True
        if len(kinds) == 1:
            [kind] = kinds
            if kind is tuple or kind is list:
                return all(map(eq, map(len, a), map(len, b))) and _all_same(_flat(a), _flat(b))
            if issubclass(kind, msgspec.Struct):
                return _all_same(_flat(map(astuple, a)), _flat(map(astuple, b)))
    return _each_same(a, b)


def _each_same(a: Iterable[Any], b: Iterable[Any]) -> bool:
    for one, other in zip(a, b, strict=True):
        kind = type(one)
        if not (kind is type(other) and kind in _PLAIN and one == other) and not same(one, other):
            return False
    return True


def _flat(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def _fields(kind: type) -> tuple[str, ...] | None:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(kind.__dataclass_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(one.name for one in kind.__attrs_attrs__)
    return None


def _first_difference(a: Any, b: Any, where: str = "") -> tuple[str, Any, Any]:
    """The (place, value there, value that would come back) of the first difference, as deep as it can be found."""
    inner: list[tuple[str, Any, Any]] = []
    if type(a) is type(b):
        names = _fields(type(a))
        if isinstance(a, list | tuple) and len(a) == len(b):
            inner = [(f"{where}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))]
        elif isinstance(a, dict) and len(a) == len(b):
            inner = [(f"{where} key", x, y) for x, y in zip(a, b, strict=True)]
            inner += [(f"{where}[{k!r}]", x, y) for k, x, y in zip(a, a.values(), b.values(), strict=True)]
        elif names is not None:
            inner = [(f"{where}.{name}", getattr(a, name, None), getattr(b, name, None)) for name in names]
    for place, x, y in inner:
        if not same(x, y):
            return _first_difference(x, y, place)
    return where.strip(), a, b


def _text_of(value: Any) -> str:
    text = repr(value)
    return f"the {type(value).__qualname__} {text if len(text) <= 60 else text[:57] + '...'}"
