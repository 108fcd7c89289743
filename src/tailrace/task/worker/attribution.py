"""The cause of an error in a worker: user code, the environment, a peer or Tailrace itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

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
    short_repr,
)
from tailrace.protocol.deployment import Failed, FailureKind
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.usercode import user_traceback, whole_traceback
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.failed_calls import with_capsule

Written = Callable[[str], str]
"""The place where the user wrote the operator of a name, as "file:line"; empty where it is unknown."""


def fault_of(
    error: BaseException, slot: int, operator: str | None = None, written: Written = lambda name: ""
) -> Failed:
    """The `Failed` that the worker of a slot sends to the coordinator for an error. `operator` is the operator that ran,
    for errors that do not name one."""
    place = operator if operator is not None else "opening or publishing"
    if isinstance(error, UserCodeError):
        error.written = error.written or written(error.operator)
        kind = FailureKind.PROGRAM if error.permanent else FailureKind.USER
        if isinstance(error, OutOfReachError):
            kind = FailureKind.SINK
        name = "" if error.__cause__ is None else type(error.__cause__).__name__
        return Failed(kind, sendable(str(error)), error.operator, error.subtask, error.record, error=name)
    if isinstance(error, CheckpointError):
        return failure(FailureKind.STATE, str(error))
    if isinstance(error, InternalError | ProtocolViolation):
        return failure(FailureKind.INTERNAL, str(error))
    if isinstance(error, Misfit):
        return fault_of(UserCodeError(str(error), operator=place, subtask=slot), slot, None, written)
    if isinstance(error, TailraceError):
        return failure(FailureKind.USER, str(error))
    if isinstance(error, Exception):
        return internal(error)
    # sys.exit() and the like: user code tries to end a process that is not its own
    what = f"user code raised {short_repr(error)}, which would end the worker's process; let it raise an Exception"
    raised = UserCodeError(what, operator=place, subtask=slot, user_traceback=user_traceback(error))
    return fault_of(raised, slot, None, written)


def fault_outside_tasks(error: BaseException, slot: int, written: Written) -> Failed:
    """The `Failed` for an error that was raised while no task ran. Unpickling a plan runs users' `__setstate__` and the
    code of their modules."""
    if isinstance(error, ImportError):
        what = f"worker {slot} cannot import {error.name or message_of(error)}"
        return failure(
            FailureKind.IMPORT, f"{what}: install it there, or ship it: tailrace run --ship ({message_of(error)})"
        )
    if isinstance(error, Exception) and not isinstance(error, TailraceError):
        return failure(FailureKind.USER, f"{error_text(error)}\n{user_traceback(error)}")
    return fault_of(error, slot, None, written)


def with_policy(fault: Failed, spec: JobSpec | None) -> Failed:
    """The failure, marked if a policy of its operator (`on_error`) would have set the record aside."""
    takes = spec is not None and spec.takes_policy(fault.operator)
    return msgspec.structs.replace(fault, takes_policy=takes)


def with_call(
    fault: Failed, error: BaseException, spec: JobSpec | None, tasks: Iterable[Task], where: tuple[int, int, int]
) -> Failed:
    """The failure, with the call of user code that it came from where the job keeps such calls. `where`: the incarnation,
    the slot and the epoch of the worker."""
    return with_capsule(fault, error, spec, tasks, where) if isinstance(error, UserCodeError) else fault


def internal(error: BaseException) -> Failed:
    """The `Failed` for an error that nothing should have raised: a bug in Tailrace."""
    return failure(FailureKind.INTERNAL, f"inside tailrace: {whole_traceback(error)}")


def failure(kind: FailureKind, message: str, peer: int | None = None) -> Failed:
    """A `Failed` whose text can be sent."""
    return Failed(kind, sendable(message), peer=peer)


def sendable(text: str, limit: int = 20_000) -> str:
    """A text in a form that can be sent. The text of a user's error may hold half a surrogate pair, or all of the user's
    data."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n[…]\n{text[-limit // 2 :]}"
    return text.encode(errors="replace").decode()
