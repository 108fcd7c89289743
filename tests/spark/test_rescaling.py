"""A job on Spark that changes its size while it runs."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tailrace as tr
from tailrace.cli.main import app
from tailrace.errors import GraphError, RescaleError, SlotsError

pytestmark = pytest.mark.spark


class Total(tr.KeyedProcessFunction):
    total = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.total.value += 1
        yield f"{ctx.key} {self.total.value}"


def until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_gets_more_workers_and_gives_them_back(spark: Any, tmp_path: Path) -> None:
    """By its handle and from another terminal; what Spark cannot give is refused with the numbers, and the job goes on."""
    settings = tr.CheckpointConfig(dir=str(tmp_path / "checkpoints"), interval=0.3)
    env = tr.Environment(spark, parallelism=1, checkpoint=settings)
    numbers = env.from_source(tr.sources.Sequence(0, 4000, rate=400), uid="numbers")
    numbers.key_by(lambda n: n % 5).process(Total(), uid="totals").sink_to(tr.sinks.TextFiles(str(tmp_path / "out")))
    job = env.execute("sizes")
    until(lambda: job.last_progress and job.last_progress["tailrace"]["totalInputRows"])

    with pytest.raises(SlotsError, match="would need 100 task slots, and Spark has"):
        job.rescale(100)
    with pytest.raises(GraphError, match="no operator of the job has the uid 'nobody'"):
        job.rescale({"nobody": 2})
    assert job.rescale(1) == 1
    first = job.slices[0].pid

    assert job.rescale(2, timeout=60) == 2
    assert [one.slot for one in job.slices] == [0, 1] and job.slices[0].pid == first
    assert "x2" in job.explain() and job.restarts == 0 and job.status is tr.JobStatus.RUNNING
    until(lambda: {one["subtask"] for one in job.metrics()["subtasks"]} == {0, 1})

    told = CliRunner().invoke(app, ["rescale", "sizes", "1"])
    assert told.exit_code == 0 and "runs with 1 worker" in told.output, told.output
    assert len(job.slices) == 1 and job.slices[0].pid == first
    refused = CliRunner().invoke(app, ["rescale", "sizes", "none"])
    assert refused.exit_code == 2 and "expected a number" in refused.output

    assert job.await_termination(60)
    lines = Counter(line for file in (tmp_path / "out").glob("part-*") for line in file.read_text().splitlines())
    assert lines == Counter(f"{key} {count}" for key in range(5) for count in range(1, 801))
    with pytest.raises((RescaleError, tr.CheckpointError)):
        job.rescale(2)
