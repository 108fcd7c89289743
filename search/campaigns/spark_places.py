"""Real Sparks on this machine for campaigns in which workers and executors are killed, and the outcome of a seed there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import Standalone
from tests import class_archive

PLACES = ("local-cluster", "standalone", "connect")
CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "FATAL",
    "spark.ui.showConsoleProgress": "false",
    "spark.decommission.enabled": "true",
    "spark.executor.memory": "768m",
    "spark.executor.maxNumFailures": "1000",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
}
"""Settings of a Spark whose executors are killed again and again."""


@dataclass
class SparkOutcome:
    """What one seed on real Spark has come to."""

    text: str
    wrong: list[str]
    covered: Counter[str]


@contextlib.contextmanager
def spark_at(place: str, memory: str = "1g") -> Iterator[None]:
    """A context in which programs find one of `PLACES` in the environment. `memory`: that each of the two machines of a
    standalone cluster has for executors."""
    if place == "local-cluster":
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-cluster-", ignore_cleanup_errors=True) as folder:
        java = f"{class_archive.quick()} -Dspark.deploy.maxExecutorRetries=-1"
        cluster = Standalone(Path(folder), cores=4, memory=memory, java=java)
        try:
            found = {"TAILRACE_MASTER": cluster.master}
            if place == "connect":
                found = {"TAILRACE_MASTER": "", "SPARK_REMOTE": cluster.connect_server(**CONF)}
            os.environ.update(found)
            yield
        finally:
            cluster.close()
