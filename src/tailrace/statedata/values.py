"""The conversion of columns into values of state: maps become dictionaries, and structs with the fields `_1`, `_2`, ...
become tuples, as they were before state became columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from tailrace.elements.columns.encoding import plain_array
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.pythonlists import python_list
from tailrace.elements.rows import plain_values

Change = Callable[[Any], Any]


def state_values(column: pa.Array, name: str) -> list[Any]:
    """The values of a column, converted by its type. Raises `Misfit` for a value that Python, or a dictionary, cannot
    hold."""
    column = plain_array(column, name)
    change = _change(column.type)
    if change is None:
        return plain_values(column, name)
    try:
        return list(map(change, python_list(column)))
    except (ValueError, OverflowError, TypeError, ArithmeticError) as error:
        raise Misfit(f"column {name!r} of {column.type} has a value that Python cannot hold: {error}") from None


def is_tuple(names: list[str]) -> bool:
    """True if a struct of these fields stands for a tuple."""
    return names == [f"_{i}" for i in range(1, len(names) + 1)]


@lru_cache(maxsize=256)
def _change(kind: pa.DataType) -> Change | None:
    """The conversion of a value that pyarrow returns; None if it stays as it is."""
    if t.is_map(kind):
        return _absent_or(_dict(_change(kind.key_type) or _same, _change(kind.item_type) or _same))
    inner = [_change(kind.field(i).type) for i in range(kind.num_fields)]
    if t.is_struct(kind):
        names = [field.name for field in kind]
        parts = [one or _same for one in inner]
        if is_tuple(names):
            return _absent_or(lambda value: tuple(part(value[name]) for name, part in zip(names, parts, strict=True)))
        if any(inner):
            return _absent_or(lambda value: {name: part(value[name]) for name, part in zip(names, parts, strict=True)})
    item = inner[0] if len(inner) == 1 else None
    return None if item is None else _absent_or(lambda value: list(map(item, value)))


def _same(value: Any) -> Any:
    return value


def _absent_or(change: Change) -> Change:
    return lambda value: None if value is None else change(value)


def _dict(key: Change, item: Change) -> Change:
    def make(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        found = {key(one): item(other) for one, other in pairs}
        if len(found) < len(pairs):
            raise ValueError(f"a map in which a key is there twice: {pairs!r}")
        return found

    return make
