"""The run of a job that had come to its end before it was started again: nothing is done, and it has finished."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.stats import Books, CheckpointStats
from tailrace.coordinator.view.slices import Slices
from tailrace.protocol.deployment import SubtaskReport
from tailrace.runtime.driver.requests import Unheard, Wish, WishFuture


class FinishedRun:
    """The runner behind a `Job` that had finished before: it runs nothing."""

    status = JobStatus.FINISHED
    crash: str | None = None
    cause: Cause | None = None
    restarts = 0

    def __init__(self, name: str) -> None:
        self.job_name = name
        self.ended = threading.Event()
        self.ended.set()
        self.progress: deque[dict[str, Any]] = deque()
        self.history: list[CheckpointStats] = []
        self.reports: list[SubtaskReport] = []
        self.slices = Slices()
        self.books: Books | None = None

    def cancel(self) -> None:
        """Does nothing: the job has ended."""

    def wish(self, wish: Wish) -> WishFuture:
        """Refuses a wish: the job has ended."""
        future: WishFuture = WishFuture()
        future.set_exception(Unheard(f"job {self.job_name!r} has ended"))
        return future

    def refused(self) -> dict[str, int]:
        """Connections refused by reason; none."""
        return {}
