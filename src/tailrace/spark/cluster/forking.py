"""Python workers of a local Spark that start at once: each is forked from a process that has already imported what it
needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

DAEMON = "spark.python.daemon.module"
FOLDER = Path(__file__).parents[1] / "daemon"
"""The folder of the daemon's module, which holds nothing else. Spark adds its own PYTHONPATH to each Python process's,
whatever a session sets for these."""


def daemon_of(conf: Mapping[str, str]) -> dict[str, str]:
    """Settings for sessions of a JVM that is started with `python_path`. They are empty where the user sets a daemon, and
    where Spark would not find this one: its JVM was started elsewhere."""
    if DAEMON in conf or sys.platform != "linux" or not FOLDER.is_dir() or not _is_on_path():
        return {}  # other systems do not show whether a process has threads, and may fork
    return {DAEMON: "tailrace_daemon"}


def python_path() -> str:
    """The PYTHONPATH for a JVM that is started now."""
    own = os.environ.get("PYTHONPATH")
    return os.pathsep.join([own, str(FOLDER)] if own else [str(FOLDER)])


def _is_on_path() -> bool:
    """True where Python processes of the JVM have the folder on their path."""
    from pyspark import SparkContext

    if SparkContext._jvm is None:
        return "PYSPARK_GATEWAY_PORT" not in os.environ  # else the program was started by the JVM, not the JVM by it
    try:
        path = SparkContext._jvm.System.getenv("PYTHONPATH")
    except Exception:  # it is gone, and the start of the session will report so
        return False
    return str(FOLDER) in (path or "").split(os.pathsep)
