"""The start of a job that has come to its end in an earlier run: nothing is done, and it has finished."""

from __future__ import annotations

import sys

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView
from tailrace.errors import ConfigError, JobAlreadyFinished
from tailrace.runtime.driver.monitor import JobEnd, ProgramMonitor
from tailrace.runtime.driver.user_requests import Unheard, Wish, WishFuture
from tailrace.runtime.job import JOBS, Job
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.start.checks import Submission
from tailrace.spark.start.files import results_of


class FinishedRun:
    """The runner behind a `Job` that had finished before: it runs nothing."""

    view = JobView(JobStatus.FINISHED)

    def __init__(self, monitor: ProgramMonitor) -> None:
        self.monitor = monitor
        monitor.receive(JobEnd(self.view, None, None))
        monitor.close()

    def cancel(self) -> None:
        """Does nothing: the job has ended."""

    def wish(self, wish: Wish) -> WishFuture:
        """Refuses a wish: the job has ended."""
        future: WishFuture = WishFuture()
        future.set_exception(Unheard(f"job {self.monitor.job_name!r} has ended"))
        return future


def _check_first_of_its_name(name: str) -> None:
    """Raises `ConfigError` where this program has had a job of this name. That job is the one that has finished, and the
    dataflow at hand would never run."""
    if any(job.name == name for job in JOBS):
        raise ConfigError(
            f"this program has started two jobs called {name!r}: the first one has finished, and with --from the second one "
            "is taken for the same job, which has nothing left to do. Give each job of a program a name of its own, "
            "env.execute(name); collect() and to_dataframe() are jobs called 'collect' and 'to_dataframe'"
        )


def finished_job(over: JobAlreadyFinished, job: Submission, *, by_program: bool) -> Job:
    """The handle of a job that came to its end in an earlier run, for a program that does not itself start from a
    checkpoint. The command that runs the program prints the reason, and the program goes on as it did after the first
    run. Raises the error for any other program."""
    if not by_program:
        _check_first_of_its_name(job.name)
    gone = results_of(job.plan)  # they went with the program of the run that has ended
    if gone and DEFAULTS.is_supervised():
        raise ConfigError(
            f"job {job.name!r} has finished in an earlier start of this supervised program, which took its results with "
            f"it, so this start cannot go on behind them. Write them by a sink of files or a table, and read these"
        )
    if by_program or gone:
        raise over
    print(over, file=sys.stderr)
    monitor = ProgramMonitor(job.name, job.run_id, job.plan)
    JOBS.append(Job(FinishedRun(monitor), monitor))
    return JOBS[-1]
