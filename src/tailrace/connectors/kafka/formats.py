"""The forms of records: how bytes of Kafka become records, and records bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

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


def encoder(form: Any, who: str, subject: str | None = None) -> Callable[[Any], bytes | None]:
    """The function that encodes a record as a value. `subject` is that of a schema registry. Raises `ConfigError` for an
    unknown form."""
    if isinstance(form, RegistryFormat):
        if subject is None:
            raise ConfigError(f"{who}: a topic that is a function needs the subject of its values: subject=...")
        return form.encoder(subject)
    what = "value"
    known: dict[str, Callable[[Any], bytes | None]] = {"json": encode_json, "text": _encode_text, "bytes": _same_bytes}
    if callable(form):
        return partial(_encode_by, form, what)
    if form not in known:
        raise ConfigError(
            f"{who} takes a {what} of {', '.join(map(repr, NAMES))}, or a function of the record, not {form!r}"
        )
    return known[form]


def _encode_by(form: Callable[[Any], Any], what: str, record: Any) -> bytes | None:
    return as_bytes(form(record), what)


def encode_json(record: Any) -> bytes | None:
    """A record as JSON. Records with names of fields, such as rows and named tuples, become objects; None is a tombstone."""
    if record is None:
        return None
    fields = getattr(record, "_fields", None)
    if fields is not None:
        record = dict(zip(fields, record, strict=True))
    return _json.encode(record)


def encode_all(encode: Callable[[Any], bytes | None], records: Sequence[Any]) -> list[bytes | None]:
    """Records encoded as values."""
    if encode is encode_json and set(map(type, records)) == {dict}:
        return list(map(_json.encode, records))  # a call less for each record
    return list(map(encode, records))


def _plain(value: Any) -> Any:
    """A value that JSON does not know, such as one of NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"a {type(value).__name__} is no JSON; give Kafka a function as value, such as value=lambda record: ..."
    )


_json = msgspec.json.Encoder(enc_hook=_plain)
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


def columns_of(form: Any, values: Sequence[bytes | None], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of values. `schema` has their columns, or for "text" and "bytes" the one column `value`. Raises `ValueError`
    for a value that does not fit."""
    if form in ("text", "bytes"):
        return pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema)
    if form == "json":
        return _read_json([b"{}" if value is None else value for value in values], schema)
    rows = decode_all(decoder(form, "Kafka"), values)
    for row in rows:
        if row is not None and not isinstance(row, dict):
            raise TypeError(f"a record for columns is a dict of their names, not a {type(row).__name__}: {row!r:.100}")
    return pa.RecordBatch.from_pylist([{} if row is None else row for row in rows], schema=schema)


def _read_json(values: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of JSON objects, by Arrow's own reader."""
    lines = b"\n".join(values)
    if lines.count(b"\n") != len(values) - 1:  # within JSON a line break is a space: in texts it is written as \n
        lines = b"\n".join([value.replace(b"\n", b" ") for value in values])
    error: Any = "it is no JSON object"
    try:
        table = pa.json.read_json(
            pa.BufferReader(lines),
            pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        # Several objects in one value would make up for an empty one.
        if table.num_rows == len(values) and all(map(bytes.strip, values)):
            return pa.RecordBatch.from_arrays([one.combine_chunks() for one in table.columns], schema=schema)
    except pa.ArrowException as raised:
        error = raised
    if len(values) > 1:
        for value in values:
            _read_json([value], schema)
    raise ValueError(f"a value of Kafka does not fit the columns: {error}: {values[0]!r:.200}") from None
