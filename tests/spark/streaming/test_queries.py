"""A job's streaming queries, without Spark: what is taken of a DataFrame, and how their ends are those of the job."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

import tailrace as tr
from tailrace.errors import ConfigError, GraphError
from tailrace.runtime.driver.user_requests import FailJob, Wish
from tailrace.spark.streaming import queries
from tailrace.spark.streaming.dataframe import StreamingDataFrame
from tailrace.spark.streaming.queries import JobQueries


def streaming(*fields: tuple[str, Any, dict[str, Any]]) -> Any:
    """A streaming DataFrame as far as it is looked at before a job runs. Each field: name, type, notes."""
    schema = StructType(
        [StructField(name, kind, True, notes) for name, kind, notes in fields or [("id", LongType(), {})]]
    )
    return SimpleNamespace(
        isStreaming=True, writeStream=None, schema=schema, columns=schema.names, mapInArrow=None, sparkSession=None,
        _explain_string=lambda extended: "EventTimeWatermark at",
    )  # fmt: skip


def timed(name: str = "at", kind: Any = None, delay: int = 1500) -> tuple[str, Any, dict[str, Any]]:
    return name, kind or TimestampType(), {"spark.watermarkDelayMs": delay}


def source_of(df: Any, **settings: Any) -> StreamingDataFrame:
    given: dict[str, Any] = {"form": "rows", "trigger": None, "watermark": True, **settings}
    return StreamingDataFrame(df, **given)


# What is taken of a DataFrame.


@pytest.mark.parametrize(
    ("trigger", "spark"),
    [
        (None, {}),
        (1.5, {"processingTime": "1500 milliseconds"}),
        ("10 seconds", {"processingTime": "10000 milliseconds"}),
        ("available-now", {"availableNow": True}),
    ],
)
def test_a_trigger_is_a_time_or_what_is_there_now(trigger: Any, spark: dict[str, Any]) -> None:
    found = source_of(streaming(), trigger=trigger)
    assert found.trigger == spark
    assert found.bounded == (trigger == "available-now")


def test_the_watermark_of_a_column_is_taken_over() -> None:
    found = source_of(streaming(("id", LongType(), {}), timed()))
    assert (found.event_column, found.delay) == ("at", 1.5)
    assert source_of(streaming(timed()), watermark=False).event_column is None
    stream = tr.Environment().from_streaming(streaming(("id", LongType(), {}), timed()), uid="in")
    assert (stream.form, stream.columns) == ("rows", ("id", "at"))
    columns = tr.Environment().from_streaming(streaming(timed()), form="columns")
    assert (columns.form, columns.columns) == ("columns", ("at",))


@pytest.mark.parametrize(
    ("df", "settings", "error"),
    [
        ([1], {}, "expected a streaming DataFrame"),
        (streaming(timed("a"), timed("b")), {}, "several columns with a watermark, 'a', 'b'.*watermark=False"),
        (
            streaming(timed("w", StructType([StructField("end", TimestampType())]))),
            {},
            "on 'w', which is StructType and no timestamp",
        ),
        (streaming(("a", LongType(), {}), ("a", LongType(), {})), {}, "several columns named 'a'"),
        (streaming(), {"trigger": "soon"}, "trigger is the time from one batch to the next"),
    ],
)
def test_what_cannot_be_read_is_refused_where_it_is_written(df: Any, settings: dict[str, Any], error: str) -> None:
    with pytest.raises(GraphError, match=f"from_streaming: .*{error}"):
        tr.Environment().from_streaming(df, **settings)


def test_several_watermarks_of_which_one_column_is_left_are_refused() -> None:
    """Of a union: Spark goes by the one that is behind, which the column does not tell."""
    df = streaming(timed())
    df._explain_string = lambda extended: "Union\n:- EventTimeWatermark at\n+- EventTimeWatermark at"
    with pytest.raises(GraphError, match=r"has 2 watermarks, .* call withWatermark once, behind the union"):
        tr.Environment().from_streaming(df)
    tr.Environment().from_streaming(df, watermark=False)


def test_a_streaming_dataframe_is_not_read_without_spark() -> None:
    with pytest.raises(ConfigError, match="the job must run on Spark"):
        source_of(streaming()).splits(2)


# The queries of a job.


class Query:
    """Spark's handle of a query."""

    def __init__(self) -> None:
        self.isActive = True
        self.lastProgress: dict[str, Any] | None = None
        self.failure: Exception | None = None

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False


class Source(StreamingDataFrame):
    def __init__(self, bounded: bool) -> None:
        self.bounded, self.query, self.listed, self.ended = bounded, Query(), False, False
        self.started = threading.Event()
        self.done = True

    def all_done(self) -> bool:
        return self.done

    def start(self) -> Any:
        self.started.set()
        return self.query

    pause = 0.001

    def list_batches(self) -> None:
        self.listed = True

    def note_end(self) -> None:
        assert self.listed
        self.ended = True


class Runner:
    def __init__(self) -> None:
        self.wishes: list[Wish] = []

    def wish(self, wish: Wish) -> Future[Any]:
        self.wishes.append(wish)
        return Future()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that starts queries for sources, and returns them and a runner; each look is a call of `_look`."""
    monkeypatch.setattr(queries, "LOOK_SECONDS", 0.001)

    def start(*sources: Source) -> tuple[JobQueries, Runner]:
        looks = iter([False, False])
        found, runner = JobQueries("job", [(f"in {i}", source) for i, source in enumerate(sources)]), Runner()
        found.watch(runner, lambda: next(looks, True))  # type: ignore[arg-type]
        return found, runner

    return start


def joined(found: JobQueries) -> None:
    assert found._thread is not None
    found._thread.join(20)
    assert not found._thread.is_alive()


def test_a_query_that_fails_fails_the_job_with_its_reason(watched: Any) -> None:
    source = Source(bounded=False)
    source.query.failure, source.query.isActive = ValueError("no such topic"), False
    found, runner = watched(Source(bounded=False), source)
    joined(found)
    assert runner.wishes == [FailJob("in 1: its streaming query has failed: no such topic")]


@pytest.mark.parametrize("bounded", [True, False])
def test_a_query_that_somebody_stops_fails_the_job(watched: Any, bounded: bool) -> None:
    """To Spark a query of what is there now has come to its end then: the batch at hand shows that it has not."""
    source = Source(bounded)
    source.query.isActive, source.done = False, not bounded
    found, runner = watched(source)
    joined(found)
    assert runner.wishes == [FailJob("in 0: its streaming query was stopped by someone else than the job")]


def test_the_end_of_a_query_of_what_is_there_is_the_end_of_its_source(watched: Any) -> None:
    source = Source(bounded=True)
    source.query.lastProgress, source.query.isActive = {"batchId": 4}, False
    found, runner = watched(source)
    joined(found)
    assert source.ended and runner.wishes == []
    assert found.progress() == {"in 0": {"batchId": 4}}


def test_the_end_of_the_job_stops_its_queries(watched: Any) -> None:
    sources = Source(bounded=False), Source(bounded=True)
    found, runner = watched(*sources)
    assert all(source.started.wait(20) for source in sources)
    found.stop()
    joined(found)
    assert not any(source.query.isActive for source in sources)
    assert runner.wishes == [] and not sources[1].ended


def test_a_job_that_takes_all_slots_is_refused() -> None:
    """The job's query would wait for ever."""
    text = "takes 2 task slots for good, Spark has 2, and a streaming query needs one"
    with pytest.raises(ConfigError, match=text):
        queries.check_slots(spark_with("local[2]", 2), 2, 600)
    with pytest.raises(ConfigError, match=text):
        queries.check_slots(spark_with("spark://one:7077", 2), 2, 0)
    queries.check_slots(spark_with("local[2]", None), 2, 600)
    queries.check_slots(spark_with("local[3]", 3), 2, 600)


def test_executors_that_are_still_to_come_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all were lost Spark counts two slots. With dynamic allocation executors come when tasks wait for them."""
    monkeypatch.setattr(queries, "LOOK_SECONDS", 0.001)
    app = spark_with("spark://one:7077", 2, 2, 8)
    queries.check_slots(app, 2, 600)
    assert app.counts == []
    settings = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "3"}
    queries.check_slots(spark_with("yarn", 0, **settings), 2, 600)
    with pytest.raises(ConfigError, match="Spark has 3"):
        queries.check_slots(spark_with("yarn", 0, **settings), 3, 600)


def spark_with(master: str, *counts: int | None, **settings: str) -> Any:
    """An application whose slots are counted as given, one after the other."""
    left = list(counts)
    return SimpleNamespace(master=master, setting=settings.get, total_slots=lambda: left.pop(0), counts=left)


def test_a_query_that_spark_refuses_fails_the_job(watched: Any) -> None:
    source = Source(bounded=False)
    source.query = None  # type: ignore[assignment]
    found, runner = watched(source)
    joined(found)
    assert runner.wishes == [], "a stream that has ended needs no query"

    def refuse() -> Any:
        raise ConfigError("from_streaming: Spark refuses the streaming query: no")

    other, source.start = Source(bounded=False), refuse  # type: ignore[method-assign]
    found, runner = watched(other, source)
    joined(found)
    assert runner.wishes == [FailJob("in 1: from_streaming: Spark refuses the streaming query: no")]
    assert not other.query.isActive


def test_a_query_is_in_the_pool_of_the_program_or_in_one_of_its_own() -> None:
    properties: dict[str, str] = {}
    context = SimpleNamespace(getLocalProperty=properties.get, setLocalProperty=properties.__setitem__)
    queries.pool_of(context)()
    assert properties == {"spark.scheduler.pool": "tailrace"}
    properties["spark.scheduler.pool"] = "mine"
    enter = queries.pool_of(context)
    properties.clear()
    enter()
    assert properties == {"spark.scheduler.pool": "mine"}
    queries.pool_of(None)()


def test_batches_that_do_not_follow_fail_the_job_with_the_reason(watched: Any) -> None:
    source = Source(bounded=False)

    def refuse() -> None:
        raise ConfigError("batch 3 of the streaming query came where 2 is next")

    source.list_batches = refuse  # type: ignore[method-assign]
    found, runner = watched(Source(bounded=False), source)
    joined(found)
    assert runner.wishes == [FailJob("in 1: batch 3 of the streaming query came where 2 is next")]
    assert not source.query.isActive


def test_a_store_that_fails_at_the_end_of_a_query_fails_the_job(watched: Any) -> None:
    source = Source(bounded=True)
    source.query.isActive = False

    def refuse() -> None:
        raise OSError("no space left")

    source.note_end = refuse  # type: ignore[method-assign]
    found, runner = watched(source)
    joined(found)
    [wish] = runner.wishes
    assert isinstance(wish, FailJob) and "no space left" in wish.reason
