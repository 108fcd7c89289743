"""The expressions by which Spark's Parquet sink keeps columns whole."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tailrace.spark.streaming.plain_columns import has_empty_struct, plain_columns


def struct(*fields: tuple[str, Any]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LongType(), "c0"),
        (TimestampNTZType(), "c0"),
        (struct(("a", StringType())), "c0"),
        (TimestampType(), "unix_micros(c0)"),
        (DateType(), "unix_date(c0)"),
        (NullType(), "cast(c0 as boolean)"),
        (ArrayType(ArrayType(DateType())), "transform(c0, v0 -> transform(v0, v1 -> unix_date(v1)))"),
        (MapType(StringType(), DateType()), "transform_values(c0, (k0, v0) -> unix_date(v0))"),
        (MapType(DateType(), StringType()), "transform_keys(c0, (k0, v0) -> unix_date(k0))"),
        (
            struct(("a`b", DateType()), ("it's", LongType())),
            "if(c0 is null, null, named_struct('a`b', unix_date(c0.`a``b`), 'it\\'s', c0.`it's`))",
        ),
    ],
)
def test_times_and_columns_without_a_type_are_written_as_numbers(kind: Any, text: str) -> None:
    assert plain_columns(struct(("x.y", kind)), ["c0_h"]) == [f"{text} as c0_h"]


def test_a_struct_without_fields_is_found_wherever_it_is() -> None:
    assert has_empty_struct(ArrayType(MapType(StringType(), struct(("a", struct())))))
    assert not has_empty_struct(ArrayType(MapType(StringType(), struct(("a", LongType())))))
