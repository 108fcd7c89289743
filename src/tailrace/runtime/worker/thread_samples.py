"""A close look at the process of a worker, from the thread of its heartbeat: the stacks of all threads, and the keys on
which the worker's own thread spends its time.

The keys come from looks at the thread, not from counts of records: nothing is counted while nobody looks, and a key with few
records that take long is found as well.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections import Counter
from types import FrameType

from tailrace.errors import OWN_FOLDER, short_repr
from tailrace.protocol.deployment import Inspect, Inspection, KeyTime, ThreadStack
from tailrace.runtime.worker.stack_frames import operator_in, turn_frames
from tailrace.task.operators.base import OperatorTask
from tailrace.task.worker.attribution import sendable

PAUSE = 0.005
"""Seconds between two looks at the worker's own thread."""
LONGEST = 5.0
"""Seconds for which the thread looks on, at most: it gives no sign of life meanwhile."""
KEYS = 20
"""Keys of an operator that an answer has, at most."""
STACK = 8_000
"""Characters of a thread's stack, about."""


def inspection(slot: int, worker: int, request: Inspect) -> Inspection:
    """The answer to a request. `slot`: the place that this process was started for; `worker`: the worker's own thread."""
    keys, looks = _keys(worker, min(request.seconds, LONGEST))
    return Inspection(request.number, slot, os.getpid(), _stacks(worker), keys, looks)


def _stacks(worker: int) -> list[ThreadStack]:
    """The stacks of all threads but this one, the worker's own first."""
    names = {one.ident: one.name for one in threading.enumerate()}
    frames = sys._current_frames()
    found = [ThreadStack("worker", _text(turn_frames(worker)), operator_in(turn_frames(worker)))]
    for thread, frame in sorted(frames.items()):
        if thread not in (worker, threading.get_ident()):
            found.append(ThreadStack(names.get(thread, f"thread {thread}"), _text(_outwards(frame))))
    return found


def _outwards(frame: FrameType | None) -> list[FrameType]:
    """A frame and its callers, the innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _text(frames: list[FrameType]) -> str:
    lines = ((one, one.f_lineno) for one in reversed(frames))
    return sendable("".join(traceback.StackSummary.extract(lines).format()), STACK)


def _keys(worker: int, seconds: float) -> tuple[list[KeyTime], dict[str, int]]:
    """The keys with the most time, and all looks by operator."""
    counts, looks = Counter[tuple[str, str]](), Counter[str]()
    pause, until = threading.Event(), time.monotonic() + seconds
    while time.monotonic() < until:
        found = _key_of(turn_frames(worker))
        if found is not None:
            counts[found] += 1
            looks[found[0]] += 1
        pause.wait(PAUSE)
    kept = Counter[str]()
    keys = []
    for (operator, key), many in counts.most_common():
        kept[operator] += 1
        if kept[operator] <= KEYS:
            keys.append(KeyTime(operator, key, many))
    return keys, dict(looks)


def _key_of(frames: list[FrameType]) -> tuple[str, str] | None:
    """The operator whose method runs, by its uid, and the key that it works on; None where it has none."""
    for frame in frames:
        if frame.f_code.co_filename.startswith(OWN_FOLDER):
            which = frame.f_locals.get("self")
            if isinstance(which, OperatorTask):
                key = which.ctx.current_key
                return None if key is which.ctx.no_key else (which.ctx.uid, sendable(short_repr(key), 200))
    return None
