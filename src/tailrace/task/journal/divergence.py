"""The error of a replay that differs from what the lost worker did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.errors import InternalError, ProtocolViolation, UserCodeError, error_text
from tailrace.task.subtask.machine import Task


def differs(task: Task, what: str) -> UserCodeError:
    """The error of a replayed task that has done something else than the lost worker's task did."""
    return UserCodeError(
        f"worker {task.id.subtask} was replaced, and what it did is not done the same again: {what}. Answers of "
        f"other systems have to come from ctx.call(f, ...), clocks and random numbers from ctx or Python's own modules, and "
        f"what a function remembers belongs into state: no field of it may decide what it reads; or leave `standby` out. "
        f"All workers start again from the newest checkpoint",
        operator=task.vertex.name,
        subtask=task.id.subtask,
    )


@contextmanager
def as_before(task: Task, what: object) -> Iterator[None]:
    """Context of a replayed step, which raised nothing when it was done first. An error that would be repeated after
    every restart (user code that requests more answers than the history has, say) was not raised then, so it becomes a
    `differs` error: all workers start again."""
    try:
        yield
    except UserCodeError as error:
        if not error.permanent:
            raise
        raise differs(task, f"{what}: {_why(error.__cause__ or error)}") from error
    except (InternalError, ProtocolViolation, LookupError, AssertionError) as error:
        raise differs(task, f"{what}: {_why(error)}") from error


def _why(error: BaseException) -> str:
    return error.what if isinstance(error, InternalError) else error_text(error)
