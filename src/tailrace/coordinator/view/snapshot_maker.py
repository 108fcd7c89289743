"""The maker of a job's snapshots. It keeps the views of the last seconds, for rates and shares, and the last failures.
Nothing is computed before a snapshot is requested."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgspec

from tailrace.coordinator.actions import Replacing, Restarting, Told
from tailrace.coordinator.checkpoint_stats import Books, CheckpointStats
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.diagnosis import NOTHING, findings_of, health_of
from tailrace.coordinator.view.job_snapshot import (
    CheckpointFailure,
    CheckpointFigures,
    CheckpointsFigures,
    CheckpointUnderWay,
    FailureFigures,
    HeavyKey,
    JobFigures,
    JobSnapshot,
    PlaceOutage,
    StalledStep,
)
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.lags import LagTrend
from tailrace.coordinator.view.operator_figures import Reports
from tailrace.coordinator.view.progress import STALLED_MICROS, inflight_bytes, overall_watermark
from tailrace.coordinator.view.shape import shape_of
from tailrace.coordinator.view.tracebacks import line_of
from tailrace.elements.timestamps import isoformat
from tailrace.graph.plan import Plan

WINDOW = 6
"""Views over which rates and shares are: some five seconds."""
KEYS_FOR = 60_000_000
"""Time for which keys that were looked for are shown (int64 microseconds)."""
KEPT = 50
"""Failures of a job that are kept."""


class SnapshotMaker:
    """The maker of the snapshots of one job. The driver brings each view and each report of what went wrong, and any
    thread requests snapshots."""

    def __init__(
        self, job_id: str, name: str, plan: Plan, now: Callable[[], int], process: int = 0, host: str = ""
    ) -> None:
        """`now` gives the time (int64 microseconds since 1970); `process` and `host` are those of the job's program."""
        self._id, self._name, self._now = job_id, name, now
        self._process, self._host = process, host
        self._started = self._since = now()
        self._status = JobStatus.CREATED
        self._views: tuple[JobView, ...] = ()
        """The views of the last seconds since the last restart, the oldest first."""
        self._failures = deque[FailureFigures](maxlen=KEPT)
        self._keys: tuple[int, dict[str, list[HeavyKey]]] = 0, {}
        """The time of the last look for keys, and what it has found."""
        self.resize(plan)

    def resize(self, plan: Plan) -> None:
        """Goes on with the plan of another size."""
        self._plan, self._shape, self._lags = plan, shape_of(plan), LagTrend(plan)
        self._views = ()
        names = [node.name for node in plan.graph.nodes]
        self._uids = {node.name: node.uid for node in plan.graph.nodes if names.count(node.name) == 1}

    @property
    def since(self) -> float:
        """The time since which the job has its status, in seconds since 1970."""
        return self._since / 1e6

    def observe(self, view: JobView) -> None:
        """Takes a view of the job."""
        if view.status is not self._status:
            self._status, self._since = view.status, view.at or self._now()
        last = self._views[-1] if self._views else None
        if last is not None and last.restarts != view.restarts:
            self._views = ()
            self._lags.forget()
        if view.due:
            self._lags.observe(view)
            self._views = (*self._views[1 - WINDOW :], view)

    def note(self, event: Told) -> None:
        """Takes a report of something that went wrong."""
        at = self._now() / 1e6
        match event:
            case Restarting():
                failure = self._failure(at, event.cause, event.advice)
                self._failures.append(msgspec.structs.replace(failure, restart=event.attempt))
            case Replacing():
                failure = self._failure(at, event.cause)
                self._failures.append(msgspec.structs.replace(failure, worker=event.slot))

    def note_keys(self, keys: dict[str, list[dict[str, Any]]]) -> None:
        """Takes the keys on which the time of operators goes, by uid. Snapshots of the next minute have them."""
        self._keys = self._now(), {uid: [HeavyKey(**one) for one in found] for uid, found in keys.items()}

    def make(self, view: JobView, *, subtasks: bool = False) -> JobSnapshot:
        """The snapshot of the job, whose newest view this is. `subtasks`: with the figures of each subtask."""
        views = self._views if self._views and self._views[-1].restarts == view.restarts else ()
        reports = Reports(self._plan, view, views)
        failures = list(self._failures)
        if view.cause is not None:
            failures.append(self._failure(self.since, view.cause))
        made = JobSnapshot(
            view.at / 1e6,
            self._job(view, reports, failures),
            "",
            self._shape,
            reports.operators(self._keys[1] if self._now() - self._keys[0] < KEYS_FOR else {}),
            reports.inputs(),
            reports.sources(),
            reports.loops(),
            None if view.books is None else self._checkpoints(view.books),
            [asdict(one) for one in view.slices.all],
            None if view.slices.standbys is None else list(view.slices.standbys),
            failures,
            self._stalls(view),
            reports.subtasks() if subtasks else None,
            self._lags.lag(view),
            size=None if view.size is None else view.size.figures(),
        )
        found = findings_of(made)
        sentence = found[0].text if found else NOTHING
        return msgspec.structs.replace(made, sentence=sentence, findings=found, health=health_of(found))

    def _job(self, view: JobView, reports: Reports, failures: list[FailureFigures]) -> JobFigures:
        newest = reports.newest
        watermark = overall_watermark(newest)
        reason = ""
        if view.status not in (JobStatus.RUNNING, JobStatus.FINISHED) and failures:
            reason = failures[-1].text
        return JobFigures(
            self._id,
            self._name,
            str(view.status),
            self.since,
            self._started / 1e6,
            reason,
            view.restarts,
            self._process,
            self._host,
            self._plan.slots,
            sum(bool(slot.reports) for slot in view.slots),
            sum(one.records_in for one in newest if one.source) if newest else None,
            sum(one.records_sunk for one in newest) if newest else None,
            reports.rate(lambda one: one.records_in if one.source else 0),
            reports.rate(lambda one: one.records_sunk),
            reports.workers_busy(),
            None if watermark is None else isoformat(watermark),
            reports.lag(watermark),
            inflight_bytes(newest) if newest else None,
            dict(view.refused),
        )

    def _failure(self, at: float, cause: Cause, advice: str = "") -> FailureFigures:
        name = cause.operator
        return FailureFigures(
            at,
            cause.kind.value,
            cause.message.partition("\n")[0],
            cause.message,
            None if name is None else self._uids.get(name),
            name,
            cause.subtask,
            cause.record,
            line_of(cause.message),
            advice,
        )

    def _checkpoints(self, books: Books) -> CheckpointsFigures:
        return CheckpointsFigures(
            books.completed,
            books.aborted,
            books.in_a_row,
            [CheckpointUnderWay(one.id, one.age / 1e6, one.phase, list(one.slots)) for one in books.pending],
            [_complete(one) for one in books.past],
            [CheckpointFailure(one.id, one.timestamp / 1e6, one.reason, one.failure) for one in books.failed],
            [PlaceOutage(one.place, one.reason, one.tries, one.age / 1e6) for one in books.waits],
        )

    def _stalls(self, view: JobView) -> list[StalledStep]:
        """The work of each worker that has not come back for long, the longest first."""
        found = []
        for slot, figures in enumerate(view.slots):
            one = figures.under_way
            if one is not None and one.micros >= STALLED_MICROS:
                known = [] if one.vertex is None else self._plan.vertices[one.vertex].nodes
                chain = [self._plan.graph.node(ident) for ident in known]
                named = [node.uid for node in chain if node.name == one.operator] or [node.uid for node in chain]
                uid = named[0] if named else self._uids.get(one.operator or "", "")
                work = "a step" if chain else "opening, publishing or closing"
                found.append(StalledStep(uid, slot, one.micros / 1e6, one.stack, work))
        return sorted(found, key=lambda one: -one.seconds)


def _complete(one: CheckpointStats) -> CheckpointFigures:
    return CheckpointFigures(
        one.id,
        one.timestamp / 1e6,
        one.path,
        one.duration / 1e6,
        one.trigger / 1e6,
        one.alignment / 1e6,
        one.freeze / 1e6,
        one.write / 1e6,
        one.size,
        one.full_size,
        one.policy,
        one.inflight,
    )
