"""The handle of a job: like Spark's `StreamingQuery`, in snake_case."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from tailrace.api.config import Checkpoint, Savepoint
from tailrace.api.hints import JOB, missing
from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.stats import CheckpointStats, SavepointStats
from tailrace.coordinator.view.progress import inflight_bytes, job_metrics
from tailrace.coordinator.view.slices import SliceStatus
from tailrace.elements.durations import Duration, span_seconds
from tailrace.errors import ConfigError, JobFailed
from tailrace.graph.explain import as_text
from tailrace.graph.plan import Plan
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.driver.exits import EndingJob
from tailrace.runtime.driver.finishedrun import FinishedRun
from tailrace.runtime.driver.requests import Stop, TakeCheckpoint, TakeSavepoint, Unheard
from tailrace.runtime.outpost.following import Follower
from tailrace.storage.opening import absolute

JOBS: deque[Job] = deque(maxlen=100)
"""The last jobs that this process started, the newest last."""


def _seconds(timeout: Duration | None) -> float | None:
    """A timeout of a user, in seconds; None waits without an end. Raises `ConfigError`."""
    try:
        return None if timeout is None else span_seconds(timeout)
    except (TypeError, OverflowError) as error:
        raise ConfigError(f"timeout: {error}") from None


class Job:
    """A running or ended job. All methods may be called from any thread."""

    def __init__(
        self,
        runner: JobRunner | Follower | FinishedRun,
        job_id: str,
        run_id: str,
        name: str,
        plan: Plan,
        if_program_fails: Literal["cancel", "wait"] = "cancel",
        on_signal: Literal["cancel", "stop"] = "cancel",
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._leaving = EndingJob(name, runner, self.exception, if_program_fails, on_signal)
        """The job as the end of the program sees it, if the program ends first."""
        self._stopped: tuple[Aim, Checkpoint | None] | None = None
        """The aim of the last stop, and what it has returned."""
        self.id = job_id
        self.run_id = run_id
        self.name = name

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing("a job", name, JOB, dir(type(self)))

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self._runner.status} id={self.id}>"

    @property
    def status(self) -> JobStatus:
        """The state of the job. A final status comes when all its Spark tasks are gone."""
        status = self._runner.status
        self._leaving.seen = self._leaving.seen or status.final
        return status

    @property
    def is_active(self) -> bool:
        """True until the job has ended."""
        return not self._runner.ended.is_set()

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Waits for the end, at most `timeout` (seconds, a `timedelta` or a text). True when the job has ended without a
        failure, False when it has not ended in time. Raises `JobFailed` with the user's traceback when it failed. An
        interrupt (Ctrl-C) cancels the job and passes on."""
        try:
            if not self._runner.ended.wait(_seconds(timeout)):
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
        """Takes a checkpoint now and waits for it, at most `timeout` seconds. Raises `CheckpointError` if there will be
        none: the job takes none, it has ended, or the checkpoint was aborted. Raises `TimeoutError`."""
        return _as_checkpoint(self._runner.wish(TakeCheckpoint()).result(_seconds(timeout)))

    def savepoint(self, path: str | os.PathLike[str] | None = None, timeout: Duration | None = None) -> Savepoint:
        """Takes a savepoint now, and waits for it, at most `timeout` seconds: a whole checkpoint in a folder of its own
        that refers to nothing outside, may be moved, and is never deleted by a job. `path` is that folder, a path or URL
        that is empty or not there; None: one in `savepoints` of the checkpoint folder. It is there when the output of its
        checkpoint is visible. Raises `CheckpointError` with the reason if there will be none (nothing is left of it, and
        the job goes on), and `TimeoutError` (the savepoint may come all the same)."""
        wish = TakeSavepoint("" if path is None else absolute(os.fspath(path)))
        return _as_savepoint(self._runner.wish(wish).result(_seconds(timeout)))

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The last complete checkpoints, the newest last. Older ones than `keep` may be gone from the storage."""
        return [_as_checkpoint(stats) for stats in self._runner.history]

    @property
    def restarts(self) -> int:
        """Number of restarts after failures."""
        return self._runner.restarts

    def stop(
        self,
        drain: bool = False,
        savepoint: str | os.PathLike[str] | bool | None = None,
        timeout: Duration | None = None,
    ) -> Checkpoint | Savepoint | None:
        """Ends the job in order, and waits for the end, at most `timeout` seconds.

        The last act of the job is a checkpoint at the place where it stands, behind which nothing is done. A start from
        it reads nothing again, and nothing becomes visible again. Event time and timers stay as they are; no function
        finishes. With `drain` sources end instead, and the job comes to its end as if its input had. `savepoint`: a path
        or URL for a savepoint of that state, or True for one in the usual place. Returns the checkpoint, or the
        savepoint; None if the job takes no checkpoints or retains none: sources end then, and what was read is processed.

        A second call returns the result of the first. Raises `CheckpointError` with the reason if the job does not stop:
        it goes on, unless the error says otherwise. Raises it also if the job is being stopped in another way already.
        Raises `TimeoutError` if that takes longer: the stop goes on, and `cancel` is legal all the time.
        """
        place = None if savepoint is None or savepoint is False else ""
        if savepoint is not None and not isinstance(savepoint, bool):
            place = absolute(os.fspath(savepoint))
        seconds = _seconds(timeout)
        aim, deadline = Aim(drain, place), None if seconds is None else time.monotonic() + seconds
        if self._stopped is not None and self._stopped[0] == aim:
            return self._stopped[1]
        if not self.is_active and self.status is JobStatus.FINISHED and self._stopped is None and place is None:
            return None  # the job has come to its end by itself
        try:
            stats = self._runner.wish(Stop(aim)).result(seconds)
        except Unheard:
            self._runner.ended.wait(seconds)
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
        if not self._runner.ended.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"job {self.name!r} has stopped, and is not tidied up within {seconds:g} s")
        self._leaving.seen = True
        return made

    def cancel(self) -> None:
        """Ends the job at once: files in progress are removed, nothing is published. Legal at any moment; returns at
        once; wait with `await_termination`."""
        self._leaving.cancel()

    def exception(self) -> JobFailed | None:
        """The failure of the job, or None."""
        if not self._runner.ended.is_set():
            return None
        self._leaving.seen = True
        if self._runner.crash is not None:
            return JobFailed(f"job {self.name!r} failed inside tailrace:\n{self._runner.crash}", job=self.name)
        cause = self._runner.cause
        return None if cause is None else cause.as_error(self.name)

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The newest progress report, in the shape of Spark's `StreamingQueryProgress`, or None before the first."""
        progress = self._runner.progress
        return progress[-1] if progress else None

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last progress reports, the newest last."""
        return list(self._runner.progress)

    def metrics(self) -> dict[str, Any]:
        """Figures of the whole job and of every subtask: records, busy time, queued bytes, users' own counters."""
        figures = job_metrics(self._plan, self._runner.reports, self.restarts, self._runner.books)
        figures["busy_share"] = (self.last_progress or {}).get("tailrace", {}).get("busyShare", 0.0)
        figures["refused_connections"] = self._runner.refused()
        return figures

    @property
    def slices(self) -> list[SliceStatus]:
        """The parts of the job that its workers run, by number: where each runs, which processes hold its state, how much
        another worker would have to do again, and how it was replaced the last time."""
        return list(self._runner.slices.all)

    @property
    def inflight_bytes(self) -> int:
        """Bytes of records that wait in the job's channels, by the newest reports of its workers: they have arrived and are
        not read yet, or are emitted and have no credit. An unaligned checkpoint writes down what its barriers overtake."""
        return inflight_bytes(self._runner.reports)

    def explain(self) -> str:
        """The job's plan as text."""
        return as_text(self._plan)


def _as_savepoint(stats: SavepointStats) -> Savepoint:
    return Savepoint(stats.id, stats.path, stats.duration / 1e6, stats.size, stats.inflight, stats.timestamp / 1e6)


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
