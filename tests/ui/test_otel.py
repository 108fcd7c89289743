"""Metrics and spans for OpenTelemetry, as its own exporters in memory have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tailrace.coordinator.checkpoint_stats import Books, CheckpointStats, FailedCheckpoint
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.slices import Failover, Slices, SliceStatus
from tailrace.protocol.deployment import FailureKind
from tailrace.runtime.driver import monitor
from tailrace.ui.families import FAMILIES
from tailrace.ui.jobs import LocalJob
from tailrace.ui.otel import JobSpans, instrument, name_of

from .running import job_of

SECOND = 1_000_000


def test_metrics_are_those_for_prometheus_with_dots_and_units(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    monkeypatch.setattr(monitor, "OBSERVERS", [])
    job, runner = job_of("numbers", "otel-1")
    reader = InMemoryMetricReader()
    instrument(MeterProvider([reader]), TracerProvider(), lambda: [LocalJob(job)])
    looks = runner.looks
    data = reader.get_metrics_data()
    assert data is not None
    found = {one.name: one for one in data.resource_metrics[0].scope_metrics[0].metrics}
    assert runner.looks == looks + 1, "one snapshot for all metrics of an export"
    read = found["tailrace.operator_waiting_bytes"]
    points = {point.attributes["operator"]: point.value for point in read.data.data_points}  # type: ignore[index,union-attr]
    assert len(points) > 1 and all(point.attributes["tailrace.job"] == "numbers" for point in read.data.data_points)  # type: ignore[index]
    assert (found["tailrace.job_status_seconds"].unit, found["tailrace.job_status"].unit) == ("s", "")
    assert len({name_of(one)[0] for one in FAMILIES}) == len(FAMILIES)
    job._monitor.close()


class Spans:
    """The spans of a job whose views a test gives."""

    def __init__(self) -> None:
        self.exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = JobSpans(provider.get_tracer("test"))

    def see(self, at: int, status: JobStatus = JobStatus.RUNNING, **others: Any) -> list[Any]:
        """The spans that a view at this second has ended."""
        self.spans.observe("visits", "run-1", replace(JobView(status, at * SECOND), **others))
        ended = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return ended


def parts(spans: list[Any]) -> list[tuple[str, int, int]]:
    return [(one.name, one.start_time // 1000, one.end_time // 1000) for one in spans]


def test_a_checkpoint_is_a_span_with_its_parts_and_one_that_was_given_up_has_its_reason() -> None:
    spans = Spans()
    made = CheckpointStats(7, "/c/7", 10 * SECOND, 100, 5_656, 10, 20, 30, 40, 6_000)
    lost = FailedCheckpoint(8, "worker 0 was lost", 12 * SECOND, failure=False)
    found = spans.see(13, books=Books((made,), 1, failed=(lost,)))
    start = 10 * SECOND
    assert parts(found) == [
        ("tailrace.checkpoint.trigger", start, start + 10),
        ("tailrace.checkpoint.alignment", start + 10, start + 30),
        ("tailrace.checkpoint.freeze", start + 30, start + 60),
        ("tailrace.checkpoint.write", start + 60, start + 100),
        ("tailrace.checkpoint", start, start + 100),
        ("tailrace.checkpoint", 12 * SECOND, 12 * SECOND),
    ]
    assert found[0].parent.span_id == found[4].context.span_id
    about = {"tailrace.job": "visits", "tailrace.run": "run-1", "tailrace.checkpoint": 7, "tailrace.bytes": 5_656}
    assert about.items() <= dict(found[4].attributes).items()
    assert found[5].status.description == "worker 0 was lost" and not found[5].status.is_ok
    assert spans.see(14, books=Books((made,), 1, failed=(lost,))) == [], "each once"


def test_a_restart_lasts_until_the_job_runs_again_or_has_failed() -> None:
    spans = Spans()
    assert spans.see(1) == spans.see(2, JobStatus.RESTARTING, restarts=1) == spans.see(3, JobStatus.RESTARTING) == []
    assert parts(spans.see(5)) == [("tailrace.restart", 2 * SECOND, 5 * SECOND)]
    spans.see(6, JobStatus.RESTARTING, restarts=2)
    [failed] = spans.see(7, JobStatus.FAILED, cause=Cause("no", FailureKind.USER))
    assert (failed.status.description, failed.attributes["tailrace.restarts"]) == ("no", 2)


def test_a_stop_and_a_replacement_are_spans() -> None:
    spans = Spans()
    last = Failover(3.0, 20.0, 1.0, 300.0, 79.0, 400.0, True)
    slices = Slices((SliceStatus(1, "h", None, 1, 0, last_failover=last),))
    found = spans.see(4, slices=slices)
    assert parts(found)[-1] == ("tailrace.failover", 3 * SECOND, 3 * SECOND + 400_000)
    assert [one.name.rpartition(".")[2] for one in found[:-1]] == ["process", "survivors", "restore", "replay"]
    assert found[-1].attributes["tailrace.slot"] == 1 and found[-1].attributes["tailrace.hot"]
    assert spans.see(5, JobStatus.STOPPING, slices=slices) == []
    assert parts(spans.see(8, JobStatus.FINISHED, slices=slices)) == [("tailrace.stop", 5 * SECOND, 8 * SECOND)]
    assert spans.spans._jobs == {}
