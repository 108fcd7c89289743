"""What a job takes before it runs: task slots, and its checkpoint folder; and the coordinator that begins with both."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tailrace.api.launch import Settings
from tailrace.api.restore.identity import dataflow_of
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.succession.machine import LoggedCoordinator
from tailrace.coordinator.workers.rescaling import ElasticSizes
from tailrace.elements.durations import span_micros
from tailrace.errors import ConfigError, level_of_user
from tailrace.protocol.replay import COPIES, Copies
from tailrace.runtime.driver.machine_settings import limits_of, nests_of, settings_of, start_from, strategy_of
from tailrace.spark.cluster.application import Application, application, is_connect
from tailrace.spark.cluster.capacity import is_fixed, notices_after, on_each_executor, share_of
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.outpost.remote import BESIDE
from tailrace.spark.shipping.plan_files import dump_job
from tailrace.spark.slots.profiles import profile_of
from tailrace.spark.slots.reachability import is_out_of_reach
from tailrace.spark.slots.slot_reservations import free_slots
from tailrace.spark.slots.worker_launch import SparkSlots, check_settings
from tailrace.spark.start.checks import Checked, with_slots
from tailrace.spark.start.start_checkpoint import report_start, warn_of_later, warn_of_lost_output
from tailrace.storage.origins import Origin
from tailrace.storage.spill import SpillFiles
from tailrace.storage.store import Store


@dataclass(frozen=True)
class Allocated:
    """The slots that a job holds."""

    spark: Any
    app: Application
    slots: SparkSlots
    standbys: int | None
    """Number of processes that stand by; None: no worker is replaced alone."""
    far: bool
    """True if executors do not reach this program: the coordinator runs on one of them."""
    ship: bool
    """True if executors receive at once what they may lack."""


def allocate_slots(checked: Checked, undo: contextlib.ExitStack) -> tuple[Checked, Allocated]:
    """Takes the slots of a job; `undo` gives them back. Returns the job with so many workers, too: an elastic one has as
    many as there are slots. Raises `ConfigError` or `SlotsError`."""
    job, env = checked.submission, checked.submission.env
    needed = job.plan.slots
    spark = session_of(env, needed)
    app = application(spark)
    app.choose_interpreter()
    check_settings(app)
    far = is_out_of_reach(spark, env.slot_timeout)
    if env.sizing is not None:
        checked = with_slots(checked, _first_size(app, env, far))
        needed = checked.submission.plan.slots
    ship, beside = DEFAULTS.ships(), BESIDE if far else 0
    lost_at_once = on_each_executor(app.master, app.setting, share_of(app.setting, env.task_cpus))
    standbys = None if env.standby is None else env.standby.processes(needed, lost_at_once)
    more = {"beside": beside, "standbys": standbys or 0}
    slots = SparkSlots(spark, job.name, job.run_id, needed, env.slot_timeout, ship=ship, cpus=env.task_cpus, **more)
    undo.callback(slots.close, 0)
    if slots.warning is not None:
        warnings.warn(slots.warning, stacklevel=level_of_user())
    return checked, Allocated(spark, app, slots, standbys, far, ship)


def _first_size(app: Application, env: Settings, far: bool) -> int:
    """The number of workers with which an elastic job begins. Raises `ConfigError` where it cannot be elastic."""
    assert env.sizing is not None
    elastic = env.sizing.elastic
    if far:
        raise ConfigError(
            "parallelism=tr.Elastic(...): executors do not reach this program, so the coordinator is on one of them, and "
            "the job keeps its size; give a number"
        )
    if env.sizing.autoscale is not None:
        return elastic.least
    cpus = None if is_fixed(app.master) else env.task_cpus
    profile = None if cpus is None else profile_of(app, cpus)
    wait = min(span_micros(elastic.wait) / 1e6, env.slot_timeout)
    free = free_slots(app, "", elastic.most, wait, cpus, profile)
    return elastic.most if free is None else max(elastic.least, min(elastic.most, free))


def session_of(env: Settings, slots: int) -> Any:
    """The environment's session, the active one, or a new local one."""
    spark = env._session(slots)
    if not is_connect(spark) and not hasattr(spark, "sparkContext"):
        raise ConfigError(f"Environment(spark): expected a SparkSession, got {type(spark).__name__}")
    over = application(spark).over()
    if over is not None:
        raise ConfigError(f"Environment(spark): {over}; make a new one")
    return spark


@dataclass(frozen=True)
class ClaimedFolder:
    """A job that alone may write into its checkpoint folder, if it has one."""

    origin: Origin | None
    """The checkpoint that it starts from."""
    incarnation: int = 0
    abandoned: Sequence[str] = ()
    """Names of files of earlier runs, which are to go."""


def claim(checked: Checked, undo: contextlib.ExitStack) -> ClaimedFolder:
    """Claims the checkpoint folder of a job; `undo` releases it. Reports where the job starts. Raises `CheckpointError` or
    `JobAlreadyFinished`."""
    job, store, run_id = checked.submission, checked.store, checked.spec.run_id
    claimed = ClaimedFolder(checked.origin)
    if store is not None:
        incarnation = store.claim(run_id)
        undo.callback(_release, store, incarnation)
        # An older driver may have committed until now; from here on it cannot.
        origin = job.find_origin()
        spare = [] if origin is None else [origin.manifest.run_id]
        keep = None if job.env.checkpoint is None else job.env.checkpoint.keep_runs
        claimed = ClaimedFolder(
            origin, incarnation, store.abandoned_runs([] if keep is None else store.dead(keep, spare))
        )
    warn_of_lost_output(claimed.origin, job.plan)
    warn_of_later(claimed.origin, store)
    if job.from_checkpoint is not None:
        report_start(job.name, claimed.origin)
    return claimed


def _release(store: Store, incarnation: int) -> None:
    with contextlib.suppress(Exception):  # the first error is raised
        store.release(incarnation)


def coordinator_of(
    checked: Checked, allocated: Allocated, claimed: ClaimedFolder, elastic: ElasticSizes | None
) -> Coordinator:
    """The coordinator of a job whose files are prepared. `elastic`: the sizes of one that changes its size by itself."""
    spec, env, plan, store = checked.spec, checked.submission.env, checked.submission.plan, checked.store
    config = env.checkpoint
    make = LoggedCoordinator if allocated.far and store is not None else Coordinator
    return make(
        spec.job,
        claimed.incarnation or 1,
        plan.slots,
        dump_job(spec),
        limits_of(
            config,
            env.slot_timeout,
            notices_after(allocated.app.master, allocated.app.setting),
            env.publish_timeout,
        ),
        run_id=spec.run_id,
        max_parallelism=plan.graph.max_parallelism,
        checkpoints=None
        if config is None or store is None
        else settings_of(config, store.url, dataflow_of(plan.graph)),
        restarts=strategy_of(env.restart),
        start_from=start_from(claimed.origin, store),
        abandoned=claimed.abandoned,
        nests=nests_of(plan),
        standbys=allocated.standbys,
        replicas=1 if env.standby is None else max(1, env.standby.replicas),
        depth=spec.depth,
        copies=Copies(spec.history_bytes, partial(SpillFiles, None, COPIES)),
        hot=spec.kept.hot,
        elastic=elastic,
    )
