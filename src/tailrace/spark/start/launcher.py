"""Starts jobs on Spark: implements `api.launch.Launcher`, which finds it by name."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import uuid
import warnings
import weakref
from collections import abc
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Literal

from tailrace.api.config import CheckpointConfig, StandbyConfig
from tailrace.api.identity import dataflow_of
from tailrace.api.launch import Settings
from tailrace.api.restorecheck import RestoreCheck
from tailrace.api.savepoints import SavepointWriter
from tailrace.connectors.results import Result
from tailrace.connectors.sinks import Collect, Table
from tailrace.connectors.sources import Collection
from tailrace.coordinator.machine import Coordinator
from tailrace.elements.durations import span_micros
from tailrace.errors import ConfigError, JobAlreadyFinished, level_of_user
from tailrace.graph.operators import Sink, Source
from tailrace.graph.plan import Plan
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.driver.exits import watch
from tailrace.runtime.driver.finishedrun import FinishedRun
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.driver.settings import limits_of, nests_of, no_savepoints, settings_of, start_from, strategy_of
from tailrace.runtime.job import JOBS, Job
from tailrace.runtime.network.tls import SETTING as TLS
from tailrace.runtime.network.tls import chosen
from tailrace.runtime.outpost.following import Follower, Succession
from tailrace.runtime.outpost.hosting import Host, forget, host_of
from tailrace.runtime.outpost.mailbox import Begin, StoreAt
from tailrace.spark.cluster.application import Application, application, is_connect
from tailrace.spark.cluster.capacity import notices_after
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.cluster.session import active_or_local
from tailrace.spark.data import savepoints
from tailrace.spark.data.dataframes import DataFrame, DataFrameSource
from tailrace.spark.data.places import Places, checked_work_dir
from tailrace.spark.data.schemas import arrow_schema
from tailrace.spark.data.tables import prepare_table
from tailrace.spark.outpost.remote import BESIDE, FarPost
from tailrace.spark.shipping.plan_files import check_size, dump_job, load_job
from tailrace.spark.slots.provider import SparkSlots, allowed_ports, check_settings
from tailrace.spark.slots.reachability import is_out_of_reach
from tailrace.spark.start.hooks import monitor_of
from tailrace.spark.start.start_checkpoint import (
    OR_NEW,
    find_origin,
    tell_of_start,
    wanted_checkpoint,
    warn_of_later,
    warn_of_lost_output,
)
from tailrace.statedata.fitting import restore_check
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.opening import absolute
from tailrace.storage.origins import Origin
from tailrace.storage.store import Store
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.operators.expected import expected_schema

__all__ = [
    "arrow_schema",
    "check_restore",
    "collect_sink",
    "collection",
    "dataframe_sink",
    "dataframe_source",
    "default_checkpoint",
    "default_parallelism",
    "default_standby",
    "dump_job",
    "load_job",
    "open_checkpoint",
    "session",
    "submit",
    "work_dir",
    "write_savepoint",
]

collection = Collection
collect_sink = Collect
dataframe_source = DataFrameSource
dataframe_sink = DataFrame


def default_parallelism() -> int:
    """The parallelism of an environment that sets none."""
    return DEFAULTS.default_parallelism()


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
    run_id = str(uuid.uuid4())
    seed = int(run_id[:8], 16)
    config, on_signal = env.checkpoint, DEFAULTS.at_signal()
    by_program, from_checkpoint = from_checkpoint is not None, from_checkpoint or DEFAULTS.from_checkpoint
    allow_dropped_state = allow_dropped_state or DEFAULTS.allow_dropped_state
    start_again = "start-again" in (if_finished, DEFAULTS.if_finished)
    if DEFAULTS.dry_run:
        told = check_restore(env, plan, name, from_checkpoint, allow_dropped_state)
        print(told)
        raise SystemExit(0 if told.fits else 1)  # an `except Exception` of the program does not catch this
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
        overtaking=config is not None and config.overtakes,
        ahead=config is not None and config.writes_ahead,
        depth=0 if env.standby is None else env.standby.depth,
        reseeds=env.standby is not None,
        history_bytes=0 if env.standby is None else env.standby.history_bytes,
        kept_bytes=0 if env.standby is None else env.standby.spill.memory_bytes,
        kept_dir=None if env.standby is None else env.standby.spill.dir,
        kept_stored=env.standby is not None and env.standby.inflight == "checkpoint",
        storage_patience=600.0 if config is None else span_micros(config.storage_patience) / 1e6,
        allow_dropped_state=allow_dropped_state,
        state_backend=env.state_backend,
        checkpoint_dir=None if config is None else absolute(config.dir),
        storage_options=None if config is None else config.storage_options,
    )
    for without_effect in DEFAULTS.overruled(env):
        print(f"tailrace run: job {name!r}: {without_effect}", file=sys.stderr)
    check_size(spec, dump_job(spec))  # a job that cannot travel is refused before Spark starts
    try:
        origin = find_origin(env, plan, name, from_checkpoint, allow_dropped_state, start_again)
    except JobAlreadyFinished as over:
        if not by_program:
            _check_first_of_its_name(name)
        if by_program or _results(plan):  # the results of the run that has ended are gone
            raise
        return _finished(over, run_id, name, plan)
    store = None if config is None else Store(absolute(config.dir), name, config.storage_options)
    if store is not None:
        store.make()  # raises for a folder that cannot be made, before any slot is taken
    spark = session_of(env, plan.slots)
    app = application(spark)
    app.choose_interpreter()
    check_settings(app)
    far = is_out_of_reach(spark, env.slot_timeout)
    ship, beside = DEFAULTS.ships(), BESIDE if far else 0
    standbys = None if env.standby is None else env.standby.processes(plan.slots)
    more = {"beside": beside, "standbys": standbys or 0}
    slots = SparkSlots(spark, name, run_id, plan.slots, env.slot_timeout, ship=ship, cpus=env.task_cpus, **more)
    incarnation, abandoned = 0, list[str]()
    monitor, follower = monitor_of(env, spec, run_id), None
    try:
        if slots.warning is not None:
            warnings.warn(slots.warning, stacklevel=level_of_user())
        post = None
        if far:
            post = _outpost(slots, env.slot_timeout, ship)
            follower = Follower(post, slots, monitor, partial(_bring, app, plan, post))
            follower.start()
        if store is not None:
            incarnation = store.claim(spec.run_id)
            # An older driver may have committed until now; from here on it cannot.
            origin = find_origin(env, plan, name, from_checkpoint, allow_dropped_state, start_again)
            spare = [] if origin is None else [origin.manifest.run_id]
            keep = None if config is None else config.keep_runs
            abandoned = store.abandoned([] if keep is None else store.dead(keep, spare))
        warn_of_lost_output(origin, plan)
        warn_of_later(origin, store)
        if from_checkpoint is not None:
            tell_of_start(name, origin)
        if post is not None:
            places = Places(spark, env.work_dir, store, incarnation, None, post.place)
        else:
            places = Places(spark, env.work_dir, store, incarnation, slots.listen_at())
        _prepare_files(spark, plan, places, restored=_restored(origin))
        slots.host = _host(plan)
        machine = Coordinator(
            name,
            incarnation or 1,
            plan.slots,
            dump_job(spec),
            limits_of(config, env.slot_timeout, notices_after(app.master, app.setting)),
            run_id=spec.run_id,
            max_parallelism=plan.graph.max_parallelism,
            checkpoints=None
            if config is None or store is None
            else settings_of(config, store.url, dataflow_of(plan.graph)),
            restarts=strategy_of(env.restart),
            start_from=start_from(origin, store),
            abandoned=abandoned,
            nests=nests_of(plan),
            no_savepoints=no_savepoints(plan),
            standbys=standbys,
            replicas=1 if env.standby is None else max(1, env.standby.replicas),
            depth=spec.depth,
        )
        runner: JobRunner | Follower
        if follower is not None:
            runner = follower
            _begin(follower, machine, slots, env, origin, ship)
        else:
            runner = JobRunner(machine, slots, monitor, store)
            if runner.store is not None and origin is not None:
                runner.store.origin_marked = origin.marked
            runner.start()
    except BaseException:
        if follower is not None:
            follower.abandon()
        monitor.close()
        slots.close(0)
        if store is not None and incarnation:
            with contextlib.suppress(Exception):  # the first error is raised
                store.release(incarnation)
        raise
    job = Job(runner, monitor, if_program_fails, on_signal)
    JOBS.append(job)
    watch(job._leaving)
    return job


def _check_first_of_its_name(name: str) -> None:
    """Raises `ConfigError` where this program has had a job of this name. That job is the one that has finished, and the
    dataflow at hand would never run."""
    if any(job.name == name for job in JOBS):
        raise ConfigError(
            f"this program has started two jobs called {name!r}: the first one has finished, and with --from the second one "
            "is taken for the same job, which has nothing left to do. Give each job of a program a name of its own, "
            "env.execute(name); collect() and to_dataframe() are jobs called 'collect' and 'to_dataframe'"
        )


def _finished(over: JobAlreadyFinished, run_id: str, name: str, plan: Plan) -> Job:
    """The handle of a job that came to its end in an earlier run, for a program that does not itself start from a
    checkpoint. The command that runs the program prints the reason, and the program goes on as it did after the first
    run."""
    print(over, file=sys.stderr)
    monitor = ProgramMonitor(name, run_id, plan)
    job = Job(FinishedRun(monitor), monitor)
    JOBS.append(job)
    return job


def _outpost(slots: SparkSlots, patience: float, ship: bool) -> FarPost:
    """The process of a coordinator on an executor."""
    tls = chosen(os.environ.get(TLS))
    return FarPost(slots.spark, slots.tag, slots.name, allowed_ports(), tls, patience, ship=ship)


def _begin(
    follower: Follower, machine: Coordinator, slots: SparkSlots, env: Settings, origin: Origin | None, ship: bool
) -> None:
    """Begins a job whose coordinator is on an executor. A job with checkpoints goes on with another coordinator when the
    first one is lost."""
    config = env.checkpoint
    if config is None:
        follower.begin(Begin(machine, None))
        return
    start = None if origin is None else (origin.folder, origin.path)
    store = StoreAt(absolute(config.dir), machine.job, config.storage_options, start)
    fresh, terms = pickle.dumps(machine, 5), count(1)

    def again(why: str, restarts: int) -> tuple[FarPost, Begin]:
        post = _outpost(slots, env.slot_timeout + notices_after(slots.app.master, slots.app.setting), ship)
        other: Coordinator = pickle.loads(fresh)
        other.attempts.restarts = restarts
        lost = f"the executor that ran the job's coordinator was lost: {why}"
        return post, Begin(other, replace(store, term=next(terms)), lost)

    follower.begin(Begin(machine, store), Succession(strategy_of(env.restart), again))


def _bring(app: Application, plan: Plan, post: FarPost) -> None:
    """Copies results from the machine of a coordinator's process to this machine, before that process ends."""
    there = {sink.directory: sink for sink in _results(plan) if sink.directory and host_of(sink.directory) == post.host}
    if there:
        copy = os.path.join(app.folder(), f"fetched-{uuid.uuid4().hex}")
        try:
            post.fetch(list(there), copy)
            for sink in there.values():
                sink.bring(os.path.join(app.folder(), f"brought-{uuid.uuid4().hex}"))
        finally:
            shutil.rmtree(copy, ignore_errors=True)


def _results(plan: Plan) -> list[Result]:
    """The sinks of a dataflow whose result the program reads."""
    operators = [node.operator for node in plan.graph.nodes]
    return [one.sink for one in operators if isinstance(one, Sink) and isinstance(one.sink, Result)]


def check_restore(
    env: Settings, plan: Plan, name: str, from_checkpoint: str | None, allow_dropped_state: bool | tuple[str, ...]
) -> RestoreCheck:
    """Comparison of a checkpoint with this plan: what would be restored, and what would not. Starts nothing."""
    found = wanted_checkpoint(env, plan, name, from_checkpoint)
    if found is None:
        there = f"there is none of job {name!r}" if from_checkpoint == OR_NEW else "its path, or 'latest'"
        raise ConfigError(f"a dry run needs a checkpoint: {there}")
    return restore_check(StoredCheckpoint(*found), plan.graph.nodes, plan.graph.max_parallelism, allow_dropped_state)


def open_checkpoint(path: str, storage_options: Mapping[str, Any] | None = None) -> StoredCheckpoint:
    """A checkpoint, opened so that its contents can be read."""
    return StoredCheckpoint.open(absolute(path), storage_options)


def write_savepoint(
    writer: SavepointWriter, path: str, name: str | None, storage_options: Mapping[str, Any] | None = None
) -> str:
    """Writes the state that a `SavepointWriter` has gathered, and returns the path. It uses the session of the writer's
    DataFrames, else the active session, else a local one."""
    sessions = [one.df.sparkSession for one in writer.new.values() if one.df is not None]
    spark = sessions[0] if sessions else session(default_parallelism())
    return savepoints.write_savepoint(writer, path, name, storage_options, spark)


def _restored(origin: Origin | None) -> abc.Collection[str]:
    """The uids of operators that go on from a checkpoint."""
    return frozenset() if origin is None else frozenset(record.uid for record in origin.manifest.operators)


def _host(plan: Plan) -> Host | None:
    """The host through which workers reach the driver's folder, if the job uses that folder."""
    places: list[str] = []
    for node in plan.graph.nodes:
        operator = node.operator
        if isinstance(operator, Source) and isinstance(operator.source, DataFrameSource):
            places += operator.source.paths
        elif isinstance(operator, Sink) and isinstance(operator.sink, Result):
            places.append(operator.sink.directory or "")
    return next(filter(None, map(host_of, places)), None)


def session(slots: int) -> Any:
    """The active session, or a new local one. The new one has these slots, as many again for a second job, and one to
    spare."""
    return active_or_local(2 * slots + 1, DEFAULTS.spark_master(), DEFAULTS.conf)


def session_of(env: Settings, slots: int) -> Any:
    """The environment's session, the active one, or a new local one."""
    spark = env._session(slots)
    if not is_connect(spark) and not hasattr(spark, "sparkContext"):
        raise ConfigError(f"Environment(spark): expected a SparkSession, got {type(spark).__name__}")
    over = application(spark).over()
    if over is not None:
        raise ConfigError(f"Environment(spark): {over}; make a new one")
    return spark


def _prepare_files(spark: Any, plan: Plan, places: Places, *, restored: abc.Collection[str] = ()) -> None:
    """Materialises DataFrames that are read, gives result sinks their folders, and finds tables.

    `restored` are the uids of operators that go on from a checkpoint. The checkpoint knows the files of their sources, so
    nothing is materialised for these.
    """
    for node in plan.graph.nodes:
        operator = node.operator
        if isinstance(operator, Source) and isinstance(operator.source, DataFrameSource):
            if node.uid in restored:
                operator.source.restored(places.store_options)
            else:
                place, durable = places.inputs()
                operator.source.materialise(place.at(f"in-{node.id}"), durable=durable)
        elif isinstance(operator, Sink) and isinstance(operator.sink, Result):
            place = places.results().at(f"out-{node.id}")
            operator.sink.bind(place.url, place.options, shared=place.shared)
            operator.sink.begin()
            if place.host is not None and isinstance(operator.sink, Collect):  # a DataFrame may outlive its sink
                weakref.finalize(operator.sink, forget, place.url).atexit = False
            if isinstance(operator.sink, DataFrame):
                operator.sink.prepare(spark, partial(expected_schema, plan.graph, node))
        elif isinstance(operator, Sink) and isinstance(operator.sink, Table):
            prepare_table(spark, operator.sink)
