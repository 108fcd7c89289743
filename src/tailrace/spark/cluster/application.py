"""The requests to Spark beside its DataFrames: settings, task slots, marks on its jobs, files for its executors.

A classic session lives in this process and is reached through its `SparkContext` (`classic`). A session of Spark Connect
only talks to a server, which may be another process or machine (`connect`).
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
        """Id of the owner of the files that executors have: a file sent under one id is not there for another."""

    @property
    def master(self) -> str: ...

    @property
    def is_local(self) -> bool:
        """True where its tasks are children of this process's own JVM."""

    @property
    def on_this_machine(self) -> bool:
        """True where its tasks run on this machine and see its files."""

    def choose_interpreter(self) -> None:
        """Makes workers run the Python that the user means, where this can still be set."""

    def setting(self, name: str) -> str | None:
        """A setting of Spark; None where it is not set."""

    @property
    def started(self) -> float:
        """Time of its start, in seconds since 1970."""

    @property
    def context(self) -> Any:
        """The `SparkContext`, where there is one in this process; else None."""

    def total_slots(self, profile: Any = None) -> int | None:
        """Number of tasks that it can run at once, maybe of a resource profile; None where Spark does not report it."""

    def start_with(self, slots: int) -> str:
        """Code that starts a local session with so many slots."""

    def with_tags(self, tags: Sequence[str], description: str) -> AbstractContextManager[None]:
        """A context in which the Spark jobs that this thread starts have these tags."""

    def with_description(self, text: str) -> AbstractContextManager[None]:
        """A context in which Spark shows this text for the thread's jobs; the user's own description comes back after
        it."""

    def run(self, task: Callable[[Any], Any], schema: str, profile: Any = None) -> list[tuple[Any, ...]]:
        """The rows of the batches (with this schema) that one task of Spark yields, maybe of a resource profile. `task`
        receives an iterator over one row, whose content does not matter. Raises whatever Spark raises."""

    def cancel(self, tag: str) -> None:
        """Cancels all Spark jobs with this tag. Raises anything where Spark is gone."""

    def executor(self, tag: str) -> tuple[str, str] | None:
        """The executor (its id, its host) that runs or ran the last task of the Spark jobs with this tag; None where Spark
        does not report it."""

    def over(self) -> str | None:
        """Reason why Spark itself is over, as a sentence; None while it lives. Once it is over, any request may raise
        anything."""

    def folder(self) -> str:
        """Path of a folder of this process that lives as long as the session."""

    def address(self, given: str | None) -> tuple[str, str]:
        """The address of this process that executors dial, and the one to bind, empty where it is the same. `given` is the
        address to dial that the user has given."""

    def send_archive(self, path: Path, name: str) -> None:
        """Brings an archive to all executors: there it is the folder `name` below Spark's own folder for files."""


def application(spark: Any) -> Application:
    """The application of a session."""
    return Connect(spark) if is_connect(spark) else Classic(spark.sparkContext)


def is_connect(spark: Any) -> bool:
    """True for a session of Spark Connect."""
    loaded = sys.modules.get("pyspark.sql.connect.session")
    return loaded is not None and isinstance(spark, loaded.SparkSession)
