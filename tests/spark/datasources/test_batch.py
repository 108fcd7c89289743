"""Batch readers of Python Data Sources: their rows, each once, whatever is restarted."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader

import tailrace as tr
from tailrace.connectors.sinks import Collect
from tailrace.elements.columns.misfit import Misfit
from tailrace.spark.data.schemas import arrow_schema
from tailrace.spark.datasources.records import RowConverter
from tailrace.spark.datasources.source import data_source
from tailrace.testing.faults import Fault
from tests.spark.datasources.shop import Orders, orders


def read(source: Any, options: Any = None, **settings: Any) -> list[Any]:
    env, sink = tr.Environment(parallelism=2), Collect()
    env.from_data_source(source, options, **settings).sink_to(sink)
    tr.testing.run(env)
    return list(sink.result())


@pytest.mark.parametrize("kind", ["tuples", "lists", "rows", "batches"])
def test_rows_of_all_partitions_are_read_whatever_the_reader_yields(kind: str) -> None:
    found = read(Orders, {"count": 100, "parts": 3, "kind": kind})
    assert sorted(found) == orders(0, 100)
    assert found[0].item == f"item {found[0].id}"


def test_columns_have_the_schema_of_the_data_source() -> None:
    for kind in ("tuples", "batches"):
        env, sink = tr.Environment(parallelism=1), Collect()
        schemas: list[Any] = []
        stream = env.from_data_source(Orders, {"kind": kind}, form="columns")
        stream.map_batches(lambda batch, seen=schemas: seen.append(batch.schema) or batch).sink_to(sink)
        tr.testing.run(env)
        assert sorted(map(tuple, sink.result())) == orders(0, 10)
        assert {tuple(zip(one.names, one.types, strict=True)) for one in schemas} == {
            (("id", pa.int64()), ("item", pa.string()))
        }


def test_options_are_texts_in_any_case_of_letters() -> None:
    class Shows(DataSource):
        def schema(self) -> str:
            return "shown string"

        def reader(self, schema: Any) -> Any:
            return ShowsReader(self.options)

    class ShowsReader(DataSourceReader):
        def __init__(self, options: Any) -> None:
            self.shown = [(f"{key}={options[key.upper()]!r}",) for key in sorted(options)]

        def read(self, partition: Any) -> Any:
            assert partition.value is None
            return iter(self.shown)

    assert read(Shows, {"numRows": 3, "Header": True, "unset": None}) == [("header='true'",), ("numrows='3'",)]


def test_values_have_the_types_of_a_dataframe() -> None:
    class Kinds(DataSource):
        def schema(self) -> str:
            return "d decimal(5,2), t timestamp, n timestamp_ntz, day date, l array<int>, s struct<a: int, b: string>"

        def reader(self, schema: Any) -> Any:
            return KindsReader()

    class KindsReader(DataSourceReader):
        def read(self, partition: Any) -> Any:
            at = datetime(2026, 1, 2, 3, tzinfo=UTC)
            yield Decimal("1.50"), at, datetime(2026, 1, 2), date(2026, 1, 2), [1, None], {"a": 1, "b": "x"}
            yield (None,) * 6

    inner = T.StructType([T.StructField("a", T.IntegerType()), T.StructField("b", T.StringType())])
    kinds = [T.DecimalType(5, 2), T.TimestampType(), T.TimestampNTZType(), T.DateType(), T.ArrayType(T.IntegerType())]
    schema = T.StructType([T.StructField(name, kind) for name, kind in zip("dtnyls", [*kinds, inner], strict=True)])
    first, nothing = read(Kinds, schema=schema)
    assert first[:5] == (
        Decimal("1.50"),
        datetime(2026, 1, 2, 3, tzinfo=UTC),
        datetime(2026, 1, 2),
        date(2026, 1, 2),
        [1, None],
    )
    assert first.s == {"a": 1, "b": "x"} and nothing == (None,) * 6


def converter(kind: T.DataType) -> RowConverter:
    struct = T.StructType([T.StructField("x", kind)])
    return RowConverter(struct, arrow_schema(struct), "rows")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.LongType(), 1.5),
        (T.LongType(), Decimal("1.5")),
        (T.ByteType(), 300),
        (T.FloatType(), 1e300),
        (T.DoubleType(), True),
        (T.DecimalType(5, 1), Decimal("1.55")),
        (T.DateType(), datetime(2026, 1, 2, 3)),
        (T.DateType(), 3),
        (T.ArrayType(T.LongType()), [1, 1.5]),
        (T.LongType(), "12"),
        (T.TimestampType(), 1),
    ],
)
def test_a_value_that_would_be_cut_or_guessed_does_not_fit(kind: T.DataType, value: Any) -> None:
    """Spark takes most of them: 1.5 becomes 1, and 3 is the fourth of January 1970."""
    with pytest.raises(Exception) as given:
        converter(kind).of_rows([(None,), (value,)])
    assert any("column 'x' of the data source" in note for note in given.value.__notes__)
    with pytest.raises(Misfit, match="column 'x"):
        converter(kind).of_batch(pa.record_batch({"x": [None, value]}))


def test_what_spark_converts_without_a_loss_is_converted() -> None:
    local = datetime(2026, 1, 2, 3)
    inner = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.StringType())])
    cases: list[tuple[T.DataType, Any, Any]] = [
        (T.StringType(), 12, "12"),
        (T.StringType(), True, "true"),
        (T.TimestampType(), local, local.astimezone(UTC)),
        (inner, {"b": 12}, {"a": None, "b": "12"}),
        (T.LongType(), 2.0, 2),
        (T.MapType(T.StringType(), T.LongType()), {1: 2}, {"1": 2}),
    ]
    for kind, value, expected in cases:
        assert converter(kind).of_rows([(value,), (None,)]) == [(expected,), (None,)]


def test_a_restart_reads_no_row_twice_and_skips_none(tmp_path: Path) -> None:
    """Workers are killed at several turns, at another parallelism than before, with and without record batches."""
    for kind, seed in (("tuples", 1), ("batches", 2), ("rows", 3)):
        checkpoint = tr.CheckpointConfig(dir=str(tmp_path / kind), interval=0.05)
        env = tr.Environment(parallelism=3, checkpoint=checkpoint, restart=tr.FixedDelay(20, 0.01))
        sink = Collect()
        env.from_data_source(Orders, {"count": 3_000, "parts": 7, "kind": kind}).rebalance().sink_to(sink)
        faults = [Fault(turn, "kill", worker) for turn, worker in ((120, 0), (260, 1), (420, 2))]
        job = tr.testing.simulate(env, seed=seed, faults=faults)
        job.await_termination()
        assert job.metrics()["restarts"] > 0
        assert sorted(sink.result()) == orders(0, 3_000)


def test_an_error_of_the_reader_names_the_partition_and_keeps_the_rows_in_front_of_it() -> None:
    with pytest.raises(tr.JobFailed, match="the shop is closed") as failed:
        read(Orders, {"count": 10, "parts": 2, "failsAt": 7})
    assert "while reading partition 1 of the data source 'orders'" in str(failed.value)
    assert "shop.py" in str(failed.value)


def test_rows_that_do_not_fit_the_schema_fail_with_the_reason() -> None:
    with pytest.raises(tr.JobFailed, match="a row of 3 values, and its schema has 2 columns"):
        read(Orders, {"kind": "wide"})
    with pytest.raises(tr.JobFailed, match="column 'item' of the data source, which is int32"):
        read(Orders, schema="id long, item int")


def test_a_partition_that_gives_fewer_rows_than_before_fails() -> None:
    source: Any = data_source(None, Orders, {"count": 10, "parts": 1}, None, "rows", {})
    split = source.partitions()[0]
    reader = source.reader(split, 11)
    with pytest.raises(RuntimeError, match="it gave 10 rows, and 11 rows of it were processed"):
        while reader.read(100, 0.0) is not None:
            pass
