"""The columns of a DataFrame as Spark's Parquet writer keeps them whole, whatever the settings of its session are.

Moments and dates go as numbers: settings say in which type a moment is written, and whether old dates are moved to another
calendar. A column without a type goes as one of nulls. All other types Parquet has itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_AS_NUMBER = {"TimestampType": "unix_micros({})", "DateType": "unix_date({})", "NullType": "cast({} as boolean)"}


def plain_columns(schema: Any, names: Sequence[str]) -> list[str]:
    """Expressions in SQL that give columns, which are called c0, c1 and so on, these names."""
    found = [_plain(field.dataType, f"c{at}") or f"c{at}" for at, field in enumerate(schema.fields)]
    return [f"{text} as {name}" for text, name in zip(found, names, strict=True)]


def has_empty_struct(kind: Any) -> bool:
    """True if there is a struct without fields in a type: Parquet has none."""
    match type(kind).__name__:
        case "StructType":
            return not kind.fields or any(has_empty_struct(field.dataType) for field in kind.fields)
        case "ArrayType":
            return has_empty_struct(kind.elementType)
        case "MapType":
            return has_empty_struct(kind.keyType) or has_empty_struct(kind.valueType)
    return False


def _plain(kind: Any, value: str, depth: int = 0) -> str | None:
    """An expression for a value of this type; None if the value itself will do."""
    name, each = type(kind).__name__, f"v{depth}"
    if name in _AS_NUMBER:
        return _AS_NUMBER[name].format(value)
    if name == "ArrayType":
        inner = _plain(kind.elementType, each, depth + 1)
        return None if inner is None else f"transform({value}, {each} -> {inner})"
    if name == "MapType":
        key, item = _plain(kind.keyType, f"k{depth}", depth + 1), _plain(kind.valueType, each, depth + 1)
        text = value if item is None else f"transform_values({value}, (k{depth}, {each}) -> {item})"
        text = text if key is None else f"transform_keys({text}, (k{depth}, {each}) -> {key})"
        return None if text == value else text
    if name == "StructType":
        parts = [(field, f"{value}.{name_in_sql(field.name)}") for field in kind.fields]
        plain = [(field.name, part, _plain(field.dataType, part, depth)) for field, part in parts]
        if all(text is None for _, _, text in plain):
            return None
        made = ", ".join(f"{text_in_sql(name)}, {part if text is None else text}" for name, part, text in plain)
        return f"if({value} is null, null, named_struct({made}))"
    return None


def name_in_sql(name: str) -> str:
    """A name in SQL."""
    return "`" + name.replace("`", "``") + "`"


def text_in_sql(text: str) -> str:
    """A string in SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
