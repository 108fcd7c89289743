"""The making of other sizes of a job that runs."""

from __future__ import annotations

from dataclasses import replace

from tailrace.coordinator.workers.rescaling import JobSize
from tailrace.graph.plan import Plan
from tailrace.runtime.driver.settings import size_of
from tailrace.runtime.driver.sizes import SizeChanges
from tailrace.spark.cluster.capacity import on_each_executor, share_of
from tailrace.spark.shipping.plan_files import check_size, dump_job
from tailrace.spark.start.allocation import Allocated
from tailrace.spark.start.checks import Checked


def size_changes(checked: Checked, allocated: Allocated) -> SizeChanges | None:
    """The changes of a job's size; None where its coordinator is on an executor."""
    if allocated.far:
        return None
    job, app = checked.submission, allocated.app
    standby = job.env.standby

    def make(plan: Plan, text: str) -> JobSize:
        spec = replace(checked.spec, plan=replace(plan, written=None))
        blob = dump_job(spec)
        check_size(spec, blob)
        lost_at_once = on_each_executor(app.master, app.setting, share_of(app.setting, job.env.task_cpus))
        standbys = 0 if standby is None else standby.processes(plan.slots, lost_at_once)
        return replace(size_of(plan, blob, text, job.allow_dropped_state), standbys=standbys)

    held = job.plan.slots + (allocated.standbys or 0)
    return SizeChanges(job.name, job.plan, make, allocated.slots.hold, held)
