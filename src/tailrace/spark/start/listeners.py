"""Listeners of Spark's streaming queries, to which jobs report: the events are Spark's own, with the figures of a job.

A thread of the job calls its listeners, one event after the other. What a listener raises is a warning. One that does not
come back holds up nothing but the events behind it.
"""

from __future__ import annotations

import inspect
import queue
import threading
import uuid
from collections.abc import Iterable
from typing import Any

from tailrace.api.checks.arguments import check_listener
from tailrace.elements.timestamps import isoformat
from tailrace.errors import error_text
from tailrace.log import fields, log

MOST_WAITING = 1_000
"""Number of events that wait for slow listeners, above which reports of progress are left out."""
LAST_SECONDS = 5.0
"""Seconds that the end of a job waits for its listeners."""
EVERYWHERE: list[Any] = []
"""The listeners of all jobs that this process starts (`tr.spark.add_listener`)."""
_STATE = (
    "numRowsUpdated", "numRowsRemoved", "allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs", "memoryUsedBytes",
)  # fmt: skip
"""Figures of Spark's on state that Tailrace does not count. An event must have them: they are -1."""


class JobListeners:
    """The listeners of one job."""

    def __init__(self, name: str, job_id: str, listeners: Iterable[Any]) -> None:
        self._name, self._id = name, uuid.UUID(job_id)
        self._listeners = list(listeners)
        self._waiting: queue.Queue[tuple[str, Any] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._left_out = False
        self._begun = False
        self._over = False

    def add(self, listener: Any) -> None:
        """Adds a listener, for all events that follow."""
        self._listeners.append(check_listener(listener, "job.add_listener"))

    def remove(self, listener: Any) -> None:
        """Removes a listener. Nothing happens if it is none."""
        self._listeners = [one for one in self._listeners if one is not listener]

    def start(self, at: int) -> None:
        """Reports that the job starts, at this time (int64 microseconds)."""
        self._begun = True
        self._put("onQueryStarted", lambda: started_event(self._id, self._name, at))

    def progress(self, report: dict[str, Any]) -> None:
        """Reports progress."""
        if self._waiting.qsize() < MOST_WAITING:
            self._put("onQueryProgress", lambda: progress_event(report))
        elif not self._left_out:
            self._left_out = True
            what = "job %r: its listeners are slow, and reports of progress are left out"
            log.warning(what, self._name, extra=fields(job=self._name))

    def end(self, failure: str | None) -> None:
        """Reports the end of the job, and waits for the listeners for some seconds. `failure`: its text."""
        if self._over or not self._begun:
            return
        self._put("onQueryTerminated", lambda: terminated_event(self._id, failure))
        self._over = True
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(LAST_SECONDS)

    def _put(self, method: str, make: Any) -> None:
        if self._over or not self._listeners:
            return
        self._waiting.put((method, make))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"tailrace-listeners-{self._name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (found := self._waiting.get()) is not None:
            method, make = found
            try:
                event = make()
            except Exception as error:  # a version of PySpark whose events need more
                what = "job %r: no event for %s can be made: %s"
                log.warning(what, self._name, method, error_text(error), extra=fields(job=self._name))
                continue
            for listener in list(self._listeners):
                try:
                    getattr(listener, method)(event)
                except Exception as error:
                    what = "job %r: %s.%s raised %s; the job goes on"
                    who, known = type(listener).__name__, fields(job=self._name)
                    log.warning(what, self._name, who, method, error_text(error), extra=known)


def started_event(job: uuid.UUID, name: str, at: int) -> Any:
    """The event that a job has started."""
    from pyspark.sql.streaming.listener import QueryStartedEvent

    known: dict[str, Any] = {"id": job, "runId": job, "name": name, "timestamp": isoformat(at), "jobTags": set()}
    return QueryStartedEvent(**_arguments(QueryStartedEvent, known))


def progress_event(report: dict[str, Any]) -> Any:
    """The event of a progress report."""
    from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

    state = [{**dict.fromkeys(_STATE, -1), **one} for one in report["stateOperators"]]
    return QueryProgressEvent(StreamingQueryProgress.fromJson({**report, "stateOperators": state}))


def terminated_event(job: uuid.UUID, failure: str | None) -> Any:
    """The event that a job has ended."""
    from pyspark.sql.streaming.listener import QueryTerminatedEvent

    known = {"id": job, "runId": job, "exception": failure, "errorClassOnException": None}
    return QueryTerminatedEvent(**_arguments(QueryTerminatedEvent, known))


def _arguments(kind: type, known: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the events of this version of PySpark have."""
    names = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    return {name: value for name, value in known.items() if name in names}
