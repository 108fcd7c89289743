"""State that an object of a task has at a cut, and that no checkpoint holds: a job that starts again from the checkpoint
finds it out anew. A worker that takes a task over needs it as it was (`task.journal.task_state`)."""

from __future__ import annotations

from functools import cache
from typing import Any


class CutState:
    """Base of an object with such state.

    Its class derives from a dataclass that declares all fields of the state, and that from this base, so that the fields
    are plain attributes. A field of a task's object that no such dataclass declares is configuration, or in the
    checkpoint, or made anew (`tests/task/journal/test_task_fields.py`).
    """

    __slots__ = ()

    def cut_state(self) -> dict[str, Any]:
        """Values of the fields by name, and whatever else the class adds. They can be pickled."""
        kind: Any = type(self)
        return {name: getattr(self, name) for name in cut_fields(kind)}

    def set_cut_state(self, state: dict[str, Any]) -> None:
        """Sets what `cut_state` has returned in another process."""
        kind: Any = type(self)
        for name in cut_fields(kind):
            setattr(self, name, state[name])


@cache
def cut_fields(kind: type[Any]) -> tuple[str, ...]:
    """Names of the fields that the dataclasses among the bases of a class declare."""
    declared = (name for base in reversed(kind.__mro__) for name in base.__dict__.get("__dataclass_fields__", ()))
    return tuple(dict.fromkeys(declared))
