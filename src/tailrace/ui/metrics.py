"""Metrics of jobs for Prometheus: one collector, which takes a snapshot of each job at each scrape.

What they are is in `families`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
from tailrace.coordinator.view.snapshot import JobSnapshot, Metric
from tailrace.protocol.deployment import BUCKETS
from tailrace.ui.families import FAMILIES, JOB, SHOWN_ABOVE, labels_of, newest_snapshots
from tailrace.ui.jobs import Jobs

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


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
    without a name above are there as well."""
    made: dict[str, Any] = {}
    for shot in shots:
        labels = labels_of(shot)
        for uid, figures in shot.operators.items():
            where = [shot.job.name, labels[uid]]
            for name, metric in figures.metrics.items():
                if name not in SHOWN_ABOVE and "[" not in name:  # a figure of one split would be a label that grows
                    _add(made, name, metric, where)
    yield from (made[name] for name in sorted(made))


def _add(made: dict[str, Any], name: str, metric: Metric, where: list[str]) -> None:
    plain = "tailrace_user_" + re.sub(r"\W", "_", name, flags=re.ASCII)
    label = [JOB, "operator"]
    if metric.kind == "histogram" and metric.buckets is not None:
        counts, ends = [0.0], [*map(str, BUCKETS), "+Inf"]
        for count in metric.buckets:
            counts.append(counts[-1] + count)
        family = made.setdefault(plain, HistogramMetricFamily(plain, f"{name} of user code.", labels=label))
        if isinstance(family, HistogramMetricFamily):
            family.add_metric(where, list(zip(ends, counts[1:], strict=True)), metric.total)
    elif metric.kind == "counter":
        plain += "" if plain.endswith("_total") else "_total"
        family = made.setdefault(plain, CounterMetricFamily(plain, f"{name} of user code.", labels=label))
        family.add_metric(where, metric.total)
    else:  # the most says more than a sum of levels
        family = made.setdefault(plain, GaugeMetricFamily(plain, f"{name} of user code, the most.", labels=label))
        if isinstance(family, GaugeMetricFamily):
            family.add_metric(where, metric.most)
