"""Whose fault it is that something was raised in a worker."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.elements.columns.misfit import Misfit
from tailrace.errors import (
    CheckpointError,
    InternalError,
    OutOfReachError,
    ProtocolViolation,
    TailraceError,
    UserCodeError,
    error_text,
    message_of,
    shortened,
)
from tailrace.protocol.deployment import Failed, FailureKind
from tailrace.task.contract.usercode import user_traceback, whole_traceback

Written = Callable[[str], str]
"""Where the user has written the operator of a name, as "file:line"; nothing where nobody knows."""


def fault_of(
    error: BaseException, slot: int, operator: str | None = None, written: Written = lambda name: ""
) -> Failed:
    """What the worker of a slot tells the coordinator of an error. `operator` is what ran, where the error does not say it
    itself."""
    place = operator if operator is not None else "opening or publishing"
    if isinstance(error, UserCodeError):
        error.written = error.written or written(error.operator)
        kind = FailureKind.PROGRAM if error.permanent else FailureKind.USER
        if isinstance(error, OutOfReachError):
            kind = FailureKind.SINK
        return Failed(kind, sendable(str(error)), error.operator, error.subtask, error.record)
    if isinstance(error, CheckpointError):
        return failed(FailureKind.STATE, str(error))
    if isinstance(error, InternalError | ProtocolViolation):
        return failed(FailureKind.INTERNAL, str(error))
    if isinstance(error, Misfit):
        return fault_of(UserCodeError(str(error), operator=place, subtask=slot), slot, None, written)
    if isinstance(error, TailraceError):
        return failed(FailureKind.USER, str(error))
    if isinstance(error, Exception):
        return internal(error)
    # sys.exit() and the like: user code wants to end a process that is not its own
    what = f"user code raised {shortened(error)}, which would end the worker's process; let it raise an Exception"
    raised = UserCodeError(what, operator=place, subtask=slot, user_traceback=user_traceback(error))
    return fault_of(raised, slot, None, written)


def fault_outside_tasks(error: BaseException, slot: int, written: Written) -> Failed:
    """The same for what was raised while no task ran. Unpickling a plan runs users' `__setstate__` and the code of their
    modules."""
    if isinstance(error, ImportError):
        what = f"worker {slot} cannot import {error.name or message_of(error)}"
        return failed(
            FailureKind.IMPORT, f"{what}: install it there, or ship it: tailrace run --ship ({message_of(error)})"
        )
    if isinstance(error, Exception) and not isinstance(error, TailraceError):
        return failed(FailureKind.USER, f"{error_text(error)}\n{user_traceback(error)}")
    return fault_of(error, slot, None, written)


def internal(error: BaseException) -> Failed:
    """What nobody should have raised."""
    return failed(FailureKind.INTERNAL, f"inside tailrace: {whole_traceback(error)}")


def failed(kind: FailureKind, message: str, peer: int | None = None) -> Failed:
    """The message, with a text that can be sent."""
    return Failed(kind, sendable(message), peer=peer)


def sendable(text: str, limit: int = 20_000) -> str:
    """A text as it can be sent: what a user's error says may hold half a surrogate pair, or all of their data."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n[…]\n{text[-limit // 2 :]}"
    return text.encode(errors="replace").decode()
