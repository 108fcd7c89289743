"""Nulls around what must not be null: they go into Parquet files, and come out as they were."""

from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from search.value_shapes import scalar_type, value_of
from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.required_fields import filled_batch

INNER = pa.struct([pa.field("a", pa.int32(), nullable=False)])
REQUIRED: list[tuple[pa.DataType, list[Any]]] = [
    (INNER, [{"a": 1}, None]),
    (pa.struct([pa.field("t", INNER)]), [{"t": {"a": 1}}, {"t": None}, None]),
    (pa.struct([pa.field("t", INNER, nullable=False)]), [{"t": {"a": 1}}, None]),
    (pa.list_(INNER), [[{"a": 1}, None], None, []]),
    (pa.map_(pa.string(), INNER), [[("x", {"a": 1}), ("y", None)], None]),
    (pa.list_(pa.field("item", pa.int32(), nullable=False)), [[1], None]),
    (
        pa.struct([pa.field("l", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False)]),
        [{"l": [1]}, None],
    ),
    (pa.list_(pa.field("item", pa.string(), nullable=False), 2), [["a", "b"], None]),
]


def written(array: pa.Array) -> pa.Array:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([pa.field("x", array.type)]))
    pq.write_table(pa.Table.from_batches([filled_batch(batch)]), sink)
    return pq.read_table(sink.getvalue())["x"].combine_chunks()


@pytest.mark.parametrize(("kind", "values"), REQUIRED, ids=str)
def test_a_null_around_a_required_field_is_written(kind: pa.DataType, values: list[Any]) -> None:
    for array in (
        column_of_values(values, pa.field("x", kind)),
        column_of_values([None, *values], pa.field("x", kind))[1:],
    ):
        assert written(array).to_pylist() == values


def strict(random: Random, depth: int = 2) -> pa.DataType:
    """A type with fields that must not be null."""
    shape = random.randint(0, 4 if depth else 0)
    if shape in (0, 1):
        return _writable(random)
    field = pa.field("item", strict(random, depth - 1), nullable=random.random() < 0.4)
    if shape == 2:
        return random.choice([pa.list_(field), pa.large_list(field)])
    if shape == 3:
        return pa.map_(pa.string(), field)
    others = [pa.field(f"f{i}", strict(random, depth - 1), nullable=random.random() < 0.5) for i in range(2)]
    return pa.struct([field, *others])


def _writable(random: Random) -> pa.DataType:
    kind = scalar_type(random)
    return kind if not pa.types.is_null(kind) else pa.int64()


def filled(random: Random, field: pa.Field) -> Any:
    """A value of a field, None only where it may be."""
    kind = field.type
    if field.nullable and random.random() < 0.3:
        return None
    if pa.types.is_struct(kind):
        return {one.name: filled(random, one) for one in kind}
    if pa.types.is_map(kind):
        return {key: filled(random, kind.item_field) for key in random.sample("abc", random.randint(0, 2))}
    if kind.num_fields:
        return [filled(random, kind.value_field) for _ in range(random.randint(0, 3))]
    while (value := value_of(random, kind)) is None:
        pass
    return value


@pytest.mark.parametrize("seed", range(120))
def test_any_column_is_written_as_it_is(seed: int) -> None:
    random = Random(seed)
    field = pa.field("x", strict(random))
    array = column_of_values([filled(random, field) for _ in range(random.randint(0, 6))], field)
    if len(array) > 2:
        array = array[1:]
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([field]))
    same = filled_batch(batch)
    same.validate(full=True)
    assert same.schema == batch.schema and str(same.column(0).to_pylist()) == str(array.to_pylist())
    try:
        pq.write_table(pa.Table.from_batches([same]), pa.BufferOutputStream())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        assert "non-nullable" not in str(error)
