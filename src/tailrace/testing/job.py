"""The handle of a simulated job."""

from __future__ import annotations

from typing import Any

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.progress import job_metrics
from tailrace.coordinator.view.view_makers import books_of
from tailrace.elements.durations import Duration
from tailrace.errors import JobFailed
from tailrace.storage.pruning import capsules_in
from tailrace.testing.simulator import Simulation


class SimulatedJob:
    """The handle of a job that ran under simulation: like a real job's handle, but already at its end."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.name = simulation.name

    @property
    def status(self) -> JobStatus:
        return self.simulation.coordinator.status

    @property
    def digest(self) -> str:
        """A hash over the whole trace: equal seeds give equal digests."""
        return self.simulation.digest

    @property
    def trace(self) -> list[str]:
        """The events of the run, one line each."""
        return self.simulation.trace

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """True when the job finished. Raises `JobFailed` when it failed."""
        error = self.exception()
        if error is not None:
            raise error
        return True

    @property
    def is_active(self) -> bool:
        """Always False: the job has run to its end before its handle is given out."""
        return False

    def exception(self) -> JobFailed | None:
        """The failure of the job, or None."""
        cause = self.simulation.coordinator.cause
        return None if cause is None else cause.as_error(self.name)

    @property
    def capsules(self) -> dict[str, bytes]:
        """The capsules of failed calls by their names, the oldest first, for `tr.testing.harness`. A job has them if it
        takes checkpoints."""
        files = self.simulation.files
        return {name: files.read(name) for name in capsules_in(files)}

    def metrics(self) -> dict[str, Any]:
        """Figures of the whole job and of every subtask, as at the end, in the shape of a real job's."""
        coordinator = self.simulation.coordinator
        books, restarts = books_of(coordinator, self.simulation.now), coordinator.attempts.restarts
        return job_metrics(self.simulation.plan, self.simulation.reports, restarts, books)
