"""The table of types in the guide is what the code does: each pair of types that it names goes, and no other."""

from __future__ import annotations

import math
import re
from collections import namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from tailrace.elements.columns.casts import column_as
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import columns_of
from tailrace.elements.rows import rows_of

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "values.md"
Pair = namedtuple("Pair", "b a")


class Line(NamedTuple):
    """A line of the table."""

    spark: str
    arrow: pa.DataType
    takes: list[str]
    columns: list[str]
    out: str


TYPES = {
    "fixed_size_binary[3]": pa.binary(3),
    "list<int32>": pa.list_(pa.int32()),
    "large_list<int32>": pa.large_list(pa.int32()),
    "fixed_size_list<int32>[2]": pa.list_(pa.int32(), 2),
    "map<string, int32>": pa.map_(pa.string(), pa.int32()),
    "struct<a: int32, b: string>": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "decimal128(10, 2)": pa.decimal128(10, 2),
    "decimal256(40, 2)": pa.decimal256(40, 2),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    "null": pa.null(),
}

# Each fits into every type that takes its kind.
VALUES: dict[str, list[Any]] = {
    "`bool`": [True, False, np.True_],
    "`int`": [0, 1, 100, np.int8(7)],
    "`float`": [0.0, 1.0, 64.0, np.float32(2.0)],
    "`Decimal`": [Decimal(0), Decimal("1.00"), Decimal("1E+1")],
    "`str`": ["", "abc", "ä\U0001f600", np.str_("x")],
    "`bytes`": [b"abc", b"\0\1\2"],
    "`bytearray`": [bytearray(b"abc")],
    "`date`": [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    "aware `datetime`": [datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)],
    "naive `datetime`": [datetime(2024, 1, 1, 12), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)],
    "`time`": [time(), time(23, 59, 59, 999000)],
    "`timedelta`": [timedelta(), timedelta(days=-3), timedelta(days=999_999, seconds=5)],
    "`list`": [[1, 2], [None, 3]],
    "`tuple`": [(1, "x")],
    "`dict`": [{"a": 1, "b": "x"}],
    "list of pairs": [[("a", 1), ("b", 2)]],
    "record": [Pair("x", 1)],
    "list of two": [[1, "x"]],
    "other": [1 + 2j, UUID(int=1), {1}, object(), pa.MonthDayNano([1, 2, 3])],
}
MAP_VALUES = {"`dict`": [{"a": 1, "b": None}], "list of pairs": [[("a", 1), ("b", None)]]}
LIST_VALUES = {"`list`": [[1, 2], [None, 3]], "`tuple`": [(1, 2)]}
ARROW_KINDS = {
    "integers": [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    "floats": [pa.float16(), pa.float32(), pa.float64()],
    "decimals": [pa.decimal128(20, 3), pa.decimal256(50, 4), pa.decimal64(10, 1)],
    "`bool`": [pa.bool_()],
    "texts": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    "bytes": [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)],
    "dates": [pa.date32(), pa.date64()],
    "timestamps with a zone": [pa.timestamp("us", "Europe/Berlin"), pa.timestamp("s", "UTC")],
    "timestamps without a zone": [pa.timestamp("us"), pa.timestamp("s")],
    "times": [pa.time32("s"), pa.time64("us")],
    "durations": [pa.duration("us"), pa.duration("ms")],
    "lists": [pa.list_(pa.int64()), pa.large_list(pa.int8()), pa.list_(pa.int16(), 2), pa.list_view(pa.int64())],
    "maps": [pa.map_(pa.large_string(), pa.int64())],
    "structs": [pa.struct([("b", pa.large_string()), ("a", pa.int64())])],
}
ARROW_VALUES: dict[str, list[Any]] = {
    "integers": [0, 1, None, 100],
    "floats": [0.0, 2.0, None],
    "decimals": [Decimal(0), None, Decimal("7.0")],
    "`bool`": [True, None],
    "texts": ["", "abc", None],
    "bytes": [b"abc", None],
    "dates": [date(2024, 2, 29), None],
    "timestamps with a zone": [datetime(2024, 1, 1, 12, tzinfo=UTC), None],
    "timestamps without a zone": [datetime(1900, 1, 1), None],
    "times": [time(1, 2, 3), None],
    "durations": [timedelta(days=-3), None],
    "lists": [[1, 2], None, [None, 3]],
    "maps": [[("a", 1), ("b", None)], None],
    "structs": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
}


def lines() -> list[Line]:
    """The table of the guide."""
    text = GUIDE.read_text().split("## Which types go into each other")[1]
    found = []
    for row in re.findall(r"^\|(.*)\|$", text.split("Scalars of numpy")[0], re.M):
        spark, arrow, takes, columns, out = (cell.strip() for cell in row.split("|"))
        if arrow in ("Arrow", "---"):
            continue
        name = arrow.strip("`")
        kind = (
            TYPES[name] if name in TYPES else pa.type_for_alias(name.replace("32[day]", "32").replace("64[ms]", "64"))
        )
        commas = re.compile(r", ")
        found.append(Line(spark.strip("`"), kind, commas.split(takes), commas.split(columns), out))
    return found


TABLE = lines()


def values_for(kind: pa.DataType) -> dict[str, list[Any]]:
    """Values by what the guide calls them; for nested types those that fit what is in them."""
    if pa.types.is_map(kind):
        return {**VALUES, **MAP_VALUES, "`list`": [[1, 2]]}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return {**VALUES, **LIST_VALUES, "list of two": [], "list of pairs": []}
    if pa.types.is_struct(kind):
        return {**VALUES, "`list`": [[1]], "list of pairs": []}
    return VALUES


def equal(value: Any, out: Any) -> bool:
    if isinstance(out, dict) and isinstance(value, tuple | list):
        value = dict(value) if isinstance(value[0], tuple) else dict(zip("ab", sorted(value, key=str), strict=True))
    if isinstance(out, list):
        value = list(value)
    return bool(value == out) or (isinstance(out, float) and math.isnan(out) and math.isnan(value))


PYTHON_TYPES = {
    "`bool`": bool, "`int`": int, "`float`": float, "`Decimal`": Decimal, "`str`": str, "`bytes`": bytes, "`date`": date,
    "aware `datetime`": datetime, "naive `datetime`": datetime, "`time`": time, "`timedelta`": timedelta, "`list`": list,
    "`dict`": dict, "`None`": type(None),
}  # fmt: skip


def test_there_is_a_line_for_every_kind() -> None:
    assert len(TABLE) == 33
    message = {name for line in TABLE for name in (*line.takes, *line.columns) if name}
    assert message <= {*VALUES, *ARROW_KINDS}
    assert message >= {*ARROW_KINDS, *VALUES} - {"other"}


@pytest.mark.parametrize("line", TABLE, ids=lambda line: str(line.arrow))
def test_a_column_takes_the_values_that_the_table_says(line: Line) -> None:
    schema = pa.schema({"x": line.arrow})
    for name, values in values_for(line.arrow).items():
        for value in values:
            if name in line.takes:
                batch = columns_of([(value,), (None,), (value,)], schema)
                [row, none, again] = rows_of(batch)
                assert none.x is None
                assert type(row.x) is PYTHON_TYPES[line.out], (name, value)
                assert equal(value, row.x) and equal(value, again.x), (name, value, row.x)
            else:
                with pytest.raises(Misfit, match="column 'x"):
                    print(name, columns_of([(value,)], schema))


@pytest.mark.parametrize("line", TABLE, ids=lambda line: str(line.arrow))
def test_a_column_takes_the_columns_that_the_table_says(line: Line) -> None:
    field = pa.field("x", line.arrow)
    for name, kinds in ARROW_KINDS.items():
        for kind in kinds:
            source = pa.array(ARROW_VALUES[name], kind)
            expected = rows_of(pa.record_batch([source], ["x"]))
            parts = [source, source.slice(1), pa.concat_arrays([source, source]).slice(len(source) - 1, 3)]
            for part in parts[: 2 if pa.types.is_dictionary(kind) else 3]:
                expected = rows_of(pa.record_batch([part], ["x"]))
                if name in line.columns:
                    made = column_as(part, field)
                    made.validate(full=True)
                    assert made.type == line.arrow
                    assert rows_of(pa.record_batch([made], ["x"])) == expected, (kind, made)
                else:
                    with pytest.raises(Misfit, match="column 'x"):
                        print(name, column_as(part, field))
    assert column_as(pa.nulls(3), field).to_pylist() == [None] * 3


@pytest.mark.spark
def test_the_spark_types_of_the_table_are_these_arrow_types(spark: Any) -> None:
    from tailrace.spark.data.schemas import arrow_schema

    for line in TABLE:
        if line.spark:
            assert arrow_schema(f"x {line.spark}").field("x").type == line.arrow, line.spark
