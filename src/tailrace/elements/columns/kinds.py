"""Types of columns: their families, and the plain type in which a stream has values that may be encoded in several ways."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as t

_FAMILIES = [
    (t.is_null, "null"),
    (t.is_boolean, "boolean"),
    (t.is_integer, "integer"),
    (t.is_floating, "float"),
    (t.is_decimal, "decimal"),
    (t.is_date, "date"),
    (t.is_timestamp, "timestamp"),
    (t.is_duration, "duration"),
    (t.is_time, "time"),
    (t.is_interval, "interval"),
    (t.is_struct, "struct"),
    (t.is_map, "map"),
    (t.is_fixed_size_list, "fixed list"),
]
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())

NUMBERS = frozenset(("integer", "float", "decimal"))
LISTS = frozenset(("list", "fixed list"))


def family(kind: pa.DataType) -> str:
    """The family of a type: its kind of values; `other` for a type that this module does not know."""
    for test, name in _FAMILIES:
        if test(kind):
            return name
    if kind in _TEXTS:
        return "text"
    if kind in _BYTES or t.is_fixed_size_binary(kind):
        return "bytes"
    return "list" if is_list(kind) else "other"


def is_list(kind: pa.DataType) -> bool:
    """True for types of lists of any length, in any layout."""
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with equal values without an encoding that Arrow supports only in part: dictionaries, runs, views."""
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if t.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if t.is_map(kind):
        key, item = plain_type(kind.key_type), plain_type(kind.item_type)
        return pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item), keys_sorted=kind.keys_sorted)
    if is_list(kind) or t.is_fixed_size_list(kind):
        child = kind.value_field.with_type(plain_type(kind.value_type))
        if t.is_fixed_size_list(kind):
            return pa.list_(child, kind.list_size)
        large = t.is_large_list(kind) or t.is_large_list_view(kind)
        return pa.large_list(child) if large else pa.list_(child)
    return kind


def is_plain(kind: pa.DataType) -> bool:
    """True if a type is its plain type: a stream may have it."""
    if kind.num_fields == 0 and not (t.is_dictionary(kind) or t.is_run_end_encoded(kind)):
        return kind not in (pa.string_view(), pa.binary_view())
    return bool(plain_type(kind).equals(kind)) and not _is_view(kind)


def _is_view(kind: pa.DataType) -> bool:
    return bool(t.is_list_view(kind) or t.is_large_list_view(kind))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with the plain type of each column."""
    if all(is_plain(field.type) for field in schema):
        return schema
    fields = [field if is_plain(field.type) else field.with_type(plain_type(field.type)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def has_map(kind: pa.DataType) -> bool:
    """True if there is a map in the type, and the keys of all maps in it can be keys of a dict."""
    return _maps(kind) == {True}


def _maps(kind: pa.DataType) -> set[bool]:
    found = {family(kind.key_type) not in ("struct", "map", "list", "fixed list")} if t.is_map(kind) else set[bool]()
    children = (
        [kind.key_type, kind.item_type] if t.is_map(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    )
    if t.is_dictionary(kind):
        children = [kind.value_type]
    return found.union(*map(_maps, children))
