"""The contract between an environment and the launcher that runs its jobs, and the handle of a job.

The launcher is imported by name at its first use, so that a program can write a dataflow without Spark and sockets.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tailrace.api.config import (
    Autoscale,
    Checkpoint,
    CheckpointConfig,
    Elastic,
    Restart,
    Savepoint,
    Sizing,
    StandbyConfig,
)
from tailrace.api.failure_options import Capsules
from tailrace.api.restore.dry_run import RestoreCheck
from tailrace.elements.durations import Duration
from tailrace.errors import JobFailed
from tailrace.graph.picture import JobGraph
from tailrace.graph.plan import Plan

if TYPE_CHECKING:
    from os import PathLike

    from tailrace.coordinator.job.lifecycle import JobStatus
    from tailrace.coordinator.view.slices import SliceStatus

LAUNCHER = "tailrace.spark.start.job_submission"
TABLES = "tailrace.connectors.lake.opening"


class JobHandle(Protocol):
    """The handle of a running or ended job; like Spark's `StreamingQuery`, in snake_case. All methods may be called from any
    thread."""

    id: str
    """The id of the job."""
    run_id: str
    """The id of this run: the start of the job by its program."""
    name: str
    """The name of the job, as given to `execute`."""

    @property
    def status(self) -> JobStatus:
        """The status of the job, a `tr.JobStatus`. It is final when all Spark tasks of the job are gone."""

    @property
    def is_active(self) -> bool:
        """True until the job has ended."""

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The newest progress report, in the shape of Spark's `StreamingQueryProgress`; None before the first."""

    def add_listener(self, listener: Any) -> None:
        """Adds a `StreamingQueryListener` of PySpark, for the events of this job that follow. Raises `ConfigError` for an
        object that is none."""

    def remove_listener(self, listener: Any) -> None:
        """Removes a listener. Nothing happens if the job has no such listener."""

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last progress reports, the newest last."""

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Waits for the end of the job, at most `timeout` (seconds, a `timedelta` or a text). Returns true if the job has
        ended without a failure, false if it has not ended in time. Raises `JobFailed`, with the user's traceback, if it has
        failed. An interrupt (Ctrl-C) cancels the job and passes on."""

    def stop(
        self,
        drain: bool = False,
        savepoint: str | PathLike[str] | bool | None = None,
        timeout: Duration | None = None,
    ) -> Checkpoint | Savepoint | None:
        """Ends the job in order, and waits for the end, at most `timeout` (seconds, a `timedelta` or a text).

        The last act of the job is a checkpoint at the place where it stands, behind which nothing is done. A start from
        it reads nothing again, and nothing becomes visible again. Event time and timers stay as they are; no function
        finishes. With `drain` sources end instead, and the job comes to its end as if its input had. `savepoint`: a path
        or URL for a savepoint of that state, or True for one in the usual place. Returns the checkpoint, or the
        savepoint; None if the job takes no checkpoints or retains none: sources end then, and what was read is processed.

        Where a worker is lost, or the job restarts, the stop begins once more, three times in all. A second call returns
        the result of the first. Raises `CheckpointError` with the reason if the job does not stop: it goes on, unless the
        error says otherwise. Raises it also if the job is being stopped in another way already.
        Raises `TimeoutError` if that takes longer: the stop goes on, and `cancel` is legal all the time.
        """

    def cancel(
        self,
        savepoint: str | PathLike[str] | bool | None = None,
        timeout: Duration | None = None,
        *,
        unaligned: bool = False,
    ) -> Savepoint | None:
        """Ends the job at once: removes files in progress, and publishes nothing. It may be called at any time and returns
        at once; `await_termination` waits for the end.

        With `savepoint` (a path or URL, or True for the usual place) it takes a savepoint first, waits for it as
        `savepoint` does, and returns it. No checkpoint follows, and nothing becomes visible behind it, so a start from it
        gives each result once. `unaligned` is as in `savepoint`. Raises `CheckpointError` with the reason if there will be
        none: the job goes on."""

    def checkpoint(self, timeout: Duration | None = None) -> Checkpoint:
        """Takes a checkpoint now and waits for it, at most `timeout` (seconds, a `timedelta` or a text). Raises
        `CheckpointError` if the job takes no checkpoints, has ended, or aborted this one; and `TimeoutError`."""

    def savepoint(
        self, path: str | PathLike[str] | None = None, timeout: Duration | None = None, *, unaligned: bool = False
    ) -> Savepoint:
        """Takes a savepoint now, and waits for it, at most `timeout` (seconds, a `timedelta` or a text): a whole checkpoint
        in a folder of its own that refers to nothing outside, may be moved, and is never deleted by a job. `path` is that
        folder, a path or URL that is empty or not there; None: one in `savepoints` of the checkpoint folder. It is there
        when the output of its checkpoint is visible. It is aligned in every mode, and takes as long as the job is behind;
        with `unaligned` its barriers go past records that wait, and the savepoint holds these. Where a worker is lost, or
        the job restarts, it is begun once more, three times in all. Raises `CheckpointError` with the reason if there will
        be none (nothing is left of it, and the job goes on), and `TimeoutError` (the savepoint may come all the same)."""

    def rescale(self, parallelism: int | Mapping[str, int], timeout: Duration | None = None) -> int:
        """Gives the running job another size, and waits for it, at most `timeout` (seconds, a `timedelta` or a text).
        `parallelism` stands for that of the environment: operators with a parallelism of their own keep it. Or it is a
        dictionary of parallelisms by uid. Returns the number of workers.

        More workers are there before the job stands still; then it takes a checkpoint like that of a stop, and goes on
        from it. Nothing is lost, and nothing becomes visible twice. Raises `RescaleError` with the reason if the job keeps
        the size that it has; `SlotsError`, with the numbers, if Spark has too few task slots; `GraphError` for a size that
        the dataflow cannot have; and `TimeoutError` (the job may change its size all the same)."""

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The last complete checkpoints, the newest last. The storage may no longer have checkpoints beyond `keep`."""

    @property
    def restarts(self) -> int:
        """The number of restarts of the job after failures."""

    def exception(self) -> JobFailed | None:
        """The failure of the job; None if it has not failed."""

    def metrics(self) -> Mapping[str, Any]:
        """Figures of the whole job and of every subtask: records, busy time, queued bytes, users' own counters."""

    @property
    def slices(self) -> list[SliceStatus]:
        """The parts of the job that its workers run, by number: where each runs, which processes hold its state, how much
        another worker would have to do again, and how it was replaced the last time."""

    @property
    def inflight_bytes(self) -> int:
        """Bytes of records that wait in the job's channels, by the newest reports of its workers: they have arrived and are
        not read yet, or are emitted and have no credit. An unaligned checkpoint writes down what its barriers overtake."""

    @property
    def ui(self) -> str | None:
        """The address of the page of the program's jobs; None where there is none (`tr.Environment(ui=True)`)."""

    def explain(self) -> str:
        """The plan of the job as text."""

    def graph(self) -> JobGraph:
        """The graph of the job: `job.graph().svg()` is a picture of it, and a notebook shows it as one."""

    def save_page(self, path: str | PathLike[str]) -> None:
        """Writes the page of the job, as it is at this moment, into a file: HTML that needs no server and nothing else.
        Raises `OSError` where the file cannot be written."""


class Display(NamedTuple):
    """The places where the jobs of an environment are shown; None: as the program's defaults have it."""

    progress: bool | None = None
    """A line on standard error."""
    ui: bool | int | None = None
    """The page of the program's jobs, at some port or at this one."""
    listeners: tuple[Any, ...] = ()
    """Listeners of Spark's streaming queries."""


class Settings(Protocol):
    """The part of an environment that a launcher knows: the settings of a job."""

    parallelism: int
    sizing: Sizing | None
    memory: int
    copy_records: bool
    debug: bool
    checkpoint: CheckpointConfig | None
    restart: Restart
    standby: StandbyConfig | None
    capsules: Capsules | None
    state_backend: str
    work_dir: str | None
    slot_timeout: float
    publish_timeout: float
    task_cpus: float | None
    display: Display

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""

    def _session(self, slots: int) -> Any:
        """The environment's Spark session, else the active one, else a local one with slots for two such jobs."""


class Launcher(Protocol):
    """The functions of the module `tailrace.spark.start.job_submission`."""

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

    def check_restore(
        self,
        env: Settings,
        plan: Plan,
        name: str,
        from_checkpoint: str | None,
        allow_dropped_state: bool | tuple[str, ...],
    ) -> RestoreCheck:
        """A dry run of a start of this plan from a checkpoint. Starts nothing."""

    def open_checkpoint(self, path: str, storage_options: Mapping[str, Any] | None) -> Any:
        """A checkpoint, opened to be read. Raises `CheckpointError`."""

    def state_dataframe(
        self,
        spark: Any,
        path: str,
        uid: str,
        states: Sequence[str] | None,
        checkpoint: int | None,
        forms: Mapping[str, str],
        storage: Mapping[str, Any] | None,
    ) -> Any:
        """A DataFrame of the state of an operator. Raises what `read_state` raises."""

    def write_savepoint(
        self, writer: Any, path: str, name: str | None, storage_options: Mapping[str, Any] | None
    ) -> str:
        """Writes what a `SavepointWriter` has gathered into a new folder. Returns the path of the manifest."""

    def session(self, slots: int) -> Any:
        """The active Spark session, or a new local one with slots for two such jobs and one to spare."""

    def note_session(self, spark: Any) -> None:
        """Makes `spark.readStream.format("tailrace")` known to a session."""

    def arrow_schema(self, schema: Any) -> Any:
        """DDL text, a `StructType` or a `pyarrow.Schema` as a `pyarrow.Schema`."""

    def collection(self, items: Any) -> Any:
        """A source of these items."""

    def collect_sink(self) -> Any:
        """A sink that keeps the records; its `result()` returns them."""

    def dataframe_source(self, df: Any, form: str) -> Any:
        """A source that reads a Spark DataFrame."""

    def data_source(self, spark: Any, given: Any, options: Any, schema: Any, form: str, reading: Any) -> Any:
        """A source that runs a Python Data Source, a class or a name. `reading` has the settings of a stream reader.
        Raises `GraphError` or `ConfigError`."""

    def streaming_source(self, df: Any, form: str, trigger: Any, watermark: bool) -> Any:
        """A source that reads a streaming DataFrame. It has the column of its event time and the delay of its watermark, if
        there is one."""

    def table_reader(self, df: Any, verb: str) -> Any:
        """A function that reads the files of a Spark DataFrame anew, in a worker. Raises `GraphError` for a DataFrame that
        is more than files."""

    def dataframe_sink(self, schema: Any) -> Any:
        """A sink whose result is a Spark DataFrame."""

    def streaming_sink(self, schema: Any, retain: str) -> Any:
        """A sink whose output Spark reads while the job runs."""

    def foreach_sink(self, fn: Any, schema: Any) -> Any:
        """A sink that calls a function with a Spark DataFrame behind each complete checkpoint."""

    def dump_job(self, spec: Any, *, stays: bool = False) -> bytes:
        """A job's plan with the user's functions, pickled. `stays`: for this process only. Raises `GraphError` with the
        operator that cannot be pickled."""

    def load_job(self, data: bytes) -> Any:
        """The plan of a job from the bytes of `dump_job`."""

    def default_checkpoint(self) -> CheckpointConfig | None:
        """The checkpoint settings of an environment if the user gives none."""

    def default_standby(self) -> StandbyConfig | None:
        """The standby settings of an environment if the user gives none."""

    def work_dir(self, given: Any) -> str | None:
        """The `work_dir` of an environment, from the user's one or None. Raises `ConfigError`."""

    def default_parallelism(self) -> int | Elastic:
        """The parallelism of an environment if the user gives none."""

    def default_autoscale(self, parallelism: Any) -> Autoscale | None:
        """The autoscale of an environment with this parallelism if the user gives none."""
        ...


def launcher() -> Launcher:
    """The module of the launcher, imported at its first use."""
    found: Any = importlib.import_module(LAUNCHER)
    return found  # type: ignore[no-any-return]


def table_source(table: Any, catalog: Any, form: str, storage_options: Any, options: dict[str, Any]) -> Any:
    """A source of a lake table. Its module is imported when a table is read. Raises `GraphError` or `ConfigError` for one
    that it cannot read."""
    return importlib.import_module(TABLES).table_source(table, catalog, form, storage_options, options)
