"""The types of columns for keys and values of state: from the declaration if possible, and else from the values.

A checkpoint holds the declared type of a state as a text for people. A plain type (`int`, `str`, `datetime`, ...) decides
the type of a column. The values were not checked against it, so a value that does not fit is refused when it is read. For
keys, and for values of any other type, some of them are looked at: the column gets the type that holds all these.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as t

from tailrace.elements.columns.misfit import type_for
from tailrace.elements.columns.named_records import names_of
from tailrace.errors import IncompatibleState, short_repr
from tailrace.state.codecs import msgspec_codec
from tailrace.state.format import TableInfo
from tailrace.state.ttl import plain_encoding, stamped_decoder
from tailrace.statedata.values import is_tuple

_CLASSES: dict[str, Any] = {
    one.__name__: one for one in (int, float, bool, str, bytes, datetime, date, time, timedelta, Decimal, UUID)
}
DECIMAL = pa.decimal128(38, 18)
"""The type of a column of `Decimal`, the default of Spark."""
MOMENT = pa.timestamp("us", "UTC")
_COLUMNS: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timedelta": pa.duration("us"),
    "Decimal": DECIMAL,
}


class NoColumn(IncompatibleState):
    """Raised for keys or values that no type of column holds as they are."""


def declared_decoder(table: TableInfo) -> Callable[[Any], Any]:
    """The function that decodes values of a table without the program that declared it. A value of a class of the user that
    msgspec has encoded comes back as a dict of its fields. Values with a time to live are in the form of `state.ttl`."""
    plain = _plain_decoder(table)
    return stamped_decoder(table.kind, plain) if table.stamps else plain


def _plain_decoder(table: TableInfo) -> Callable[[Any], Any]:
    if plain_encoding(table.encoding) == "pickle":
        return pickle.loads
    names = _names(table.type)
    known = [_CLASSES.get(name, object) for name in names]
    kind: Any = (*known, object, object)[:2] if table.kind == "map" else known[0] if len(known) == 1 else object
    return msgspec_codec(table.kind, kind, "msgspec", table.name).decode


def _names(declared: str) -> list[str]:
    return [name.removesuffix(" | None").strip() for name in declared.split(",")]


DUPLICATES = "duplicates"
"""The kind of the state of `drop_duplicates`: the times of the kept records of each key in int64 microseconds."""


def declared_column(table: TableInfo) -> pa.DataType | None:
    """The type of column for the values of a state, if its declaration determines it; None if the values must be looked
    at."""
    if table.kind == DUPLICATES:
        return pa.list_(pa.int64())
    found = [_COLUMNS.get(name) for name in _names(table.type)]
    if table.kind == "map":
        return pa.map_(*found) if len(found) == 2 and None not in found else None
    if len(found) != 1 or found[0] is None or table.kind not in ("value", "reducing", "list"):
        return None
    return pa.list_(found[0]) if table.kind == "list" else found[0]


def column_for(values: Iterable[Any], kind: str = "value") -> pa.DataType:
    """The type of column that holds all these values of a state of this kind as they are. Raises `NoColumn` if there is
    none."""
    if kind == "map":
        return without_nulls(_common_to(map(_map_of, values), pa.map_(pa.string(), pa.null())))
    return without_nulls(_common_to(map(type_of, values), pa.null()))


def _common_to(kinds: Iterable[pa.DataType], first: pa.DataType) -> pa.DataType:
    for one in kinds:
        first = common(first, one)
    return first


def without_nulls(kind: pa.DataType) -> pa.DataType:
    """The type, with texts in place of parts of unknown type, of which all values were None."""
    if t.is_null(kind):
        return pa.string()
    if t.is_list(kind):
        return pa.list_(without_nulls(kind.value_type))
    if t.is_map(kind):
        return pa.map_(without_nulls(kind.key_type), without_nulls(kind.item_type))
    if t.is_struct(kind):
        return pa.struct([one.with_type(without_nulls(one.type)) for one in kind])
    return kind


def type_of(value: Any) -> pa.DataType:
    """The type of column that holds a value. Raises `NoColumn`."""
    if value is None:
        return pa.null()
    if isinstance(value, Decimal):
        return DECIMAL
    if isinstance(value, list):
        return pa.list_(_common_to(map(type_of, value), pa.null()))
    if isinstance(value, Mapping) and type(value) is dict:
        return _of_dict(value)
    names = names_of(value)
    if names is not None:
        return pa.struct([pa.field(name, type_of(one)) for name, one in zip(names, _items(value, names), strict=True)])
    if type(value) is tuple:
        return pa.struct([pa.field(f"_{i}", type_of(one)) for i, one in enumerate(value, 1)])
    found = None if isinstance(value, time | complex) or type(value).__module__ == "enum" else type_for(value)
    if found is None:
        raise NoColumn(
            f"{short_repr(value, 80)} is of type {type(value).__name__}, for which there is no type of column"
        )
    return found


def _items(value: Any, names: tuple[str, ...]) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [getattr(value, name) for name in names]


def _of_dict(value: dict[Any, Any]) -> pa.DataType:
    """The type of column for a dict. A dict whose values are of one type is a map. Any other one with texts as keys is a
    struct."""
    try:
        return _map_of(value)
    except NoColumn:
        if not value or set(map(type, value)) != {str} or is_tuple(list(value)):  # it would come back as a tuple
            raise
    return pa.struct([pa.field(name, type_of(one)) for name, one in value.items()])


def _map_of(value: Any) -> pa.DataType:
    if not isinstance(value, Mapping):
        raise NoColumn(f"{short_repr(value, 80)} is no dict")
    if not value:
        return pa.map_(pa.string(), pa.null())
    return pa.map_(_common_to(map(type_of, value), pa.null()), _common_to(map(type_of, value.values()), pa.null()))


def common(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type that holds all values of both types. Raises `NoColumn` if there is none."""
    if a == b or t.is_null(b):
        return a
    if t.is_null(a):
        return b
    if t.is_integer(a) and t.is_integer(b):
        return pa.int64()
    if _is_number(a) and _is_number(b):
        return DECIMAL if t.is_decimal(a) and t.is_decimal(b) else _of_numbers(a, b)
    if t.is_list(a) and t.is_list(b):
        return pa.list_(common(a.value_type, b.value_type))
    if t.is_map(a) and t.is_map(b):
        return pa.map_(*_of_maps(a, b))
    if t.is_struct(a) and t.is_struct(b) and [field.name for field in a] == [field.name for field in b]:
        return pa.struct([one.with_type(common(one.type, two.type)) for one, two in zip(a, b, strict=True)])
    raise NoColumn(f"some are {a} and some {b}, and no type of column holds both")


def _is_number(kind: pa.DataType) -> bool:
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind))


def _of_numbers(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if t.is_decimal(a) or t.is_decimal(b):
        if t.is_floating(a) or t.is_floating(b):
            raise NoColumn(f"some are {a} and some {b}, and no type of column holds both exactly")
        return pa.decimal128(38, max(one.scale for one in (a, b) if t.is_decimal(one)))
    return pa.float64()


def _of_maps(a: pa.DataType, b: pa.DataType) -> tuple[pa.DataType, pa.DataType]:
    """The key type and the item type that hold both maps. An empty dict does not show its types: it counts as a map from
    texts to nothing."""
    if t.is_null(a.item_type) and a.key_type == pa.string():
        return b.key_type, b.item_type
    if t.is_null(b.item_type) and b.key_type == pa.string():
        return a.key_type, a.item_type
    return common(a.key_type, b.key_type), common(a.item_type, b.item_type)
