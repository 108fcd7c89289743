"""Changes of the size of a simulated job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tailrace.coordinator.actions import RescaleEnded
from tailrace.graph.sizes import Sizes, plan_of_size, size_text
from tailrace.runtime.driver.machine_settings import size_of
from tailrace.testing.cluster import Cluster
from tailrace.testing.setting import DrivenJob, size_bytes


def rescale(cluster: Cluster, job: DrivenJob, sizes: Sizes, who: Callable[[RescaleEnded], None] | None = None) -> None:
    """Requests another size of the newest driver's job; `who` takes the answer. Raises `GraphError` for one that the
    dataflow cannot have."""
    driver, plan = cluster.driver, plan_of_size(job.plan, sizes)
    standbys = plan.slots if job.hot and job.standbys else job.standbys or 0
    size = replace(size_of(plan, size_bytes(sizes), size_text(sizes), job.allow_dropped_state), standbys=standbys)
    driver.coordinator.rescale(who, size, driver.now())
    cluster.coordinate(driver)
