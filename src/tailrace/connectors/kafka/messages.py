"""Protobuf messages in columns: the fields of a message that a schema names, as values of its types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.kinds import LISTS, family
from tailrace.errors import ConfigError

Get = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}


class MessageColumns:
    """The function that makes a batch of messages, None among them. Raises `ConfigError` for a schema whose columns are no
    fields of the message, or of types that these cannot have."""

    def __init__(self, descriptor: Any, schema: pa.Schema) -> None:
        self.schema = schema
        self._gets = _gets_of(descriptor, list(schema), "")

    def __call__(self, messages: Sequence[Any]) -> pa.RecordBatch:
        arrays = [
            column_of_values([None if one is None else get(one) for one in messages], field)
            for field, get in zip(self.schema, self._gets.values(), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _gets_of(descriptor: Any, fields: Sequence[pa.Field], path: str) -> dict[str, Get]:
    found = {}
    for one in fields:
        if one.name not in descriptor.fields_by_name:
            raise ConfigError(
                f"KafkaProtobuf: column {path + one.name!r} is no field of {descriptor.full_name}; it has "
                f"{', '.join(descriptor.fields_by_name)}"
            )
        found[one.name] = _get(descriptor.fields_by_name[one.name], one.type, path + one.name)
    return found


def _get(field: Any, kind: pa.DataType, path: str) -> Get:
    """The function that reads a field of a message as a value of a type."""
    name = field.name
    if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
        _check(pa.types.is_map(kind), field, kind, path, "a map")
        item = _value(field.message_type.fields_by_name["value"], kind.item_type, f"{path}.value")
        return lambda message: [(key, item(value)) for key, value in getattr(message, name).items()]
    if field.is_repeated:
        _check(family(kind) in LISTS, field, kind, path, "a list")
        value = _value(field, kind.value_type, path)
        return lambda message: list(map(value, getattr(message, name)))
    value = _value(field, kind, path)
    if field.has_presence and not field.has_default_value:
        return lambda message: value(getattr(message, name)) if message.HasField(name) else None
    return lambda message: value(getattr(message, name))


def _value(field: Any, kind: pa.DataType, path: str) -> Get:
    """The function that makes one value of a field, which may be repeated, a value of a type."""
    message = field.message_type
    if message is not None:
        if message.full_name == "google.protobuf.Timestamp" and not pa.types.is_struct(kind):
            _check(pa.types.is_timestamp(kind) and kind.unit != "ns", field, kind, path, "a timestamp of microseconds")
            return lambda value: _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        if message.full_name == "google.protobuf.Duration" and not pa.types.is_struct(kind):
            _check(pa.types.is_duration(kind) and kind.unit != "ns", field, kind, path, "a duration of microseconds")
            return lambda value: timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        if message.full_name in _WRAPPERS and not pa.types.is_struct(kind):
            return lambda value: value.value
        _check(pa.types.is_struct(kind), field, kind, path, "a struct")
        gets = _gets_of(message, list(kind), f"{path}.")
        return lambda value: {name: get(value) for name, get in gets.items()}
    if field.enum_type is not None and not pa.types.is_integer(kind):
        _check(pa.types.is_string(kind) or pa.types.is_large_string(kind), field, kind, path, "a text or a number")
        names = field.enum_type.values_by_number

        def name_of(number: int) -> str:
            if number not in names:
                raise ValueError(f"{path}: {field.enum_type.full_name} has no name for the number {number}")
            return str(names[number].name)

        return name_of
    return lambda value: value


def _check(fits: bool, field: Any, kind: pa.DataType, path: str, what: str) -> None:
    if not fits:
        raise ConfigError(f"KafkaProtobuf: column {path!r} is {kind}, and {field.full_name} is {what}")
