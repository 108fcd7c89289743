"""The types of columns in tables, for records with columns of other types."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.types as t

from tailrace.errors import ConfigError

_BOTH = {
    **{
        kind: kind
        for kind in (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary())
    },
    pa.date32(): pa.date32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
DELTA = {**_BOTH, pa.int8(): pa.int8(), pa.int16(): pa.int16(), pa.uint8(): pa.int16()}
ICEBERG = {
    **_BOTH,
    **dict.fromkeys((pa.int8(), pa.int16(), pa.uint8()), pa.int32()),
    **dict.fromkeys((pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")), pa.time64("us")),
}
"""Type of a column of records -> type of the column of a table. Decimals, times and nested types are not listed."""


def table_schema(schema: pa.Schema, types: Mapping[pa.DataType, pa.DataType], who: str) -> pa.Schema:
    """The columns of a table for records with these columns. Raises `ConfigError` for a type that the table's format does
    not have."""
    return pa.schema([_field(field, types, who, field.name) for field in schema])


def _field(field: pa.Field, types: Mapping[pa.DataType, pa.DataType], who: str, path: str) -> pa.Field:
    return pa.field(field.name, _type(field.type, types, who, path), field.nullable)


def _type(kind: pa.DataType, types: Mapping[pa.DataType, pa.DataType], who: str, path: str) -> pa.DataType:
    if t.is_dictionary(kind):
        return _type(kind.value_type, types, who, path)
    if kind in types:
        return types[kind]
    if t.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if t.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if t.is_struct(kind):
        return pa.struct([_field(one, types, who, f"{path}.{one.name}") for one in kind])
    if t.is_map(kind):
        return pa.map_(_type(kind.key_type, types, who, path), _field(kind.item_field, types, who, path))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field, types, who, path).with_name("element"))
    advice = "cast it before the sink" if not t.is_null(kind) else "give the sink a schema"
    raise ConfigError(f"{who}: column {path!r} is {kind}, a type that tables of this format do not have: {advice}")
