"""The environment of a program that a test starts as a user would."""

from __future__ import annotations

import os


def plain_environ() -> dict[str, str]:
    """The environment of this process without settings for Spark and tailrace, but for how thoroughly a JVM compiles (see
    `conftest`)."""
    ours = ("SPARK_", "PYSPARK_", "TAILRACE_")
    keep = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
    return {name: value for name, value in os.environ.items() if name in keep or not name.startswith(ours)}
