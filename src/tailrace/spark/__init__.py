"""Workers as Spark tasks, DataFrames in and out, the Java that Spark needs. The only importer of pyspark.

Of its functions, `register`, `add_listener` and `remove_listener` are public, as `tr.spark.register` and so on.
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


def add_listener(listener: Any) -> None:
    """Adds a `StreamingQueryListener` of PySpark to all jobs that this process starts behind this call: it gets the events
    of their start, progress and end, as those of streaming queries. Raises `ConfigError` for an object that is none."""
    from tailrace.api.checks import check_listener
    from tailrace.spark.start.listeners import EVERYWHERE

    EVERYWHERE.append(check_listener(listener, "tr.spark.add_listener"))


def remove_listener(listener: Any) -> None:
    """Removes a listener from the jobs that start behind this call. Nothing happens if it was not added."""
    from tailrace.spark.start.listeners import EVERYWHERE

    EVERYWHERE[:] = [one for one in EVERYWHERE if one is not listener]
