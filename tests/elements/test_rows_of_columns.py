"""Rows and columns are the same records. What a record of a stream looks like does not depend on its neighbours."""

import math
from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import columns_of
from tailrace.elements.rows import field_getter, rows_of


def table(values: list[Any], **types: pa.DataType) -> list[dict[str, Any]]:
    return columns_of(values, pa.schema(types)).to_pylist()


# Columns to rows.

COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(codec="utf-8"))),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.duration("us"), st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000))),
    (pa.decimal128(10, 2), st.decimals(-999, 999, places=2)),
    (pa.list_(pa.int64()), st.lists(st.integers(-5, 5))),
    (pa.struct([("a", pa.int64())]), st.fixed_dictionaries({"a": st.integers(-5, 5)})),
]


def same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=lambda x: str(x) if isinstance(x, pa.DataType) else "")
@given(data=st.data())
def test_a_column_is_seen_as_arrow_shows_it(kind: pa.DataType, values: Any, data: st.DataObject) -> None:
    shown = data.draw(st.lists(st.none() | values, max_size=6))
    rows = rows_of(pa.record_batch([pa.array(shown, kind)], names=["x"]))
    expected = pa.array(shown, kind).to_pylist()
    assert all(same(row.x, value) and type(row.x) is type(value) for row, value in zip(rows, expected, strict=True))


# Rows to columns.

Pair = namedtuple("Pair", "a b")
Swapped = namedtuple("Swapped", "b a")


@dataclass
class Thing:
    a: int
    b: str


class Untold:
    """A class that does not list the names that it has."""

    def __init__(self, a: int) -> None:
        self.a = a

    def __repr__(self) -> str:
        return "Untold"


WANTED = [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    "record",
    [
        {"a": 1, "b": "x"},
        {"b": "x", "a": 1},
        Pair(1, "x"),
        Swapped("x", 1),
        Thing(1, "x"),
        (1, "x"),
        [1, "x"],
    ],
    ids=repr,
)
def test_a_record_of_any_kind_becomes_a_row_of_the_table(record: Any) -> None:
    assert table([record], a=pa.int64(), b=pa.string()) == WANTED


def test_records_of_several_kinds_are_each_read_by_their_own() -> None:
    mixed = [Pair(1, "x"), Swapped("x", 1), (1, "x"), {"a": 1, "b": "x"}, Thing(1, "x"), Pair(1, "x")]
    assert table(mixed, a=pa.int64(), b=pa.string()) == 6 * WANTED


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (
            Pair(1, "x"),
            "a record of type Pair must have the names 'a', 'c': it has no 'c'; there is no column for 'b'",
        ),
        (
            Thing(1, "x"),
            "a record of type Thing must have the names 'a', 'c': it has no 'c'; there is no column for 'b'",
        ),
        ({"a": 1}, "a record of type dict must have the names 'a', 'c': it has no 'c'"),
        (
            {"a": 1, "c": 2, "more": 3},
            "a record of type dict must have the names 'a', 'c': there is no column for 'more'",
        ),
        (
            Untold(1),
            "a record of type Untold must have an attribute for each column: 'Untold' object has no attribute 'c'",
        ),
    ],
    ids=repr,
)
def test_a_record_with_names_has_the_names_of_the_columns_and_no_others(record: Any, why: str) -> None:
    with pytest.raises(Misfit, match=why):
        table([record], a=pa.int64(), c=pa.string())


def test_each_of_many_mappings_has_all_names() -> None:
    with pytest.raises(Misfit, match="it has no 'b'") as raised:
        table([{"a": 1, "b": "x"}, {"a": 2}], a=pa.int64(), b=pa.string())
    assert raised.value.row == 1


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("title", pa.string(), "a title"),  # str has a method of this name
        ("real", pa.float64(), 1.5),
        ("date", pa.timestamp("us"), datetime(2020, 1, 2)),
        ("year", pa.date32(), date(2020, 1, 2)),
        ("days", pa.duration("us"), timedelta(days=3)),
        ("hex", pa.binary(), b"abc"),
        ("exp", pa.decimal128(5, 2), Decimal("1.50")),
        ("x", pa.int64(), None),
    ],
)
def test_plain_values_fill_the_one_column_whatever_its_name(name: str, kind: pa.DataType, value: Any) -> None:
    assert table([value], **{name: kind}) == [{name: value}]


def test_no_records_make_an_empty_table() -> None:
    empty = columns_of([], pa.schema({"a": pa.int64(), "b": pa.string()}))
    assert (empty.num_rows, empty.schema.names) == (0, ["a", "b"])


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            [("one", "x")],
            "column 'a' is declared int64, and 'one' does not fit: it is of type str; string would take it",
        ),
        (
            [(1 << 70, "x")],
            "column 'a' is declared int64, and 1180591620717411303424 does not fit: it is out of the range",
        ),
        ([(1, 2)], "column 'b' is declared string, and 2 does not fit: it is of type int; int64 would take it"),
        ([(1,)], r"a record has 1 values, the schema 2 \(a, b\): \(1,\)"),
        ([(1, "x"), (1, "x", 2)], "a record has 3 values, the schema 2"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_with_its_column(values: list[Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        table(values, a=pa.int64(), b=pa.string())


def test_a_null_is_refused_where_the_schema_forbids_it() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(ValueError, match="column 'a' must not be null"):
        columns_of([(1,), (None,)], schema)


# Fields of rows.


@pytest.mark.parametrize("record", [{"a": 1, "b": 2}, Pair(1, 2), Swapped(2, 1), Thing(1, "2")], ids=repr)
def test_a_field_is_read_from_a_record_of_any_kind(record: Any) -> None:
    assert field_getter("a", record)(record) == 1
