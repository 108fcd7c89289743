"""Aggregates in columns and in rows equal those of Spark SQL for the same DataFrame."""

from __future__ import annotations

from typing import Any

import pytest

import tailrace as tr

pytestmark = pytest.mark.spark

QUERY = """
select cast(id % 3 as string) k, cast(id as decimal(3)) * 1234567890123456789BD * 0.0001BD d, cast(id as int) i,
       timestamp '2024-10-27 00:10:00Z' + make_dt_interval(0, cast(id % 2 as int), 0, 0) at
from range(20)
"""


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_aggregates_are_those_of_spark_sql(spark: Any, form: str) -> None:
    df = spark.sql(QUERY).selectExpr("k", "cast(d as decimal(28, 4)) d", "i", "at")
    expected = df.groupBy("k").agg({"d": "sum"}).collect()
    means = df.groupBy("k").agg({"d": "avg", "i": "sum"}).collect()
    ends = {row.k: row for row in df.groupBy("k").agg({"at": "max"}).withColumnRenamed("max(at)", "high").collect()}
    env = tr.Environment(spark, parallelism=2)
    keyed = env.from_dataframe(df, form=form).key_by("k")
    named = {"total": tr.Sum("d"), "mean": tr.Mean("d"), "whole": tr.Sum("i"), "high": tr.Max("at")}
    last = {row[0]: tuple(row)[1:] for row in keyed.aggregate(**named).collect()}
    assert {row.k: row["sum(d)"] for row in expected} == {key: found[0] for key, found in last.items()}
    assert {row.k: (row["avg(d)"], row["sum(i)"]) for row in means} == {key: found[1:3] for key, found in last.items()}
    assert {key: row.high.timestamp() for key, row in ends.items()} == {
        k: found[3].timestamp() for k, found in last.items()
    }
