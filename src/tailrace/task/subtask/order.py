"""The order in which a task looks at what it may do: lines, of which the first one that applies is followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from tailrace.task.subtask.idleness import Idle, Reason

T = TypeVar("T")
"""The task."""

NOTHING = -1
"""As the number of a line: none."""


class Turn(NamedTuple, Generic[T]):
    """A line of the order: where nothing before it applies and `guard` says so, this is what the task does."""

    guard: Callable[[T, int], object]
    """Asked with the clock. It may be asked again without having been followed."""
    act: Callable[[T, int, int], Idle | None] | None
    """One bounded piece of work, given the clock and the budget, or why it could not be done. None: nothing can be done."""
    reason: Reason = Reason.NO_INPUT
    """Why not, where nothing can be done."""
    whose: Callable[[T], object] = lambda task: True
    """Whether the line is for such a task at all: asked when the task is made, and when a stop holds it or lets it go."""
    reads: bool = False
    """Whether it reads what is on the task's channels."""


Line = tuple[Callable[[T, int], object], Callable[[T, int, int], Idle | None] | None, Reason, int]
"""What a task looks at in each step of a line of the order, and which one it is."""


def lines(order: Sequence[Turn[T]], task: T) -> list[Line[T]]:
    """The lines that are for this task."""
    return [(*turn[:3], number) for number, turn in enumerate(order) if turn.whose(task)]
