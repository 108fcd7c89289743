"""Executors that are decommissioned: Spark gives them no more tasks, and they go, soon or when their tasks have ended. A
worker's task never ends by itself, so its job is told to move it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tailrace.runtime.driver.slots import Leaving

LOOK_SECONDS = 1.0
CLOSE_SECONDS = 2.0
_SWITCHES = ("spark.decommission.enabled", "spark.yarn.executor.decommission.enabled")


def may_happen(setting: Callable[[str], str | None]) -> bool:
    """Whether executors of a session are ever decommissioned, by its settings."""
    return any((setting(name) or "").lower() == "true" for name in _SWITCHES)


class Watch(threading.Thread):
    """Looks after the executors of one job until `close`. `starts` are those that run: the slot, the launch, and the tag of
    its Spark job. `room` says whether the executors that stay have place for all workers: where they have not, a worker is
    better off where it is, for as long as that is there."""

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
            with contextlib.suppress(Exception):  # Spark is gone, or knows no more of a job that has ended
                if any_executor(self._context):
                    going = [
                        (slot, launch) for slot, launch, tag in self._starts() if any(executors_of(self._context, tag))
                    ]
                    if going and self._room() and not self._closed.is_set():
                        self._leaving(going)

    def close(self) -> None:
        """Nothing more is told from here on. A look that Spark does not come back from is left to itself."""
        self._closed.set()
        if self.ident is not None:
            self.join(CLOSE_SECONDS)


def any_executor(context: Any) -> bool:
    """Whether any executor of the application is not to be used any more."""
    backend = context._jsc.sc().schedulerBackend()
    ids = backend.getExecutorIds()
    return any(not backend.isExecutorActive(ids.apply(at)) for at in range(ids.size()))


def executors_of(context: Any, tag: str) -> Iterable[bool]:
    """Of each executor that runs a task of the Spark job with this tag, whether it is decommissioned."""
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
