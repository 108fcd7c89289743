"""The Spark application of a session in this process, reached through its `SparkContext`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Classic:
    """The application of a `SparkContext` of this process."""

    context: Any

    @property
    def id(self) -> str:
        return str(self.context.applicationId)

    @property
    def master(self) -> str:
        return str(self.context.master)

    @property
    def is_local(self) -> bool:
        return re.fullmatch(r"local(\[.*\])?", self.master) is not None

    @property
    def on_this_machine(self) -> bool:
        return self.master.startswith("local")  # in local-cluster the executors are processes of their own

    def choose_interpreter(self) -> None:
        """Makes local workers run the interpreter of the driver: another one may lack tailrace, or have another version.
        The user may name another interpreter for executors, also for executors that are processes of their own on this
        machine (local-cluster)."""
        named = self.setting("spark.pyspark.python")
        chosen = named is not None or "PYSPARK_PYTHON" in os.environ
        if self.is_local or (self.on_this_machine and not chosen):
            self.context.pythonExec = sys.executable
        elif named is not None:
            self.context.pythonExec = named  # PySpark itself heeds this setting under spark-submit only

    def setting(self, name: str) -> str | None:
        found = self.context._conf.get(name)  # `getConf()` copies all of them, one by one through the gateway
        return None if found is None else str(found)

    @property
    def started(self) -> float:
        return float(self.context.startTime) / 1000

    def total_slots(self, profile: Any = None) -> int | None:
        """Number of tasks that the executors can run at once. Spark makes the same check before a barrier stage."""
        context = self.context._jsc.sc()
        default = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(default if profile is None else profile._java_resource_profile))

    def start_with(self, slots: int) -> str:
        return f'SparkSession.builder.master("local[{slots}]")'

    @contextmanager
    def with_tags(self, tags: Sequence[str], description: str) -> Iterator[None]:
        context = self.context
        try:
            for tag in tags:
                context.addJobTag(tag)
            context.setJobDescription(description)
            yield
        finally:
            with suppress(Exception):  # Spark is gone, and the tags of the thread with it
                for tag in tags:  # the thread may start other jobs, which are not to be cancelled with these
                    context.removeJobTag(tag)

    @contextmanager
    def with_description(self, text: str) -> Iterator[None]:
        before = self.context.getLocalProperty("spark.job.description")
        self.context.setJobDescription(text)
        try:
            yield
        finally:
            self.context.setJobDescription(before)

    def run(self, task: Callable[[Any], Any], schema: str, profile: Any = None) -> list[tuple[Any, ...]]:
        """Runs the task in an RDD: Spark SQL would take seconds to plan and compile its first job, and tenths of one for
        each later."""

        def rows(numbers: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
            for batch in task(numbers):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

        one = self.context.parallelize([0], 1)
        if profile is not None:
            one = one.withResources(profile)
        found: list[tuple[Any, ...]] = one.mapPartitions(rows).collect()
        return found

    def cancel(self, tag: str) -> None:
        self.context.cancelJobsWithTag(tag)

    def executor(self, tag: str) -> tuple[str, str] | None:
        with suppress(Exception):  # Spark is gone, or has forgotten a job that has ended
            context = self.context._jsc.sc()
            tracker, store = context.statusTracker(), context.statusStore()
            tasks = []
            for job in tracker.getJobIdsForTag(tag):
                for stage in tracker.getJobInfo(job).get().stageIds():
                    attempt = tracker.getStageInfo(stage).get().currentAttemptId()
                    listed = store.taskList(stage, attempt, 100)
                    tasks += [listed.apply(at) for at in range(listed.size())]
            newest = max(tasks, key=lambda task: task.taskId())
            return str(newest.executorId()), str(newest.host())
        return None

    def over(self) -> str | None:
        try:
            context = self.context._jsc
            stopped = context is None or context.sc().isStopped()
        except Exception:  # the JVM does not answer
            return "the JVM of the Spark session is gone"
        return "the Spark session was stopped" if stopped else None

    def folder(self) -> str:
        """A folder inside Spark's own temporary folder of the driver, which Spark removes when it stops."""
        return str(self.context._temp_dir)

    def address(self, given: str | None) -> tuple[str, str]:
        host = given or self.setting("spark.driver.host") or ""
        return host, self.setting("spark.driver.bindAddress") or ""

    def send_archive(self, path: Path, name: str) -> None:
        self.context.addArchive(f"{path.as_uri()}#{name}")
