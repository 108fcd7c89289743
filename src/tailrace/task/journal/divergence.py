"""What is said where a worker that does again what a lost one did does something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.errors import InternalError, ProtocolViolation, UserCodeError, error_text
from tailrace.task.subtask.machine import Task


def differs(task: Task, what: str) -> UserCodeError:
    """A task that does again what that of a lost worker did has done something else."""
    return UserCodeError(
        f"worker {task.id.subtask} was replaced, and what it did is not done the same again: {what}. Time, randomness and "
        f"answers of other systems have to come from ctx.now(), ctx.random and ctx.call(f, ...), and what a function "
        f"remembers belongs into state; or leave `standby` out. All workers start again from the newest checkpoint",
        operator=task.vertex.name,
        subtask=task.id.subtask,
    )


@contextmanager
def as_before(task: Task, what: object) -> Iterator[None]:
    """Does again what has raised nothing when it was done first. What we would refuse after every restart (user code that
    asks for more than the history has answers for, say) was not refused then, so all start again."""
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
