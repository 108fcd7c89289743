"""The frames of a thread of a worker, as another thread sees them: whose code runs there."""

from __future__ import annotations

import sys
from types import FrameType

from tailrace.errors import OWN_FOLDER
from tailrace.task.channels.key_readers import FieldReader
from tailrace.task.contract.usercode import FUSED
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.stateless import FusedRows


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


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OWN_FOLDER) or frame.f_code.co_filename == FUSED


def _is_turn(frame: FrameType) -> bool:
    """True if the callers of a frame are the worker itself, and Spark."""
    return frame.f_code.co_name == "_turn" and frame.f_code.co_filename.startswith(OWN_FOLDER)
