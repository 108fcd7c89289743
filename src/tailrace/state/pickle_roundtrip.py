"""The check that a value comes back from its pickled bytes exactly as it is, so that a function that iterates over it
notices no difference. A set does not: the places of its members, and so the order of iteration, follow from all that was
ever put into it, and pickle writes only the present members.
"""

from __future__ import annotations

import copyreg
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

_DEEPEST = 12
"""Deepest nesting that is checked. A value nested deeper counts as not coming back: it may contain itself."""
_PLAIN, _ITEMS, _PAIRS, _FIELDS, _ARRAY, _UNKNOWN = range(6)
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, bytearray, Decimal, Fraction, datetime, date, time, timedelta, UUID
)  # fmt: skip
_PLAIN_TYPES = frozenset(_ATOMS)
_FEW = 16
_KINDS: dict[type, int] = {
    **dict.fromkeys(_ATOMS, _PLAIN),
    **dict.fromkeys((tuple, list, deque), _ITEMS),
    **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), _PAIRS),
    np.ndarray: _ARRAY,
}
"""Class -> the kind of its values. Each class is looked at once."""
_FIELDS_OF: dict[type, tuple[str, ...]] = {}
"""Class -> the fields of its objects that are not in their `__dict__`."""
_OWN = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__", "__new__")
"""Methods by which a class makes pickle store something other than its fields as they are."""
_HEAP = 1 << 9
"""The flag of a class that was written in Python."""


def comes_back(value: Any, deepest: int = _DEEPEST) -> bool:
    """True if a value is plain, or consists of plain values in lists, tuples, dictionaries and fields of objects, nested at
    most `deepest` levels deep."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return True
    if kind is tuple or kind is list:
        if _PLAIN_TYPES.issuperset(map(type, value)):
            return True
    elif kind is dict and _PLAIN_TYPES.issuperset(map(type, value)):
        values = value.values()
        if _PLAIN_TYPES.issuperset(map(type, values)):
            return True
        if len(values) <= _FEW:
            return deepest > 0 and all(comes_back(one, deepest - 1) for one in values)
    return _level_by_level(value, deepest)


def _level_by_level(value: Any, deepest: int) -> bool:
    """True if a value comes back, as `comes_back` defines it. Looks at all parts of one depth together: there may be very
    many parts of a few types."""
    level: list[Any] = [value]
    for _ in range(deepest):
        kinds = {_kind(one) for one in set(map(type, level))}
        kinds.discard(_PLAIN)
        if not kinds:
            return True
        if _UNKNOWN in kinds:
            return False
        plain = _ITEMS in kinds and all(_KINDS[one] == _ITEMS for one in set(map(type, level)))
        level = list(chain.from_iterable(level if plain else map(_inside, level)))
    return False


def _inside(value: Any) -> Iterable[Any]:
    """The parts of a value."""
    kind = _KINDS[type(value)]
    if kind == _ITEMS:
        return value  # type: ignore[no-any-return]
    if kind == _PAIRS:
        return chain(value, value.values())
    if kind == _FIELDS:
        named = [getattr(value, name, None) for name in _FIELDS_OF[type(value)]]
        return chain(named, vars(value).values()) if hasattr(value, "__dict__") else named
    if kind == _ARRAY and (value.dtype.hasobject or not (value.flags.c_contiguous or value.flags.f_contiguous)):
        return (_NOT_AS_IT_IS,)  # the gaps between its items do not come back, and numpy then adds in another order
    return ()


_NOT_AS_IT_IS: Any = object()
"""An object of a class that counts as unknown."""


def _kind(of: type) -> int:
    """The kind of the values of a class."""
    kind = _KINDS.get(of)
    if kind is None:
        kind = _KINDS[of] = _find(of)
    return kind


def _find(of: type) -> int:
    if of in copyreg.dispatch_table or of is object:
        return _UNKNOWN
    if issubclass(of, Enum | PurePath | np.number | np.bool_ | np.str_ | np.bytes_ | np.datetime64 | np.timedelta64):
        return _PLAIN
    if issubclass(of, tuple) and hasattr(of, "_columns"):
        return _ITEMS  # a row of a DataFrame
    if issubclass(of, tuple) and hasattr(of, "_fields"):
        return (
            _UNKNOWN if _names(of, tuple) & {"__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"} else _ITEMS
        )
    if issubclass(of, msgspec.Struct):
        _FIELDS_OF[of] = of.__struct_fields__
        return _UNKNOWN if _names(of, msgspec.Struct) & set(_OWN) else _FIELDS
    names = _names(of, object)
    own = {name for name in names & set(_OWN) if getattr(getattr(of, name), "__module__", "") != "dataclasses"}
    slots = [vars(one).get("__slots__", ()) for one in of.__mro__]
    fields = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    if own or not all(one.__flags__ & _HEAP for one in of.__mro__ if one is not object):
        return _UNKNOWN
    if any(name.startswith("__") and name not in ("__dict__", "__weakref__") for name in fields):
        return _UNKNOWN  # Python has mangled the name of the field
    _FIELDS_OF[of] = tuple(name for name in fields if name not in ("__dict__", "__weakref__"))
    return _FIELDS


def _names(of: type, base: type) -> set[str]:
    """The names that a class has in addition to the names of one of its bases."""
    return {name for one in of.__mro__ if one not in base.__mro__ for name in vars(one)}
