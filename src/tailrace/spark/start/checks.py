"""The checks of a job before Spark is needed: a job that cannot run is refused then."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from tailrace.api.failure_options import capsules_of_job
from tailrace.api.launch import Settings
from tailrace.elements.durations import span_micros
from tailrace.graph.plan import Plan
from tailrace.graph.sizes import check_elastic, plan_of_size
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.shipping.plan_files import check_size, dump_job
from tailrace.spark.start.start_checkpoint import find_origin
from tailrace.storage.opening import absolute
from tailrace.storage.origins import Origin
from tailrace.storage.store import Store
from tailrace.task.contract.jobspec import JobSpec, Kept


@dataclass(frozen=True)
class Submission:
    """A job as its user has submitted it. `from_checkpoint`, `allow_dropped_state` and `start_again`: where it starts."""

    env: Settings
    plan: Plan
    name: str
    run_id: str
    from_checkpoint: str | None
    allow_dropped_state: bool | tuple[str, ...]
    start_again: bool

    def find_origin(self) -> Origin | None:
        """The checkpoint to start from. Raises `CheckpointError`, `JobAlreadyFinished`."""
        required, allow = self.from_checkpoint, self.allow_dropped_state
        return find_origin(self.env, self.plan, self.name, required, allow, self.start_again)


@dataclass(frozen=True)
class Checked:
    """A job that can run, as far as that is known without Spark."""

    submission: Submission
    spec: JobSpec
    store: Store | None
    """The folder of its checkpoints; None for a job that takes none."""
    origin: Origin | None


def with_slots(checked: Checked, slots: int) -> Checked:
    """The job with so many workers."""
    plan = plan_of_size(checked.submission.plan, slots)
    submission, spec = replace(checked.submission, plan=plan), replace(checked.spec, plan=replace(plan, written=None))
    return replace(checked, submission=submission, spec=spec)


def check(job: Submission) -> Checked:
    """Checks a job. Raises `GraphError`, `ConfigError`, `CheckpointError` or `JobAlreadyFinished`."""
    spec, config = _spec(job), job.env.checkpoint
    for without_effect in DEFAULTS.overrides(job.env):
        print(f"tailrace run: job {job.name!r}: {without_effect}", file=sys.stderr)
    if job.env.sizing is not None:
        check_elastic(job.plan, job.env.sizing.elastic.least, job.env.sizing.elastic.most)
    check_size(spec, dump_job(spec))  # a job that cannot travel is refused before Spark starts
    origin = job.find_origin()
    store = None if config is None else Store(absolute(config.dir), job.name, config.storage_options)
    if store is not None:
        store.make()  # raises for a folder that cannot be made, before any slot is taken
    return Checked(job, spec, store, origin)


def _settings_kept(job: Submission) -> Kept:
    """What workers keep: frames, for those that take the places of others, and failed calls."""
    env, config = job.env, job.env.checkpoint
    capsules = capsules_of_job(env.capsules, config, env.restart)
    place = ""
    if config is not None and capsules is not None:
        place = Store(absolute(config.dir), job.name, config.storage_options).url
    if env.standby is None:
        return Kept(capsules=capsules, place=place)
    standby, spill = env.standby, env.standby.spill
    pace = standby.pace_micros(None if config is None else config.interval)
    return Kept(spill.memory_bytes, spill.folder, spill.stored, standby.mode == "hot", pace, capsules, place)


def _spec(job: Submission) -> JobSpec:
    """The description of a job for its workers."""
    env, config, standby = job.env, job.env.checkpoint, job.env.standby
    return JobSpec(
        job.name,
        1,
        replace(job.plan, written=None),
        env.memory,
        job.run_id[:8],
        int(job.run_id[:8], 16),
        env.copy_records,
        env.debug,
        checkpointing=config is not None,
        overtaking=config is not None and config.overtakes,
        ahead=config is not None and config.writes_ahead,
        depth=0 if standby is None else standby.depth,
        reseeds=standby is not None,
        history_bytes=0 if standby is None else standby.history_bytes,
        compare_values=standby is None or standby.compare == "values",
        kept=_settings_kept(job),
        storage_patience=600.0 if config is None else span_micros(config.storage_patience) / 1e6,
        allow_dropped_state=job.allow_dropped_state,
        state_backend=env.state_backend,
        checkpoint_dir=None if config is None else absolute(config.dir),
        storage_options=None if config is None else config.storage_options,
    )
