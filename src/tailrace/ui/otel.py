"""Metrics and spans for OpenTelemetry, by its extra `tailrace[otel]`: `instrument()` once, before the first job.

The metrics are those for Prometheus, under names with dots: a snapshot of each job is taken at each export. Spans are of
checkpoints, restarts, stops and replacements of workers, each with its parts, made when it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider

from tailrace import __version__
from tailrace.coordinator.checkpoint_stats import Books, CheckpointStats
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.slices import Failover
from tailrace.runtime.driver.monitor import OBSERVERS
from tailrace.ui.families import FAMILIES, Family, newest_snapshots
from tailrace.ui.jobs import Jobs, own_jobs

FRESH = 0.5
"""Seconds for which the snapshots of one export are used: each metric is read by itself."""
UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}
"""The end of a name for Prometheus -> the unit."""
_CHECKPOINT_PARTS = ("trigger", "alignment", "freeze", "write")
_FAILOVER_PARTS = ("process_ms", "survivors_ms", "restore_ms", "replay_ms")
Attributes = dict[str, Any]


def instrument(
    meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None, jobs: Jobs = own_jobs
) -> None:
    """Lets OpenTelemetry have the metrics and spans of this program's jobs. `meter_provider`, `tracer_provider`: the global
    ones where none are given. Call it once."""
    meter = metrics.get_meter("tailrace", __version__, meter_provider)
    reading = _Reading(jobs)
    for family in FAMILIES:
        name, unit = name_of(family)
        create = meter.create_observable_counter if family.counts else meter.create_observable_gauge
        create(name, [reading.callback(family)], unit, family.text)
    OBSERVERS.append(JobSpans(trace.get_tracer("tailrace", __version__, tracer_provider)).observe)


def name_of(family: Family) -> tuple[str, str]:
    """The name of a metric, and its unit. An exporter to Prometheus makes the name there out of them."""
    name = family.name.removesuffix("_total").replace("tailrace_", "tailrace.", 1)
    return name, next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


class _Reading:
    """The snapshots of one export, for all metrics."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._at = -FRESH
        self._shots: list[JobSnapshot] = []

    def _newest(self) -> list[JobSnapshot]:
        with self._lock:
            if time.monotonic() - self._at >= FRESH:
                self._shots, self._at = newest_snapshots(self._jobs), time.monotonic()
            return self._shots

    def callback(self, family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """The function that gives the values of a metric."""

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            for shot in self._newest():
                if family.labels == ("status",) or not JobStatus(shot.job.status).final:
                    for labels, value in family.samples(shot):
                        if value is not None:
                            known = dict(zip(family.labels, labels, strict=True))
                            yield Observation(float(value), {"tailrace.job": shot.job.name, **known})

        return observe


@dataclass
class _Known:
    """The spans of a job that were made, and those that are open."""

    checkpoint: int = 0
    """The newest complete checkpoint."""
    given_up: set[int] = field(default_factory=set)
    failovers: dict[int, float] = field(default_factory=dict)
    """Slot -> the time of the last replacement of its worker."""
    open: dict[JobStatus, Span] = field(default_factory=dict)


class JobSpans:
    """The spans of jobs, by their views."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._jobs: dict[str, _Known] = {}

    def observe(self, job: str, run: str, view: JobView) -> None:
        """Takes a view of a job."""
        known = self._jobs.setdefault(run, _Known())
        about = {"tailrace.job": job, "tailrace.run": run}
        if view.books is not None:
            self._checkpoints(view.books, known, about)
        for one in view.slices.all:
            last = one.last_failover
            if last is not None and known.failovers.get(one.slot) != last.timestamp:
                known.failovers[one.slot] = last.timestamp
                self._failover(last, about | {"tailrace.slot": one.slot, "tailrace.hot": last.hot})
        self._course(view, known, about)
        if view.status.final:
            del self._jobs[run]

    def _course(self, view: JobView, known: _Known, about: Attributes) -> None:
        """The spans of a restart and of a stop, which last as long as the status."""
        for status, name in ((JobStatus.RESTARTING, "tailrace.restart"), (JobStatus.STOPPING, "tailrace.stop")):
            span, now = known.open.get(status), view.status is status
            if now and span is None:
                more = {"tailrace.restarts": view.restarts}
                known.open[status] = self._tracer.start_span(name, attributes=about | more, start_time=view.at * 1000)
            elif span is not None and not now:
                if view.status is JobStatus.FAILED or view.status is JobStatus.FAILING:
                    span.set_status(Status(StatusCode.ERROR, "" if view.cause is None else view.cause.message))
                known.open.pop(status).end(view.at * 1000)

    def _checkpoints(self, books: Books, known: _Known, about: Attributes) -> None:
        for one in books.past:
            if one.id > known.checkpoint:
                known.checkpoint = one.id
                self._checkpoint(one, about)
        for failed in books.failed:
            if failed.id not in known.given_up:
                known.given_up.add(failed.id)
                at, more = failed.timestamp * 1000, {"tailrace.checkpoint": failed.id}
                span = self._tracer.start_span("tailrace.checkpoint", attributes=about | more, start_time=at)
                span.set_status(Status(StatusCode.ERROR, failed.reason))
                span.end(at)
        known.given_up &= {one.id for one in books.failed}

    def _checkpoint(self, one: CheckpointStats, about: Attributes) -> None:
        figures = {"checkpoint": one.id, "bytes": one.size, "full_bytes": one.full_size, "policy": one.policy}
        more = {f"tailrace.{name}": value for name, value in figures.items()}
        parts = [(name, getattr(one, name) * 1000) for name in _CHECKPOINT_PARTS]
        self._whole("tailrace.checkpoint", one.timestamp * 1000, parts, about | more)

    def _failover(self, last: Failover, about: Attributes) -> None:
        parts = [(name.removesuffix("_ms"), int(getattr(last, name) * 1e6)) for name in _FAILOVER_PARTS]
        self._whole("tailrace.failover", int(last.timestamp * 1e9), parts, about)

    def _whole(self, name: str, start: int, parts: list[tuple[str, int]], about: Attributes) -> None:
        """A span that has ended, with its parts one after the other. Times are nanoseconds since 1970."""
        span = self._tracer.start_span(name, attributes=about, start_time=start)
        at = start
        for part, took in parts:
            inside = trace.set_span_in_context(span)
            self._tracer.start_span(f"{name}.{part}", inside, start_time=at).end(at + took)
            at += took
        span.end(at)
