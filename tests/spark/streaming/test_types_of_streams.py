"""Each type of Spark that is carried whole comes in by a streaming DataFrame, and goes out to Spark again, as it was."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tests.spark.conftest import Jobs, settings
from tests.spark.test_types import SIMPLE, a_value

pytestmark = [pytest.mark.spark, pytest.mark.matrix]

KINDS = (*SIMPLE, "decimal(1,0)", "decimal(9,4)", "decimal(18,0)", "decimal(19,19)", "decimal(38,0)")
FIELDS = ",".join(f"`f.{at} ü`:{kind}" for at, kind in enumerate(KINDS))
COLUMNS = {
    "n": "long",
    **{f"a.{kind}": kind for kind in KINDS},
    "``Größe`` it's": f"struct<{FIELDS}>",
    "名前": f"array<struct<{FIELDS}>>",
    "map": f"map<string,struct<{FIELDS}>>",
    "keys": "map<date,map<decimal(9,4),array<timestamp>>>",
    "N2": "map<binary,array<map<boolean,array<interval day to second>>>>",
}
SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
LAST = (9999, 12, 31, 23, 59, 59, 999_999)
NAMES = [name.replace("``", "`") for name in COLUMNS]
VOID = ["*", "null as void", "array(named_struct('void', null, 'day', `a.date`)) as voids"]
"""Columns without a type come in, and cannot go out."""
ENDS: list[dict[str, Any]] = [
    {
        "a.timestamp": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        "a.timestamp_ntz": dt.datetime(1, 1, 1),
        "a.interval day to second": dt.timedelta(days=106_751_990, microseconds=1),
    },
    {
        "a.timestamp": dt.datetime(*LAST, tzinfo=dt.UTC),
        "a.timestamp_ntz": dt.datetime(*LAST),
        "a.interval day to second": -dt.timedelta(days=106_751_990),
    },
]
PLAIN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""No compiled code, which takes longer than the rows."""
UTC = {"spark.sql.session.timeZone": "UTC", **PLAIN}
ODD = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.writeLegacyFormat": "true",
    **PLAIN,
}
"""Settings of a session that change what Spark's Parquet files have."""


def a_file(spark: Any, folder: Path, number: int) -> None:
    """A file of rows: the ends of ranges, random ones, nulls only, none."""
    from pyspark.sql.types import StructType

    chance, schema = random.Random(number), StructType.fromDDL(SCHEMA)
    rows: list[dict[str, Any]] = []
    if number < 3:
        rows = [{field.name: a_value(field.dataType, chance) for field in schema.fields} for _ in range(8)]
        rows += [{field.name: a_value(field.dataType, chance, null=False) for field in schema.fields}]
        rows += [rows[-1] | ends for ends in ENDS]
    elif number == 3:
        rows = [{}] * 3
    rows = [row | {"n": 100 * number + at} for at, row in enumerate(rows)]
    data = [tuple(row.get(name) for name in schema.names) for row in rows]
    spark.createDataFrame(data, schema).coalesce(1).write.parquet(f"{folder}-{number}")
    [part] = Path(f"{folder}-{number}").glob("*.parquet")
    part.rename(folder / f"{number}.parquet")


def values(df: Any) -> list[str]:
    """The rows, with types, as texts."""
    with settings(df.sparkSession, UTC):
        table = df.toArrow()
    return [str(df.schema.simpleString()), *sorted(map(repr, table.to_pylist()))]


def text_of(row: Any) -> str:
    return repr(tuple(row))


def test_each_type_comes_in_and_goes_out_as_it_was(spark: Any, jobs: Jobs, tmp_path: Path) -> None:
    """In several batches, one of which has nulls only and one no rows, beside a stream that has no rows at all."""
    folders = [tmp_path / name for name in ("in", "none")]
    with settings(spark, UTC):
        for folder, numbers in zip(folders, (range(5), [5]), strict=True):
            folder.mkdir()
            for number in numbers:
                a_file(spark, folder, number)
    there = spark.read.schema(SCHEMA).parquet(str(folders[0]))
    with settings(spark, ODD):
        env = jobs.env(checkpoint=tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.5))
        files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2)
        typed = [
            env.from_streaming(files.parquet(str(folder)).selectExpr(*VOID), trigger="available-now", form="columns")
            for folder in folders
        ]
        stored = [stream.map_batches(lambda batch: batch.select(NAMES)) for stream in typed]
        out = {
            "columns": stored[0].to_streaming("columns", SCHEMA),
            "rows": stored[0].to_rows().union(stored[1].to_rows()).map(lambda r: r).to_streaming("rows", SCHEMA),
        }
        seen = typed[0].to_rows().map(text_of).sink_to(tr.sinks.Collect())
        env.execute("types").await_termination(240)
        query = out["rows"].read_stream().writeStream.format("memory").queryName("types_of_streams")
        assert query.trigger(availableNow=True).start().awaitTermination(120)
    with settings(spark, UTC):
        beside = tr.Environment(parallelism=1)
        direct = beside.from_dataframe(there.selectExpr(*VOID)).map(text_of).sink_to(tr.sinks.Collect())
        tr.testing.run(beside)
    assert sorted(seen.result()) == sorted(direct.result())
    expected = values(there)
    assert len(expected) == 1 + 3 * 11 + 3
    for found in (out["columns"].read(), out["rows"].read(), spark.table("types_of_streams")):
        assert values(found) == expected
    spark.catalog.dropTempView("types_of_streams")
