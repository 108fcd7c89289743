"""Errors of user code, made for the user: the operator, the subtask, the record, and their own part of the traceback."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

from tailrace.elements.convert import Row, missing_column
from tailrace.errors import OWN_FOLDER, CheckpointError, TailraceError, UserCodeError, error_text, shortened

_NOTHING: Any = object()
FUSED = "<tailrace fused functions>"
"""The file name of generated code that calls user functions one per line (see `operators.fused`)."""


def user_error(
    error: BaseException,
    operator: str,
    subtask: int,
    record: Any = _NOTHING,
    *,
    what: str | None = None,
    permanent: bool = False,
    written: str = "",
) -> UserCodeError:
    """A `UserCodeError` for `error`; `record` is the record at hand, where there was one; `written` is where
    the verb is that it is about, if it is not that of the operator. It is permanent where the caller
    says so, and where we have refused something ourselves, say state that was used outside of a keyed call: we would refuse
    it after every restart."""
    message = what if what is not None else raised_text(error)
    shown = None if record is _NOTHING else shortened(record)
    refused = isinstance(error, TailraceError) and not isinstance(error, CheckpointError)
    return UserCodeError(
        message,
        operator=operator,
        subtask=subtask,
        record=shown,
        user_traceback=user_traceback(error),
        permanent=permanent or refused,
        written=written,
    )


def raised_text(error: BaseException) -> str:
    """What user code raised, in one line. An attribute that a row does not have is told with those that it has."""
    if isinstance(error, AttributeError) and isinstance(error.obj, Row) and error.name is not None:
        return f"{type(error).__name__}: {missing_column(error.obj, error.name)}"
    return error_text(error)


def user_traceback(error: BaseException) -> str:
    """The traceback of `error`, and of what it was raised from, without the frames of Tailrace itself."""
    summary = traceback.TracebackException.from_exception(error)
    at: traceback.TracebackException | None = summary
    while at is not None:
        own = [f for f in at.stack if not f.filename.startswith(OWN_FOLDER) and f.filename != FUSED]
        at.stack = traceback.StackSummary.from_list(own)
        at.__context__ = None  # it may be of ours: a function is called again to find its record
        at = at.__cause__
    return "".join(summary.format())


def innermost_fused_frame(trace: TracebackType | None) -> TracebackType | None:
    """The last frame of generated code in a traceback: its line tells the function, its locals the record."""
    found = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FUSED:
            found = trace
        trace = trace.tb_next
    return found
