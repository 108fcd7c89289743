"""Spark tables as sinks: rows are there once they are published, and tables that cannot be written so are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.spark.data.tables import describe, prepare_table

pytestmark = pytest.mark.spark


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Iterator[str]:
    """The name of a table that is not there yet, in a database of its own."""
    spark.sql(f"CREATE DATABASE IF NOT EXISTS ours LOCATION '{tmp_path}/ours'")
    yield "ours.miles"
    spark.sql("DROP DATABASE ours CASCADE")


def write(spark: Any, sink: tr.Sink, rows: list[Any], parallelism: int = 1) -> None:
    env = tr.Environment(spark, parallelism=parallelism)
    env.from_collection(rows).sink_to(sink)
    env.execute("table").await_termination()


def rows(spark: Any, table: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.table(table).collect()))


def test_a_table_that_is_not_there_is_created_and_grows(spark: Any, table: str) -> None:
    schema = "id long, name string, at timestamp"
    write(spark, tr.sinks.Table(table, schema), [(1, "a", None), {"name": "b", "id": 2, "at": None}])
    seen = spark.table(table)
    assert rows(spark, table) == [(1, "a", None), (2, "b", None)]
    write(spark, tr.sinks.Table(table, schema), [(3, "c", None)])
    assert seen.count() == 3, "Spark was told that there are more files"
    assert [(f.name, f.dataType.simpleString()) for f in spark.table(table).schema] == [
        ("id", "bigint"),
        ("name", "string"),
        ("at", "timestamp"),
    ]


def test_a_table_is_written_with_its_own_columns_found_by_name(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (name string, id bigint) USING parquet")
    write(spark, tr.sinks.Table(table, "id long, name string"), [(1, "a")])
    env = tr.Environment(spark, parallelism=1)
    columns = env.from_dataframe(spark.createDataFrame([(2, "b")], "id int, name string"), form="columns")
    columns.sink_to(tr.sinks.Table(table))
    env.execute("columns").await_termination()
    spark.sql(f"INSERT INTO {table} VALUES ('c', 3)")
    assert rows(spark, table) == [("a", 1), ("b", 2), ("c", 3)]


def test_nothing_of_a_job_that_failed_is_in_the_table(spark: Any, table: str, tmp_path: Path) -> None:
    with pytest.raises(tr.JobFailed):
        write(spark, tr.sinks.Table(table, "id long"), [(1,), ("no number",)])
    assert rows(spark, table) == []
    assert not list((tmp_path / "ours").rglob("*part-*"))


def test_what_is_published_is_seen_once_spark_is_reported(spark: Any, table: str) -> None:
    sink = tr.sinks.Table(table, "id long")
    prepare_table(spark, sink)
    assert spark.table(table).count() == 0

    class Place:
        subtask, parallelism, job, incarnation, attempt, run_id, uid = 0, 1, "job", 1, 0, "run", "sink"

    import pyarrow as pa

    writer = sink.writer(Place())  # type: ignore[arg-type]
    for i in range(3):
        writer.write(pa.record_batch({"id": [i]}))
        prepared = writer.prepare()
        assert prepared is not None
        assert spark.table(table).count() == i
        sink.publish([prepared])
        sink.publish([prepared])
        sink.published()
        assert spark.table(table).count() == i + 1
    writer.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE {} (id long) USING json", "has the format 'json', and this sink writes parquet"),
        ("CREATE TABLE {} (id long, day date) USING parquet PARTITIONED BY (day)", "is partitioned"),
        ("CREATE VIEW {} AS SELECT 1L AS id", "is a view"),
        ("CREATE TABLE {} (id string) USING parquet", "has the columns id string, and the schema given is id bigint"),
        ("CREATE TABLE {} (id long, more int) USING parquet", "column 'more' differs"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused(spark: Any, table: str, statement: str, message: str) -> None:
    spark.sql(statement.format(table))
    with pytest.raises(tr.ConfigError, match=message) as caught:
        write(spark, tr.sinks.Table(table, "id long"), [(1,)])
    assert f"table '{table}'" in str(caught.value)


def test_a_table_needs_a_name_a_schema_where_it_is_new_and_spark(spark: Any, table: str) -> None:
    with pytest.raises(tr.ConfigError, match="Table takes the name of a table, not 5"):
        tr.sinks.Table(5)  # type: ignore[arg-type]
    with pytest.raises(tr.ConfigError, match=r"'ours.miles' does not exist; create it, or give Table\(\.\.\., schema="):
        prepare_table(spark, tr.sinks.Table(table))
    with pytest.raises(tr.ConfigError, match="Spark refuses it"):
        prepare_table(spark, tr.sinks.Table("no such/table"))
    env = tr.Environment(parallelism=1)
    env.from_collection([(1,)]).sink_to(tr.sinks.Table(table, "id long"))
    with pytest.raises(tr.JobFailed, match="must run on Spark"):
        tr.testing.run(env)


def test_a_column_may_have_the_name_of_what_is_reported_of_a_table(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (Provider string, Location string) USING parquet")
    found = describe(spark, table)
    assert found.provider == "parquet" and found.location.endswith("ours/miles") and not found.partitioned
