"""The handle of a job: like Spark's `StreamingQuery`, in snake_case."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from tailrace.api.checks.arguments import check_listener
from tailrace.api.checks.hints import JOB
from tailrace.api.config import Checkpoint, Savepoint
from tailrace.api.launch import JobHandle
from tailrace.coordinator.checkpoint_stats import CheckpointStats, SavepointStats
from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.progress import inflight_bytes, job_metrics
from tailrace.coordinator.view.slices import SliceStatus
from tailrace.elements.durations import Duration, span_seconds
from tailrace.errors import ConfigError, JobFailed
from tailrace.graph.explain import as_text
from tailrace.graph.picture import JobGraph
from tailrace.graph.plan import Plan
from tailrace.runtime.driver.jobhtml import job_html
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.driver.program_exit import EndingJob
from tailrace.runtime.driver.size_changes import checked_sizes
from tailrace.runtime.driver.user_requests import Runner, Stop, TakeCheckpoint, TakeSavepoint, Unheard
from tailrace.spelling import missing
from tailrace.storage.opening import absolute
from tailrace.ui.export import as_html

JOBS: deque[Job] = deque(maxlen=100)
"""The last jobs that this process started, the newest last."""


def _seconds(timeout: Duration | None) -> float | None:
    """A timeout of a user, in seconds; None waits without an end. Raises `ConfigError`."""
    try:
        return None if timeout is None else span_seconds(timeout)
    except (TypeError, OverflowError) as error:
        raise ConfigError(f"timeout: {error}") from None


class Page(Protocol):
    """The page of the program's jobs."""

    url: str

    def link(self, job: str = "") -> str:
        """The address with the token of the page, of the page of one job."""


class Job(JobHandle):
    """A running or ended job. All methods may be called from any thread."""

    def __init__(
        self,
        runner: Runner,
        monitor: ProgramMonitor,
        if_program_fails: Literal["cancel", "wait"] = "cancel",
        on_signal: Literal["cancel", "stop"] = "cancel",
        page: Page | None = None,
    ) -> None:
        self._page = page
        self._runner, self._monitor = runner, monitor
        self._leaving = EndingJob(monitor, runner, self.exception, if_program_fails, on_signal)
        """The job as the end of the program sees it, if the program ends first."""
        self._stopped: tuple[Aim, Checkpoint | None] | None = None
        """The aim of the last stop, and what it has returned."""
        self.id = self.run_id = monitor.job_id
        self.name = monitor.job_name

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing("a job", name, JOB, dir(type(self)))

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self._monitor.status} id={self.id}>"

    def _repr_html_(self) -> str:
        """The job in a notebook: what holds it, and its operators with figures."""
        link = None if self._page is None else self._page.link(self.id)
        return job_html(self._monitor.snapshots.make(self._runner.view), self._plan, link)

    @property
    def status(self) -> JobStatus:
        status = self._monitor.status
        self._leaving.seen = self._leaving.seen or status.final
        return status

    @property
    def is_active(self) -> bool:
        return not self._monitor.ended.is_set()

    def await_termination(self, timeout: Duration | None = None) -> bool:
        try:
            if not self._monitor.ended.wait(_seconds(timeout)):
                return False
        except KeyboardInterrupt:
            self.cancel()
            raise
        self._leaving.seen = True
        error = self.exception()
        if error is not None:
            raise error
        return True

    def checkpoint(self, timeout: Duration | None = None) -> Checkpoint:
        return _as_checkpoint(self._runner.wish(TakeCheckpoint()).result(_seconds(timeout)))

    def savepoint(
        self,
        path: str | os.PathLike[str] | None = None,
        timeout: Duration | None = None,
        *,
        unaligned: bool = False,
    ) -> Savepoint:
        wish = TakeSavepoint("" if path is None else _folder(path), unaligned)
        return _as_savepoint(self._runner.wish(wish).result(_seconds(timeout)))

    def rescale(self, parallelism: int | Mapping[str, int], timeout: Duration | None = None) -> int:
        return int(self._monitor.rescale(self._runner, checked_sizes(parallelism)).result(_seconds(timeout)))

    @property
    def _plan(self) -> Plan:
        return self._monitor.plan

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return [_as_checkpoint(stats) for stats in self._runner.view.history]

    @property
    def restarts(self) -> int:
        return self._runner.view.restarts

    def stop(
        self,
        drain: bool = False,
        savepoint: str | os.PathLike[str] | bool | None = None,
        timeout: Duration | None = None,
    ) -> Checkpoint | Savepoint | None:
        place, seconds = _place(savepoint), _seconds(timeout)
        aim, deadline = Aim(drain, place), None if seconds is None else time.monotonic() + seconds
        if self._stopped is not None and self._stopped[0] == aim:
            return self._stopped[1]
        if not self.is_active and self.status is JobStatus.FINISHED and self._stopped is None and place is None:
            return None  # the job has come to its end by itself
        try:
            stats = self._runner.wish(Stop(aim)).result(seconds)
        except Unheard:
            self._monitor.ended.wait(seconds)
            if self.status is JobStatus.FINISHED and place is None and self._stopped is None:
                return None  # the job came to its end by itself in this very moment
            raise
        made = (
            _as_savepoint(stats)
            if isinstance(stats, SavepointStats)
            else None
            if stats is None
            else _as_checkpoint(stats)
        )
        self._stopped = aim, made
        if not self._monitor.ended.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"job {self.name!r} has stopped, and is not tidied up within {seconds:g} s")
        self._leaving.seen = True
        return made

    def cancel(
        self,
        savepoint: str | os.PathLike[str] | bool | None = None,
        timeout: Duration | None = None,
        *,
        unaligned: bool = False,
    ) -> Savepoint | None:
        place, seconds = _place(savepoint), _seconds(timeout)
        if place is None:
            if unaligned:
                raise ConfigError(
                    "cancel: unaligned is for a savepoint; give savepoint=True, or a path, or leave it out"
                )
            self._leaving.cancel()
            return None
        made = _as_savepoint(self._runner.wish(TakeSavepoint(place, unaligned, cancels=True)).result(seconds))
        self._leaving.cancelled = True
        return made

    def exception(self) -> JobFailed | None:
        if not self._monitor.ended.is_set():
            return None
        self._leaving.seen = True
        if self._monitor.crash is not None:
            return JobFailed(f"job {self.name!r} failed inside tailrace:\n{self._monitor.crash}", job=self.name)
        if self._monitor.failure is not None:
            return JobFailed(f"job {self.name!r} failed: {self._monitor.failure}", job=self.name)
        cause = self._runner.view.cause
        return None if cause is None else cause.as_error(self.name)

    @property
    def last_progress(self) -> dict[str, Any] | None:
        progress = self._monitor.progress
        return progress[-1] if progress else None

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        return list(self._monitor.progress)

    def add_listener(self, listener: Any) -> None:
        check_listener(listener, "job.add_listener")
        if self._monitor.listeners is not None:
            self._monitor.listeners.add(listener)

    def remove_listener(self, listener: Any) -> None:
        if self._monitor.listeners is not None:
            self._monitor.listeners.remove(listener)

    def metrics(self) -> dict[str, Any]:
        view = self._runner.view
        figures = job_metrics(self._plan, view.reports, view.restarts, view.books)
        figures["busy_share"] = (self.last_progress or {}).get("tailrace", {}).get("busyShare", 0.0)
        figures["refused_connections"] = dict(view.refused)
        figures["size"] = None if view.size is None else view.size.figures()
        if self._monitor.queries is not None:
            figures["queries"] = self._monitor.queries.progress()
        return figures

    @property
    def slices(self) -> list[SliceStatus]:
        return list(self._runner.view.slices.all)

    @property
    def inflight_bytes(self) -> int:
        return inflight_bytes(self._runner.view.reports)

    @property
    def ui(self) -> str | None:
        return None if self._page is None else self._page.url

    def explain(self) -> str:
        return as_text(self._plan)

    def graph(self) -> JobGraph:
        return JobGraph(self._plan)

    def save_page(self, path: str | os.PathLike[str]) -> None:
        snapshot = self._monitor.snapshots.make(self._runner.view, subtasks=True)
        Path(path).write_text(as_html(msgspec.to_builtins(snapshot)), encoding="utf-8")


def _place(savepoint: str | os.PathLike[str] | bool | None) -> str | None:
    """The folder of a savepoint that a user names: empty for the usual one, None for no savepoint."""
    if savepoint is None or isinstance(savepoint, bool):
        return "" if savepoint else None
    return _folder(savepoint)


def _folder(path: str | os.PathLike[str]) -> str:
    """The folder of a savepoint that a user names. Raises `ConfigError`."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"savepoint: expected a path or URL, not {path!r}; without one it is in the usual place")
    return absolute(os.fspath(path))


def _as_savepoint(stats: SavepointStats) -> Savepoint:
    return Savepoint(
        stats.id,
        stats.path,
        stats.duration / 1e6,
        stats.size,
        stats.inflight,
        stats.timestamp / 1e6,
        policy=stats.policy,
        inflight=dict(stats.inflight_by),
    )


def _as_checkpoint(stats: CheckpointStats) -> Checkpoint:
    parts = {name: getattr(stats, name) / 1e6 for name in ("trigger", "alignment", "freeze", "write")}
    return Checkpoint(
        stats.id,
        stats.path,
        stats.duration / 1e6,
        stats.size,
        stats.inflight,
        stats.timestamp / 1e6,
        {**parts, "full_bytes": float(stats.full_size)},
        stats.policy,
        dict(stats.inflight_by),
        stats.referred,
    )
