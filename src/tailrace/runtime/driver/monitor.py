"""The monitor of a job, to which the job's runner brings everything that users are shown. Each piece of news is one value,
since the runner may be in another process than the program that has started the job."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tailrace.coordinator.actions import Resizing, Told, WasPublished, WorkerPrinted
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.progress import ProgressMaker
from tailrace.coordinator.view.snapshot_maker import SnapshotMaker
from tailrace.errors import RescaleError
from tailrace.graph.plan import Plan
from tailrace.graph.sizes import Sizes
from tailrace.log import last_resort
from tailrace.runtime.driver.control_server import Answering, Answers
from tailrace.runtime.driver.joblog import JobLog
from tailrace.runtime.driver.publication_calls import Announcer
from tailrace.runtime.driver.size_changes import SizeChanges
from tailrace.runtime.driver.user_requests import Runner, WishFuture
from tailrace.runtime.driver.warning import StorageWarning, warn
from tailrace.runtime.eventloop.clock import JobClock
from tailrace.settings import SETTINGS

ANNOUNCE_SECONDS = 60.0
"""Seconds that the end of a job that has finished waits for the `published` of its sinks: readers find all of its output
then. Another end does not wait for it."""
RECENT = 100
REPORTED = (JobStatus.RUNNING, JobStatus.STOPPING, JobStatus.RESTARTING, JobStatus.FINISHING)
"""States in which there are progress reports."""


@dataclass(frozen=True)
class JobEnd:
    """The end of a job. `crash`: the traceback of its runner, if that broke. `kept`: prepared output that stays, by the uid
    of its sink; None if it is unknown."""

    view: JobView
    crash: str | None
    kept: dict[str, list[bytes]] | None


News = JobView | Told | StorageWarning | WasPublished | JobEnd


class FeedingQueries(Protocol):
    """Streaming queries that feed a job and live as long as it."""

    def progress(self) -> dict[str, Any]:
        """The newest progress of each, by name."""

    def stop(self) -> None:
        """Ends them."""


class OutputCalls(Protocol):
    """Calls in this program for what a job has published, on which the job depends."""

    def announce(self) -> None:
        """Begins the calls for what was published since. Returns at once."""

    def finish(self) -> str | None:
        """Waits for all calls, at the end of a job that has finished. Returns the reason why one of them has failed."""

    def stop(self) -> None:
        """Ends the calls behind those that are under way. Returns at once."""

    def progress(self) -> dict[str, Any]:
        """The newest call of each sink, by name."""


Observer = Callable[[str, str, JobView], object]
OBSERVERS: list[Observer] = []
"""What takes each view of a job of this program, with the job's name and id, such as the spans for OpenTelemetry. An error
of one changes nothing about the job."""


class JobMonitor:
    """The monitor of a job. The job's runner brings the news, and any thread reads."""

    def __init__(self, job_name: str, clock: JobClock) -> None:
        self.job_name, self.clock = job_name, clock
        self.ended = threading.Event()
        self.crash: str | None = None
        """The traceback of the runner's thread, if it broke; the job has failed then."""

    def open(self, runner: Runner) -> None:
        """Lets other processes of the user reach the job, where they look for it."""

    def receive(self, news: News) -> None:
        """Takes a piece of news."""
        raise NotImplementedError

    def close(self) -> None:
        """Notes that the job has ended, however it did: users wait for that. Nothing of the job is left."""
        self.ended.set()


class Listeners(Protocol):
    """The listeners of a job. No call waits for them, but `end`, for some seconds."""

    def add(self, listener: Any) -> None:
        """Adds a listener. Raises `ConfigError` for an object that is none."""

    def remove(self, listener: Any) -> None:
        """Removes a listener."""

    def start(self, at: int) -> None:
        """Reports that the job starts, at this time (int64 microseconds)."""

    def progress(self, report: dict[str, Any]) -> None:
        """Reports progress."""

    def end(self, failure: str | None) -> None:
        """Reports the end of the job, with the text of its failure."""


class ProgramMonitor(JobMonitor):
    """The monitor of a job in the program that has started it. It makes progress reports, and calls the program's hooks:
    `on_progress` for each report, `on_end` at the end, and `on_published` after each publication of sinks."""

    def __init__(
        self,
        name: str,
        job_id: str,
        plan: Plan,
        on_progress: Callable[[dict[str, Any], JobStatus], None] | None = None,
        on_end: Callable[..., None] | None = None,
        on_published: Iterable[tuple[str, Callable[[], object]]] = (),
        listeners: Listeners | None = None,
    ) -> None:
        super().__init__(name, JobClock())
        self.job_id = job_id
        self.status = JobStatus.CREATED
        """The status. A final one is set once everything is cleaned up."""
        self.progress: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._maker = ProgressMaker(job_id, job_id, name, plan, self.clock.now())
        self.snapshots = SnapshotMaker(job_id, name, plan, self.clock.now, os.getpid(), socket.gethostname())
        self._on_progress, self._on_end = on_progress, on_end
        last_resort.write_json(SETTINGS["log_format"].value() == "json")
        self.log = JobLog(name, job_id, plan, lambda: self.restarts, self.clock.now)
        self.restarts = 0
        """The number of restarts by the newest view."""
        self._announcer = Announcer(name, on_published)
        self.answers: Answers | None = None
        """The answers to requests of other processes and of the page; None before the job has begun."""
        self._door: Answering | None = None
        self.listeners = listeners
        self.checkpoints: str | None = None
        """The folder of checkpoints, in which the job has a folder of its own; None for a job that takes none."""
        self._failure: str | None = None
        """The text of the job's failure, once it has failed."""
        self.queries: FeedingQueries | None = None
        """The streaming queries that feed the job, if there are any."""
        self.sizes: SizeChanges | None = None
        """The changes of the job's size; None where it can have no other one."""
        self.calls: OutputCalls | None = None
        """The calls that sinks make in this program, if there are any."""
        self.failure: str | None = None
        """The reason why the job has failed here, though its runner had finished it."""

    @property
    def plan(self) -> Plan:
        """The plan of the size that the job has."""
        return self._maker.plan

    def open(self, runner: Runner) -> None:
        self.answers = Answers(self, runner)
        self._door = Answering(self.job_name, self.answers)
        self._door.start()

    def receive(self, news: News) -> None:
        match news:
            case JobView():
                self._see(news)
            case WasPublished():
                self._announcer.announce()
                if self.calls is not None:
                    self.calls.announce()
            case JobEnd():
                self._take_end(news)
            case WorkerPrinted():
                self.log.show(news)
            case StorageWarning():
                warn(self.job_name, news, self.log.fields)
            case Resizing():
                self._resize(news)
                warn(self.job_name, news, self.log.fields)
            case _:
                self.snapshots.note(news)
                warn(self.job_name, news, self.log.fields)

    def close(self) -> None:
        if self.crash is not None or not self.status.final:
            self.status = JobStatus.FAILED
        if self.calls is not None:
            self.calls.stop()
        try:
            self._announcer.close(0.0)
            if self.answers is not None:
                self.answers.end()
            if self.queries is not None:
                self.queries.stop()
            if self._door is not None:
                self._door.close()
            if self.listeners is not None:
                self.listeners.end(self.crash or self.failure or self._failure)
        finally:
            self.log.close()
            super().close()

    def _resize(self, news: Resizing) -> None:
        if self.sizes is not None:
            self.sizes.note(news)
            self._maker.resize(self.sizes.plan)
            self.snapshots.resize(self.plan)
            self.log.plan = self.plan

    def rescale(self, runner: Runner, sizes: Sizes) -> WishFuture:
        """Requests another size of the job. Raises `RescaleError`, `GraphError` or `ConfigError` where it cannot have it."""
        if self.sizes is None:
            raise RescaleError(
                f"job {self.job_name!r} is not resized: its coordinator is on an executor; stop the job, and start it again "
                f"with another parallelism"
            )
        return self.sizes.request(runner, sizes)

    def _see(self, view: JobView) -> None:
        self.snapshots.observe(view)
        self._pass_on(view)
        self.restarts = view.restarts
        if not view.status.final:
            self.status = view.status
        if view.due and view.status in REPORTED:
            self._report(view)
            self._show(view.status)

    def _pass_on(self, view: JobView) -> None:
        for observer in OBSERVERS:
            with contextlib.suppress(Exception):
                observer(self.job_name, self.job_id, view)

    def _take_end(self, end: JobEnd) -> None:
        status, self.crash = end.view.status, end.crash
        self._failure = None if end.view.cause is None else str(end.view.cause.as_error(self.job_name))
        self.snapshots.observe(end.view)
        self._pass_on(end.view)
        if end.view.reports:
            self._report(end.view)
        self._announcer.close(ANNOUNCE_SECONDS if status is JobStatus.FINISHED else 0.0)
        if self.calls is not None and status is JobStatus.FINISHED:
            self.failure = self.calls.finish()
        if self._on_end is not None and end.kept is not None:
            with contextlib.suppress(Exception):  # tidying up changes nothing about how the job ended
                self._on_end(status, end.kept)
        self.status = status if self.failure is None else JobStatus.FAILED
        if self.progress:
            self._show(self.status)

    def _report(self, view: JobView) -> None:
        report = self._maker.make(view.slots, view.at, view.books, view.restarts, view.slices, view.size)
        if self.queries is not None:
            report["tailrace"]["queries"] = self.queries.progress()
        if self.calls is not None:
            report["tailrace"]["foreachBatch"] = self.calls.progress()
        self.progress.append(report)
        if self.listeners is not None:
            self.listeners.progress(report)

    def _show(self, status: JobStatus) -> None:
        if self._on_progress is not None:
            with contextlib.suppress(Exception):  # a broken display must not break the job
                self._on_progress(self.progress[-1], status)
