"""How a job goes, in the shape of Spark's `StreamingQueryProgress`: its JSON keys, our figures."""

from __future__ import annotations

from typing import Any

from tailrace.coordinator.roster import Slot
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME, isoformat
from tailrace.graph.operators import Sink, Source
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import SubtaskReport


class ProgressMaker:
    """Makes one progress report after another for one job; rates are since the report before."""

    def __init__(self, job_id: str, run_id: str, name: str, plan: Plan, started_at: int) -> None:
        self.job_id = job_id
        self.run_id = run_id
        self.name = name
        self.plan = plan
        self._last_at = started_at
        self._last_in = 0
        self._last_busy = 0
        self._number = -1

    def make(self, slots: list[Slot], now: int) -> dict[str, Any]:
        """A report at `now` (int64 microseconds since 1970)."""
        reports = [report for slot in slots for report in slot.reports]
        rows_in = sum(r.records_in for r in reports if r.source)
        rows_out = sum(r.records_out for r in reports if self._ends_in_sink(r.vertex))
        busy = sum(r.busy_micros for r in reports)
        span = max(1, now - self._last_at)
        new, worked = rows_in - self._last_in, busy - self._last_busy
        self._number += 1
        self._last_at, self._last_in, self._last_busy = now, rows_in, busy
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
            "processedRowsPerSecond": new * 1e6 / worked * len(slots) if worked else 0.0,
            "durationMs": {"triggerExecution": span // 1000, "busy": worked // 1000},
            "eventTime": {} if watermark is None else {"watermark": isoformat(watermark)},
            "stateOperators": self._state(reports),
            "sources": self._sources(reports, new, span),
            "sink": {"description": ", ".join(self._sinks()), "numOutputRows": rows_out},
            "observedMetrics": {},
            "tailrace": {
                "totalInputRows": rows_in,
                "totalOutputRows": rows_out,
                "busyShare": min(1.0, worked / (span * max(1, len(slots)))),
                "watermark": None if watermark is None else isoformat(watermark),
            },
        }

    def _ends_in_sink(self, vertex: int) -> bool:
        return any(isinstance(self.plan.graph.node(n).operator, Sink) for n in self.plan.vertices[vertex].nodes)

    def _sinks(self) -> list[str]:
        nodes = self.plan.graph.nodes
        return [n.operator.sink.description for n in nodes if isinstance(n.operator, Sink)]

    def _state(self, reports: list[SubtaskReport]) -> list[dict[str, Any]]:
        totals: dict[int, int] = {}
        for report in reports:
            if report.state_entries:
                totals[report.vertex] = totals.get(report.vertex, 0) + report.state_entries
        return [
            {"operatorName": self.plan.vertices[v].name, "numRowsTotal": total, "numShufflePartitions":
             self.plan.vertices[v].parallelism}
            for v, total in sorted(totals.items())
        ]  # fmt: skip

    def _sources(self, reports: list[SubtaskReport], new: int, span: int) -> list[dict[str, Any]]:
        found = []
        for vertex in self.plan.vertices:
            operator = self.plan.graph.node(vertex.nodes[0]).operator
            if isinstance(operator, Source):
                total = sum(r.records_in for r in reports if r.vertex == vertex.id)
                found.append(
                    {
                        "description": operator.source.description,
                        "startOffset": None,
                        "endOffset": {"records": total},
                        "latestOffset": None,
                        "numInputRows": total,
                        "inputRowsPerSecond": new * 1e6 / span,
                    }
                )
        return found


def overall_watermark(reports: list[SubtaskReport]) -> int | None:
    """The lowest watermark among subtasks that have one, or None where the job has no event time."""
    if not any(report.timed for report in reports):
        return None
    known = [r.watermark for r in reports if MIN_TIME < r.watermark < MAX_TIME]
    if known:
        return min(known)
    return MAX_TIME if all(r.watermark == MAX_TIME for r in reports) else MIN_TIME
