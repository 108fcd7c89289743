"""An archive of the classes that Spark loads, which the JVMs of tests share: each of them starts in half the time.

`python tests/class_archive.py` makes it, once per environment. Where it is missing, or of another JVM or Spark, tests run
without it. Java calls it class data sharing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Spark of a test lives for seconds: compiled thoroughly, its code takes longer to compile than it then saves."""
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"
"""An archive that does not fit is no reason for a word."""


def quick() -> str:
    """The options for a JVM of Spark: a driver, an executor, a master or a worker of a cluster."""
    return f"{_QUICK} {_SILENT} -XX:SharedArchiveFile='{ARCHIVE}'" if ARCHIVE.exists() else _QUICK


def options() -> dict[str, str]:
    """What to set for the JVMs of tests, those of their executors, and those that make their commands."""
    executors = f'"-Dspark.executor.defaultJavaOptions={quick()}"'
    return {"SPARK_SUBMIT_OPTS": f"{quick()} {executors}", "SPARK_LAUNCHER_OPTS": _QUICK}


def make() -> None:
    """Runs what tests run, in a JVM that writes down which classes it has loaded."""
    part = ARCHIVE.with_suffix(".part")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_QUICK} {_SILENT} -XX:ArchiveClassesAtExit='{part}'"
    os.environ["SPARK_LAUNCHER_OPTS"] = _QUICK
    from pyspark import SparkContext

    from tailrace.spark.cluster.session import local_session

    session = local_session(2)
    _load(session)
    gateway = SparkContext._gateway
    session.stop()
    if gateway is None:
        raise SystemExit("there is no JVM to make an archive")
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its standard input, and writes the archive
    gateway.proc.wait(300)
    part.rename(ARCHIVE)


def _load(session: Any) -> None:
    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    with tempfile.TemporaryDirectory() as folder:
        rows = session.range(10).selectExpr("id", "cast(id as string) as name", "current_timestamp() as at")
        rows.mapInArrow(same, rows.schema).write.parquet(f"{folder}/rows")
        read = session.read.parquet(f"{folder}/rows")
        read.groupBy("name").count().orderBy("name").toArrow()
        session.createDataFrame([(1, "a")], "id long, name string").collect()


if __name__ == "__main__" and not ARCHIVE.exists():
    make()
