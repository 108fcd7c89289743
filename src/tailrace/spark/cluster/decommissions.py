"""Executors that are decommissioned: Spark gives them no more tasks, and they end, soon or when their tasks have ended. A
worker's task never ends by itself, so the watch reports the worker to its job, which moves it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tailrace.runtime.driver.slot_provider import Leaving

LOOK_SECONDS = 1.0
CLOSE_SECONDS = 2.0
_SWITCHES = ("spark.decommission.enabled", "spark.yarn.executor.decommission.enabled")


def may_happen(setting: Callable[[str], str | None]) -> bool:
    """True where the settings of a session allow executors to be decommissioned."""
    return any((setting(name) or "").lower() == "true" for name in _SWITCHES)


class Watch(threading.Thread):
    """Watches the executors of one job until `close`. `starts` gives the starts that run: the slot, the launch, and the
    tag of its Spark job. `room` is True where the executors that stay have slots for all workers. Where it is False, the
    watch reports nothing: a worker is better off on its executor, for as long as that is there."""

    def __init__(
        self,
        context: Any,
        starts: Callable[[], Iterable[tuple[int, int, str]]],
        room: Callable[[], bool],
        leaving: Leaving,
    ) -> None:
        super().__init__(name="tailrace-decommissions", daemon=True)
        self._context, self._starts, self._room, self._leaving = context, starts, room, leaving
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with contextlib.suppress(Exception):  # Spark is gone, or has forgotten a job that has ended
                if any_executor(self._context):
                    going = [
                        (slot, launch) for slot, launch, tag in self._starts() if any(executors_of(self._context, tag))
                    ]
                    if going and self._room() and not self._closed.is_set():
                        self._leaving(going)

    def close(self) -> None:
        """Ends the reports. A look that Spark does not return from is left running in its thread."""
        self._closed.set()
        if self.ident is not None:
            self.join(CLOSE_SECONDS)


def any_executor(context: Any) -> bool:
    """True where any executor of the application is not to be used any more."""
    backend = context._jsc.sc().schedulerBackend()
    ids = backend.getExecutorIds()
    return any(not backend.isExecutorActive(ids.apply(at)) for at in range(ids.size()))


def executors_of(context: Any, tag: str) -> Iterable[bool]:
    """For each executor that runs a task of the Spark job with this tag: True where it is decommissioned."""
    spark = context._jsc.sc()
    for job in spark.statusTracker().getJobIdsForTag(tag):
        found = spark.statusTracker().getJobInfo(job)
        for stage in found.get().stageIds() if found.isDefined() else ():
            for executor in running_on(spark, stage):
                yield spark.taskScheduler().getExecutorDecommissionState(executor).isDefined()


def running_on(spark: Any, stage: int) -> Iterable[str]:
    """The executors that run tasks of a stage. `spark` is Spark's own context, in its JVM."""
    attempt = spark.statusTracker().getStageInfo(stage)
    if attempt.isDefined():
        tasks = spark.statusStore().taskList(stage, attempt.get().currentAttemptId(), 100)
        listed = [tasks.apply(at) for at in range(tasks.size())]
        yield from [task.executorId() for task in listed if task.status() == "RUNNING"]
