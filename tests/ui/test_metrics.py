"""Metrics for Prometheus: names, labels, kinds, and which jobs have them."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import tailrace as tr
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView, SlotFigures
from tailrace.coordinator.view.snapshot_maker import SnapshotMaker
from tailrace.ui.jobs import NotAnswered
from tailrace.ui.metrics import FAMILIES, JobCollector, exposition

SNAPSHOTS = Path(__file__).parent / "snapshots"
DOCS = Path(__file__).parents[2] / "docs"
LABELS = {"tailrace_job", "operator", "input", "status", "le"}


class Held:
    """A job whose snapshot is in a file, or given."""

    def __init__(self, held: str | dict[str, Any]) -> None:
        self.snapshot = json.loads((SNAPSHOTS / f"{held}.json").read_text()) if isinstance(held, str) else held
        self.requests = 0

    def who(self) -> dict[str, Any]:
        return {"id": self.snapshot["job"]["id"]}

    def request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.requests += 1
        return self.snapshot


class Gone(Held):
    def request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        raise NotAnswered("the job has ended")


def samples(*jobs: Any) -> dict[tuple[str, str, str], float]:
    """(name, job, operator or status) -> value."""
    found = {}
    for family in text_string_to_metric_families(exposition(lambda: jobs).decode()):
        for one in family.samples:
            assert set(one.labels) <= LABELS, one
            where = one.labels.get("operator", one.labels.get("status", ""))
            found[one.name, one.labels["tailrace_job"], where] = one.value
    return found


def test_figures_of_real_jobs_are_exposed() -> None:
    found = samples(Held("slow"), Held("loop"), Held("failed-checkpoint"), Held("failover"))
    assert found["tailrace_operator_records_in_total", "slow", "score"] > 0
    assert found["tailrace_operator_busy_ratio", "slow", "score"] > 0.8
    assert found["tailrace_loop_feedback_records_total", "loop", "halving"] > 0
    assert found["tailrace_checkpoints_failed_in_a_row", "checkpoints", ""] == 2
    assert found["tailrace_workers_replaced_total", "failover", ""] == 1
    assert found["tailrace_job_status", "slow", "RUNNING"] == 1
    assert found["tailrace_job_status", "slow", "FAILED"] == 0
    assert found["tailrace_user_scored_total", "slow", "score"] > 0


def test_what_is_not_known_is_left_out_and_is_no_zero() -> None:
    names = {name for name, _, _ in samples(Held("starting"))}
    assert "tailrace_job_status" in names
    assert not {"tailrace_operator_records_in_total", "tailrace_inflight_bytes"} & names


def test_the_figures_of_a_job_go_with_it() -> None:
    assert {name for name, _, _ in samples(Held("failed"), Held("finished"))} == {"tailrace_job_status"}
    assert samples(Gone("slow")) == {}


def test_of_jobs_with_one_name_one_that_runs_is_shown() -> None:
    runs, failed = copy.deepcopy(Held("slow").snapshot), copy.deepcopy(Held("slow").snapshot)
    failed["job"] |= {"status": "FAILED", "started": runs["job"]["started"] + 60}
    for jobs in ((runs, failed), (failed, runs)):
        found = samples(*map(Held, jobs))
        assert found["tailrace_job_status", "slow", "RUNNING"] == 1
        assert found["tailrace_operator_records_in_total", "slow", "score"] > 0


def test_two_loops_and_two_figures_of_one_name_are_told_apart_or_left_out(caplog: pytest.LogCaptureFixture) -> None:
    shot = copy.deepcopy(Held("loop").snapshot)
    shot["loops"].append({**shot["loops"][0], "scope": "another"})
    figures = {"total": 1.0, "least": 1.0, "most": 1.0}
    metrics = {"a.b": figures, "a_b": figures, "a b total": {**figures, "kind": "gauge"}, "größe": figures}
    next(iter(shot["operators"].values()))["metrics"] = metrics
    lines = [line for line in exposition(lambda: [Held(shot)]).decode().splitlines() if not line.startswith("#")]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))
    assert sum("tailrace_user_a_b_total" in one for one in series) == 1, "Prometheus would refuse a second one"
    assert sum("tailrace_loop_waiting_records" in one for one in series) == 2
    assert "another one has its name tailrace_user_a_b_total" in caplog.text


def test_levels_that_are_no_finite_numbers_are_what_they_are() -> None:
    shot = copy.deepcopy(Held("slow").snapshot)
    for name, level in (("nan", math.nan), ("most", math.inf)):
        shot["operators"]["score"]["metrics"][name] = {"total": level, "least": level, "most": level, "kind": "gauge"}
    found = samples(Held(shot))
    assert math.isnan(found["tailrace_user_nan", "slow", "score"])
    assert found["tailrace_user_most", "slow", "score"] == math.inf


def test_no_label_grows_and_each_series_is_there_once() -> None:
    older, newer = Held("slow"), Held("slow")
    newer.snapshot["job"] |= {"id": "another", "started": older.snapshot["job"]["started"] + 1, "restarts": 9}
    assert samples(older, newer)["tailrace_restarts_total", "slow", ""] == 9, "the newest of one name"
    text = exposition(lambda: [older, newer]).decode()
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    for part in (older.snapshot["job"]["id"], "another", "/home/", str(older.snapshot["job"]["process"])):
        assert part not in text


def test_a_collector_takes_one_snapshot_for_each_scrape_and_none_before() -> None:
    job = Held("slow")
    registry = CollectorRegistry()
    registry.register(JobCollector(lambda: [job]))
    assert job.requests == 0
    list(registry.collect())
    assert job.requests == 1


def test_counters_gauges_and_histograms_of_functions() -> None:
    def measured(value: int, ctx: Any) -> Any:
        ctx.metrics.inc("seen")
        ctx.metrics.set("level", value)
        ctx.metrics.observe("call_seconds", value / 100)
        yield value

    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(1, 101), uid="numbers")
    numbers.process(measured, uid="measured", name="measured").sink_to(tr.sinks.Callback(abs))
    job = tr.testing.run(env)
    plan, reports = job.simulation.plan, job.simulation.reports
    maker = SnapshotMaker("id", "measures", plan, lambda: 0)
    shot = maker.make(JobView(JobStatus.RUNNING, slots=[SlotFigures(reports)]))
    found = samples(Held(msgspec.to_builtins(shot)))
    assert found["tailrace_user_seen_total", "measures", "measured"] == 100
    assert found["tailrace_user_level", "measures", "measured"] == 100
    assert found["tailrace_user_call_seconds_count", "measures", "measured"] == 100
    assert found["tailrace_user_call_seconds_sum", "measures", "measured"] == pytest.approx(50.5)
    text = exposition(lambda: [Held(msgspec.to_builtins(shot))]).decode()
    buckets = re.findall(r'tailrace_user_call_seconds_bucket\{le="([^"]+)",.*\} (\S+)', text)
    assert ("0.5", "50.0") in buckets and ("0.01", "1.0") in buckets and ("+Inf", "100.0") in buckets


@pytest.mark.parametrize("wrong", [float("nan"), "much"])
def test_what_is_no_number_is_in_no_histogram(wrong: Any) -> None:
    from tailrace.task.channels.services import Metrics

    metrics = Metrics()
    with pytest.raises(ValueError):
        metrics.observe("seconds", wrong)
    assert metrics.counters == {}


# The files for dashboards and alerts.


def test_dashboard_and_alerts_use_metrics_that_there_are() -> None:
    known = {family.name for family in FAMILIES}
    board = json.loads((DOCS / "monitoring" / "grafana.json").read_text(encoding="utf-8"))
    alerts = (DOCS / "monitoring" / "alerts.yml").read_text(encoding="utf-8")
    for text in (json.dumps(board), alerts):
        named = set(re.findall(r"\btailrace_(?!job\b)\w+", text))
        assert named and named <= known, named - known
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 10


def test_each_row_of_the_alerts_in_the_guide_has_a_rule() -> None:
    page = (DOCS / "guide" / "in-production.md").read_text(encoding="utf-8").partition("## What to watch")[2]
    named = re.findall(r"\| `(Tailrace\w+)` \|", page)
    rules = re.findall(r"- alert: (\w+)", (DOCS / "monitoring" / "alerts.yml").read_text(encoding="utf-8"))
    assert named == rules and len(rules) == 10


def test_each_metric_is_in_the_guide() -> None:
    page = (DOCS / "guide" / "page.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(tailrace_\w+)` \| ([^|]*) \| (.*) \|$", page, re.MULTILINE)
    expected = [(one.name, ", ".join(f"`{label}`" for label in one.labels), one.text) for one in FAMILIES]
    assert rows == expected
