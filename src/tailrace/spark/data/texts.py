"""Text columns of a table: Spark gives them limits and collations, which belong to the table and not to the records."""

from __future__ import annotations

from typing import Any

from tailrace.connectors.lengths import Limit
from tailrace.errors import ConfigError

_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Key under which Spark notes the declared type of a column that it takes for a plain string."""


def limits_of(schema: Any, table: str) -> dict[str, Limit]:
    """Length limits of texts, by column; columns without a limit are left out. Raises `ConfigError` for `char` inside of
    another type."""
    found: dict[str, Limit] = {}
    for field in schema.fields:
        declared = field.metadata.get(_DECLARED)
        kind: Any = field.dataType if declared is None else _parse(declared)
        limit = _limit(kind)
        if limit is None:
            continue
        if not limit.pads and _pads_inside(limit):
            raise ConfigError(
                f"table {table!r}: column {field.name!r} is {limit.text}, and this sink does not write char inside of other "
                f"types; write with tr.sinks.Parquet into a folder and load it from there"
            )
        found[field.name] = limit
    return found


def _parse(text: str) -> Any:
    from pyspark.sql.types import StructType

    schema: Any = StructType.fromDDL(f"x {text}")
    return schema.fields[0].dataType


def _limit(kind: Any) -> Limit | None:
    name = type(kind).__name__
    if name in ("CharType", "VarcharType"):
        return Limit(kind.simpleString(), kind.length, pads=name == "CharType")
    parts: dict[str, Any] = {}
    if name == "ArrayType":
        parts = {"element": kind.elementType}
    elif name == "MapType":
        parts = {"key": kind.keyType, "value": kind.valueType}
    elif name == "StructType":
        parts = {field.name: field.dataType for field in kind.fields}
    inner = {part: limit for part, of in parts.items() if (limit := _limit(of)) is not None}
    return Limit(kind.simpleString(), inner=inner) if inner else None


def _pads_inside(limit: Limit) -> bool:
    return limit.pads or any(map(_pads_inside, limit.inner.values()))


def plain_texts(kind: Any) -> Any:
    """A type with plain strings for all its texts."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(f.name, plain_texts(f.dataType), f.nullable) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(plain_texts(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(plain_texts(kind.keyType), plain_texts(kind.valueType), kind.valueContainsNull)
    return StringType() if type(kind).__name__ in ("StringType", "CharType", "VarcharType") else kind
