"""What two schemas of one stream come to."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.elements.columns.common_schema import agreement, fill_nulls, has_nulls, widen

NONE = pa.null()


def schema(*kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)])


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int8(), pa.int32(), pa.int32()),
        (pa.uint8(), pa.uint64(), pa.uint64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.uint64(), pa.int64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int8(), pa.float64(), None),
        (pa.int64(), pa.decimal128(38, 0), None),
        (pa.decimal128(5, 2), pa.decimal128(7, 0), pa.decimal128(9, 2)),
        (pa.decimal128(38, 2), pa.decimal128(38, 0), None),
        (pa.decimal128(38, 2), pa.decimal256(40, 0), pa.decimal256(42, 2)),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.binary(), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (NONE, pa.date32(), pa.date32()),
        (pa.list_(NONE), pa.large_list(pa.int8()), pa.large_list(pa.int8())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int64(), 3), None),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
        (pa.struct({"a": NONE, "b": pa.int8()}), pa.struct({"b": pa.int64(), "a": pa.string()}),
         pa.struct({"a": pa.string(), "b": pa.int64()})),
        (pa.struct({"a": NONE}), pa.struct({"b": NONE}), None),
        (pa.list_(pa.int8()), pa.int8(), None),
    ],
)  # fmt: skip
def test_types_become_wider_without_loss_or_come_to_none(
    one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    expected = None if both is None else schema(pa.bool_(), both)
    assert widen(schema(pa.bool_(), one), schema(pa.bool_(), other)) == expected
    turned = widen(schema(pa.bool_(), other), schema(pa.bool_(), one))
    assert (turned is None) == (both is None)


def test_what_has_no_type_yet_gets_one_and_nothing_else_changes() -> None:
    mine = schema(NONE, pa.int8(), pa.list_(NONE), pa.struct({"a": NONE, "b": pa.int8()}), NONE)
    theirs = schema(pa.int8(), pa.int64(), pa.large_list(pa.int8()), pa.struct({"b": pa.int64(), "a": pa.date32()}))
    made = fill_nulls(mine, theirs)
    assert made.types == [
        pa.int8(), pa.int8(), pa.list_(pa.int8()), pa.struct({"a": pa.date32(), "b": pa.int8()}), NONE,
    ]  # fmt: skip
    assert has_nulls(mine) and has_nulls(made) and not has_nulls(theirs)


def test_schemas_agree_where_only_what_is_not_known_differs() -> None:
    assert agreement(schema(NONE, pa.int8()), schema(pa.date32(), NONE)) == schema(pa.date32(), pa.int8())
    assert agreement(schema(pa.int8()), schema(pa.int16())) is None
    assert agreement(schema(pa.int8()), schema(pa.int8(), pa.int8())) is None
