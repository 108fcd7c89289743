"""Streaming DataFrames as sources, on Spark."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tests.spark.conftest import Jobs
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark
COLUMNS = "number long, at timestamp"


def add(folder: Path, name: str, numbers: range) -> None:
    """A file of numbers; number n has the time n seconds after midnight."""
    folder.mkdir(exist_ok=True)
    lines = [f"{n},2024-01-01 {n // 3600:02d}:{n // 60 % 60:02d}:{n % 60:02d}\n" for n in numbers]
    (folder / f".{name}").write_text("".join(lines))
    (folder / f".{name}").rename(folder / f"{name}.csv")


def read(spark: Any, folder: Path, files: int = 1) -> Any:
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", files).csv(f"file://{folder}")


@pytest.mark.matrix
def test_windows_of_a_watermark_that_is_taken_over(spark: Any, tmp_path: Path) -> None:
    """The records of the second file come long after those of the first, out of order, in the batch that is allowed."""
    add(tmp_path / "in", "a", range(0, 600, 2))
    add(tmp_path / "in", "b", range(599, 0, -2))
    env = tr.Environment(spark, parallelism=2)
    df = read(spark, tmp_path / "in", files=2).withWatermark("at", "1 second").withColumnRenamed("number", "a.number")
    stream = env.from_streaming(df, trigger="available-now", uid="in")
    counted = stream.key_by(lambda r: 0).window(tr.Tumbling(60)).count()
    found = counted.collect()
    assert sorted(row[3] for row in found) == [60] * 10


def test_a_union_of_streams_that_have_watermarks_is_refused(spark: Any, tmp_path: Path) -> None:
    """Spark's watermark is the one that is behind; the column has the note of the first stream."""
    add(tmp_path / "in", "a", range(10))
    df = read(spark, tmp_path / "in").withWatermark("at", "1 second")
    with pytest.raises(tr.GraphError, match="2 watermarks"):
        tr.Environment(spark).from_streaming(df.union(df))
    tr.Environment(spark).from_streaming(df.where("number > 3").withColumnRenamed("at", "b"))


def test_every_row_once_though_a_worker_is_killed_and_the_job_starts_again(
    spark: Any, jobs: Jobs, tmp_path: Path
) -> None:
    def written() -> list[int]:
        return sorted(int(line) for path in jobs.out.glob("*.txt") for line in path.read_text().split())

    def start(begin: str | None) -> Any:
        env = jobs.env(checkpoint=tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.2))
        stream = env.from_streaming(read(spark, tmp_path / "in"), form="columns", uid="in")
        stream.to_rows().map(lambda r: r.number, uid="number").sink_to(tr.sinks.TextFiles(str(jobs.out)), uid="out")
        job = env.execute("numbers", from_checkpoint=begin)
        jobs.started.append(job)
        return job

    for part in range(3):
        add(tmp_path / "in", f"a{part}", range(part * 100, part * 100 + 100))
    job = start(None)
    assert waited(lambda: len(written()) >= 100 or not job.is_active, 120.0), job.exception()
    os.kill(jobs.workers(job)[1], signal.SIGKILL)
    add(tmp_path / "in", "b", range(300, 400))
    assert waited(lambda: len(written()) >= 400 or not job.is_active, 120.0), job.exception()
    assert list(job.metrics()["queries"]) == ["from_streaming"]
    job.stop()
    assert spark.streams.active == []
    add(tmp_path / "in", "c", range(400, 450))
    job = start("latest")
    assert waited(lambda: len(written()) >= 450 or not job.is_active, 120.0), job.exception()
    job.stop()
    assert written() == list(range(450))
    assert not list((tmp_path / "checkpoints").rglob("part-*.parquet"))[50:], "batches are deleted behind checkpoints"


def test_a_query_that_fails_fails_the_job(spark: Any, jobs: Jobs, tmp_path: Path) -> None:
    add(tmp_path / "in", "a", range(10))
    df = read(spark, tmp_path / "in").selectExpr("number", "raise_error('no such luck') as error")
    env = jobs.env()
    env.from_streaming(df).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env, running=False)
    with pytest.raises(tr.JobFailed, match=r"from_streaming: its streaming query has failed.*no such luck"):
        job.await_termination(120)
    assert spark.streams.active == []
