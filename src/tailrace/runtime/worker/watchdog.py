"""The watchdog of a worker's own thread, in the thread of its heartbeat: user code may hold that thread up for ever."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from types import FrameType

from tailrace.errors import OWN_FOLDER
from tailrace.protocol.deployment import UnderWay
from tailrace.runtime.eventloop.loop import EventLoop
from tailrace.runtime.worker.stepping import Stepper
from tailrace.task.channels.keys import FieldReader
from tailrace.task.contract.usercode import FUSED
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.stateless import FusedRows
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
        self.thread = threading.get_ident()
        self._began = 0
        """Beginning of what was under way at the last look."""
        self._report_after = TOLD_AFTER
        self._looked = self._resumed = time.monotonic_ns()

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
        operator, stack = where(self.thread) if lasted >= self._report_after else (None, "")
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
    users = [one for one in frames if not _is_ours(one)]
    lines = ((one, one.f_lineno) for one in reversed(users or frames))
    return operator_in(frames), sendable("".join(traceback.StackSummary.extract(lines).format()))


def turn_frames(thread: int) -> list[FrameType]:
    """The frames of a worker's own thread inside its turn, the innermost first."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None and not _is_turn(frame):
        frames.append(frame)
        frame = frame.f_back
    return frames


def operator_in(frames: list[FrameType]) -> str | None:
    """The name of the operator whose code these frames run, if it is one's."""
    return next((name for at in range(len(frames)) if (name := _operator(frames, at)) is not None), None)


def _operator(frames: list[FrameType], at: int) -> str | None:
    """The name of the operator whose method a frame is in; `frames` begins with the innermost."""
    if not frames[at].f_code.co_filename.startswith(OWN_FOLDER):
        return None
    which = frames[at].f_locals.get("self")
    if isinstance(which, FieldReader):
        return which.who
    if not isinstance(which, OperatorTask):
        return None
    if isinstance(which, FusedRows) and at and frames[at - 1].f_code.co_filename == FUSED:
        return which.nodes[which.index_at(frames[at - 1].f_lineno)].name
    return which.node.name


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OWN_FOLDER) or frame.f_code.co_filename == FUSED


def _is_turn(frame: FrameType) -> bool:
    """True if the callers of a frame are the worker itself, and Spark."""
    return frame.f_code.co_name == "_turn" and frame.f_code.co_filename.startswith(OWN_FOLDER)
