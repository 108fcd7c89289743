"""The order of what a task may do: lines, of which the first one that applies is followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from tailrace.task.subtask.idleness import Idle, Reason

T = TypeVar("T")
"""The type of the task."""

NOTHING = -1
"""The number of a line, if none was followed."""


class Turn(NamedTuple, Generic[T]):
    """A line of the order: if no line before it applies and its `guard` is true, the task does this."""

    guard: Callable[[T, int], object]
    """The condition, evaluated with the clock. It may be evaluated again without the line having been followed."""
    act: Callable[[Any, int, int], Idle | None] | None
    """The bounded piece of work: a method of the task's `Work`, or of the task (`of_task`), given the clock and the budget;
    it returns an `Idle` if it could not be done. None: nothing can be done."""
    reason: Reason = Reason.NO_INPUT
    """The reason why nothing can be done, if `act` is None."""
    whose: Callable[[T], object] = lambda task: True
    """True for the tasks that the line is for: evaluated when the task is made, and when a stop holds it or lets it go."""
    of_task: bool = False
    """True if `act` is a method of the task."""
    reads: bool = False
    """True if the line reads from the task's channels."""


Line = tuple[Callable[[T, int], object], Callable[[Any, int, int], Idle | None] | None, Reason, int, bool]
"""The parts of a line that a task evaluates in each step: guard, act and reason, the number of the line in the order, and
`of_task`."""


def lines(order: Sequence[Turn[T]], task: T) -> list[Line[T]]:
    """The lines that are for this task."""
    return [(*turn[:3], number, turn.of_task) for number, turn in enumerate(order) if turn.whose(task)]
