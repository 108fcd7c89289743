"""Columns in which, or inside of which, there may be no nulls."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.schemas import batch_as, columns_of

INNER = pa.schema([pa.field("x", pa.struct([pa.field("a", pa.int64(), nullable=False)]))])
ITEMS = pa.schema([pa.field("x", pa.list_(pa.field("item", pa.int64(), nullable=False)))])


@pytest.mark.parametrize(("schema", "good", "bad"), [(INNER, {"a": 1}, {"a": None}), (ITEMS, [1], [1, None])])
def test_what_is_inside_may_be_not_null_too(schema: pa.Schema, good: object, bad: object) -> None:
    rows = [(good,), (None,)]
    made = columns_of(rows, schema)
    assert made.to_pylist() == [{"x": good}, {"x": None}]
    with pytest.raises(Misfit, match="must not be null") as raised:
        columns_of([*rows, (bad,)], schema)
    assert raised.value.row == 2
    free = pa.schema({"x": pa.struct([("a", pa.int64())]) if schema is INNER else pa.list_(pa.int64())})
    assert batch_as(columns_of(rows, free), schema).to_pylist() == made.to_pylist()
    with pytest.raises(Misfit, match="must not be null"):
        batch_as(columns_of([(bad,)], free), schema)
