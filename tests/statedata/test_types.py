"""The type of column for values, found out by a look at them."""

from __future__ import annotations

from collections import namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from tailrace.elements.columns.arrays import column_of_values
from tailrace.state.format import TableInfo
from tailrace.statedata.types import NoColumn, column_for, declared_column, declared_decoder

Pair = namedtuple("Pair", "left right")


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "int64"),
        ([1, 2.5], "double"),
        ([1, None], "int64"),
        ([True, None], "bool"),
        (["a"], "string"),
        ([b"a"], "binary"),
        ([1 << 70, 3], "decimal128(38, 0)"),
        ([Decimal("1.5")], "decimal128(38, 18)"),
        ([date(2026, 1, 1)], "date32[day]"),
        ([datetime(2026, 1, 1)], "timestamp[us]"),
        ([datetime(2026, 1, 1, tzinfo=UTC)], "timestamp[us, tz=UTC]"),
        ([timedelta(1)], "duration[us]"),
        ([[1], [], [2.5]], "list<item: double>"),
        ([(1, "a"), (2, "b")], "struct<_1: int64, _2: string>"),
        ([Pair(1, "a"), Pair(None, "b")], "struct<left: int64, right: string>"),
        ([{"a": 1}, {}, {"b": 2}], "map<string, int64>"),
        ([{"a": 1, "b": "x"}], "struct<a: int64, b: string>"),
        ([{1: [2]}, {3: [4.0]}], "map<int64, list<item: double>>"),
        ([], "string"),
        ([None], "string"),
        ([[], None], "list<item: string>"),
    ],
)
def test_values_have_the_type_that_holds_them_all(values: list[Any], kind: str) -> None:
    import pyarrow as pa

    found = column_for(values)
    assert str(found) == kind
    assert len(column_of_values(values, pa.field("value", found))) == len(values)


@pytest.mark.parametrize(
    "values",
    [
        [1, "a"],
        [True, 1],
        [Decimal(1), 1.5],
        [(1,), (1, 2)],
        [{"a": 1}, [1]],
        [{1: "a", 2: 3}],
        [Colour.RED],
        [UUID(int=1)],
        [object()],
        [1 + 2j],
    ],
)
def test_values_that_no_type_holds_have_none(values: list[Any]) -> None:
    with pytest.raises(NoColumn):
        column_for(values)


@pytest.mark.parametrize(
    ("kind", "declared", "column"),
    [
        ("value", "int", "int64"),
        ("value", "int | None", "int64"),
        ("reducing", "float", "double"),
        ("list", "str", "list<item: string>"),
        ("map", "str, int", "map<string, int64>"),
        ("map", "str, object", None),
        ("value", "object", None),
        ("value", "Profile", None),
        ("aggregating", "float", None),
        ("aggregate", "int", None),
        ("window", "int", None),
    ],
)
def test_a_declared_type_says_the_column_where_it_is_a_plain_one(kind: str, declared: str, column: str | None) -> None:
    found = declared_column(TableInfo("s", kind, type=declared))
    assert (None if found is None else str(found)) == column


def test_what_msgspec_encoded_comes_back_as_declared_or_by_its_fields() -> None:
    import msgspec

    class Profile(msgspec.Struct):
        visits: int

    at = datetime(2026, 1, 1)
    assert declared_decoder(TableInfo("s", "value", "msgspec", "datetime"))(msgspec.msgpack.encode(at)) == at
    assert declared_decoder(TableInfo("s", "value", "msgspec", "Profile"))(msgspec.msgpack.encode(Profile(3))) == {
        "visits": 3
    }
    assert declared_decoder(TableInfo("s", "map", "msgspec", "str, Decimal"))(
        msgspec.msgpack.encode({"a": Decimal("1.5")})
    ) == {"a": Decimal("1.5")}
    assert declared_decoder(TableInfo("s", "list", "msgspec", "int"))(msgspec.msgpack.encode([1, 2])) == [1, 2]
