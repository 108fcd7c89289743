"""Metrics of jobs for Prometheus: one collector, which takes a snapshot of each job at each scrape.

What they are is in `families`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Exposed,
)
from prometheus_client.registry import Collector

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.job_snapshot import JobSnapshot, Metric
from tailrace.log import log
from tailrace.protocol.deployment import BUCKETS
from tailrace.ui.families import FAMILIES, JOB, SHOWN_ABOVE, labels_of, newest_snapshots
from tailrace.ui.jobs import Jobs

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class JobCollector(Collector):
    """The collector for a registry of Prometheus. It takes the snapshots of these jobs at each scrape."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def describe(self) -> list[Exposed]:
        """None: nothing is computed when the collector is registered."""
        return []

    def collect(self) -> Iterator[Exposed]:
        """The metrics of all running jobs; of those that have ended the status alone, as long as their program lives."""
        shots = newest_snapshots(self._jobs)
        running = [shot for shot in shots if not JobStatus(shot.job.status).final]
        for family in FAMILIES:
            kind = CounterMetricFamily if family.counts else GaugeMetricFamily
            made = kind(family.name, family.text, labels=[JOB, *family.labels])
            for shot in shots if family.labels == ("status",) else running:
                for labels, value in family.samples(shot):
                    if value is not None:
                        made.add_metric([shot.job.name, *labels], float(value))
            yield made
        yield from _of_users(running)


def exposition(jobs: Jobs) -> bytes:
    """The metrics of these jobs as text for Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobCollector(jobs))
    return generate_latest(registry)


# Metrics of users.


def _of_users(shots: Iterable[JobSnapshot]) -> Iterator[Exposed]:
    """Counters, gauges and histograms of functions, under names that begin with `tailrace_user_`. Operators' own figures
    without a name above are there as well. A second one with a name and labels that another has is left out: Prometheus
    would refuse it."""
    made: dict[str, Exposed] = {}
    seen: set[tuple[str, ...]] = set()
    for shot in shots:
        labels = labels_of(shot)
        for uid, figures in shot.operators.items():
            for name, metric in figures.metrics.items():
                if name in SHOWN_ABOVE or "[" in name:  # a figure of one split would be a label that grows
                    continue
                plain, where = _plain(name, metric), (shot.job.name, labels[uid])
                kind = _KINDS[metric.kind]
                family = made.setdefault(plain, kind(plain, f"{name} of user code.", labels=[JOB, "operator"]))
                if (plain, *where) in seen or type(family) is not kind:
                    log.warning(
                        "metric %r of operator %r is left out: another one has its name %s", name, labels[uid], plain
                    )
                    continue
                seen.add((plain, *where))
                _add(family, where, metric)
    yield from (made[name] for name in sorted(made))


def _plain(name: str, metric: Metric) -> str:
    """The name of a figure for Prometheus."""
    plain = "tailrace_user_" + re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain + "_total" if metric.kind == "counter" and not plain.endswith("_total") else plain


def _add(family: Any, where: tuple[str, str], metric: Metric) -> None:
    if metric.kind == "histogram":
        ends = [*map(str, BUCKETS), "+Inf"]
        family.add_metric(where, list(zip(ends, accumulate(metric.buckets or ()), strict=False)), metric.total)
    else:  # of levels the most says more than a sum
        family.add_metric(where, metric.most if metric.kind == "gauge" else metric.total)
