"""The contract between an environment and the launcher that runs its jobs, and the handle of a job.

The launcher is imported by name at its first use, so that a program can write a dataflow without Spark and sockets.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from tailrace.api.config import Checkpoint, CheckpointConfig, Restart, StandbyConfig
from tailrace.api.restorecheck import RestoreCheck
from tailrace.elements.durations import Duration
from tailrace.graph.plan import Plan

LAUNCHER = "tailrace.spark.start.launcher"


class JobHandle(Protocol):
    """A running or ended job; like Spark's `StreamingQuery`, in snake_case."""

    @property
    def id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def status(self) -> Any: ...
    @property
    def is_active(self) -> bool: ...
    @property
    def last_progress(self) -> dict[str, Any] | None: ...
    @property
    def recent_progress(self) -> list[dict[str, Any]]: ...
    def await_termination(self, timeout: Duration | None = None) -> bool: ...
    def cancel(self) -> None: ...
    def checkpoint(self, timeout: Duration | None = None) -> Checkpoint: ...
    @property
    def checkpoints(self) -> list[Checkpoint]: ...
    @property
    def restarts(self) -> int: ...
    def exception(self) -> Exception | None: ...
    def metrics(self) -> Mapping[str, Any]: ...
    def explain(self) -> str: ...


class Settings(Protocol):
    """The part of an environment that a launcher knows: the settings of a job."""

    parallelism: int
    max_parallelism: int
    memory: int
    copy_records: bool
    debug: bool
    checkpoint: CheckpointConfig | None
    restart: Restart
    standby: StandbyConfig | None
    state_backend: str
    work_dir: str | None
    slot_timeout: float
    task_cpus: float | None
    progress: bool | None

    def _session(self, slots: int) -> Any:
        """The environment's Spark session, else the active one, else a local one with slots for two such jobs."""


class Launcher(Protocol):
    """The functions of the module `tailrace.spark.start.launcher`."""

    def submit(
        self,
        env: Settings,
        plan: Plan,
        name: str,
        from_checkpoint: str | None,
        allow_dropped_state: bool | tuple[str, ...],
        if_program_fails: Literal["cancel", "wait"],
        if_finished: Literal["raise", "start-again"],
    ) -> JobHandle:
        """Starts a job and returns at once. Raises `GraphError`, `ConfigError`, `CheckpointError` or `JobAlreadyFinished` if
        it cannot start."""
        ...

    def check_restore(
        self,
        env: Settings,
        plan: Plan,
        name: str,
        from_checkpoint: str | None,
        allow_dropped_state: bool | tuple[str, ...],
    ) -> RestoreCheck:
        """A dry run of a start of this plan from a checkpoint. Starts nothing."""
        ...

    def open_checkpoint(self, path: str, storage_options: Mapping[str, Any] | None) -> Any:
        """A checkpoint, opened to be read. Raises `CheckpointError`."""
        ...

    def write_savepoint(
        self, writer: Any, path: str, name: str | None, storage_options: Mapping[str, Any] | None
    ) -> str:
        """Writes what a `SavepointWriter` has gathered into a new folder. Returns the path of the manifest."""
        ...

    def session(self, slots: int) -> Any:
        """The active Spark session, or a new local one with slots for two such jobs and one to spare."""
        ...

    def arrow_schema(self, schema: Any) -> Any:
        """DDL text, a `StructType` or a `pyarrow.Schema` as a `pyarrow.Schema`."""
        ...

    def collection(self, items: Any) -> Any:
        """A source of these items."""
        ...

    def collect_sink(self) -> Any:
        """A sink that keeps the records; its `result()` returns them."""
        ...

    def dataframe_source(self, df: Any, form: str) -> Any:
        """A source that reads a Spark DataFrame."""
        ...

    def dataframe_sink(self, schema: Any) -> Any:
        """A sink whose result is a Spark DataFrame."""
        ...

    def dump_job(self, spec: Any) -> bytes:
        """A job's plan with the user's functions, pickled. Raises `GraphError` with the operator that cannot be pickled."""
        ...

    def load_job(self, data: bytes) -> Any:
        """The plan of a job from the bytes of `dump_job`."""
        ...

    def default_checkpoint(self) -> CheckpointConfig | None:
        """The checkpoint settings of an environment if the user gives none."""
        ...

    def default_standby(self) -> StandbyConfig | None:
        """The standby settings of an environment if the user gives none."""
        ...

    def work_dir(self, given: Any) -> str | None:
        """The `work_dir` of an environment, from the user's one or None. Raises `ConfigError`."""
        ...

    def default_parallelism(self) -> int:
        """The parallelism of an environment if the user gives none."""
        ...


def launcher() -> Launcher:
    """The module of the launcher, imported at its first use."""
    found: Any = importlib.import_module(LAUNCHER)
    return found  # type: ignore[no-any-return]
