"""JSON as it is written, in files of lines and in servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as t

from tailrace.elements.columns.named_records import declared_names, names_of


def encode_json(record: Any) -> bytes:
    """A record as JSON. Records with names of fields, such as rows and named tuples, become objects. Raises `ValueError` for
    NaN and infinity, which JSON does not have."""
    if isinstance(record, tuple) and (names := names_of(record)) is not None:
        record = dict(zip(names, record, strict=True))
    return _finite(_encode(record), record)


def encode_objects(records: Sequence[dict[str, Any]]) -> list[bytes]:
    """Dicts as JSON, as `encode_json` does."""
    lines = _encode_lines(records)
    texts = lines.split(b"\n")[:-1]  # within JSON it is written as \n
    if len(texts) != len(records):  # a value that is JSON already (`msgspec.Raw`) may have line breaks
        texts = list(map(_encode, records))
    if b"null" in lines:  # one look at all of them: a call less for each
        return list(map(_finite, texts, records))
    return texts


def encode_columns(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch as JSON objects, each with a line feed behind it, as `encode_objects` makes them of dicts."""
    kind = _row_kind(tuple(batch.schema.names))
    if kind is None:
        return b"".join([text + b"\n" for text in encode_objects(batch.to_pylist())])
    columns = [column.to_pylist() for column in batch.columns]
    lines = _encode_lines(list(map(kind, *columns)))
    if b"null" in lines:
        for field, values in zip(batch.schema, columns, strict=True):
            if not (t.is_integer(field.type) or t.is_string(field.type) or t.is_temporal(field.type)):
                _check_numbers(values)
    return lines


@lru_cache(maxsize=256)
def _row_kind(names: tuple[str, ...]) -> Any:
    """The class of rows of these columns, which are made and encoded sooner than dicts; None if there can be none."""
    if not names or len(set(names)) < len(names):
        return None
    fields = [f"at{at}" for at in range(len(names))]
    try:
        return msgspec.defstruct(
            "Row", [(field, object) for field in fields], rename=dict(zip(fields, names, strict=True)), gc=False
        )
    except ValueError:  # a name in which something is escaped
        return None


def _finite(text: bytes, record: Any) -> bytes:
    """The text. Raises `ValueError` if it has null for a number that JSON does not have."""
    if b"null" in text:
        _check_numbers(record)
    return text


def _check_numbers(value: Any) -> None:
    kind: Any = type(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value!r}: write None or a text in its place")
    elif isinstance(value, Mapping):
        for one in value.values():
            _check_numbers(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            _check_numbers(one)
    elif hasattr(value, "tolist"):
        _check_numbers(value.tolist())
    elif (names := declared_names(kind)) is not None:
        for name in names:
            _check_numbers(getattr(value, name))


def _plain(value: Any) -> Any:
    """A value that JSON does not know, such as one of NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no JSON; give a function as value, such as value=lambda record: ...")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_encode, _encode_lines = _encoder.encode, _encoder.encode_lines
