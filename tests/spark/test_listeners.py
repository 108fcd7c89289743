"""Listeners of Spark's streaming queries, to which jobs report."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

import tailrace as tr
from tailrace.coordinator.view.progress import ProgressMaker
from tailrace.spark.start import listeners
from tailrace.spark.start.listeners import JobListeners

ID = str(uuid.uuid4())


class Notes(StreamingQueryListener):
    """A listener as monitoring has it, which keeps the events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.events.append(("started", event.id, event.runId, event.name, event.timestamp[:2]))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        sources = [(one.description, one.numInputRows) for one in progress.sources]
        state = [(one.operatorName, one.numRowsTotal, one.numRowsUpdated) for one in progress.stateOperators]
        self.events.append(("progress", progress.name, progress.batchId, progress.numInputRows, sources, state))
        assert progress.json and progress.sink.numOutputRows >= 0 and progress.inputRowsPerSecond >= 0

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.events.append(("terminated", event.id, event.exception))


class Broken(Notes):
    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        raise ValueError("no place for it")


def report() -> dict[str, Any]:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).map(lambda n: n).sink_to(tr.sinks.Collect())
    made = ProgressMaker(ID, ID, "visits", env._plan(env._pending()), 0).make([], 1_000_000)
    made["stateOperators"] = [
        {"operatorName": "sum", "numRowsTotal": 3, "numRowsDroppedByWatermark": 0, "numShufflePartitions": 1,
         "numStateStoreInstances": 1, "customMetrics": {}}
    ]  # fmt: skip
    return made


def test_a_job_reports_its_start_its_progress_and_its_end_with_events_of_spark() -> None:
    notes = Notes()
    job = JobListeners("visits", ID, [notes])
    job.start(0)
    job.progress(report())
    job.end("it rains")
    started, progress, terminated = notes.events
    assert started == ("started", uuid.UUID(ID), uuid.UUID(ID), "visits", "19")
    assert progress == ("progress", "visits", 0, 0, [("collection", 0)], [("sum", 3, -1)])
    assert terminated == ("terminated", uuid.UUID(ID), "it rains")


def test_a_listener_that_raises_is_a_warning_and_the_others_are_called(caplog: Any) -> None:
    notes, broken = Notes(), Broken()
    job = JobListeners("visits", ID, [broken, notes])
    with caplog.at_level(logging.WARNING, "tailrace"):
        job.start(0)
        job.progress(report())
        job.end(None)
    assert [kind for kind, *_ in notes.events] == ["started", "progress", "terminated"]
    assert [kind for kind, *_ in broken.events] == ["started", "terminated"]
    assert "Broken.onQueryProgress raised ValueError: no place for it; the job goes on" in caplog.text


def test_a_listener_that_does_not_come_back_holds_no_job_up(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(listeners, "MOST_WAITING", 3)
    monkeypatch.setattr(listeners, "LAST_SECONDS", 0.01)
    release = threading.Event()
    notes = Notes()
    notes.onQueryStarted = lambda event: release.wait(10)  # type: ignore[method-assign]
    job = JobListeners("visits", ID, [notes])
    with caplog.at_level(logging.WARNING, "tailrace"):
        job.start(0)
        for _ in range(10):
            job.progress(report())
        job.end(None)
    assert caplog.text.count("its listeners are slow") == 1
    release.set()
    assert job._thread is not None
    job._thread.join(10)
    assert 3 <= len(notes.events) <= 5 and notes.events[-1][0] == "terminated"


def test_a_job_that_was_never_started_has_no_end() -> None:
    notes = Notes()
    JobListeners("visits", ID, [notes]).end("no slots")
    assert notes.events == []


def test_other_objects_are_refused() -> None:
    with pytest.raises(
        tr.ConfigError, match=r"listeners: expected a .*StreamingQueryListener, got the class Notes itself"
    ):
        tr.Environment(listeners=[Notes])
    with pytest.raises(tr.ConfigError, match=r"tr.spark.add_listener: expected a .*StreamingQueryListener, got int"):
        tr.spark.add_listener(7)


@pytest.mark.spark
def test_listeners_of_an_environment_and_of_the_process_see_a_job(spark: Any) -> None:
    own, everywhere, later = Notes(), Notes(), Notes()
    tr.spark.add_listener(everywhere)
    try:
        env = tr.Environment(spark, parallelism=1, listeners=[own], restart=tr.NoRestart())
        env.from_collection([1, 0]).map(lambda n: 1 // n).sink_to(tr.sinks.Collect())
        job = env.execute("divided")
        job.add_listener(later)
        with pytest.raises(tr.JobFailed):
            job.await_termination()
    finally:
        tr.spark.remove_listener(everywhere)
    for notes in (own, everywhere):
        assert notes.events[0][:4] == ("started", uuid.UUID(job.id), uuid.UUID(job.run_id), "divided")
        assert notes.events[-1][0] == "terminated" and "ZeroDivisionError" in notes.events[-1][2]
    assert later.events[-1] == own.events[-1]
