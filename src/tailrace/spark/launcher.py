"""Starts jobs on Spark: implements `api.launch.Launcher`, which finds it by name."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
import warnings
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from tailrace.api import connectors
from tailrace.api.compat import check, unpublishable
from tailrace.api.config import CheckpointConfig
from tailrace.api.environment import Environment
from tailrace.connectors.sinks import Collect, Result, Table, remove_unfinished
from tailrace.connectors.sources import Collection
from tailrace.coordinator.lifecycle import JobStatus
from tailrace.coordinator.limits import Limits
from tailrace.coordinator.machine import Coordinator
from tailrace.errors import ConfigError, level_of_user
from tailrace.graph.operators import Sink, Source
from tailrace.graph.plan import Plan
from tailrace.runtime.coordinator import JobRunner
from tailrace.runtime.exits import watch
from tailrace.runtime.job import JOBS, Job
from tailrace.runtime.progressline import ProgressLine
from tailrace.runtime.settings import nests_of, settings_of, start_from, strategy_of
from tailrace.spark.dataframes import DataFrame, DataFrameSource, work_folder
from tailrace.spark.defaults import DEFAULTS
from tailrace.spark.schemas import arrow_schema
from tailrace.spark.session import active_or_local
from tailrace.spark.shipping import check_size, dump_job, load_job
from tailrace.spark.slots import SparkSlots, check_settings
from tailrace.spark.tables import prepare_table
from tailrace.storage.finding import resolve
from tailrace.storage.origins import Origin, origin_at
from tailrace.storage.store import Store
from tailrace.task.jobspec import JobSpec

__all__ = [
    "arrow_schema",
    "collect_sink",
    "collection",
    "dataframe_sink",
    "dataframe_source",
    "default_checkpoint",
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


def default_checkpoint() -> CheckpointConfig | None:
    """The checkpoint settings of an environment that was given none."""
    return DEFAULTS.checkpoint_config()


def submit(
    env: Environment,
    plan: Plan,
    name: str,
    from_checkpoint: str | None = None,
    allow_dropped_state: bool | tuple[str, ...] = False,
    if_program_fails: Literal["cancel", "wait"] = "cancel",
) -> Job:
    """Starts a job and returns its handle at once. Checks before the start all that can be known by then."""
    run_id = str(uuid.uuid4())
    seed = int(run_id[:8], 16)
    config = env.checkpoint
    from_checkpoint = from_checkpoint or DEFAULTS.from_checkpoint
    allow_dropped_state = allow_dropped_state or DEFAULTS.allow_dropped_state
    spec = JobSpec(
        name,
        1,
        plan,
        env.memory,
        run_id[:8],
        seed,
        env.copy_records,
        env.debug,
        checkpointing=config is not None,
        allow_dropped_state=allow_dropped_state,
        state_backend=env.state_backend,
        checkpoint_dir=None if config is None else absolute(config.dir),
        storage_options=None if config is None else config.storage_options,
    )
    check_size(spec, dump_job(spec))  # what cannot travel is told before Spark starts
    origin = find_origin(env, plan, name, from_checkpoint, allow_dropped_state)
    store = None if config is None else Store(absolute(config.dir), name, config.storage_options)
    if store is not None:
        store.make()  # a folder that cannot be made is told before anything is taken
    spark = session_of(env, plan.slots)
    same_interpreter(spark)
    check_settings(spark)
    slots = SparkSlots(spark, name, run_id, plan.slots)
    incarnation, abandoned = 0, list[str]()
    try:
        if slots.warning is not None:
            warnings.warn(slots.warning, stacklevel=level_of_user())
        if store is not None:
            incarnation = store.claim(spec.run_id)
            abandoned = store.abandoned()
            # An older driver may have committed until now; from here on it cannot.
            origin = find_origin(env, plan, name, from_checkpoint, allow_dropped_state)
        _warn_of_lost_output(origin, plan)
        _warn_of_later(origin, store)
        _prepare_files(spark, env, plan, **_folders(store, incarnation, origin))
        shown = env.progress if env.progress is not None else DEFAULTS.show_progress()
        line = ProgressLine(name) if shown else None
        machine = Coordinator(
            name,
            incarnation or 1,
            plan.slots,
            dump_job(spec),
            Limits(slots=int(env.slot_timeout * 1_000_000)),
            run_id=spec.run_id,
            max_parallelism=plan.graph.max_parallelism,
            checkpoints=None if config is None or store is None else settings_of(config, store.url),
            restarts=strategy_of(env.restart),
            start_from=start_from(origin, store),
            abandoned=abandoned,
            nests=nests_of(plan),
        )
        tidy, published = _tidier(plan, spec.run_id), _told(plan)
        runner = JobRunner(name, run_id, run_id, plan, machine, slots, store, line, tidy, published)
        if runner.store is not None and origin is not None:
            runner.store.origin_marked = origin.marked
    except BaseException:
        slots.close(0)
        if store is not None and incarnation:
            with contextlib.suppress(Exception):  # what went wrong before is what is to be told
                store.release(incarnation)
        raise
    runner.start()
    job = Job(runner, run_id, run_id, name, plan, if_program_fails)
    JOBS.append(job)
    watch(job._leaving)
    return job


def find_origin(
    env: Environment, plan: Plan, name: str, wanted: str | None, allow: bool | tuple[str, ...]
) -> Origin | None:
    """The checkpoint to start from, read and held against the dataflow. Raises `CheckpointError`."""
    if wanted is None:
        return None
    config = env.checkpoint
    options = None if config is None else config.storage_options
    if wanted == "latest":
        if config is None:
            raise ConfigError(
                'from_checkpoint="latest" needs checkpoint=tr.CheckpointConfig(dir="…"), to know where to look'
            )
        store, path = resolve("latest", job=name, folder=absolute(config.dir), options=options)
    else:
        store, path = resolve(absolute(wanted), options=options)
    origin = origin_at(store, path)
    manifest = origin.manifest
    groups = (manifest.max_parallelism, plan.graph.max_parallelism)
    check(manifest.operators, plan.graph.nodes, allow, max_parallelism=groups, prepared=manifest.prepared)
    return origin


def _warn_of_later(origin: Origin | None, store: Store | None) -> None:
    """Going back is the user's choice; a warning tells its price."""
    if origin is None or not origin.later or not origin.own_path(store):
        return
    warnings.warn(
        f"checkpoint {origin.manifest.checkpoint} ({origin.path}) is not the newest of this job, which is "
        f"{origin.later[-1][0]}: what later ones have published is visible already, and is written once more; "
        f"remove it, if it is to be there once. They stay, with what they have prepared: you can still start from them",
        stacklevel=level_of_user(),
    )


def _warn_of_lost_output(origin: Origin | None, plan: Plan) -> None:
    """`allow_dropped_state` was given for it; a warning tells its price all the same."""
    lost = {} if origin is None else unpublishable(origin.manifest.prepared, plan.graph.nodes)
    for uid, count in lost.items():
        warnings.warn(
            f"what the sink with the uid {uid!r} had prepared and not published ({count} transactions) is given up: it will "
            f"never be visible, and its hidden files stay where they are",
            stacklevel=level_of_user(),
        )


def absolute(folder: str) -> str:
    """A local folder as an absolute path: workers have other working folders. URLs stay as they are."""
    return folder if "://" in folder else os.path.abspath(folder)


def _folders(store: Any, incarnation: int, origin: Origin | None) -> dict[str, Any]:
    """Where the files of DataFrames on their way in and out are: in the checkpoint folder, which outlives this run, where
    it is one of this machine."""
    restored = frozenset() if origin is None else frozenset(record.uid for record in origin.manifest.operators)
    local = None if store is None else store.local_path()
    if local is None:
        return {"restored": restored}
    return {"inputs": os.path.join(local, str(incarnation), "inputs"), "restored": restored}


def _told(plan: Plan) -> list[tuple[str, Callable[[], object]]]:
    """The calls in the driver after a publication, with the operator's name: one for each sink that wants to know."""
    sinks: dict[int, tuple[str, Callable[[], object]]] = {}
    for node in plan.graph.nodes:
        if isinstance(node.operator, Sink):
            told = node.operator.sink.published
            if getattr(told, "__func__", None) is not connectors.Sink.published:
                sinks.setdefault(id(node.operator.sink), (node.name, told))
    return list(sinks.values())


def _tidier(plan: Plan, run_id: str) -> Callable[..., None]:
    """Cleans up at the end of a job: removes all hidden output, except what a checkpoint that stays has prepared
    (`kept`, by the uid of the sink): a start from that publishes it."""
    sinks = [(node.uid, node.operator.sink) for node in plan.graph.nodes if isinstance(node.operator, Sink)]

    def tidy(status: JobStatus, kept: Mapping[str, Sequence[bytes]] | None = None) -> None:
        for uid, sink in sinks:
            with contextlib.suppress(Exception):  # a store that is out of reach does not change how the job ended
                remove_unfinished(sink, run_id, uid, (kept or {}).get(uid, ()))

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


def _prepare_files(
    spark: Any,
    env: Environment,
    plan: Plan,
    *,
    inputs: str | None = None,
    outputs: str | None = None,
    restored: abc.Collection[str] = (),
) -> None:
    """Materialises DataFrames on their way in, gives result sinks their folders, and finds tables.

    `inputs` and `outputs` are folders that outlive this run (in the job's checkpoint folder): checkpoints refer to the
    files of DataFrames. Without them both are in the work folder. `restored` are the uids of sources that go on from a
    checkpoint: it knows their files, and nothing is materialised.
    """
    folder: str | None = None
    for node in plan.graph.nodes:
        operator = node.operator
        if isinstance(operator, Source) and isinstance(operator.source, DataFrameSource):
            if node.uid in restored:
                operator.source.restored()
            elif inputs is not None:
                operator.source.materialise(os.path.join(inputs, f"in-{node.id}"), durable=True)
            else:
                folder = folder or work_folder(spark, env.work_dir)
                operator.source.materialise(os.path.join(folder, f"in-{node.id}"))
        elif isinstance(operator, Sink) and isinstance(operator.sink, Result):
            base = outputs
            if base is None:
                base = folder = folder or work_folder(spark, env.work_dir)
            operator.sink.bind(os.path.join(base, f"out-{node.id}"))
            if isinstance(operator.sink, DataFrame):
                operator.sink.prepare(spark)
        elif isinstance(operator, Sink) and isinstance(operator.sink, Table):
            prepare_table(spark, operator.sink)
