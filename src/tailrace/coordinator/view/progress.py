"""The progress of a job, in the shape of Spark's `StreamingQueryProgress`: its JSON keys, our figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

from tailrace.coordinator.checkpoint_stats import Books
from tailrace.coordinator.view.slices import SizeFigures, Slices, standby_figures
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME, isoformat
from tailrace.graph.operators import Sink, Source
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import InputTime, SubtaskReport

LATE = ".late_records"
LAGS = ("lag_records", "lag_seconds")
"""The end of the name of the counter of a window's late records; the operator's name is before it."""


class Reporting(Protocol):
    """A slot of a job, with the newest report of its worker."""

    @property
    def reports(self) -> Sequence[SubtaskReport]: ...


class ProgressMaker:
    """A maker of progress reports for one job. Numbers of rows and rates are since the report before; the totals are under
    "tailrace". A figure of Spark's that Tailrace does not count (the memory of a state store, the time of its updates) is
    left out: a zero would mean that there was none."""

    def __init__(self, job_id: str, run_id: str, name: str, plan: Plan, started_at: int) -> None:
        self.job_id = job_id
        self.run_id = run_id
        self.name = name
        self._last_at = started_at
        self._last_in: dict[int, int] = {}
        """Records read until the last report, by source vertex."""
        self._last_out = 0
        self._last_busy: dict[int, int] = {}
        """The time that each slot had worked until the last report."""
        self._restarts = 0
        self._last_late: dict[int, int] = {}
        """Late records until the last report, by vertex."""
        self._number = -1
        self.resize(plan)

    def resize(self, plan: Plan) -> None:
        """Goes on with the plan of another size. Counts begin anew, as with a restart."""
        self.plan = plan
        self._last_in, self._last_out, self._last_late = {}, 0, {}
        roots = {vertex.id: plan.graph.node(vertex.nodes[0]).operator for vertex in plan.vertices}
        self._source_vertices = {ident: root for ident, root in roots.items() if isinstance(root, Source)}

    def make(
        self,
        slots: Sequence[Reporting],
        now: int,
        checkpoints: Books | None = None,
        restarts: int = 0,
        slices: Slices = Slices(),
        size: SizeFigures | None = None,
    ) -> dict[str, Any]:
        """A report at `now` (int64 microseconds since 1970). Counts begin anew with each restart. While a lost worker is
        being replaced they stay as they were: the replacement counts on, except for the time that it worked."""
        reports = [report for slot in slots for report in slot.reports]
        if restarts != self._restarts:
            self._restarts, self._last_in, self._last_out, self._last_late = restarts, {}, 0, {}
        by_source = {
            vertex: max(self._last_in.get(vertex, 0), sum(r.records_in for r in reports if r.vertex == vertex))
            for vertex in self._source_vertices
        }
        rows_in = sum(by_source.values())
        rows_out = max(self._last_out, sum(r.records_sunk for r in reports))
        busy = Counter[int]()
        for report in reports:
            busy[report.subtask] += report.worked_micros
        span = max(1, now - self._last_at)
        new, worked = rows_in - sum(self._last_in.values()), self._work_since(busy)
        processed = new * 1e6 / worked * len(slots) if worked else 0.0
        sources = self._sources(by_source, span, processed, reports)
        sunk = rows_out - self._last_out
        self._number += 1
        self._last_at, self._last_in, self._last_out = now, by_source, rows_out
        self._last_busy = {**self._last_busy, **busy}
        watermark = overall_watermark(reports)
        return {
            "id": self.job_id,
            "runId": self.run_id,
            "name": self.name,
            "timestamp": isoformat(now),
            "batchId": self._number,
            "batchDuration": span // 1000,
            "numInputRows": new,
            "inputRowsPerSecond": new * 1e6 / span,
            "processedRowsPerSecond": processed,
            "durationMs": {"triggerExecution": span // 1000, "busy": worked // 1000},
            "eventTime": {"watermark": isoformat(watermark)} if _is_instant(watermark) else {},
            "stateOperators": self._state(reports),
            "sources": sources,
            "sink": {"description": ", ".join(self._sinks()), "numOutputRows": sunk, "metrics": {}},
            "observedMetrics": {},
            "tailrace": {
                "totalInputRows": rows_in,
                "totalOutputRows": rows_out,
                "busyShare": min(1.0, worked / (span * max(1, len(slots)))),
                "watermark": None if watermark is None else isoformat(watermark),
                "inflightBytes": inflight_bytes(reports),
                "restarts": restarts,
                "checkpoints": None if checkpoints is None else checkpoint_figures(checkpoints),
                "standby": standby_figures(slices),
                "size": None if size is None else size.figures(),
                "stalled": stalled_figures(self.plan, reports),
            },
        }

    def _work_since(self, busy: Counter[int]) -> int:
        """The work of all slots since the report before. `busy` is the work of each slot since its worker began."""
        before = self._last_busy
        return sum(now - before.get(slot, 0) if now >= before.get(slot, 0) else now for slot, now in busy.items())

    def _sinks(self) -> list[str]:
        nodes = self.plan.graph.nodes
        return [n.operator.sink.description for n in nodes if isinstance(n.operator, Sink)]

    def _state(self, reports: list[SubtaskReport]) -> list[dict[str, Any]]:
        totals: Counter[int] = Counter()
        late: Counter[int] = Counter()
        for report in reports:
            totals[report.vertex] += report.state_entries
            late[report.vertex] += int(sum(count for name, count in report.metrics.items() if name.endswith(LATE)))
        late |= self._last_late
        stateful = sorted(vertex for vertex in totals if totals[vertex] or late[vertex])
        found = [self._state_of(vertex, totals[vertex], late[vertex]) for vertex in stateful]
        self._last_late = dict(late)
        return found

    def _state_of(self, vertex: int, total: int, late: int) -> dict[str, Any]:
        parallelism = self.plan.vertices[vertex].parallelism
        return {
            "operatorName": self.plan.vertices[vertex].name,
            "numRowsTotal": total,
            "numRowsDroppedByWatermark": late - self._last_late.get(vertex, 0),
            "numShufflePartitions": parallelism,
            "numStateStoreInstances": parallelism,
            "customMetrics": {},
        }

    def _sources(
        self, by_source: dict[int, int], span: int, processed: float, reports: list[SubtaskReport]
    ) -> list[dict[str, Any]]:
        found = []
        for vertex, operator in self._source_vertices.items():
            before, total = self._last_in.get(vertex, 0), by_source[vertex]
            found.append(
                {
                    "description": operator.source.description,
                    "startOffset": {"records": before},
                    "endOffset": {"records": total},
                    "latestOffset": None,
                    "numInputRows": total - before,
                    "inputRowsPerSecond": (total - before) * 1e6 / span,
                    "processedRowsPerSecond": processed,
                    "metrics": largest_lags([report.metrics for report in reports if report.vertex == vertex]),
                }
            )
        return found


def largest_lags(figures: list[dict[str, float]]) -> dict[str, float]:
    """The lag of a source: that of the split which is farthest from its end, in any subtask. Empty if it is not known."""
    found: dict[str, float] = {}
    for metrics in figures:
        for name, value in metrics.items():
            lag = name.rpartition(".")[2]
            if lag in LAGS:
                found[lag] = max(value, found.get(lag, value))
    return found


def checkpoint_figures(checkpoints: Books) -> dict[str, Any]:
    """Figures of checkpoints: counts, checkpoints under way, the last failure, outages that the job waits for, and the last
    complete one with its parts in milliseconds."""
    last = checkpoints.past[-1] if checkpoints.past else None
    return {
        "completed": checkpoints.completed,
        "aborted": checkpoints.aborted,
        "pending": len(checkpoints.pending),
        "underWay": [
            {"id": one.id, "ageMs": one.age / 1000, "phase": one.phase, "workers": list(one.slots)}
            for one in checkpoints.pending
        ],
        "failedInARow": checkpoints.in_a_row,
        "lastFailure": None
        if (failed := checkpoints.last_failure) is None
        else {"id": failed.id, "reason": failed.reason, "timestamp": isoformat(failed.timestamp)},
        "waitsFor": [
            {"place": one.place, "reason": one.reason, "tries": one.tries, "ageMs": one.age / 1000}
            for one in checkpoints.waits
        ],
        "last": None
        if last is None
        else {
            "id": last.id,
            "path": last.path,
            "timestamp": isoformat(last.timestamp),
            "durationMs": last.duration / 1000,
            "triggerMs": last.trigger / 1000,
            "alignmentMs": last.alignment / 1000,
            "freezeMs": last.freeze / 1000,
            "writeMs": last.write / 1000,
            "bytes": last.size,
            "fullBytes": last.full_size,
            "policy": last.policy,
            "inflightBytes": last.inflight,
            "inflightByOperator": last.inflight_by,
            "inflightReferredBytes": last.referred,
        },
    }


def overall_watermark(reports: list[SubtaskReport]) -> int | None:
    """The lowest watermark among subtasks that have one, or None where the job has no event time."""
    if not any(report.timed for report in reports):
        return None
    known = [r.watermark for r in reports if MIN_TIME < r.watermark < MAX_TIME]
    if known:
        return min(known)
    return MAX_TIME if all(r.watermark == MAX_TIME for r in reports) else MIN_TIME


def _is_instant(watermark: int | None) -> TypeGuard[int]:
    """True if it is a moment, as readers of Spark's reports expect, and not the beginning or the end of time."""
    return watermark is not None and MIN_TIME < watermark < MAX_TIME


def inflight_bytes(reports: Sequence[SubtaskReport]) -> int:
    """Bytes of records that wait in channels: they have arrived and are not read, or are emitted and have no credit."""
    return sum(r.queued_bytes + r.unsent_bytes for r in reports)


def _input(plan: Plan, time: InputTime) -> dict[str, Any]:
    """Event time on an input, and the subtask that holds it back."""
    source = plan.vertices[plan.edges[time.edge].source].name
    return {"from": source, "watermark": isoformat(time.watermark), "held_by": time.subtask}


STALLED_MICROS = 10_000_000
"""The duration from which a step under way is reported as stalled."""


def stalled_figures(plan: Plan, reports: Sequence[SubtaskReport]) -> list[dict[str, Any]]:
    """Steps that have been under way for long, the longest first."""
    found = sorted((r for r in reports if r.under_way_micros >= STALLED_MICROS), key=lambda r: -r.under_way_micros)
    return [
        {"vertex": plan.vertices[r.vertex].name, "subtask": r.subtask, "seconds": r.under_way_micros / 1e6}
        for r in found
    ]


def job_metrics(
    plan: Plan, reports: list[SubtaskReport], restarts: int, checkpoints: Books | None = None
) -> dict[str, Any]:
    """Figures of a whole job, its checkpoints and every subtask: records, busy time, queued bytes, users' own counters."""
    watermark = overall_watermark(reports)
    return {
        "records_in": sum(r.records_in for r in reports if r.source),
        "records_out": sum(r.records_sunk for r in reports),
        "busy_share": 0.0,
        "watermark": None if watermark is None else isoformat(watermark),
        "inflight_bytes": inflight_bytes(reports),
        "restarts": restarts,
        "checkpoints": None if checkpoints is None else checkpoint_figures(checkpoints),
        "refused_connections": {},
        "subtasks": subtask_figures(plan, reports),
    }


def subtask_figures(plan: Plan, reports: Sequence[SubtaskReport]) -> list[dict[str, Any]]:
    """Figures of every subtask, as `metrics()` has them."""
    return [
        {
            "vertex": plan.vertices[r.vertex].name,
            "subtask": r.subtask,
            "records_in": r.records_in,
            "records_out": r.records_out,
            "busy_seconds": r.worked_micros / 1e6,
            "under_way_seconds": r.under_way_micros / 1e6,
            "age_seconds": r.age_micros / 1e6,
            "queued_bytes": r.queued_bytes,
            "unsent_bytes": r.unsent_bytes,
            "state_entries": r.state_entries,
            "blocked": r.blocked,
            "waits_for": r.waits_for,
            "finished": r.finished,
            "watermark": isoformat(r.watermark),
            "inputs": [_input(plan, one) for one in r.inputs],
            "custom": dict(r.metrics),
        }
        for r in reports
    ]
