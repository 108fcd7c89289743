"""Tables of Parquet files that a DataFrame reads, and that workers read anew while a lookup uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr
from tailrace.spark.data.scans import ParquetTable, table_reader
from tests.spark.waiting import waited

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string()})


def write(path: Path, *rows: tuple[int, str]) -> None:
    columns = list(zip(*rows, strict=True))
    pq.write_table(pa.table({"city": columns[1], "n": columns[0], "id": pa.array(columns[0], pa.int32())}), path)


def test_a_folder_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", (1, "Oslo"))
    (tmp_path / "_SUCCESS").touch()
    read = ParquetTable([f"file:{tmp_path}"], SCHEMA)
    write(tmp_path / "b.parquet", (2, "Rome"))
    (tmp_path / ".b.parquet.crc").touch()
    assert read() == pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]})
    (tmp_path / "_SUCCESS").unlink()
    with pytest.raises(OSError, match="is being written: it has no whole set of files"):
        read()
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    with pytest.raises(OSError, match="is being written"):
        read()


def test_a_folder_that_changes_while_it_is_read_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", (1, "Oslo"))
    read, original = ParquetTable([f"file:{tmp_path}"], SCHEMA), pq.read_table

    def slow(*args: Any, **options: Any) -> pa.Table:
        table = original(*args, **options)
        write(tmp_path / "b.parquet", (2, "Rome"))
        return table

    monkeypatch.setattr(pq, "read_table", slow)
    with pytest.raises(OSError, match="has changed while it was read"):
        read()
    monkeypatch.undo()
    assert read().num_rows == 2
    pq.write_table(pa.table({"id": [3]}), tmp_path / "c.parquet")
    with pytest.raises(KeyError, match=r"c\.parquet has no column 'city'; it has id"):
        read()


@pytest.mark.spark
def test_a_lookup_takes_what_spark_has_written_while_the_job_runs(spark: Any, tmp_path: Path) -> None:
    path, found = str(tmp_path / "cities"), tmp_path / "found"
    found.mkdir()
    cities = spark.createDataFrame([(0, "Oslo", 1), (1, "Rome", 2)], "id long, city string, n int")
    cities.repartition(2).write.parquet(path)
    table = spark.read.parquet(path).select("id", "city")
    for other in (table.filter("id > 0"), cities, table.withColumn("id", table["id"] + 1)):
        with pytest.raises(
            tr.GraphError, match=r"lookup: with refresh .* a DataFrame must be spark.read.parquet\(path\)"
        ):
            table_reader(other, "lookup")

    def note(pair: Any) -> Any:
        (found / pair[1].city).touch()
        return pair

    env = tr.Environment(spark, parallelism=2, checkpoint=tr.CheckpointConfig(str(tmp_path / "c"), interval=0.1))
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=500.0)).map(lambda i: (i % 2, i))
    rows = numbers.to_columns("id long, i long").to_rows().lookup(table, on="id", refresh=0.2).map(note)
    rows.map(lambda pair: (pair[0].i, pair[1].city)).sink_to(tr.sinks.Collect())
    job = env.execute("cities")
    try:
        assert waited(lambda: {one.name for one in found.iterdir()} == {"Oslo", "Rome"})
        moved = spark.createDataFrame([(0, "Bonn", 1), (1, "Bern", 2)], "id long, city string, n int")
        moved.repartition(2).write.mode("overwrite").parquet(path)
        assert waited(lambda: {one.name for one in found.iterdir()} == {"Oslo", "Rome", "Bonn", "Bern"})
    finally:
        job.stop()
