"""Columns of the results of a join of two streams in columns, and columns of keys that are compared by their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.columns.common_schema import widen
from tailrace.elements.keyslots import is_text, is_word


class JoinedColumn(NamedTuple):
    """A column of the results."""

    name: str
    first: int | None
    """Place of the column of the first stream that it comes from; None if it comes from the second stream only."""
    second: int | None
    """Place of the column of the second stream; both are there for a column of the key."""


def joined_columns(
    first: Sequence[str],
    second: Sequence[str],
    keys: tuple[Sequence[str], Sequence[str]],
    suffixes: tuple[str, str],
) -> list[JoinedColumn]:
    """The columns of pairs of records with these columns: those of the first stream, then those of the second. A key that
    has one name in both is one column, and other names that are in both have suffixes. Raises `ValueError` if two columns
    would have one name."""
    shared = [a for a, b in zip(*keys, strict=True) if a == b]
    both = {*first} & {*second} - {*shared}
    found = [
        JoinedColumn(name, at, second.index(name))
        if name in shared
        else JoinedColumn(name + suffixes[0] if name in both else name, at, None)
        for at, name in enumerate(first)
    ]
    found += [
        JoinedColumn(name + suffixes[1] if name in both else name, None, at)
        for at, name in enumerate(second)
        if name not in shared
    ]
    twice = [name for name, count in Counter(one.name for one in found).items() if count > 1]
    if twice:
        raise ValueError(
            f"the results would have two columns {twice[0]!r}: the first stream has {', '.join(first)}, the second "
            f"{', '.join(second)}; give other suffixes=(..., ...), or rename columns before"
        )
    return found


def joined_schema(columns: Sequence[JoinedColumn], first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """The schema of the results."""
    fields = []
    for one in columns:
        field = (second.field(one.second) if one.first is None else first.field(one.first)).with_nullable(True)
        if one.first is not None and one.second is not None:
            other = second.field(one.second)
            wide = widen(pa.schema([field.with_name("")]), pa.schema([other.with_name("")]))
            field = field if wide is None else field.with_type(wide.field(0).type)
        fields.append(field.with_name(one.name))
    return pa.schema(fields)


SIDES = ("first", "second")
"""Names of the columns of a group that have the records of each stream."""


def grouped_columns(keys: tuple[Sequence[str], Sequence[str]]) -> tuple[str, ...]:
    """The columns of groups of two streams: the key, with its names in the first, then the records of each. Raises
    `ValueError` if two columns would have one name."""
    taken = [name for name in keys[0] if name in SIDES]
    if taken:
        raise ValueError(
            f"the records of the {taken[0]} stream are in a column {taken[0]!r}; rename that of the key before"
        )
    return *keys[0], *SIDES


def grouped_schema(keys: tuple[Sequence[str], Sequence[str]], first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """The schema of groups of two streams."""
    names = grouped_columns(keys)
    fields = []
    for name, other in zip(*keys, strict=True):
        one, two = (
            schema.field(of).with_name("").with_nullable(True) for schema, of in ((first, name), (second, other))
        )
        wide = widen(pa.schema([one]), pa.schema([two]))
        fields.append(one if wide is None else wide.field(0))
    fields += [pa.field("", pa.list_(pa.struct(list(schema)))) for schema in (first, second)]
    return pa.schema([field.with_name(name) for field, name in zip(fields, names, strict=True)])


def key_family(kind: pa.DataType) -> pa.DataType | None:
    """The type as which a key of a type is compared: two keys are equal exactly if they are equal in this type, and keys of
    two of these types are never compared. None for a type that has none."""
    if pa.types.is_boolean(kind) or kind == pa.date32():
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    if kind in (pa.float32(), pa.float64()):
        return pa.float64()
    if is_text(kind):
        return pa.large_string() if kind in (pa.string(), pa.large_string()) else pa.large_binary()
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return None


def key_column(column: pa.Array) -> pa.Array:
    """A column of a key in the type as which it is compared, with one zero and one NaN. Raises `ValueError` for a type that
    has none, and for a value that is out of range there."""
    kind = key_family(column.type)
    if kind is None:
        raise ValueError(
            f"a join in columns compares keys of numbers, texts, bytes, booleans, dates and timestamps of at most "
            f"microseconds, not of {column.type}; cast the column, or call to_rows() on both streams before key_by"
        )
    try:
        found = column.cast(kind)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"a key of {column.type} is out of range where a join in columns compares keys ({error}); cast the column, or "
            f"call to_rows() on both streams before key_by"
        ) from None
    if kind != pa.float64():
        assert is_word(kind) or is_text(kind)
        return found
    return pc.if_else(pc.is_nan(found), pa.scalar(float("nan"), kind), pc.add(found, pa.scalar(0.0, kind)))
