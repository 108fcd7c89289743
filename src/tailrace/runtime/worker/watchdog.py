"""The watchdog of a worker's own thread, in the thread of its heartbeat: user code may hold that thread up for ever."""

from __future__ import annotations

import threading
import time
import traceback

from tailrace.protocol.deployment import Inspect, Inspection, UnderWay
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.worker.stack_frames import is_ours, operator_in, turn_frames
from tailrace.runtime.worker.stepping import Stepper
from tailrace.runtime.worker.thread_samples import inspection
from tailrace.task.worker.attribution import sendable

SHOWN_AFTER = 1_000_000_000
"""Nanoseconds from which on a beat carries what the thread is doing."""
TOLD_AFTER = 10_000_000_000
"""Nanoseconds after which the user is warned for the first time; then after twice as many, and so on."""
STOPPED = 3_000_000_000
"""Nanoseconds between two looks from which on the whole process counts as suspended: its current work is not to blame for
that."""


class Watchdog:
    """The view of another thread on the thread that made it."""

    def __init__(self, loop: EventLoop, stepper: Stepper, started: int) -> None:
        """`started`: when the worker was started, in nanoseconds of the monotonic clock."""
        self._loop, self._stepper, self._started = loop, stepper, started
        self._thread = threading.get_ident()
        self._began = 0
        """Beginning of what was under way at the last look."""
        self._report_after = TOLD_AFTER
        self._looked = self._resumed = time.monotonic_ns()

    def inspect(self, slot: int, request: Inspect) -> Inspection:
        """A close look at the process that was started for this place."""
        return inspection(slot, self._thread, request)

    def look(self) -> UnderWay | None:
        """The work that the thread has been doing for a while; None if it has done nothing for so long. It has a stack if
        the user is to be warned."""
        now = time.monotonic_ns()
        if now - self._looked > STOPPED:
            self._resumed = now
        self._looked = now
        step = self._stepper.under_way
        began = int(self._loop.looked_at * 1e9) if step is None else now - (time.perf_counter_ns() - step[1])
        lasted = now - max(began, self._resumed)
        if lasted < SHOWN_AFTER:
            return None
        known = self._report_after > TOLD_AFTER and abs(began - self._began) < SHOWN_AFTER
        if not known:
            self._began, self._report_after = began, TOLD_AFTER
        operator, stack = where(self._thread) if lasted >= self._report_after else (None, "")
        while lasted >= self._report_after:
            self._report_after *= 2
        vertex = None if step is None else step[0].id.vertex
        if step is not None and stack and operator is None:
            operator = step[0].vertex.name
        return UnderWay((began - self._started) // 1000, lasted // 1000, vertex, operator, stack)


def where(thread: int) -> tuple[str | None, str]:
    """The operator whose code a thread runs, if it runs one's, and the thread's stack: the user's part of it, or all of
    it if no part is the user's."""
    frames = turn_frames(thread)
    users = [one for one in frames if not is_ours(one)]
    lines = ((one, one.f_lineno) for one in reversed(users or frames))
    return operator_in(frames), sendable("".join(traceback.StackSummary.extract(lines).format()))
