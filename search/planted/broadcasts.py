"""Bugs to be planted in broadcast state."""

from __future__ import annotations

from unittest import mock

from search.planted.patches import Bug, Patches, method
from tailrace.api.verbs import two_streams
from tailrace.state.operator_state import OperatorStates


def _own_part_only() -> Patches:
    """Bug: behind a restore only the first subtask has its copy."""

    def make(restore_copies: object) -> object:
        def own(self: OperatorStates, saved: object) -> None:
            if self._where.subtask == 0:
                restore_copies(self, saved)  # type: ignore[operator]
            else:
                for states in saved:  # type: ignore[attr-defined]
                    for name in [name for name, one in states.items() if one.kind == "broadcast"]:
                        del states[name]

        return own

    return [method(OperatorStates, "_restore_copies", make)]


def _any_order() -> Patches:
    """Bug: broadcast records come from several subtasks at once."""
    return [mock.patch.object(two_streams, "in_one_order", lambda stream, *_: stream)]


BROADCAST_BUGS = (
    Bug("only the first subtask gets broadcast state back", "ruled", _own_part_only, seed=2),
    Bug("broadcast records have no one order", "ruled", _any_order),
)
