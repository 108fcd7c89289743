"""Files that Spark wrote are read as Spark reads them, and Spark reads what our sink wrote."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tailrace as tr
from tests.connectors.files.test_partitioned import SCHEMA, batches, table
from tests.connectors.test_sinks import Place
from tests.connectors.test_sources import everything

pytestmark = pytest.mark.spark


def records(source: tr.Source) -> list[tuple[Any, ...]]:
    found = [tuple(record) for part in everything(source, 1) for record in part]
    return sorted(found, key=lambda record: record[0])


def in_spark(frame: Any, names: list[str]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in frame.collect()), key=lambda record: record[0])


def test_files_are_those_of_spark(spark: Any, tmp_path: Path) -> None:
    random = Random(7)
    rows = [row for row in table(random, 200) if row["city"] != "a b"]
    rows = [{**row, "day": row["day"] if row["day"] != dt.date(1, 1, 1) else None} for row in rows]
    text = "x long, day date, city string, n int, yes boolean"
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], text)
    expected = [tuple(row.values()) for row in rows]

    frame.write.partitionBy("city", "day").parquet(str(tmp_path / "parquet"))
    names = ["x", "n", "yes", "city", "day"]
    source = tr.sources.Parquet(str(tmp_path / "parquet"))
    assert source.columns == tuple(spark.read.parquet(str(tmp_path / "parquet")).columns) == tuple(names)
    assert records(source) == in_spark(spark.read.parquet(str(tmp_path / "parquet")), names)

    # As lines: strings with the quotes that RFC 4180 has, which is an option of Spark.
    frame.write.partitionBy("n").option("escape", '"').csv(str(tmp_path / "csv"), header=True, compression="snappy")
    found = records(tr.sources.Csv(str(tmp_path / "csv"), text))
    assert [(x, day, city, n, yes) for x, day, city, yes, n in found] == expected

    for compression in ("lz4", "bzip2", "gzip"):
        place = str(tmp_path / compression)
        frame.write.option("ignoreNullFields", random.random() < 0.5).json(place, compression=compression)
        assert records(tr.sources.Json(place, text)) == expected

    keys = ["n", "city", "yes"]
    writer = (sink := tr.sinks.Parquet(str(tmp_path / "ours"), SCHEMA, partition_by=keys)).writer(Place())
    for batch in batches(rows, random):
        writer.write(batch)
    prepared = writer.prepare()
    assert prepared is not None
    sink.publish([prepared])
    theirs = spark.read.schema(text).parquet(str(tmp_path / "ours"))
    assert in_spark(theirs, ["x", "day", "city", "n", "yes"]) == expected
