"""A Spark session: the one that is there, or a local one that starts quietly and without any set-up."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigError
from tailrace.spark.cluster.arguments import take_plain_values
from tailrace.spark.cluster.forking import daemon_of, python_path
from tailrace.spark.cluster.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = Path(__file__).parents[1] / "quiet.properties"

# For every session made here. Settings of the user in `conf` win.
_DEFAULTS = {
    "spark.app.name": "tailrace",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",  # a crash in native code reports its Python stack
}

# Spark's own web UI is on, at the loopback address: port 4040, or the next one that is free.
_LOCAL_DEFAULTS = {
    "spark.port.maxRetries": "100",  # with Spark's own limit, a session would not start beside 16 others on its machine
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def active_or_local(slots: int, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The active session of this process, unchanged; else a new one.

    A new one is made on `master`, which may be the address of a Spark Connect server (`sc://...`). Without a `master` the
    surroundings decide (the program runs under spark-submit, or SPARK_REMOTE is set), else it is `local[slots]`.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkException:  # there is none
        pass
    conf = dict(conf or {})
    if master is None:
        if "SPARK_REMOTE" in os.environ:
            return remote_session(os.environ["SPARK_REMOTE"], slots, conf)
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            return SparkSession.builder.config(map={**_DEFAULTS, **conf}).getOrCreate()
        return local_session(slots, conf)
    if master.startswith("sc://"):
        return remote_session(master, slots, conf)
    return _start(master, slots, conf)


def remote_session(url: str, slots: int, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session of Spark Connect at the server with this address (`sc://...`), or, for `local[N]`, with a server of its own
    in this process. Raises `ConfigError` where a package is missing that it needs."""
    from pyspark.errors import PySparkImportError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(url)
    settings: dict[str, Any] = dict(conf or {})
    try:
        if url.startswith("sc://"):
            return builder.config(map=settings).getOrCreate()
        ensure_java()
        settings = _local_settings(slots, settings)
        with _local_surroundings(), warnings.catch_warnings():
            # PySpark gives them to the server that it starts, and then again to the session, where they are too late.
            warnings.filterwarnings("ignore", "Failed to set ")
            return builder.config(map=settings).getOrCreate()
    except PySparkImportError as error:
        raise ConfigError(
            f"Spark Connect ({url.partition(';')[0]}) needs a package that is not there: {error}; install what it needs: "
            f"pip install 'tailrace[connect]'"
        ) from None


def local_session(slots: int, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `local[slots]`: `slots` Python workers can run at once, one slot each.

    While such a session runs, this returns it again. Raises `ConfigError` while a session on another master runs in this
    process.
    """
    from pyspark import SparkContext

    if slots < 1:
        raise ConfigError(f"A local Spark session needs at least one slot, not {slots}.")
    master = f"local[{slots}]"
    running = SparkContext._active_spark_context
    if running is not None and running.master != master:
        raise ConfigError(
            f"A Spark session on {running.master} runs in this process, so none can be started on {master}. "
            "Use the running one (active_or_local does), or stop it first."
        )
    return _start(master, slots, dict(conf or {}))


def _start(master: str, slots: int, conf: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    ensure_java()
    take_plain_values()
    if not master.startswith("local"):
        return SparkSession.builder.master(master).config(map={**_DEFAULTS, **conf}).getOrCreate()

    settings = _local_settings(slots, conf)
    with _local_surroundings():
        return SparkSession.builder.master(master).config(map=settings).getOrCreate()


def _local_settings(slots: int, conf: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a session on this machine. Its workers run this process's Python."""
    # Without this the workers run whatever `python3` is on PATH, where neither tailrace nor pyarrow may be.
    if "spark.pyspark.python" not in conf:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = _DEFAULTS | _LOCAL_DEFAULTS | {"spark.sql.shuffle.partitions": str(slots)}
    if not _user_configures_logging():
        # In force before anything is logged. The user's own spark.driver.extraJavaOptions come after it and win.
        defaults["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
    return {**defaults, **daemon_of(conf), **conf}


def _user_configures_logging() -> bool:
    folder = os.environ.get("SPARK_CONF_DIR")
    return folder is not None and any(Path(folder).glob("log4j2*"))


@contextmanager
def _local_surroundings() -> Iterator[None]:
    """The environment of a JVM that starts on this machine."""
    environment = {"PYTHONPATH": python_path()}
    if "SPARK_LOCAL_IP" not in os.environ:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"  # else Spark warns of, and avoids, a loopback host name
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
