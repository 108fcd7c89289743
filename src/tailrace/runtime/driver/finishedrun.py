"""The run of a job that had come to its end before it was started again: nothing is done, and it has finished."""

from __future__ import annotations

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView
from tailrace.runtime.driver.monitor import JobEnd, ProgramMonitor
from tailrace.runtime.driver.requests import Unheard, Wish, WishFuture


class FinishedRun:
    """The runner behind a `Job` that had finished before: it runs nothing."""

    view = JobView(JobStatus.FINISHED)

    def __init__(self, monitor: ProgramMonitor) -> None:
        self.monitor = monitor
        monitor.receive(JobEnd(self.view, None, None))
        monitor.end()

    def cancel(self) -> None:
        """Does nothing: the job has ended."""

    def wish(self, wish: Wish) -> WishFuture:
        """Refuses a wish: the job has ended."""
        future: WishFuture = WishFuture()
        future.set_exception(Unheard(f"job {self.monitor.job_name!r} has ended"))
        return future
