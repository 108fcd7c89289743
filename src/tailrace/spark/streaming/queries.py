"""The streaming queries of a job while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tailrace.errors import ConfigError, error_text
from tailrace.graph.operators import Source
from tailrace.graph.plan import Plan
from tailrace.log import fields, log
from tailrace.runtime.driver.user_requests import FailJob, Runner
from tailrace.spark.cluster.capacity import is_dynamic, is_fixed, may_give
from tailrace.spark.streaming.dataframe import WHO, StreamingDataFrame

LOOK_SECONDS = 0.25
"""Seconds between two looks at the queries."""
_POOL = "spark.scheduler.pool"
POOL = "tailrace"
"""The pool of streaming queries, where the program has chosen none."""
STOP_SECONDS = 60.0
"""Seconds that the end of a job waits for the end of its queries."""


class _Feeding(NamedTuple):
    """A query, and the source that it feeds."""

    operator: str
    source: StreamingDataFrame
    query: Any


def check_slots(app: Any, taken: int, patience: float) -> None:
    """Raises `ConfigError` where Spark has no slot for a query beside the slots that a job takes, and gets none within
    `patience` seconds: executors that start, or take the place of lost ones, are not there at once. `app` is the
    application."""
    dynamic = is_dynamic(app.master, app.setting)  # executors come when tasks wait for them
    until = time.monotonic() + (0.0 if dynamic or is_fixed(app.master) else patience)
    while (total := may_give(app.master, app.setting) if dynamic else app.total_slots()) is not None and total <= taken:
        if time.monotonic() >= until:
            raise ConfigError(
                f"{WHO}: the job takes {taken} task slots for good, Spark has {total}, and a streaming query needs one for "
                f"its own tasks: give Spark more slots, or the job a lower parallelism"
            )
        time.sleep(LOOK_SECONDS)


def pool_of(context: Any) -> Callable[[], object]:
    """A function that puts the Spark jobs of its thread into the pool of the calling thread, or else into one of their own:
    in the default pool their tasks would wait for all tasks of older jobs. Pools count where Spark's scheduler is FAIR.
    `context` is the `SparkContext`; None where there is none in this process."""
    if context is None:
        return lambda: None
    pool = context.getLocalProperty(_POOL) or POOL
    return lambda: context.setLocalProperty(_POOL, pool)


def streaming_sources(plan: Plan) -> list[tuple[str, StreamingDataFrame]]:
    """The sources of a dataflow that streaming queries feed, with the names of their operators."""
    found = [(node.name, node.operator) for node in plan.graph.nodes]
    return [
        (name, operator.source)
        for name, operator in found
        if isinstance(operator, Source) and isinstance(operator.source, StreamingDataFrame)
    ]


class JobQueries:
    """The queries of a job. They begin when its workers run, and end with it; the first that fails fails the job.

    Workers come first: a query with many tasks would take all free slots, and Spark gives a slot to the older job."""

    def __init__(
        self, job: str, sources: Sequence[tuple[str, StreamingDataFrame]], enter: Callable[[], object] = lambda: None
    ) -> None:
        """`enter` is called in the thread that starts the queries, before it does."""
        self._job, self._sources, self._enter = job, sources, enter
        self._running: list[_Feeding] = []
        self._last: dict[str, Any] = {}
        """Newest progress of each query, by the name of its operator."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, runner: Runner, runs: Callable[[], bool]) -> None:
        """Starts the queries once the job `runs`, and watches them until `stop`."""
        self._thread = threading.Thread(
            target=self._watch, args=(runner, runs), name=f"tailrace-queries-{self._job}", daemon=True
        )
        self._thread.start()

    def progress(self) -> dict[str, Any]:
        """The newest progress of each query, as Spark reports it, by the name of the operator that it feeds."""
        return dict(self._last)

    def stop(self) -> None:
        """Stops the queries. What they have committed stays; what they have not is repeated by a later start."""
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)

    # The thread.

    def _watch(self, runner: Runner, runs: Callable[[], bool]) -> None:
        try:
            while not runs():
                if self._over.wait(LOOK_SECONDS):
                    return
            reason = self._start() or self._look_at_all()
        except Exception as error:
            reason = f"its streaming queries cannot be watched: {error_text(error)}"
            log.exception("job %r: its streaming queries cannot be watched", self._job, extra=fields(job=self._job))
        finally:
            self._stop_all()
        if reason:
            runner.wish(FailJob(reason))

    def _start(self) -> str:
        """Starts the queries. Returns the reason if one cannot be started, else an empty text."""
        self._enter()
        for name, source in self._sources:
            try:
                query = source.start()
            except Exception as error:
                return f"{name}: {error}"
            if query is not None:
                self._running.append(_Feeding(name, source, query))
        return ""

    def _look_at_all(self) -> str:
        """Looks at the queries until all have ended, or one has failed, or `stop`. Returns the reason of a failure."""
        running, look_at = list(self._running), 0.0
        while running and not self._over.wait(min(one.source.pause for one in running)):
            for one in running:
                try:
                    one.source.list_batches()
                except (ConfigError, OSError) as error:
                    return f"{one.operator}: {error}"
            if time.monotonic() < look_at:
                continue
            look_at = time.monotonic() + LOOK_SECONDS
            for one in list(running):
                reason = self._look(one)
                if reason:
                    return f"{one.operator}: {reason}"
                if reason is not None:
                    running.remove(one)
        return ""

    def _stop_all(self) -> None:
        for one in self._running:
            try:
                one.query.stop()
            except Exception as error:  # Spark is gone, and the query with it
                log.info(
                    "job %r: its streaming query was not stopped: %s", self._job, error, extra=fields(job=self._job)
                )

    def _look(self, one: _Feeding) -> str | None:
        """The reason why a query has failed; empty if it has come to its end, None while it runs."""
        try:
            active, last = one.query.isActive, one.query.lastProgress
            failure = None if active else one.query.exception()
        except Exception as error:
            return "" if self._over.is_set() else f"its streaming query is out of reach: {error}"
        if last is not None:
            self._last[one.operator] = dict(last)
        if active or self._over.is_set():
            return None
        if failure is not None:
            return f"its streaming query has failed: {failure}"
        if not one.source.bounded or not one.source.all_done():
            return "its streaming query was stopped by someone else than the job"
        one.source.list_batches()
        one.source.note_end()
        return ""
