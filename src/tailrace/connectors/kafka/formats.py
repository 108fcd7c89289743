"""The forms of records: how bytes of Kafka become records, and records bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.connectors.files.jsoncolumns import JsonColumns
from tailrace.connectors.files.jsonvalues import encode_json, encode_objects
from tailrace.connectors.kafka.registry import RegistryFormat
from tailrace.errors import ConfigError

NAMES = ("json", "text", "bytes")
Decode = Callable[[Any], Any]


def decoder(form: Any, who: str) -> Decode:
    """The function that decodes a value that is not None. Raises `ConfigError` for an unknown form."""
    known: dict[str, Decode] = {"json": decode_json, "text": _text, "bytes": bytes}
    if callable(form):
        return form  # type: ignore[no-any-return]
    if form not in known:
        raise ConfigError(
            f"{who} takes a format of {', '.join(map(repr, NAMES))}, or a function of bytes, not {form!r}"
        )
    return known[form]


def decode_json(data: bytes) -> Any:
    """The value of JSON text."""
    return _parse(data)


def _text(data: bytes) -> str:
    return data.decode()


def decode_all(decode: Decode, values: Iterable[bytes | None]) -> list[Any]:
    """Values decoded; None stays None."""
    if decode is decode_json:
        decode = _parse  # a call less for each record
    return [None if value is None else decode(value) for value in values]


def encoder(form: Any, who: str, subject: str | None = None, part: str = "values") -> Callable[[Any], bytes | None]:
    """The function that encodes a record as a value. `subject` is that of a schema registry. Raises `ConfigError` for an
    unknown form."""
    if isinstance(form, RegistryFormat):
        if subject is None:
            raise ConfigError(f"{who}: a topic that is a function needs the subject of its {part}: subject=...")
        return form.encoder(subject)
    what = "value"
    known: dict[str, Callable[[Any], bytes | None]] = {"json": _encode_json, "text": _encode_text, "bytes": _same_bytes}
    if callable(form):
        return partial(_encode_by, form, what)
    if form not in known:
        raise ConfigError(
            f"{who} takes a {what} of {', '.join(map(repr, NAMES))}, or a function of the record, not {form!r}"
        )
    return known[form]


def _encode_by(form: Callable[[Any], Any], what: str, record: Any) -> bytes | None:
    return as_bytes(form(record), what)


def _encode_json(record: Any) -> bytes | None:
    """A record as JSON; None is a tombstone."""
    return None if record is None else encode_json(record)


def encode_all(encode: Callable[[Any], bytes | None], records: Sequence[Any]) -> list[bytes | None]:
    """Records encoded as values."""
    if encode is _encode_json and set(map(type, records)) == {dict}:
        return list(encode_objects(records))  # a call less for each record
    return list(map(encode, records))


_parse = msgspec.json.Decoder().decode


def _encode_text(record: Any) -> bytes | None:
    return None if record is None else str(record).encode()


def _same_bytes(record: Any) -> bytes | None:
    if record is not None and not isinstance(record, (bytes, bytearray, memoryview)):
        raise TypeError(f'value="bytes" takes records of bytes, or None for a tombstone, not a {type(record).__name__}')
    return None if record is None else bytes(record)


def as_bytes(value: Any, what: str) -> bytes | None:
    """Bytes of what a user's function returned. Raises `TypeError` for what is neither text nor bytes nor None."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"the {what} of a record for Kafka is bytes, text or None, not a {type(value).__name__}: {value!r}")


def columns_by(form: Any, schema: pa.Schema, who: str) -> Callable[[Sequence[bytes | None]], pa.RecordBatch]:
    """The function that makes a batch of values. `schema` has their columns, or for "text" and "bytes" the one column
    `value`. It raises `ValueError` for a value that does not fit. Raises `ConfigError` for columns that values cannot
    have."""
    if form in ("text", "bytes"):
        return lambda values: pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema)
    if form == "json":
        of_json = JsonColumns(schema, who)
        return lambda values: of_json([b"{}" if value is None else value for value in values])
    decode = decoder(form, who)
    make = form.columns(schema) if isinstance(form, RegistryFormat) else None
    of_records = make or partial(_of_dicts, schema)
    return lambda values: of_records(decode_all(decode, values))


def _of_dicts(schema: pa.Schema, records: Sequence[Any]) -> pa.RecordBatch:
    for record in records:
        if record is not None and not isinstance(record, dict):
            raise TypeError(
                f"a record for columns is a dict of their names, not a {type(record).__name__}: {record!r:.100}"
            )
    return pa.RecordBatch.from_pylist([{} if record is None else record for record in records], schema=schema)
