"""Errors of user code, made for the user: the operator, the subtask, the record, and the user's own part of the
traceback."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterable
from types import CodeType, TracebackType
from typing import Any

from tailrace.elements.rows import Row, missing_column
from tailrace.errors import (
    OWN_FOLDER,
    CheckpointError,
    ServiceUnreachable,
    TailraceError,
    UserCodeError,
    error_text,
    short_repr,
)
from tailrace.passwords import hide_passwords
from tailrace.task.contract.failedcall import NOTHING, FailedCall

FUSED = "<tailrace fused functions>"
"""The file name of generated code that calls user functions one per line (see `operators.fused`)."""


class ResultMisfit(TypeError):
    """Error for a result that the operator of a user function cannot take."""


def user_error(
    error: BaseException,
    operator: str,
    subtask: int,
    record: Any = NOTHING,
    *,
    what: str | None = None,
    permanent: bool = False,
    written: str = "",
) -> UserCodeError:
    """A `UserCodeError` for `error`. `record` is the record at hand, if there was one. `written` is the place of the verb
    that the error is about, if it is another one than the operator's. It is permanent if the caller requests it, and if
    Tailrace has refused something, such as state that was used outside of a keyed call: it would be refused after every
    restart."""
    message = what if what is not None else raised_text(error)
    shown = None if record is NOTHING else short_repr(record)
    refused = isinstance(error, TailraceError) and not isinstance(error, CheckpointError | ServiceUnreachable)
    made = UserCodeError(
        message,
        operator=operator,
        subtask=subtask,
        record=shown,
        user_traceback=user_traceback(error),
        permanent=permanent or refused,
        written=written,
    )
    made.call = FailedCall(record)
    return made


def raised_text(error: BaseException) -> str:
    """The exception of user code in one line. For an attribute that a row does not have, it lists those that the row has;
    for one that the context of a function does not have, it says what to use instead."""
    if type(error) is AttributeError and error.name is not None:
        if isinstance(error.obj, Row):
            return f"{type(error).__name__}: {missing_column(error.obj, error.name)}"
        if (describe := getattr(type(error.obj), "_missing", None)) is not None:
            return f"{type(error).__name__}: {describe(error.obj, error.name)}"
    return error_text(error)


def user_traceback(error: BaseException) -> str:
    """The traceback of `error`, and of what it was raised from, without the frames of Tailrace itself. Never raises."""
    try:
        return hide_passwords(_with_causes(error))
    except Exception:  # a user's class may raise for its notes, its cause or the parts of its text
        return _alone(error, _own(traceback.extract_tb(error.__traceback__)))


def whole_traceback(error: BaseException) -> str:
    """The traceback of `error` as Python prints it, with the frames of Tailrace. Never raises."""
    try:
        return hide_passwords("".join(traceback.format_exception(error)))
    except Exception:
        return _alone(error, traceback.extract_tb(error.__traceback__))


def _with_causes(error: BaseException) -> str:
    summary = traceback.TracebackException.from_exception(error)
    at: traceback.TracebackException | None = summary
    while at is not None:
        at.stack = traceback.StackSummary.from_list(_own(at.stack))
        at.__context__ = None  # the context may be Tailrace's: a function is called again to find its record
        at = at.__cause__
    return "".join(summary.format())


def _alone(error: BaseException, frames: Iterable[traceback.FrameSummary]) -> str:
    """The traceback of an exception without its causes and notes."""
    stack = traceback.StackSummary.from_list(frames)
    lines = ["Traceback (most recent call last):\n", *stack.format(), f"{error_text(error)}\n"]
    return hide_passwords("".join(lines))


def _own(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames of the user's own code."""
    return [f for f in frames if not f.filename.startswith(OWN_FOLDER) and f.filename != FUSED]


@functools.lru_cache(maxsize=256)
def fused_code(source: str) -> CodeType:
    """Code object of generated code. Subtasks that run the same functions in the same order share it."""
    return compile(source, FUSED, "exec")


def innermost_fused_frame(trace: TracebackType | None) -> TracebackType | None:
    """The last frame of generated code in a traceback: its line gives the function, its locals the record."""
    found = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FUSED:
            found = trace
        trace = trace.tb_next
    return found
