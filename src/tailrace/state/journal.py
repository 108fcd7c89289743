"""The journal of a call of user code: the state that it touches, as it was before, so that a failed call can be undone.

Only operators with a policy for failed records have one. The handles of their functions go through `JournaledTable`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from tailrace.errors import StateAccessError, error_text
from tailrace.state.codecs import immutable
from tailrace.state.handles import Bound
from tailrace.state.operator_state import OperatorState
from tailrace.state.tables import MISSING, StateTable


class _Copy:
    """A value that may be changed in place, as bytes."""

    __slots__ = ("data",)

    def __init__(self, name: str, value: Any) -> None:
        try:
            self.data = pickle.dumps(value, 5)
        except Exception as error:
            raise StateAccessError(
                f"state {name!r} holds a {type(value).__name__} that cannot be copied ({error_text(error)}), and on_error "
                f"undoes what a failed call has changed; keep values that can be pickled, as checkpoints need them"
            ) from error


def _copy_of(name: str, value: Any) -> Any:
    return value if value is MISSING or immutable(value) else _Copy(name, value)


def _value_of(saved: Any) -> Any:
    return pickle.loads(saved.data) if type(saved) is _Copy else saved


class Journal:
    """The entries of state that the call under way has touched, and what else it has changed.

    Invariant B10: behind `undo` state, timers and operator state have the values that they had at `begin`.
    """

    def __init__(self) -> None:
        self.open = False
        """True while a call is under way."""
        self._entries: dict[tuple[int, Any], tuple[StateTable, Any]] = {}
        """Index of a table and key -> the table, and the value before the call."""
        self._states: dict[str, tuple[JournaledState, Any]] = {}
        """Name of an operator state -> it, and its value before the call."""
        self._steps: list[Callable[[], object]] = []
        """What undoes the other changes, in the order of the changes."""

    def begin(self) -> None:
        """Begins a call."""
        self._entries.clear()
        self._states.clear()
        self._steps.clear()
        self.open = True

    def end(self) -> None:
        """Ends a call. What it has changed stays."""
        self.open = False

    def note(self, table: StateTable, key: Any) -> None:
        """Notes an entry of keyed state before it is handed out or changed."""
        if self.open and (table.index, key) not in self._entries:
            self._entries[table.index, key] = table, _copy_of(table.name, table.get(key, MISSING))

    def note_state(self, state: JournaledState) -> None:
        """Notes an operator state before it is handed out or changed."""
        if self.open and state.name not in self._states:
            self._states[state.name] = state, _copy_of(state.name, state.held)

    def add(self, step: Callable[[], object]) -> None:
        """Adds a step that undoes a change."""
        if self.open:
            self._steps.append(step)

    def undo(self) -> None:
        """Ends a call, and undoes what it has changed."""
        self.open = False
        for step in reversed(self._steps):
            step()
        for (_, key), (table, saved) in self._entries.items():
            if saved is MISSING:
                table.pop(key)
            elif saved is not table.get(key, MISSING):
                table.top[key] = _value_of(saved)
        for state, saved in self._states.values():
            state.held = _value_of(saved)


class JournaledTable:
    """The table of a handle, by which every entry is noted before the handle has it. It is the top layer as well."""

    __slots__ = ("_journal", "_table", "_top")

    def __init__(self, table: StateTable, journal: Journal) -> None:
        self._table = table
        self._top = table.top
        self._journal = journal

    @property
    def top(self) -> dict[Any, Any]:
        """The top layer itself."""
        return self._top

    @property
    def layered(self) -> bool:
        """True if there is, or was, any entry below the top."""
        return self._table.layered

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key in the top layer."""
        if key not in self._top:
            return default
        self._journal.note(self._table, key)
        return self._top[key]

    def find(self, key: Any, default: Any = None) -> Any:
        """The value of a key that is not in the top layer."""
        self._journal.note(self._table, key)
        return self._table.get(key, default)

    def pop(self, key: Any, default: Any = None) -> Any:
        """Removes a key, and returns the value it had."""
        self._journal.note(self._table, key)
        return self._table.pop(key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._journal.note(self._table, key)
        self._top[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self._table


class JournaledState(OperatorState):
    """A handle of an operator state whose value is noted before it is handed out or changed."""

    _journal: Journal
    held: Any
    """The value itself."""

    @property
    def _value(self) -> Any:
        self._journal.note_state(self)
        return self.held

    @_value.setter
    def _value(self, value: Any) -> None:
        self._journal.note_state(self)
        self.held = value


def keep_journal(journal: Journal, handles: Bound, states: Iterable[OperatorState]) -> None:
    """Makes the handles and operator states of a function note in a journal what a call touches."""
    for handle in handles.values():
        table = handle._table
        journaled: Any = JournaledTable(table, journal)
        table.users[:] = [user for user in table.users if user is not handle]
        table.users.append(journaled)
        handle._table = handle._top = journaled
    for state in states:
        held = state.__dict__.pop("_value")
        state.__class__ = JournaledState
        state.__dict__ |= {"_journal": journal, "held": held}
