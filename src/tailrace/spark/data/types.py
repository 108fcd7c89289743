"""The types of Spark that are carried whole: values and type come out as they went in. All others are refused by name,
before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tailrace.errors import GraphError

_WHOLE = (
    "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "BinaryType", "DateType",
    "TimestampType", "TimestampNTZType", "DecimalType",
)  # fmt: skip
_CAST = {
    "CharType": "string",
    "VarcharType": "string",
    "DayTimeIntervalType": "interval day to second",
    "YearMonthIntervalType": "an int of months",
    "TimeType": "a string, or a long of microseconds",
    "VariantType": "a string (to_json)",
    "NullType": "the type that it is to have",
    "GeometryType": "binary (st_asbinary)",
    "GeographyType": "binary (st_asbinary)",
}
"""The type to cast to, for one that is not carried whole."""


def check_types(schema: Any, who: str, *, void: bool = False) -> None:
    """Raises `GraphError` where a column of a `StructType` has a type that is not carried whole. With `void` a column may
    have no type, as long as it need not be stored."""
    for field in schema.fields:
        for path, kind in leaves(field.dataType, field.name):
            instead = _instead(kind)
            if instead is not None and not (void and type(kind).__name__ == "NullType"):
                raise GraphError(
                    f"{who}: column {path!r} is of type {_name(kind)}, which is not carried without loss; cast it to "
                    f"{instead} before"
                )


def leaves(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The types without parts inside a type, each with its path."""
    name = type(kind).__name__
    if name == "StructType":
        for field in kind.fields:
            yield from leaves(field.dataType, f"{path}.{field.name}")
    elif name == "ArrayType":
        yield from leaves(kind.elementType, f"{path}[]")
    elif name == "MapType":
        yield from leaves(kind.keyType, f"{path}.key")
        yield from leaves(kind.valueType, f"{path}.value")
    else:
        yield path, kind


def _instead(kind: Any) -> str | None:
    """The type to cast to instead of a type; None where that type is carried whole."""
    name = type(kind).__name__
    if name in _WHOLE:
        return None
    if name == "StringType":
        return None if is_plain_string(kind) else "string collate UTF8_BINARY"
    if name == "DayTimeIntervalType" and (kind.startField, kind.endField) == (kind.DAY, kind.SECOND):
        return None
    return _CAST.get(name, "one of Spark's plain types")


def is_plain_string(kind: Any) -> bool:
    """True where strings of this type are compared byte by byte."""
    return getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


def _name(kind: Any) -> str:
    try:
        return str(kind.simpleString())
    except Exception:  # a type of the user's
        return type(kind).__name__


def check_names(schema: pa.Schema, who: str, *, case_sensitive: bool) -> None:
    """Raises `GraphError` where Spark could not distinguish columns when it reads them, or there are none."""
    if not schema.names:
        raise GraphError(f"{who}: a DataFrame needs at least one column, and there is none")
    for path, names in _names(schema, ""):
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(name if case_sensitive else name.lower(), name)
            if other is not name:
                where = f" in {path!r}" if path else ""
                same = "have one name" if other == name else "differ in case only, and spark.sql.caseSensitive is false"
                raise GraphError(f"{who}: the columns {other!r} and {name!r}{where} {same}; rename one of them")


def _names(schema: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    """The names that stand side by side: of the columns, and of the fields in each of them."""
    fields = list(schema)
    yield path, [field.name for field in fields]
    for field in fields:
        yield from _names_in(field.type, f"{path}.{field.name}" if path else field.name)


def _names_in(kind: pa.DataType, path: str) -> Iterator[tuple[str, list[str]]]:
    if pa.types.is_struct(kind):
        yield from _names(kind, path)
    elif pa.types.is_map(kind):
        yield from _names_in(kind.key_type, path)
        yield from _names_in(kind.item_type, path)
    elif pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        yield from _names_in(kind.value_type, path)
