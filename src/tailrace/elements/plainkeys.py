"""Plain keys: the form in which a dictionary finds a key again, and takes no other key for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from operator import is_
from typing import Any
from uuid import UUID

import numpy as np

from tailrace.elements.keyclasses import RecordClass, key_class
from tailrace.elements.timestamps import steady

NAN = float("nan")
"""The one NaN that `plain_key` puts in place of every NaN, so that a dictionary finds it again by identity."""
NEVER = object()
"""Result of `with_parts` if a field does not have the form."""

_PLAIN = frozenset((int, str, bytes, type(None), bool, date, timedelta, UUID))
"""Types of keys that a dictionary compares as keys."""


def plain_key(key: Any) -> Any:
    """The key in a form in which a dictionary finds it again, and takes no other key for it. Items of tuples and fields of
    dataclasses are changed too. If nothing changes, it is the object itself.

    A NaN becomes `NAN`, because dictionaries compare by identity first. A scalar of numpy becomes the Python value that it
    stands for: numpy rounds when it compares. A datetime in an hour that is repeated or skipped gets a fixed offset, so that
    it is compared as an instant. Named tuples and dataclasses keep their class.
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
    return with_parts(known, key, plain_key)


def with_parts(known: RecordClass, key: Any, form: Callable[[Any], Any]) -> Any:
    """An object of a dataclass with each field in the form that `form` makes: `key` itself if no field changes, `NEVER` if
    a field does not have the form."""
    parts = known.parts(key)
    items = tuple(map(form, parts))
    if all(map(is_, items, parts)):
        return key
    return NEVER if any(item is NEVER for item in items) else known.make(items, known.more(key))


def parts_of(key: Any) -> tuple[Any, ...]:
    """The parts by which a key is compared: the items of a tuple, the fields of a dataclass. Empty for any other key."""
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
        # Without a call of the class: its __new__ may require anything.
        made = tuple.__new__(type(key), items)
    except TypeError:
        return items  # a struct sequence of C cannot be made so; a plain tuple equals it
    if hasattr(key, "__dict__"):
        made.__dict__.update(key.__dict__)  # rows of Spark have their field names there
    return made
