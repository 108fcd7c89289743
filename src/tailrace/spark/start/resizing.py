"""The making of other sizes of a job that runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tailrace.coordinator.workers.rescaling import ElasticSizes, JobSize
from tailrace.graph.plan import Plan
from tailrace.graph.sizes import plan_of_size, size_text
from tailrace.runtime.driver.machine_settings import elastic_of, size_of
from tailrace.runtime.driver.size_changes import SizeChanges, SizeMaker
from tailrace.spark.cluster.capacity import on_each_executor, share_of
from tailrace.spark.shipping.plan_files import check_size, dump_job
from tailrace.spark.start.allocation import Allocated
from tailrace.spark.start.checks import Checked


def size_changes(checked: Checked, allocated: Allocated) -> SizeChanges | None:
    """The changes of a job's size; None where its coordinator is on an executor."""
    if allocated.far:
        return None
    job = checked.submission
    held = job.plan.slots + (allocated.standbys or 0)
    rest = allocated.slots.hold, held, elastic_sizes(checked, allocated)
    return SizeChanges(job.name, job.plan, _maker(checked, allocated), *rest)


def elastic_sizes(checked: Checked, allocated: Allocated) -> ElasticSizes | None:
    """The sizes of an elastic job; None for any other one."""
    job = checked.submission
    sizing = job.env.sizing
    if sizing is None:
        return None
    maker = _maker(checked, allocated)

    @cache
    def make(count: int) -> JobSize:
        return maker(plan_of_size(job.plan, count), size_text(count))

    return elastic_of(sizing, make, lambda count: count + _standbys(checked, allocated, count))


def _maker(checked: Checked, allocated: Allocated) -> SizeMaker:
    def make(plan: Plan, text: str) -> JobSize:
        spec = replace(checked.spec, plan=replace(plan, written=None))
        blob = dump_job(spec)
        check_size(spec, blob)
        return replace(
            size_of(plan, blob, text, checked.submission.allow_dropped_state),
            standbys=_standbys(checked, allocated, plan.slots),
        )

    return make


def _standbys(checked: Checked, allocated: Allocated, workers: int) -> int:
    """The number of processes that stand by for so many workers."""
    env, app = checked.submission.env, allocated.app
    lost_at_once = on_each_executor(app.master, app.setting, share_of(app.setting, env.task_cpus))
    return 0 if env.standby is None else env.standby.processes(workers, lost_at_once)
