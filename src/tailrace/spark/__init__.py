"""Workers as Spark tasks, DataFrames in and out, the Java that Spark needs. The only importer of pyspark.

- `start`: from a plan to a running job. `shipping`: what executors are brought. `slots`: workers as Spark tasks.
- `cluster`: sessions, settings and capacity. `outpost`: a coordinator on an executor.
- `data`, `datasources`, `streaming`: DataFrames and tables, Python Data Sources, and streaming queries.

Of its functions, `register`, `views`, `add_listener` and `remove_listener` are public, as `tr.spark.register` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def views(
    spark: Any,
    job: str,
    *,
    path: str | None = None,
    checkpoint: int | None = None,
    prefix: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Temporary views of a job in a session: of the output of each `to_streaming`, of each state, and of the list of its
    checkpoints. Each query sees what is published, and the newest checkpoint, when it runs. Returns the names of the views,
    with what each shows.

    - `job`: the name of a job that this program has started, or that runs on this machine.
    - `path`: its checkpoint folder, where the job is neither.
    - `checkpoint`: the number of a checkpoint, for views of the state as it was then.
    - `prefix`: the beginning of their names, in place of the name of the job.
    - `storage_options`: options for the filesystem of `path`.

    Raises `ConfigError` for a job that is not found, and for names that are taken, and `CheckpointNotFound`."""
    from tailrace.errors import ConfigError
    from tailrace.spark.data.views import make_views

    if not hasattr(spark, "dataSource"):
        raise ConfigError(f"tr.spark.views: expected a SparkSession, got {type(spark).__name__}")
    if checkpoint is not None and (not isinstance(checkpoint, int) or isinstance(checkpoint, bool)):
        raise ConfigError(f"tr.spark.views: checkpoint is the number of a checkpoint, not {checkpoint!r}")
    return make_views(spark, job, path, checkpoint, prefix, storage_options)


def add_listener(listener: Any) -> None:
    """Adds a `StreamingQueryListener` of PySpark to all jobs that this process starts behind this call: it gets the events
    of their start, progress and end, as those of streaming queries. Raises `ConfigError` for an object that is none."""
    from tailrace.api.checks.arguments import check_listener
    from tailrace.spark.start.listeners import EVERYWHERE

    EVERYWHERE.append(check_listener(listener, "tr.spark.add_listener"))


def remove_listener(listener: Any) -> None:
    """Removes a listener from the jobs that start behind this call. Nothing happens if it was not added."""
    from tailrace.spark.start.listeners import EVERYWHERE

    EVERYWHERE[:] = [one for one in EVERYWHERE if one is not listener]
