"""A job on Spark that changes its size while it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from typer.testing import CliRunner

import tailrace as tr
from tailrace.cli.main import app
from tailrace.coordinator.workers.rescaling import ElasticSizes
from tailrace.errors import GraphError, RescaleError, SlotsError
from tailrace.runtime.driver import machine_settings

pytestmark = pytest.mark.spark


class Total(tr.KeyedProcessFunction):
    total = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.total.value += 1
        yield f"{ctx.key} {self.total.value}"


def until(true: Any) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_gets_more_workers_and_gives_them_back(spark: Any, tmp_path: Path) -> None:
    """By its handle and from another terminal; what Spark cannot give is refused with the numbers, and the job goes on."""
    settings = tr.CheckpointConfig(dir=str(tmp_path / "checkpoints"), interval=0.3)
    env = tr.Environment(spark, parallelism=1, checkpoint=settings)
    numbers = env.from_source(tr.sources.Sequence(0, 1_000_000, rate=400), uid="numbers")
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

    job.stop(drain=True, timeout=60)
    lines = Counter(line for file in (tmp_path / "out").glob("part-*") for line in file.read_text().splitlines())
    of_key = [sum(line.startswith(f"{key} ") for line in lines) for key in range(5)]
    assert lines == Counter(f"{key} {count}" for key in range(5) for count in range(1, of_key[key] + 1))
    assert max(of_key) - min(of_key) <= 1 and sum(of_key) > 100
    with pytest.raises((RescaleError, tr.CheckpointError)):
        job.rescale(2)


class Numbered(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        yield f"{ctx.key} {self.count.value} {value}"


@contextlib.contextmanager
def other_tasks(spark: Any, count: int, over: Path) -> Iterator[None]:
    """Tasks of another party, as many as given, in a Spark job each: they run where there are free slots, and wait for
    others. All end behind the block."""
    context = spark.sparkContext

    def task(_: int, over: str = str(over)) -> None:
        import os
        import time

        while not os.path.exists(over):
            time.sleep(0.02)

    def jobs() -> int:
        return len(context.statusTracker().getActiveJobsIds())

    before = jobs()
    threads = [InheritableThread(target=context.parallelize([0], 1).foreach, args=(task,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: jobs() == before + count)
        yield
    finally:
        over.touch()
        for thread in threads:
            thread.join(60)


def test_an_elastic_job_goes_on_with_the_slots_that_are_left_and_grows_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed, and a task of another party gets its slot until the job has run with fewer workers."""
    monkeypatch.setattr(machine_settings, "ElasticSizes", partial(ElasticSizes, settle=100_000, pause=100_000))
    checkpoint = tr.CheckpointConfig(dir=str(tmp_path / "checkpoints"), interval=0.3)
    parallelism = tr.Elastic(1, 3, wait=2)
    env = tr.Environment(spark, parallelism=parallelism, checkpoint=checkpoint, restart=tr.FixedDelay(5, 0.0))
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=400), uid="numbers", parallelism=1)
    numbers.key_by(lambda n: n % 5).process(Numbered()).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")))
    job = env.execute("elastic")

    def runs_with(workers: int) -> bool:
        assert job.is_active, job.exception()
        settled = [one for one in job.slices if not one.change]
        return len(settled) == len(job.slices) == workers and job.status is tr.JobStatus.RUNNING

    def wait_for_output() -> None:
        begun = time.time()
        until(lambda: job.checkpoints and job.checkpoints[-1].timestamp > begun)

    until(lambda: runs_with(3))
    wait_for_output()
    with other_tasks(spark, 2, tmp_path / "over"):  # in the fourth slot, and in that of the worker
        os.kill(job.slices[1].pid, signal.SIGKILL)
        until(lambda: runs_with(2))
        assert job.restarts == 1
        wait_for_output()
    until(lambda: runs_with(3))
    wait_for_output()
    job.stop(timeout=60)
    assert job.status is tr.JobStatus.FINISHED and job.restarts == 1

    lines = [line for file in (tmp_path / "out").glob("part-*") for line in file.read_text().splitlines()]
    found = [tuple(map(int, line.split())) for line in lines]
    values = sorted(value for _, _, value in found)
    assert values == list(range(len(values)))
    of_key = Counter(value % 5 for value in values)
    assert sorted((key, count) for key, count, _ in found) == [
        (key, count) for key in range(5) for count in range(1, of_key[key] + 1)
    ]
