"""Workers as Spark tasks, DataFrames in and out, the Java that Spark needs. The only importer of pyspark.

Of its functions, `register` is public, as `tr.spark.register`.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Makes checkpoints readable as DataFrames in this session: `spark.read.format("tailrace-state")`, and the output of
    jobs: `spark.readStream.format("tailrace")`. The guide lists what can be read. Raises `ConfigError` for an object that is
    no session."""
    from tailrace.errors import ConfigError
    from tailrace.spark.data import outputsource, statesource

    if not hasattr(spark, "dataSource"):
        raise ConfigError(f"tr.spark.register: expected a SparkSession, got {type(spark).__name__}")
    statesource.register(spark)
    outputsource.register(spark)
