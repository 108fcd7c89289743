"""The rows of Parquet files of batches have the types of the stream, and footers say what lists need."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.connectors.streaming.batchfiles import in_types_of, rows_from, written_columns, written_file
from tailrace.errors import CheckpointError, ConfigError
from tests.connectors.streaming.queries import SCHEMA, Query

MOMENT = pa.timestamp("us", tz="UTC")


@pytest.fixture
def query(scratch: Path) -> Query:
    return Query(scratch, random.Random(1), event_time=1)


def test_numbers_become_times_also_inside_others() -> None:
    """In structs that may be null, of which Spark says that their fields are not, too."""
    inner = pa.struct([pa.field("at.x", MOMENT, False), pa.field("at.x", pa.string())])
    schema = pa.schema(
        [
            ("at", MOMENT),
            ("day", pa.date32()),
            ("span", pa.duration("us")),
            ("times", pa.list_(pa.field("element", MOMENT, False))),
            ("by", pa.map_(pa.date32(), pa.timestamp("us"))),
            ("in", inner),
        ]
    )
    plain = pa.struct([("at.x", pa.int64()), ("at.x", pa.string())])
    columns = [
        pa.array([-(2**63), None, 2**63 - 1]),
        pa.array([-719162, None, 2932896], pa.int32()),
        pa.array([1, None, -1]),
        pa.array([[1], None, []], pa.list_(pa.int64())),
        pa.array([[(1, None)], None, []], pa.map_(pa.int32(), pa.timestamp("us"))),
        pa.StructArray.from_arrays(
            [pa.array([1, None, 3]), pa.array(["a", None, None])],
            fields=list(plain),
            mask=pa.array([False, True, False]),
        ),
    ]
    for first in range(3):
        found = in_types_of(pa.record_batch(columns, names=[f"c{at}" for at in range(6)]).slice(first), schema)
        found.validate(full=True)
        assert found.schema == schema
        assert found.column("at").cast(pa.int64()).equals(columns[0].slice(first))
        assert found.column("in").is_null().to_pylist() == [False, True, False][first:]
        assert found.column("times").cast(pa.list_(pa.int64())).to_pylist() == [[1], None, []][first:]


def test_columns_without_a_type_are_nulls_of_it() -> None:
    inner = pa.struct([("none", pa.null()), ("day", pa.date32())])
    plain = pa.array([{"none": None, "day": 1}, None], pa.struct([("none", pa.bool_()), ("day", pa.int32())]))
    batch = pa.record_batch([pa.array([None, None], pa.bool_()), plain], names=["c0", "c1"])
    found = in_types_of(batch, pa.schema([("none", pa.null()), ("in", inner)]))
    assert found.schema.types == [pa.null(), inner]
    assert found.column(1).cast(pa.struct([("none", pa.null()), ("day", pa.int32())])).to_pylist() == plain.to_pylist()


def test_another_layout_is_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid, match="view"):
        in_types_of(pa.record_batch({"c0": pa.array([1], pa.int32())}), pa.schema([("at", MOMENT)]))


def test_rows_are_read_from_any_row_on_over_groups(query: Query) -> None:
    name = query.write_file(pa.record_batch([[0] * 10, list(range(10))], schema=SCHEMA))
    for row in range(10):
        found = pa.Table.from_batches(rows_from(query.folder, name, row, SCHEMA, ["c0", "c1"]))
        assert found.column(1).to_pylist() == list(range(row, 10))


def test_rows_of_a_dataframe_that_had_other_columns_are_refused(query: Query) -> None:
    """Without that numbers would be taken for moments, or for those of another column."""
    name = query.write_file(pa.record_batch([[0], [1]], schema=SCHEMA))
    with pytest.raises(CheckpointError, match="was written when the DataFrame had other columns"):
        next(rows_from(query.folder, name, 0, SCHEMA, written_columns([("number", "bigint"), ("batch", "bigint")])))
    one, other = written_columns([("a", "bigint"), ("a.b", "date")]), written_columns([("a", "bigint"), ("a.b", "int")])
    assert one[0] == other[0] and one[1] != other[1] and one[0].startswith("c0_")


@pytest.mark.parametrize("statistics", [True, False])
def test_the_latest_time_is_known_with_and_without_statistics(query: Query, statistics: bool) -> None:
    query.data.mkdir()
    for number, times in enumerate([[5, None, 9, 2**62], [None, None], []]):
        name = f"part-{number:05d}-a-c000.snappy.parquet"
        rows = pa.table({"c0": pa.array([{"a": 1}] * len(times), pa.struct([("a", pa.int8())])), "c1": times})
        rows = rows.set_column(1, "c1", rows.column(1).cast(pa.timestamp("us")))
        pq.write_table(rows, query.data / name, row_group_size=2, write_statistics=statistics)
        found = written_file(query.folder, name, 1)
        assert (found.partition, found.rows, found.latest) == (number, len(times), 2**62 if number == 0 else None)


def test_a_file_of_another_kind_is_refused(query: Query) -> None:
    with pytest.raises(ConfigError, match="no Parquet file of a task"):
        written_file(query.folder, "part-0.orc", None)
