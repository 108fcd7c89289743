"""Starts jobs on Spark: what `api.launch.Launcher` promises, found there by name."""

from __future__ import annotations

import os
import sys
import uuid
import warnings
from typing import Any

from tailrace.api.environment import Environment
from tailrace.connectors.sinks import Collect, Result
from tailrace.connectors.sources import Collection
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
from tailrace.spark.shipping import dump_job, load_job
from tailrace.spark.slots import SparkSlots, check_settings, check_slots
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
    dump_job(spec)  # what cannot be pickled is told before Spark starts
    spark = session_of(env, plan.slots)
    same_interpreter(spark)
    check_settings(spark)
    warning = check_slots(spark, plan.slots, name)
    if warning is not None:
        warnings.warn(warning, stacklevel=4)
    _prepare_files(spark, env, plan)
    slots = SparkSlots(spark, name, run_id, plan.slots)
    try:
        limits = Limits(slots=int(env.slot_timeout * 1_000_000))
        shown = env.progress if env.progress is not None else DEFAULTS.show_progress()
        line = ProgressLine(name) if shown else None
        runner = JobRunner(name, run_id, run_id, plan, dump_job(spec), slots, limits, line)
    except BaseException:
        slots.close(0)
        raise
    runner.start()
    job = Job(runner, run_id, run_id, name, plan)
    JOBS.append(job)
    return job


def session(slots: int) -> Any:
    """The active session, or a new local one with these slots and one to spare."""
    return active_or_local(slots + 1, DEFAULTS.spark_master(), DEFAULTS.conf)


def session_of(env: Environment, slots: int) -> Any:
    """The environment's session, the active one, or a new local one with a slot to spare."""
    if env._spark is None:
        env._spark = session(slots)
    if not hasattr(env.spark, "sparkContext"):
        raise ConfigError(f"Environment(spark): expected a SparkSession, got {type(env.spark).__name__}")
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
