"""All errors that Tailrace raises on purpose. Each message names the culprit, the place, and what to do.

`TailraceError` is the root. Any other error is a bug of Tailrace. So is `InternalError`, a bug that Tailrace noticed
itself: it carries the events that led to it.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tailrace.passwords import hide_passwords

OWN_FOLDER = __file__.rpartition("errors.py")[0]
"""The folder of the package in this process, with the separator at its end. Code in a file below it is Tailrace's, all
other code is the user's. A name in a path proves nothing: a user's own folder may be called tailrace, as a clone is."""
_LONGEST = 4_096
"""Number of characters behind the limit of a shortened text in which a password that begins before it may end."""


class TailraceError(Exception):
    """The root of every error that Tailrace raises on purpose. Its text shows no password of a URL."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(hide_passwords(one) if isinstance(one, str) else one for one in args))


class ConfigError(TailraceError):
    """The error for a setting that is wrong, or names something that this version does not have."""


class GraphError(TailraceError):
    """The error for a dataflow that cannot run as it was written. Raised before anything starts."""


class UidError(GraphError):
    """The error for two operators with one uid, and for a uid that is no usable name."""


class ScopeError(GraphError):
    """The error for streams of different loops that were put together, and for a scope that does not exist."""


class TypeMismatch(GraphError):
    """The error for a stream of another form or kind than the verb needs."""


class SlotsError(GraphError, ConfigError):
    """The error for a job that needs more task slots than Spark has: the graph requires too many, or the configuration gives
    too few."""


class UserCodeError(TailraceError):
    """The error for a user's function that raised, or returned what it must not.

    Attributes: `operator`, `subtask`, `record` (a shortened repr, or None), `user_traceback` (text), `permanent` (true if
    the program itself must change: every restart would fail again, so the job does not restart), `written` (the verb at
    fault and the line of the program that calls it; empty where unknown).
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str,
        subtask: int,
        record: str | None = None,
        user_traceback: str = "",
        permanent: bool = False,
        written: str = "",
    ) -> None:
        super().__init__(message)
        self.call: Any = None  # the facts of the call, within its worker (`task.contract.failedcall`)
        self.permanent = permanent
        self.written = written
        self.operator = operator
        self.subtask = subtask
        self.record = record
        self.user_traceback = user_traceback

    def __str__(self) -> str:
        where = f"operator {self.operator!r}, subtask {self.subtask}"
        record = f", record {self.record}" if self.record is not None else ""
        written = f"\n{self.written}" if self.written else ""
        trace = f"\n{self.user_traceback.rstrip()}" if self.user_traceback else ""
        return hide_passwords(f"{where}{record}: {self.args[0]}{written}{trace}")

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _user_code_error,
            (*self.args, self.operator, self.subtask, self.record, self.user_traceback, self.permanent, self.written),
        )


class OutOfReachError(UserCodeError):
    """The error for a sink whose place is out of reach. The job tries again, whatever its restart strategy is."""

    def __str__(self) -> str:
        return hide_passwords(f"the sink {self.operator!r}: {self.args[0]}")


class ServiceUnreachable(TailraceError, ConnectionError):
    """The error for a service that reading or writing records needs, and that does not answer. No record is to blame: none
    is set aside for it (`on_error`), and the job may start again."""


class OutputLost(TailraceError):
    """The error for a server that has lost what a `tr.TransactionalSink` had committed."""


def _user_code_error(
    message: str, operator: str, subtask: int, record: str | None, trace: str, permanent: bool, written: str
) -> UserCodeError:
    return UserCodeError(
        message,
        operator=operator,
        subtask=subtask,
        record=record,
        user_traceback=trace,
        permanent=permanent,
        written=written,
    )


class JobFailed(TailraceError):
    """The error for a job that ended as FAILED. The text holds the cause with the user's own traceback.

    Attributes: `job` (its name), and `operator`, `subtask`, `record` if user code was the cause. `taken_over`: true if a
    newer start of the job has taken over.
    """

    def __init__(
        self,
        message: str,
        *,
        job: str = "",
        operator: str | None = None,
        subtask: int | None = None,
        record: str | None = None,
        taken_over: bool = False,
    ) -> None:
        super().__init__(message)
        self.job = job
        self.operator = operator
        self.subtask = subtask
        self.record = record
        self.taken_over = taken_over


class CheckpointError(TailraceError):
    """The error for a checkpoint that could not be taken, found, read or restored."""


class CheckpointNotFound(CheckpointError):
    """The error for a checkpoint that does not exist."""


class CheckpointsRemoved(CheckpointNotFound):
    """The error for files of checkpoints that were removed from outside while their job ran."""


class CheckpointCorrupt(CheckpointError):
    """The error for a checkpoint that is damaged, or of a version that cannot be read. Nothing of it was deleted."""


class IncompatibleState(CheckpointError):
    """The error for state of a checkpoint that does not fit the dataflow that is to start from it, and for a dataflow
    other than the one of the finished job of its name. The message lists what does not fit."""


class Fenced(CheckpointError):
    """The error for a start of a job that may not write any more, because a newer start has taken over."""


class RescaleError(TailraceError):
    """The error for a job that has not the size that was requested. It goes on in the size that it has."""


class JobAlreadyFinished(TailraceError):
    """The error for a job that cannot go on from its newest checkpoint, because it has come to its end and all of its output
    is published. It is not a `CheckpointError`: a program that starts from the beginning if there is no checkpoint would
    publish everything once more.

    Attributes: `job` (its name), `run_id` (the run that has ended), `ended_at` (when, seconds since 1970).
    """

    def __init__(self, message: str, *, job: str = "", run_id: str = "", ended_at: float = 0.0) -> None:
        super().__init__(message)
        self.job = job
        self.run_id = run_id
        self.ended_at = ended_at


class StateAccessError(TailraceError):
    """The error for the use of keyed state, a timer or `ctx.key` without a key."""


class ProtocolViolation(TailraceError):
    """The error for a message that its sender must not send. The receiver closes the connection and ignores the message."""


OWN_FAULT = "this is a bug in tailrace"
"""A part of the message of each `InternalError`."""


class InternalError(TailraceError):
    """The error for a broken invariant of Tailrace. `story` has the last events of the state machine that noticed it."""

    def __init__(self, message: str, story: Iterable[str] = ()) -> None:
        self.what = message
        self.story = tuple(story)
        lines = "".join(f"\n  {line}" for line in self.story)
        super().__init__(f"{message} ({OWN_FAULT}; please report it with this story){lines}")


def level_of_user() -> int:
    """Number of frames from the caller up to the user's own code: the `stacklevel` of a warning that points there."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FOLDER):
        level, frame = level + 1, frame.f_back
    return level + 1


def written_here(verb: str) -> str:
    """A sentence for later errors: the verb, with the place and the text of the user's line that calls it now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FOLDER):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    linecache.checkcache(file)
    text = hide_passwords(" ".join(linecache.getline(file, line, frame.f_globals).split()))
    shown = f": {text if len(text) <= 100 else text[:99] + '…'}" if text else ""
    return f"{verb} is written at {_line_name(file, line)}{shown}"


def _line_name(file: str, line: int) -> str:
    """The name of a line for users: its file and number; in a notebook the number of its cell as shown there."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    with suppress(Exception):  # only some versions of IPython have this method
        kind, name = shell.compile.format_code_name(file)
        return f"{kind.lower()} {name}, line {line}"
    cell = re.match(r"<ipython-input-(\d+)-", file)
    return f"cell In[{cell[1]}], line {line}" if cell else f"{file}:{line}"


def short_repr(value: object, limit: int = 200) -> str:
    """A repr of a user's value that is at most `limit` characters and never raises."""
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__ may do anything
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    text = hide_passwords(text[: limit + _LONGEST])
    text = text.encode(errors="backslashreplace").decode()  # half a surrogate pair could not be sent or printed
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def message_of(error: BaseException) -> str:
    """The text of an exception, fit to be sent and printed. Never raises."""
    try:
        text = str(error)
    except Exception as another:  # a user's __str__ may do anything
        text = f"<{type(error).__name__} whose str raised {type(another).__name__}>"
    return hide_passwords(text).encode(errors="backslashreplace").decode()


def error_text(error: BaseException) -> str:
    """An exception with the name of its class, as Python prints it at the end of a traceback. Never raises."""
    name, text = type(error).__name__, message_of(error)
    return f"{name}: {text}" if text else name
