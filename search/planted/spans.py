"""Bugs to be planted in rounds by spans of event time: in what a span begins with, and when it does."""

from __future__ import annotations

from typing import Any
from unittest import mock

from search.planted.patches import Bug, Patches, method
from tailrace.coordinator.loops import termination
from tailrace.elements.timestamps import LAST_TIME
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.operators.functions import FunctionTask
from tailrace.task.operators.loops import HeadTask


def _state_stays() -> Patches:
    return [method(FunctionTask, "end_span", lambda _: lambda self, limit: True)]


def _as_soon_as_one_has_come() -> Patches:
    """Bug: a span begins when event time has passed it in one subtask."""

    def hasty(times: Any) -> int | None:
        return max((time for time in times if time is not None), default=None)

    return [mock.patch.object(termination, "least_come", hasty)]


def _without_what_waits() -> Patches:
    """Bug: a checkpoint does not have the input that waits for its span."""
    return [method(HeadTask, "recordings", lambda recordings: lambda self: recordings(self)[:1])]


def _feedback_stays() -> Patches:
    """Bug: feedback behind the last round of a span is read in the next one."""
    return [method(FeedbackQueue, "drop_waiting", lambda _: lambda self, below=None: 0)]


def _time_runs_ahead() -> Patches:
    return [method(HeadTask, "own_watermark", lambda _: lambda self: LAST_TIME)]


SPAN_BUGS = (
    Bug("state of a span is there in the next one", "within_hours", _state_stays),
    Bug("a span begins when event time has passed it in one subtask", "within_hours", _as_soon_as_one_has_come, seed=5),
    Bug("a checkpoint does not have what waits for its span", "within_hours", _without_what_waits, seed=1),
    Bug("feedback behind the last round is read in the next span", "within_hours", _feedback_stays),
    Bug("event time behind the loop does not wait for its spans", "within_hours", _time_runs_ahead),
)
