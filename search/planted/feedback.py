"""Bugs to be planted in the feedback that a checkpoint holds, and in its restore."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from search.planted.patches import Bug, Patches, method
from search.scenarios import Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.elements.markers import Barrier
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.inflight.redistribution import Redistribution
from tailrace.task.operators.loops import TailTask
from tailrace.task.subtask.work import Work
from tailrace.testing.faults import Fault

MS = 1_000


# Scenarios that show the bugs sooner.


def deaths(made: Scenario) -> Scenario:
    """A scenario in which checkpoints follow each other closely and overlap, and workers die soon after a commit."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, max_concurrent=3, keep=1)
    faults = [Fault(4 * number, "kill", number, after=f"commit {number} done") for number in range(2, 14)]
    return replace(
        made,
        network="in small steps",
        parallelism=3,
        rate=12_000,
        window=None,
        checkpoints=settings,
        faults=tuple(faults),
    )


def _overlaps(made: Scenario) -> Scenario:
    """The scenario of `deaths`, where markers take longer to go round than the next checkpoint to begin."""
    return replace(deaths(made), network="slow", rate=3_000)


def _crowds(made: Scenario) -> Scenario:
    """The scenario of `deaths`, where much is on its way when workers die, and the next checkpoint does not wait for
    it."""
    made = deaths(made)
    assert made.checkpoints is not None
    return replace(made, rate=None, parallelism=2, checkpoints=replace(made.checkpoints, interval=100))


# The bugs.


def _log_until_the_first_marker() -> Patches:
    def make(mark: Any) -> Any:
        def eager(self: Work, channel: Any, marker: Any, *rest: Any) -> None:
            root = self.chain.root
            if (
                isinstance(marker, Barrier)
                and isinstance(root, TailTask)
                and marker.checkpoint in root.queue.logs.pending()
            ):
                root.queue.barrier(marker.checkpoint)
            mark(self, channel, marker, *rest)

        return eager

    return [method(Work, "_mark", make)]


def _one_marker_for_all_logs() -> Patches:
    def make(barrier: Any) -> Any:
        def for_all(self: FeedbackQueue, checkpoint: int) -> None:
            barrier(self, checkpoint)
            self.seal()
            for log in self.logs.open:
                log.complete = True
            self.logs.open.clear()

        return for_all

    return [method(FeedbackQueue, "barrier", make)]


def _cut_without(self: FeedbackQueue, cut: Any, checkpoint: int, left_out: Any) -> None:
    """Makes a cut as if these items were not in the queue."""
    self.seal()
    ready, self._ready = self._ready, deque(item for item in self._ready if item not in left_out)
    try:
        cut(self, checkpoint)
    finally:
        self._ready = ready


def _log_without_the_unread() -> Patches:
    def make(cut: Any) -> Any:
        return lambda self, checkpoint: _cut_without(self, cut, checkpoint, list(self._ready))

    return [method(FeedbackQueue, "cut", make)]


def _restored_and_forgotten() -> Patches:
    """Bug: feedback that a checkpoint brought back and that is still unread is not in the next checkpoint."""
    old: dict[int, list[Any]] = {}

    def make_restored(restored: Any) -> Any:
        def remembering(self: FeedbackQueue, frames: Any) -> None:
            restored(self, frames)
            old[id(self)] = list(self._ready)

        return remembering

    def make_cut(cut: Any) -> Any:
        return lambda self, checkpoint: _cut_without(self, cut, checkpoint, old.get(id(self), []))

    return [method(FeedbackQueue, "restore", make_restored), method(FeedbackQueue, "cut", make_cut)]


def _not_restored() -> Patches:
    return [method(Redistribution, "mine", lambda _: lambda self, *frame: [])]


def _barrier_before_the_newest() -> Patches:
    """Bug: the marker of a checkpoint comes to the head before the records that the tail appended last."""

    def make(barrier: Any) -> Any:
        def overtaking(self: FeedbackQueue, checkpoint: int) -> None:
            log = next((log for log in self.logs.open if log.checkpoint == checkpoint), None)
            self.seal()
            if log is not None and log.entries and self._ready:
                item, start, _ = log.entries[-1]
                if item is self._ready[-1]:
                    log.entries.pop()
                    log.records -= item.count - start
                    self._shelf.release(item)
            barrier(self, checkpoint)

        return overtaking

    return [method(FeedbackQueue, "barrier", make)]


FEEDBACK_BUGS = (
    Bug("the first marker ends a log", "visited", _log_until_the_first_marker, deaths),
    Bug("a marker ends the logs of later checkpoints", "visited", _one_marker_for_all_logs, _overlaps),
    Bug("a log begins with what comes after the cut", "visited", _log_without_the_unread, deaths),
    Bug("what was restored is not in the next checkpoint", "amplified", _restored_and_forgotten, _crowds),
    Bug("restored feedback is lost", "visited", _not_restored, deaths),
    Bug("the marker of a checkpoint overtakes feedback", "visited", _barrier_before_the_newest, deaths),
)
