"""Types of PostgreSQL: their columns in Arrow, and their values in the CSV that `COPY` reads.

A value that goes into a table is unchanged when it comes out, or it is a `Misfit`. Types that are not listed travel as the
texts in which PostgreSQL writes them.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from tailrace.connectors.lengths import Limit
from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.casts import column_as, python_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.errors import short_repr

PLAIN: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
}
"""Name of a type in `pg_type` -> its column in Arrow, for types that Arrow has."""
_DIGITS = 38
"""Most digits of a decimal of Arrow that Spark can hold as well."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: str
    """Name of its type in `pg_type`; that of an array begins with `_`."""
    shown: str
    """The type as PostgreSQL writes it, such as `numeric(10,2)`."""
    required: bool = False
    """True if it is NOT NULL and has no default."""
    digits: tuple[int, int] | None = None
    """Precision and scale of a numeric that declares them."""
    length: int | None = None
    """Largest number of characters, of a text that declares one."""


def arrow_type(column: Column) -> pa.DataType:
    """The type of a column in Arrow, as sources give it in columns. Texts stand for types that Arrow does not have."""
    if (
        column.kind in ("numeric", "_numeric")
        and column.digits is not None
        and 0 <= column.digits[1] <= column.digits[0] <= _DIGITS
    ):
        found: Any = pa.decimal128(*column.digits)
    else:
        found = {**PLAIN, "bytea": pa.binary()}.get(column.kind.removeprefix("_"), pa.string())
    return pa.list_(found) if column.kind.startswith("_") else found


def modifiers(kind: str, modifier: int) -> tuple[tuple[int, int] | None, int | None]:
    """The digits and the length that a type's modifier (`atttypmod`) declares."""
    if modifier < 4:
        return None, None
    if kind.removeprefix("_") == "numeric":
        scale = (modifier - 4) & 0x7FF
        return ((modifier - 4) >> 16 & 0xFFFF, scale - 0x800 if scale >= 0x400 else scale), None
    return None, modifier - 4 if kind in ("varchar", "bpchar") else None


def column_from(values: Any, column: Column) -> pa.Array:
    """Values, a list or an array, as an array that Arrow writes as `COPY` reads it. Raises `Misfit`, with the index of the
    record, for a value that the column cannot hold unchanged."""
    declared = pa.field(column.name, _written_as(column))
    encode = None if column.kind in PLAIN or pa.types.is_decimal(declared.type) else encoder(column.kind)
    if encode is not None:
        if isinstance(values, pa.Array):
            values = python_values(values, column.name)
        values = _texts(values, encode, column)
    array = column_as(values, declared) if isinstance(values, pa.Array) else column_of_values(values, declared)
    _check(array, column)
    return array


def _written_as(column: Column) -> pa.DataType:
    if column.kind == "numeric":
        kind = arrow_type(column)
        return kind if pa.types.is_decimal(kind) else pa.string()
    return PLAIN.get(column.kind, pa.string())


def _texts(values: Sequence[Any], encode: Callable[[Any], str], column: Column) -> list[str | None]:
    found: list[str | None] = []
    for value in values:
        try:
            found.append(None if value is None else encode(value))
        except (TypeError, ValueError) as error:
            what = f"column {column.name!r} is {column.shown}, and {short_repr(value, 80)} does not fit: {error}"
            raise Misfit(what, len(found)) from None
    return found


def _check(array: pa.Array, column: Column) -> None:
    """Raises `Misfit` for the first value that the server would refuse."""
    if column.required and array.null_count:
        raise Misfit(
            f"column {column.name!r} is NOT NULL, and a value is None", pc.index(array.is_null(), True).as_py()
        )
    if not pa.types.is_string(array.type):
        return
    with_zero = pc.match_substring(array, "\0")
    if pc.any(with_zero).as_py():
        at = pc.index(pc.fill_null(with_zero, False), True).as_py()
        raise Misfit(f"column {column.name!r}: PostgreSQL holds no text with a zero character (\\x00)", at)
    if column.length is not None:
        at = Limit(column.shown, column.length).first_too_long(array)
        if at is not None:
            raise Misfit(f"column {column.name!r} is {column.shown}, and a value is longer than that", at)


def encoder(kind: str) -> Callable[[Any], str]:
    """The function that writes a value of a type as the text that PostgreSQL reads. It raises `TypeError` or `ValueError`
    for a value of another type."""
    if kind.startswith("_"):
        inner = encoder(kind[1:])
        return lambda value: _array_text(value, inner)
    return _ENCODERS.get(kind, _text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"it is of type {type(value).__name__}; give the text as PostgreSQL writes it")
    return value


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError(f"it is of type {type(value).__name__}; a Decimal or a whole number would fit")
    if isinstance(value, Decimal) and value.is_snan():
        raise ValueError("it is a signalling NaN")
    return str(value)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if "\\u0000" in text:
        raise ValueError("PostgreSQL holds no text with a zero character (\\u0000)")
    return text


def _uuid(value: Any) -> str:
    return str(value if isinstance(value, uuid.UUID) else uuid.UUID(_text(value)))


def _bytes(value: Any) -> str:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"it is of type {type(value).__name__}")
    return f"\\x{bytes(value).hex()}"


def _plain(kind: str) -> Callable[[Any], str]:
    """The encoder of a plain type inside of an array."""
    declared = pa.field("item", PLAIN[kind])

    def encode(value: Any) -> str:
        try:
            array = column_of_values([value], declared)
        except Misfit as error:
            raise ValueError(str(error)) from None
        return str(array.cast(pa.string())[0].as_py())

    return encode


def _array_text(value: Any, encode: Callable[[Any], str]) -> str:
    if not isinstance(value, list | tuple):
        raise TypeError(f"it is of type {type(value).__name__}; a list would fit")
    return "{" + ",".join(_item_text(item, encode) for item in value) + "}"


def _item_text(item: Any, encode: Callable[[Any], str]) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list | tuple) and encode is not _json:
        return _array_text(item, encode)
    escaped = encode(item).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_ENCODERS: dict[str, Callable[[Any], str]] = {
    "numeric": _number,
    "json": _json,
    "jsonb": _json,
    "uuid": _uuid,
    "bytea": _bytes,
    "time": str,
    **{kind: _plain(kind) for kind in PLAIN if PLAIN[kind] != pa.string()},
}


def csv_of(arrays: Sequence[pa.Array]) -> bytes:
    """Columns as the CSV that `COPY ... (FORMAT csv)` reads: null is nothing, and an empty text is in quotes."""
    file = io.BytesIO()
    csv.write_csv(
        pa.RecordBatch.from_arrays(list(arrays), names=[str(at) for at in range(len(arrays))]),
        file,
        csv.WriteOptions(include_header=False),
    )
    return file.getvalue()
