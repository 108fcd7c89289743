"""The page of a job on Spark."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.coordinator.view.job_snapshot import JobSnapshot

pytestmark = pytest.mark.spark


def test_a_job_has_a_page_from_its_start_and_behind_its_end(spark: Any, tmp_path: Path) -> None:
    env = tr.Environment(spark, parallelism=2, ui=True)
    numbers = env.from_source(tr.sources.Generator(lambda i: i, rate=2000), uid="numbers")
    numbers.key_by(lambda v: v % 7).process(lambda v, ctx: [v], uid="keep").sink_to(tr.sinks.Callback(abs), uid="out")
    job = env.execute("paged")
    assert job.ui is not None and job.ui.startswith("http://127.0.0.1:")

    def shot() -> JobSnapshot:
        with urllib.request.urlopen(f"{job.ui}/api/jobs/{job.id}", timeout=20) as answer:
            return msgspec.json.decode(answer.read(), type=JobSnapshot)

    try:
        with urllib.request.urlopen(f"{job.ui}/api/jobs/{job.id}/events", timeout=60) as events:
            for line in events:
                if line.startswith(b"data: "):
                    seen = msgspec.json.decode(line[6:], type=JobSnapshot)
                    if seen.job.status == "RUNNING" and seen.job.rate_in and seen.operators["keep"].busy:
                        break
        assert seen.operators["keep"].skew is not None and seen.job.workers_reporting == 2
        assert f'href="{job.ui}/#job={job.id}&amp;token=' in job._repr_html_()  # type: ignore[attr-defined]
    finally:
        job.cancel()
        job.await_termination()
    assert shot().job.status == "CANCELLED"
    with urllib.request.urlopen(f"{job.ui}/api/jobs", timeout=20) as answer:
        assert [one["status"] for one in json.load(answer) if one["id"] == job.id] == ["CANCELLED"]
