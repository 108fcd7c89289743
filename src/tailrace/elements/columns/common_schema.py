"""The common schema of two schemas: columns without a type get one, and types become wider without loss."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as t

from tailrace.elements.columns.kinds import is_list

Differing = Callable[[pa.DataType, pa.DataType], pa.DataType | None]
"""Function from two different types to their common type; None if there is none."""


def fill_nulls(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The schema `schema`, with types from `other` for all columns of type null, also inside of lists and structs."""
    fields = []
    for field in schema:
        at = other.get_field_index(field.name)
        kind = field.type if at < 0 else _common_type(field.type, other.field(at).type, lambda a, b: a)
        fields.append(field.with_type(kind))
    return pa.schema(fields)


def agreement(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """The schema of both, if they differ only in columns of type null in one of them; else None."""
    if one.names != other.names:
        return None
    return _together(one, other, lambda a, b: None)


def widen(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """The schema whose types hold all values of the types of both unchanged; None if there is none. Whole numbers and
    floats have no common type: a sum of doubles differs from a sum of whole numbers."""
    if sorted(one.names) != sorted(other.names):
        return None
    return _together(one, other, _wider)


def has_nulls(schema: pa.Schema) -> bool:
    """True if a column, or a part of one, is of type null: it has no type yet."""
    return any(map(_is_open, schema.types))


def _is_open(kind: pa.DataType) -> bool:
    return t.is_null(kind) or any(_is_open(kind.field(i).type) for i in range(kind.num_fields))


def _together(one: pa.Schema, other: pa.Schema, differing: Differing) -> pa.Schema | None:
    fields = []
    for field in one:
        kind = _common_type(field.type, other.field(field.name).type, differing)
        if kind is None:
            return None
        fields.append(field.with_type(kind))
    return pa.schema(fields)


def _common_type(a: pa.DataType, b: pa.DataType, differing: Differing) -> pa.DataType | None:
    if a == b or t.is_null(b):
        return a
    if t.is_null(a):
        return b
    if is_list(a) and is_list(b):
        layout, child = a if a.id == b.id else differing(a, b), _common_type(a.value_type, b.value_type, differing)
        if layout is None or child is None:
            return None
        return (pa.large_list if t.is_large_list(layout) else pa.list_)(a.value_field.with_type(child))
    if t.is_fixed_size_list(a) and t.is_fixed_size_list(b) and a.list_size == b.list_size:
        child = _common_type(a.value_type, b.value_type, differing)
        return None if child is None else pa.list_(a.value_field.with_type(child), a.list_size)
    if t.is_map(a) and t.is_map(b):
        key, item = _common_type(a.key_type, b.key_type, differing), _common_type(a.item_type, b.item_type, differing)
        return None if key is None or item is None else pa.map_(key, item)
    if t.is_struct(a) and t.is_struct(b) and sorted(f.name for f in a) == sorted(f.name for f in b):
        inner = _together(pa.schema(list(a)), pa.schema(list(b)), differing)
        return None if inner is None else pa.struct(list(inner))
    return differing(a, b)


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if t.is_integer(a) and t.is_integer(b):
        return _integer(a, b)
    if t.is_floating(a) and t.is_floating(b):
        return a if a.bit_width > b.bit_width else b
    if t.is_decimal(a) and t.is_decimal(b):
        return _decimal(a, b)
    for small, large in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        if {a, b} == {small, large}:
            return large
    if is_list(a) and is_list(b):
        return a if t.is_large_list(a) else b
    return None


def _integer(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    kinds = (pa.int8(), pa.int16(), pa.int32(), pa.int64()) if _is_integer(a, b) else (a, b)
    bits = max(kind.bit_width + (_is_integer(a, b) and t.is_unsigned_integer(kind)) for kind in (a, b))
    return min((kind for kind in kinds if kind.bit_width >= bits), key=lambda kind: int(kind.bit_width), default=None)


def _is_integer(a: pa.DataType, b: pa.DataType) -> bool:
    return bool(t.is_signed_integer(a) or t.is_signed_integer(b))


def _decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    scale = max(a.scale, b.scale)
    digits = max(kind.precision - kind.scale for kind in (a, b)) + scale
    if max(a.bit_width, b.bit_width) > 128:
        return pa.decimal256(digits, scale) if digits <= 76 else None
    return pa.decimal128(digits, scale) if digits <= 38 else None
