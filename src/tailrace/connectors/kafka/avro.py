"""Avro with a schema registry, as keys and values of Kafka."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pyarrow as pa

from tailrace.connectors.kafka.registry import (
    HEADER,
    RegistryFormat,
    SchemaRegistry,
    fields_of,
    id_of,
    registry_library,
)
from tailrace.errors import ConfigError


class KafkaAvro(RegistryFormat):
    """The format of Avro records whose schemas are in a registry, for `format` and `key_format` of `tr.sources.Kafka`, and
    `value` and `key_format` of `tr.sinks.Kafka`.

    - `registry`: the URL of a registry with Confluent's interface, or a dict of settings of Confluent's client, with "url".
    - `schema`: an Avro schema, as JSON text or as what that stands for. Needed to write. To read, records come in this
      schema, by Avro's rules for schemas that have changed; without it in the one that they were written with.
    - `subject`: the subject to register `schema` for; by default "TOPIC-value", or "TOPIC-key".

    Records are dicts, by Avro's own types; to write, also rows, named tuples and dataclasses. They need exactly the fields
    of the schema, but for those with a default. Raises `ConfigError` for wrong arguments."""

    def __init__(self, registry: str | Mapping[str, Any], schema: Any = None, *, subject: str | None = None) -> None:
        if subject is not None and (not isinstance(subject, str) or not subject):
            raise ConfigError(f"KafkaAvro: subject is the name of a subject of the registry, not {subject!r}")
        self.registry, self.subject = SchemaRegistry(registry, "KafkaAvro"), subject
        self._text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        self.schema = None if self._text is None else _parse_schema(self._text)
        self._known: dict[int, Any] = {}
        """Parsed schemas by id."""

    def __repr__(self) -> str:
        return f"KafkaAvro({self.registry!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def __call__(self, data: Any) -> Any:
        id = id_of(data)
        written = self._known.get(id)
        if written is None:
            written = self._known[id] = self._fetch(id)
        stream = io.BytesIO(data)
        stream.seek(HEADER.size)
        record = avro_library().schemaless_reader(stream, written, self.schema)
        if stream.tell() != len(data):
            raise ValueError(f"schema {id} ends before the value does, {len(data) - stream.tell()} bytes before")
        return record

    def _fetch(self, id: int) -> Any:
        found = self.registry.schema(id)
        if found.schema_type not in (None, "AVRO"):
            raise ValueError(f"schema {id} is none of Avro: {found.schema_type}")
        return self._parse(found, {})

    def _parse(self, schema: Any, named: dict[str, Any]) -> Any:
        """A schema, with those that it refers to."""
        for one in schema.references or ():
            self._parse(self.registry.version(one.subject, one.version).schema, named)
        return avro_library().parse_schema(json.loads(schema.schema_str), named_schemas=named)

    def columns(self, schema: pa.Schema) -> None:
        fields = self.schema.get("fields") if isinstance(self.schema, dict) else None
        names = [field["name"] for field in fields or ()]
        unknown = [name for name in schema.names if fields is not None and name not in names]
        if unknown:
            raise ConfigError(
                f"column {unknown[0]!r} is no field of the schema of KafkaAvro; it has {', '.join(names)}"
            )

    def check(self, subject: str | None) -> None:
        avro_library()
        self.registry.check()
        if subject is not None:
            self._register(subject)

    def _register(self, subject: str) -> int:
        """The id of the schema of what is written."""
        if self.schema is None:
            raise ConfigError("KafkaAvro: to write, give the schema of the records: schema=...")
        return self.registry.register(subject, registry_library().Schema(self._text, "AVRO"))

    def encoder(self, subject: str) -> Callable[[Any], bytes | None]:
        if self.schema is None:
            raise ConfigError("KafkaAvro: to write, give the schema of the records: schema=...")
        return _Encoder(self, subject)


class _Encoder:
    """Function that encodes records; the schema is registered before the first one."""

    def __init__(self, form: KafkaAvro, subject: str) -> None:
        self._form, self._subject = form, subject
        self._header: bytes | None = None

    def __call__(self, record: Any) -> bytes | None:
        if record is None:
            return None
        if self._header is None:
            self._header = HEADER.pack(0, self._form._register(self._subject))
        out = io.BytesIO()
        out.write(self._header)
        avro_library().schemaless_writer(out, self._form.schema, fields_of(record), strict_allow_default=True)
        return out.getvalue()


@cache
def avro_library() -> Any:
    """The package that reads and writes Avro. Raises `ConfigError` if it is not installed."""
    try:
        import fastavro
    except ImportError:
        raise ConfigError('Avro needs its library: pip install "tailrace[avro]"') from None
    return fastavro


def _parse_schema(text: str) -> Any:
    library = avro_library()
    try:
        return library.parse_schema(json.loads(text))
    except (ValueError, library.schema.SchemaParseException, library.schema.UnknownType) as error:
        raise ConfigError(f"KafkaAvro: schema is no Avro schema: {type(error).__name__}: {error}") from None
