"""Starts jobs on Spark: what `api.launch.Launcher` promises, found there by name."""

from __future__ import annotations

import os
import sys
import uuid
import warnings
from collections.abc import Callable
from typing import Any

from tailrace.api.environment import Environment
from tailrace.connectors.sinks import Collect, Result, remove_unfinished
from tailrace.connectors.sources import Collection
from tailrace.coordinator.lifecycle import JobStatus
from tailrace.coordinator.machine import Limits
from tailrace.errors import ConfigError
from tailrace.graph.operators import Sink, Source
from tailrace.graph.plan import Plan
from tailrace.runtime.coordinator import JobRunner
from tailrace.runtime.job import JOBS, Job
from tailrace.runtime.progressline import ProgressLine
from tailrace.spark.dataframes import DataFrame, DataFrameSource, arrow_schema, work_folder
from tailrace.spark.defaults import DEFAULTS
from tailrace.spark.session import active_or_local
from tailrace.spark.shipping import check_size, dump_job, load_job
from tailrace.spark.slots import SparkSlots, check_settings
from tailrace.task.worker import JobSpec

__all__ = [
    "arrow_schema",
    "collect_sink",
    "collection",
    "dataframe_sink",
    "dataframe_source",
    "default_parallelism",
    "dump_job",
    "load_job",
    "session",
    "submit",
]

_PACKAGE = __file__.removesuffix(os.path.join("spark", "launcher.py"))

collection = Collection
collect_sink = Collect
dataframe_source = DataFrameSource
dataframe_sink = DataFrame


def default_parallelism() -> int:
    """The parallelism of an environment that was given none."""
    return DEFAULTS.default_parallelism()


def submit(env: Environment, plan: Plan, name: str) -> Job:
    """Starts a job and returns its handle at once. Everything that can be known before is checked before."""
    run_id = str(uuid.uuid4())
    seed = int(run_id[:8], 16)
    spec = JobSpec(name, 1, plan, env.memory, run_id[:8], seed, env.copy_records, env.debug)
    check_size(spec, dump_job(spec))  # what cannot travel is told before Spark starts
    spark = session_of(env, plan.slots)
    same_interpreter(spark)
    check_settings(spark)
    slots = SparkSlots(spark, name, run_id, plan.slots)
    try:
        if slots.warning is not None:
            warnings.warn(slots.warning, stacklevel=_level_of_user())
        _prepare_files(spark, env, plan)
        limits = Limits(slots=int(env.slot_timeout * 1_000_000))
        shown = env.progress if env.progress is not None else DEFAULTS.show_progress()
        line = ProgressLine(name) if shown else None
        blob = dump_job(spec)
        runner = JobRunner(name, run_id, run_id, plan, blob, slots, limits, line, _tidier(plan, spec.run_id))
    except BaseException:
        slots.close(0)
        raise
    runner.start()
    job = Job(runner, run_id, run_id, name, plan)
    JOBS.append(job)
    return job


def _level_of_user() -> int:
    """How far up the stack the user's own code is, for a warning that points at it."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level + 1


def _tidier(plan: Plan, run_id: str) -> Callable[[JobStatus], None]:
    """What is done at the end of a job: nothing half-written stays behind."""
    sinks = [node.operator.sink for node in plan.graph.nodes if isinstance(node.operator, Sink)]

    def tidy(status: JobStatus) -> None:
        if status is not JobStatus.FINISHED:
            for sink in sinks:
                remove_unfinished(sink, run_id)

    return tidy


def session(slots: int) -> Any:
    """The active session, or a new local one with these slots and one to spare."""
    return active_or_local(slots + 1, DEFAULTS.spark_master(), DEFAULTS.conf)


def session_of(env: Environment, slots: int) -> Any:
    """The environment's session, the active one, or a new local one with a slot to spare."""
    if env._spark is None:
        env._spark = session(slots)
    if not hasattr(env.spark, "sparkContext"):
        raise ConfigError(f"Environment(spark): expected a SparkSession, got {type(env.spark).__name__}")
    if env.spark.sparkContext._jsc is None:
        raise ConfigError("Environment(spark): this SparkSession was stopped; make a new one")
    return env.spark


def same_interpreter(spark: Any) -> None:
    """Local workers run the interpreter of the driver: another one may not have tailrace, or not its version."""
    context = spark.sparkContext
    if context.master.startswith("local") and context.pythonExec != sys.executable:
        context.pythonExec = sys.executable


def _prepare_files(spark: Any, env: Environment, plan: Plan) -> None:
    """Materialises DataFrames on their way in, and gives result sinks their folders."""
    folder: str | None = None
    for node in plan.graph.nodes:
        operator = node.operator
        if isinstance(operator, Source) and isinstance(operator.source, DataFrameSource):
            folder = folder or work_folder(spark, env.work_dir)
            operator.source.materialise(os.path.join(folder, f"in-{node.id}"))
        elif isinstance(operator, Sink) and isinstance(operator.sink, Result):
            folder = folder or work_folder(spark, env.work_dir)
            operator.sink.bind(os.path.join(folder, f"out-{node.id}"))
            if isinstance(operator.sink, DataFrame):
                operator.sink.spark = spark
