"""Schemas written as text: a plain list of columns needs no Spark, and means what it means to Spark."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from tailrace.spark.data.schemas import _plain_ddl, spark_schema

PLAIN = [
    "x int, y long",
    "a boolean, b tinyint, c byte, d smallint, e short, f int, g integer, h bigint, i long",
    "a float, b real, c double, d string, e binary, f date, g timestamp, h timestamp_ntz, i timestamp_ltz",
    " x :INT ,  _y2:String ",
]
FOR_SPARK = [
    "x array<int>, y map<string,int>",
    "x decimal(10,2)",
    "x int NOT NULL",
    "x int COMMENT 'a, b'",
    "`a b` int",
    "x varchar(3)",
    "x",
    "",
    "x int,",
]

PROGRAM = """
import sys
import tailrace as tr
env = tr.Environment(parallelism=3)
rows = env.from_collection([1, 2, 3]).map(lambda x: (x, "a")).to_columns("x int, y string")
sink = rows.sink_to(tr.sinks.DataFrame())
job = tr.testing.run(env)
assert len(sink.files()) == 3
try:
    sink.dataframe()
except tr.GraphError as error:
    assert "ran without Spark" in str(error)
else:
    raise AssertionError("a DataFrame without Spark")
from pyspark import SparkContext
assert SparkContext._gateway is None  # no JVM was started
"""

MORE_THAN_TWO = """
import tailrace as tr
env = tr.Environment(parallelism=3)
df = env.from_collection(range(9)).map(lambda x: (x, x * x)).to_dataframe(schema="x int, y long")
assert sorted(map(tuple, df.collect())) == [(x, x * x) for x in range(9)]
assert env.spark.sparkContext.master == "local[7]"  # for two such jobs, and a task of Spark
"""


@pytest.mark.parametrize("text", FOR_SPARK)
def test_what_is_more_than_names_and_simple_types_is_left_to_spark(text: str) -> None:
    assert _plain_ddl(text) is None


def test_a_plain_schema_starts_no_spark() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.spark
@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_schema_is_what_spark_reads(spark: Any, text: str) -> None:
    from pyspark.sql.types import StructType

    fields = _plain_ddl(text)
    assert StructType.fromJson({"type": "struct", "fields": fields}) == StructType.fromDDL(text)


@pytest.mark.spark
def test_a_schema_as_text_does_not_decide_how_many_slots_there_are() -> None:
    # Reading the text used to start a session of two slots, too few for this job.
    done = subprocess.run([sys.executable, "-c", MORE_THAN_TWO], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_a_timestamp_without_a_zone_stays_one() -> None:
    """TIMESTAMP is a moment and TIMESTAMP_NTZ what a clock on the wall shows. PySpark 4.0 and 4.1 made the one of the
    other on the way out, so results were read in the session's zone."""
    text = "at timestamp, shown timestamp_ntz, days array<timestamp_ntz>"
    fields = [pa.field("at", pa.timestamp("us", "UTC")), pa.field("shown", pa.timestamp("us"))]
    schema = pa.schema([*fields, pa.field("days", pa.list_(pa.timestamp("us")))])
    assert spark_schema(schema).simpleString() == f"struct<{text.replace(' ', ':').replace(',:', ',')}>"
