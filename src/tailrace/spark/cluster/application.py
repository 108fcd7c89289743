"""What is asked of Spark beside its DataFrames: settings, task slots, marks on its jobs, files for its executors.

A classic session lives in this process and is asked through its `SparkContext` (`classic`). One of Spark Connect only
talks to a server, which may be another process or machine (`connect`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tailrace.spark.cluster.classic import Classic
from tailrace.spark.cluster.connect import Connect


class Application(Protocol):
    """The Spark application of a session."""

    @property
    def id(self) -> str:
        """Whose files executors have: what was sent under one is not there for another."""
        ...

    @property
    def master(self) -> str: ...

    @property
    def is_local(self) -> bool:
        """Whether its tasks are children of this process's own JVM."""
        ...

    @property
    def on_this_machine(self) -> bool:
        """Whether its tasks run on this machine and see its files."""
        ...

    def choose_interpreter(self) -> None:
        """Sees to it that workers run the Python that is meant, where that can still be said."""
        ...

    def setting(self, name: str) -> str | None:
        """A setting of Spark, None where it is not set."""
        ...

    @property
    def started(self) -> float:
        """When it was started, in seconds since 1970."""
        ...

    @property
    def context(self) -> Any:
        """The `SparkContext`, where there is one in this process; else None."""
        ...

    def total_slots(self, profile: Any = None) -> int | None:
        """How many tasks it can run at once, maybe of a resource profile; None where nobody says."""
        ...

    def start_with(self, slots: int) -> str:
        """How a local session is started with so many slots."""
        ...

    def marked(self, tags: Sequence[str], description: str) -> AbstractContextManager[None]:
        """Spark jobs that this thread starts in here have these tags."""
        ...

    def described(self, text: str) -> AbstractContextManager[None]:
        """What Spark shows for the jobs in here; the user's own description comes back."""
        ...

    def run(self, task: Callable[[Any], Any], schema: str, profile: Any = None) -> list[tuple[Any, ...]]:
        """The rows of the batches (with this schema) that one task of Spark gives, maybe of a resource profile: `task` takes
        an iterator in which nothing of interest is. Raises whatever Spark raises."""
        ...

    def cancel(self, tag: str) -> None:
        """Cancels all Spark jobs with this tag. Raises anything where Spark is gone."""
        ...

    def executor(self, tag: str) -> tuple[str, str] | None:
        """The executor (its id, its host) that runs or ran the last task of the Spark jobs with this tag; None where nobody
        says."""
        ...

    def over(self) -> str | None:
        """Why Spark itself is over, in words; None while it lives. A job may raise anything then."""
        ...

    def folder(self) -> str:
        """A folder of this process that lives as long as the session."""
        ...

    def address(self, said: str | None) -> tuple[str, str]:
        """The address of this process that executors dial, and the one to bind, empty where it is the same. `said` is what
        the user has given to be dialed."""
        ...

    def send_archive(self, path: Path, name: str) -> None:
        """Brings an archive to all executors, where it is the folder `name` below Spark's own for files."""
        ...


def application(spark: Any) -> Application:
    """That of a session."""
    return Connect(spark) if is_connect(spark) else Classic(spark.sparkContext)


def is_connect(spark: Any) -> bool:
    """Whether it is a session of Spark Connect."""
    loaded = sys.modules.get("pyspark.sql.connect.session")
    return loaded is not None and isinstance(spark, loaded.SparkSession)
