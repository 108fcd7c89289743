"""Starts jobs on Spark: implements `api.launch.Launcher`, which finds it by name."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from tailrace.api.config import Autoscale, CheckpointConfig, Elastic, StandbyConfig
from tailrace.api.launch import Settings
from tailrace.api.restore.savepoints import SavepointWriter
from tailrace.connectors.sinks import Collect
from tailrace.connectors.sources import Collection
from tailrace.errors import JobAlreadyFinished
from tailrace.graph.plan import Plan
from tailrace.runtime.driver.program_exit import watch
from tailrace.runtime.job import JOBS, Job
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.cluster.session import active_or_local
from tailrace.spark.data import outputsource, savepoints, statesource, streaming
from tailrace.spark.data.dataframe_files import DataFrame, DataFrameSource
from tailrace.spark.data.places import checked_work_dir
from tailrace.spark.data.scans import table_reader
from tailrace.spark.data.schemas import arrow_schema
from tailrace.spark.datasources.source import data_source
from tailrace.spark.shipping.plan_files import dump_job, load_job
from tailrace.spark.start.allocation import allocate_slots, claim, coordinator_of
from tailrace.spark.start.checks import Submission, check
from tailrace.spark.start.companions import companions_of, foreach_sink, job_that_finished, streaming_source
from tailrace.spark.start.coordinator_placement import place
from tailrace.spark.start.files import prepare_files
from tailrace.spark.start.hooks import monitor_of, page_of
from tailrace.spark.start.start_checkpoint import check_restore, open_checkpoint, supervised_start

__all__ = [
    "arrow_schema",
    "check_restore",
    "collect_sink",
    "collection",
    "data_source",
    "dataframe_sink",
    "dataframe_source",
    "default_autoscale",
    "default_checkpoint",
    "default_parallelism",
    "default_standby",
    "dump_job",
    "foreach_sink",
    "load_job",
    "note_session",
    "open_checkpoint",
    "session",
    "state_dataframe",
    "streaming_sink",
    "streaming_source",
    "submit",
    "table_reader",
    "work_dir",
    "write_savepoint",
]

collection = Collection
collect_sink = Collect
dataframe_source = DataFrameSource
dataframe_sink = DataFrame
streaming_sink = streaming.Streaming
state_dataframe = statesource.state_dataframe


def default_parallelism() -> int | Elastic:
    """The parallelism of an environment that sets none."""
    return DEFAULTS.default_parallelism()


def default_autoscale(parallelism: Any) -> Autoscale | None:
    """The autoscale of an environment with this parallelism that sets none."""
    return Autoscale() if DEFAULTS.autoscale and isinstance(parallelism, Elastic) else None


def work_dir(given: Any) -> str | None:
    """The `work_dir` of an environment that was given `given`, maybe None."""
    return checked_work_dir(DEFAULTS.work_folder() if given is None else given)


def default_standby() -> StandbyConfig | None:
    """The standbys of an environment that sets none."""
    return None if DEFAULTS.standby is None else StandbyConfig(replicas=DEFAULTS.standby)


def default_checkpoint() -> CheckpointConfig | None:
    """The checkpoint settings of an environment that sets none."""
    return DEFAULTS.checkpoint_config()


def submit(
    env: Settings,
    plan: Plan,
    name: str,
    from_checkpoint: str | None = None,
    allow_dropped_state: bool | tuple[str, ...] = False,
    if_program_fails: Literal["cancel", "wait"] = "cancel",
    if_finished: Literal["raise", "start-again"] = "raise",
) -> Job:
    """Starts a job and returns its handle at once. Checks before the start all that can be known by then."""
    on_signal, supervised = DEFAULTS.at_signal(), DEFAULTS.is_supervised()
    start, start_again = (
        from_checkpoint or DEFAULTS.from_checkpoint,
        "start-again" in (if_finished, DEFAULTS.if_finished),
    )
    if supervised:
        start = supervised_start(env, name, start, start_again)
    allow = allow_dropped_state or DEFAULTS.allow_dropped_state
    job = Submission(env, plan, name, str(uuid.uuid4()), start, allow, start_again)
    if DEFAULTS.dry_run:
        report = check_restore(env, plan, name, job.from_checkpoint, job.allow_dropped_state)
        print(report)
        raise SystemExit(0 if report.fits else 1)  # an `except Exception` of the program does not catch this
    try:
        checked = check(job)
    except JobAlreadyFinished as over:
        return job_that_finished(over, job, by_program=from_checkpoint is not None and not supervised)
    page = page_of(env)
    with contextlib.ExitStack() as undo:
        checked, allocated = allocate_slots(checked, undo)
        monitor = monitor_of(checked)
        undo.callback(monitor.close)
        placed = place(checked, allocated, monitor, undo)
        claimed = claim(checked, undo)
        keep = 1 if env.checkpoint is None else env.checkpoint.keep
        allocated.slots.host = prepare_files(allocated.spark, plan, placed.places(claimed), claimed.origin, keep)
        companions = companions_of(checked, allocated, monitor)
        if monitor.listeners is not None:
            monitor.listeners.start(monitor.clock.now())
        runner = placed.run(coordinator_of(checked, allocated, claimed, companions.elastic), claimed)
        undo.pop_all()  # the job has it all from here on
    companions.start(runner)
    handle = Job(runner, monitor, if_program_fails, on_signal, page)
    JOBS.append(handle)
    watch(handle._leaving)
    return handle


def write_savepoint(
    writer: SavepointWriter, path: str, name: str | None, storage_options: Mapping[str, Any] | None = None
) -> str:
    """Writes the state that a `SavepointWriter` has gathered, and returns the path. It uses the session of the writer's
    DataFrames, else the active session, else a local one."""
    sessions = [one.df.sparkSession for one in writer.new.values() if one.df is not None]
    spark = sessions[0] if sessions else session(DEFAULTS.most_workers())
    return savepoints.write_savepoint(writer, path, name, storage_options, spark)


def note_session(spark: Any) -> None:
    """Makes `spark.readStream.format("tailrace")` known to a session. One that is over is refused when a job starts."""
    if hasattr(spark, "dataSource"):
        with contextlib.suppress(Exception):
            outputsource.register(spark)


def session(slots: int) -> Any:
    """The active session, or a new local one. The new one has these slots, as many again for a second job, and one to
    spare."""
    return active_or_local(2 * slots + 1, DEFAULTS.spark_master(), DEFAULTS.conf)
