"""The handle of a job: like Spark's StreamingQuery, in snake_case."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import tailrace as tr

pytestmark = pytest.mark.spark


NOT_COUNTED = {
    "numRowsUpdated",
    "numRowsRemoved",
    "allUpdatesTimeMs",
    "allRemovalsTimeMs",
    "commitTimeMs",
    "memoryUsedBytes",
}
"""Figures of Spark's state stores that ours have no like of: left out, because a zero would mean that there was
none."""


@pytest.fixture(scope="module")
def reported(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A progress report that Spark's own streaming gives, of a query with state."""
    rates = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    writer = rates.groupBy("value").count().writeStream.format("noop").outputMode("update")
    where = str(tmp_path_factory.mktemp("checkpoint"))
    query = writer.option("checkpointLocation", where).trigger(processingTime="500 milliseconds").start()
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            progress = query.lastProgress
            if progress is not None and progress["numInputRows"] and progress["stateOperators"]:
                return json.loads(json.dumps(progress, default=str))  # type: ignore[no-any-return]
            time.sleep(0.1)
    finally:
        query.stop()
    pytest.fail("Spark reported nothing")


def test_progress_has_the_shape_of_a_streaming_query(jobs: Any, reported: dict[str, Any]) -> None:
    env = jobs.env()
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=1000)).assign_timestamps(float)
    numbers.key_by(lambda x: x % 10).count().sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env, "a name")
    assert job.last_progress is None
    deadline = time.monotonic() + 20
    while len(job.recent_progress) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    progress = job.last_progress
    assert progress is not None
    assert set(progress) == set(reported) | {"tailrace"}
    assert set(progress["sources"][0]) == set(reported["sources"][0])
    assert set(progress["sink"]) == set(reported["sink"])
    assert set(progress["stateOperators"][0]) == set(reported["stateOperators"][0]) - NOT_COUNTED
    for key, value in reported.items():
        if value is not None:
            kind = (int, float) if isinstance(value, int | float) else type(value)
            assert isinstance(progress[key], kind), key
    assert (progress["id"], progress["runId"], progress["name"]) == (job.id, job.run_id, "a name")
    assert progress["timestamp"].endswith("Z") and progress["eventTime"]["watermark"].endswith("Z")

    # Numbers of rows are those since the report before, as in Spark; they add up to the totals.
    recent = job.recent_progress
    assert [p["batchId"] for p in recent] == list(range(len(recent)))
    last = recent[-1]
    assert sum(p["numInputRows"] for p in recent) == last["tailrace"]["totalInputRows"]
    assert sum(p["sources"][0]["numInputRows"] for p in recent) == last["tailrace"]["totalInputRows"]
    assert sum(p["sink"]["numOutputRows"] for p in recent) == last["tailrace"]["totalOutputRows"]
    assert recent[1]["sources"][0]["startOffset"] == recent[0]["sources"][0]["endOffset"]
    assert 600 < last["inputRowsPerSecond"] < 1400
    assert 0 < last["tailrace"]["busyShare"] < 1
    assert last["stateOperators"][0]["numRowsTotal"] == 10


def test_two_sources_are_reported_apart(jobs: Any) -> None:
    env = jobs.env(1)
    fast = env.from_source(tr.sources.Sequence(0, None, rate=2000))
    slow = env.from_source(tr.sources.Sequence(0, None, rate=200))
    fast.union(slow).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    time.sleep(2.6)
    one, two = (s["inputRowsPerSecond"] for s in job.last_progress["sources"])
    assert one > 5 * two > 0


def test_waiting_and_asking(jobs: Any) -> None:
    job = jobs.endless()
    assert job.is_active
    assert job.exception() is None
    requested = time.monotonic()
    assert job.await_termination(0.3) is False
    assert 0.25 < time.monotonic() - requested < 2
    assert job.await_termination(0) is False
    assert job.is_active
    assert "endless" in repr(job) and "RUNNING" in repr(job) and job.id in repr(job)
    assert "the map" in job.explain()
    job.cancel()
    assert job.await_termination(10) is True
    assert not job.is_active
    assert job.await_termination() is True  # again, at once


def test_metrics_count_every_record(jobs: Any) -> None:
    class Counts(tr.MapFunction):
        def open(self, ctx: Any) -> None:
            self.metrics = ctx.metrics

        def map(self, value: int) -> int:
            self.metrics.inc("seen")
            return value

    env = jobs.env()
    numbers = env.from_source(tr.sources.Sequence(0, 10_000)).map(Counts(), name="counting")
    numbers.filter(lambda x: x % 2 == 0).key_by(lambda x: x % 10).count().sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    assert job.await_termination(30)
    metrics = job.metrics()
    assert metrics["records_in"] == 10_000
    assert metrics["records_out"] == 5_000
    assert metrics["refused_connections"] == {}
    assert sum(s["custom"].get("counting.seen", 0) for s in metrics["subtasks"]) == 10_000
    assert all(s["finished"] and s["queued_bytes"] == 0 for s in metrics["subtasks"])
    assert job.last_progress["tailrace"]["totalInputRows"] == 10_000


def test_two_jobs_at_once(jobs: Any, tmp_path: Any) -> None:
    """The first record of each waits until the other job has read its own: they end only where both run."""

    def meeting(x: int, i: int) -> int:
        if x == 0:
            (tmp_path / f"reads {i}").touch()
            while not (tmp_path / f"reads {1 - i}").exists():
                time.sleep(0.01)
        return x + i

    running = []
    for i in range(2):
        env = jobs.env(1)
        numbers = env.from_source(tr.sources.Sequence(0, 3000)).map(lambda x, i=i: meeting(x, i))
        numbers.sink_to(tr.sinks.TextFiles(str(tmp_path / str(i))))
        running.append(jobs.start(env, f"one of two, {i}"))
    for i, job in enumerate(running):
        assert job.await_termination(20)
        lines = [int(n) for part in (tmp_path / str(i)).iterdir() for n in part.read_text().split()]
        assert sorted(lines) == list(range(i, 3000 + i))


def test_cancelling_one_job_leaves_the_other_alone(jobs: Any) -> None:
    one, two = jobs.endless(parallelism=1), jobs.endless(parallelism=1)
    one.cancel()
    assert one.await_termination(10)
    time.sleep(0.5)
    assert str(two.status) == "RUNNING"


def test_no_sink_runs_twice(jobs: Any, tmp_path: Any) -> None:
    env = jobs.env()
    numbers = env.from_collection(range(10))
    assert sorted(numbers.map(lambda x: x + 1).collect()) == list(range(1, 11))
    numbers.sink_to(tr.sinks.TextFiles(str(tmp_path / "files")))
    assert sorted(numbers.map(lambda x: -x).collect()) == list(range(-9, 1))  # runs the sink of files with it
    before = sorted((tmp_path / "files").iterdir())
    assert before
    with pytest.raises(tr.GraphError, match="nothing to run"):
        env.execute()
    assert sorted((tmp_path / "files").iterdir()) == before


def test_a_job_that_could_not_start_may_start_later(jobs: Any) -> None:
    env = jobs.env(1)
    expected = [False]

    class Source(tr.Source):
        form = "rows"
        columns = None
        description = "picky"
        bounded = True

        def __reduce__(self) -> Any:
            if not expected[0]:
                raise TypeError("not yet")
            return (tr.sources.Collection, ([1, 2, 3],))

        splits = reader = None  # type: ignore[assignment]

    env.from_source(Source()).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    with pytest.raises(tr.GraphError, match="picky"):
        env.execute()
    expected[0] = True
    assert jobs.start(env).await_termination(20)
    assert len(jobs.files()) >= 1


def test_what_workers_print_reaches_the_program_once_with_operator_and_subtask(
    spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    def loud(n: int) -> int:
        print("saw", n)
        return n

    env = tr.Environment(parallelism=1)
    numbers = env.from_collection(range(5)).map(loud, name="loud").peek(lambda n: f"peeked {n}", n=2)
    assert numbers.collect() == list(range(5))
    out, err = capfd.readouterr()
    found = [line.split("] ", 1) for line in out.splitlines() if line.startswith("[")]
    assert [text for _, text in found if text.startswith("saw")] == [f"saw {n}" for n in range(5)]
    assert [text for _, text in found if text.startswith("peeked")] == ["peeked 0", "peeked 1"]
    assert all("loud" in place and place.endswith(" 0") for place, _ in found)
    assert "saw" not in err
    env.from_collection([(1, "a"), (2, "b")]).show(1)
    assert capfd.readouterr().out.splitlines() == ["_1  _2", "--  --", " 1  a"]

    def breaks(n: int) -> int:
        print("breaks at", n)
        return 1 // (n - 3)

    with pytest.raises(tr.JobFailed, match="ZeroDivisionError"):
        env.from_collection(range(5)).map(breaks, name="broken").collect()
    assert "breaks at 3" in capfd.readouterr().out
