"""Protobuf with a schema registry, as keys and values of Kafka."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tailrace.connectors.kafka.messages import MessageColumns
from tailrace.connectors.kafka.registry import (
    HEADER,
    RegistryFormat,
    SchemaRegistry,
    fields_of,
    id_of,
    registry_library,
)
from tailrace.errors import ConfigError

WELL_KNOWN = "google/protobuf/"
"""The beginning of names of files that each registry and client knows."""


class KafkaProtobuf(RegistryFormat):
    """The format of Protobuf messages whose schemas are in a registry, for `format` and `key_format` of `tr.sources.Kafka`,
    and `value` and `key_format` of `tr.sinks.Kafka`. Records are messages, of Protobuf's own classes; to write, also dicts,
    rows, named tuples and dataclasses of fields, in which None leaves a field out.

    - `message`: the class of the messages, as `protoc` makes it.
    - `registry`: the URL of a registry with Confluent's interface, or a dict of settings of Confluent's client, with "url".
    - `subject`: the subject to register the message's file for; by default "TOPIC-value", or "TOPIC-key". Files that it
      imports are registered by their own names.

    A value of a message with another full name is refused. Raises `ConfigError` for wrong arguments."""

    def __init__(self, message: Any, registry: str | Mapping[str, Any], *, subject: str | None = None) -> None:
        if not isinstance(message, type) or not hasattr(message, "DESCRIPTOR"):
            raise ConfigError(f"KafkaProtobuf takes the class of a message that protoc has made, not {message!r}")
        if subject is not None and (not isinstance(subject, str) or not subject):
            raise ConfigError(f"KafkaProtobuf: subject is the name of a subject of the registry, not {subject!r}")
        self.message: Any = message
        self.registry, self.subject = SchemaRegistry(registry, "KafkaProtobuf"), subject
        self._known: set[bytes] = set()
        """Beginnings of values, id and place of the message, that were compared with the class."""

    def __repr__(self) -> str:
        return f"KafkaProtobuf({self.message.__name__}, {self.registry!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": set()}

    def __call__(self, data: Any) -> Any:
        id = id_of(data)
        place, start = _place_of(data, HEADER.size)
        if data[:start] not in self._known:
            self._compare(id, place)
            self._known.add(bytes(data[:start]))
        message = self.message()
        message.ParseFromString(data[start:])
        return message

    def _compare(self, id: int, place: list[int]) -> None:
        """Raises `ValueError` if the message at a place of a schema is not the one of the class."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        found = self.registry.schema(id, "serialized")
        if found.schema_type != "PROTOBUF":
            raise ValueError(f"schema {id} is none of Protobuf: {found.schema_type}")
        file = FileDescriptorProto.FromString(base64.b64decode(found.schema_str))
        names, messages = [file.package] if file.package else [], file.message_type
        for index in place:
            if index >= len(messages):
                raise ValueError(f"schema {id} has no message at {place}")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        name, expected = ".".join(names), self.message.DESCRIPTOR.full_name
        if name != expected:
            raise ValueError(f"it is a message {name}, not {expected}")

    def columns(self, schema: pa.Schema) -> Callable[[Sequence[Any]], pa.RecordBatch]:
        return MessageColumns(self.message.DESCRIPTOR, schema)

    def check(self, subject: str | None) -> None:
        self.registry.check()
        if subject is not None:
            self._register(subject)

    def _register(self, subject: str) -> int:
        return self._register_file(subject, self.message.DESCRIPTOR.file)

    def _register_file(self, subject: str, file: Any) -> int:
        """The id of a file, which is registered behind those that it imports."""
        library, references = registry_library(), []
        for one in file.dependencies:
            if not one.name.startswith(WELL_KNOWN):
                self._register_file(one.name, one)
                references.append(library.SchemaReference(one.name, one.name, self.registry.version(one.name).version))
        return self.registry.register(subject, library.Schema(_schema_text(file), "PROTOBUF", references))

    def encoder(self, subject: str) -> Callable[[Any], bytes | None]:
        return _Encoder(self, subject)


class _Encoder:
    """Function that encodes messages; their file is registered before the first one."""

    def __init__(self, form: KafkaProtobuf, subject: str) -> None:
        self._form, self._subject = form, subject
        self._header: bytes | None = None

    def __call__(self, record: Any) -> bytes | None:
        if record is None:
            return None
        if not isinstance(record, self._form.message):
            fields = fields_of(record)
            if not isinstance(fields, Mapping):
                raise TypeError(
                    f"KafkaProtobuf writes messages {self._form.message.__name__}, or dicts of their fields, not a "
                    f"{type(record).__name__}"
                )
            record = self._form.message(**fields)
        if self._header is None:
            self._header = HEADER.pack(0, self._form._register(self._subject)) + _place(self._form.message.DESCRIPTOR)
        return self._header + bytes(record.SerializeToString())


def _schema_text(file: Any) -> str:
    return base64.b64encode(file.serialized_pb).decode()


def _place(message: Any) -> bytes:
    """The place of a message in its file, as values have it: the number of indexes, and the indexes, as zigzag varints; one
    zero byte for the first message."""
    indexes: list[int] = []
    while message is not None:
        beside = message.containing_type
        names = [one.name for one in beside.nested_types] if beside else list(message.file.message_types_by_name)
        indexes.insert(0, names.index(message.name))
        message = beside
    if indexes == [0]:
        return b"\0"
    return b"".join(map(_varint, [len(indexes), *indexes]))


def _varint(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _place_of(data: bytes, start: int) -> tuple[list[int], int]:
    """The indexes of the message in a value, and where they end. Raises `ValueError`."""
    count, at = _number(data, start)
    if count == 0:
        return [0], at
    indexes = []
    for _ in range(count):
        index, at = _number(data, at)
        indexes.append(index)
    return indexes, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 35:
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            if number & 1:
                break
            return number >> 1, at
        shift += 7
    raise ValueError("it does not say which message of its schema it is")
