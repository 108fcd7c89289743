"""Python workers of a local Spark that are there at once: each is forked from a process that has imported what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

DAEMON = "spark.python.daemon.module"
FOLDER = Path(__file__).parents[1] / "daemon"
"""It has the module and nothing else. Spark adds its own PYTHONPATH to that of each Python process, whatever a session says
of theirs."""


def daemon_of(conf: Mapping[str, str]) -> dict[str, str]:
    """What to set for sessions of a JVM that is started with `python_path`. Nothing where the user's own daemon is set, and
    where Spark would not find ours: its JVM is somebody else's."""
    if DAEMON in conf or sys.platform != "linux" or not FOLDER.is_dir() or not _found():
        return {}  # elsewhere nobody tells whether a process has threads, and may fork
    return {DAEMON: "tailrace_daemon"}


def python_path() -> str:
    """The PYTHONPATH of a JVM that is started now."""
    own = os.environ.get("PYTHONPATH")
    return os.pathsep.join([own, str(FOLDER)] if own else [str(FOLDER)])


def _found() -> bool:
    """Whether Python processes of the JVM have the folder on their path."""
    from pyspark import SparkContext

    if SparkContext._jvm is None:
        return "PYSPARK_GATEWAY_PORT" not in os.environ  # else the program was started by the JVM, not the JVM by it
    try:
        path = SparkContext._jvm.System.getenv("PYTHONPATH")
    except Exception:  # it is gone, as the start of the session will say
        return False
    return str(FOLDER) in (path or "").split(os.pathsep)
