"""The undo log of a call of user code: the state that it touches, as it was before, so that a failed call can be undone.

Only operators with a policy for failed records have one. The handles of their functions go through `JournaledTable`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from tailrace.elements.callables import PLAIN, check_put
from tailrace.errors import StateAccessError, error_text
from tailrace.state.codecs import immutable
from tailrace.state.handles import Bound, ListState, MapState
from tailrace.state.operator_state import OperatorState
from tailrace.state.tables import MISSING, StateTable


class _Copy:
    """A value that may be changed in place, as bytes."""

    __slots__ = ("data",)

    def __init__(self, value: Any) -> None:
        self.data = pickle.dumps(value, 5)


def _value_of(saved: Any) -> Any:
    return pickle.loads(saved.data) if type(saved) is _Copy else saved


def _put_back(entries: dict[Any, Any], old: dict[Any, Any]) -> None:
    for entry, value in old.items():
        if value is MISSING:
            del entries[entry]
        else:
            entries[entry] = value


class Journal:
    """The entries of state that the call under way has touched, and what else it has changed.

    Invariant B10: behind `undo` state, timers and operator state have the values that they had at `begin`, but for a value
    that `gap` names.
    """

    def __init__(self, lenient: bool = False) -> None:
        self.lenient = lenient
        """True if a value that cannot be copied stays as the call leaves it. False if it is an error."""
        self.gap = ""
        """A sentence on the last value that could not be copied; empty if there was none in the call."""
        self.open = False
        """True while a call is under way."""
        self._entries: dict[tuple[int, Any], tuple[StateTable, Any]] = {}
        """Index of a table and key -> the table, and the value before the call."""
        self._lengths: dict[tuple[int, Any], tuple[StateTable, int]] = {}
        """Index of a table and key -> the table, and the length of its list, to which the call has only appended."""
        self._replaced: dict[tuple[int, Any], tuple[StateTable, dict[Any, Any]]] = {}
        """Index of a table and key -> the table, and old values of its mapping, in which the call has only replaced some."""
        self._states: dict[str, tuple[JournaledState, Any]] = {}
        """Name of an operator state -> it, and its value before the call."""
        self._steps: list[Callable[[], object]] = []
        """What undoes the other changes, in the order of the changes."""

    def begin(self) -> None:
        """Begins a call."""
        self._entries.clear()
        self._lengths.clear()
        self._replaced.clear()
        self._states.clear()
        self._steps.clear()
        self.gap = ""
        self.open = True

    def end(self) -> None:
        """Ends a call. What it has changed stays."""
        self.open = False

    def note(self, table: StateTable, key: Any) -> None:
        """Notes an entry of keyed state before it is handed out or changed."""
        place = table.index, key
        if not self.open or place in self._entries:
            return
        value = table.get(key, MISSING)
        if place in self._lengths:
            value = value[: self._lengths.pop(place)[1]]
        elif place in self._replaced:
            value = dict(value)
            _put_back(value, self._replaced.pop(place)[1])
        self._entries[place] = table, self._copy_of(table.name, value)

    def note_append(self, table: StateTable, key: Any, items: list[Any]) -> None:
        """Notes a list before something is appended to it: its length is enough."""
        place = table.index, key
        if self.open and place not in self._entries and place not in self._lengths:
            self._lengths[place] = table, len(items)

    def note_put(self, table: StateTable, key: Any, entries: dict[Any, Any], entry: Any) -> None:
        """Notes a mapping before one of its values is replaced: that value is enough."""
        place = table.index, key
        if self.open and place not in self._entries:
            self._replaced.setdefault(place, (table, {}))[1].setdefault(entry, entries.get(entry, MISSING))

    def note_state(self, state: JournaledState) -> None:
        """Notes an operator state before it is handed out or changed."""
        if self.open and state.name not in self._states:
            self._states[state.name] = state, self._copy_of(state.name, state.held)

    def _copy_of(self, name: str, value: Any) -> Any:
        if value is MISSING or immutable(value):
            return value
        try:
            return _Copy(value)
        except Exception as error:
            what = f"state {name!r} holds a {type(value).__name__} that cannot be copied ({error_text(error)})"
            if not self.lenient:
                raise StateAccessError(
                    f"{what}, and on_error undoes what a failed call has changed; keep values that can be pickled, as "
                    f"checkpoints need them"
                ) from error
            self.gap = f"{what}: it is as the failed call left it"
            return value

    def add(self, step: Callable[[], object]) -> None:
        """Adds a step that undoes a change."""
        if self.open:
            self._steps.append(step)

    def undo(self) -> None:
        """Ends a call, and undoes what it has changed."""
        self.open = False
        for step in reversed(self._steps):
            step()
        for (_, key), (table, length) in self._lengths.items():
            del table[key][length:]
        for (_, key), (table, old) in self._replaced.items():
            _put_back(table[key], old)
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

    def append(self, key: Any, item: Any) -> None:
        """Appends an item to the list of a key."""
        found = self._table.get(key)
        if found:
            self._journal.note_append(self._table, key, found)
            found.append(item)
        else:
            self[key] = [item]

    def put(self, key: Any, entry: Any, value: Any) -> None:
        """Sets one value in the mapping of a key."""
        found = self._table.get(key)
        if found:
            self._journal.note_put(self._table, key, found, entry)
            found[entry] = value
        else:
            self[key] = {entry: value}

    def peek(self, key: Any, default: Any) -> Any:
        """The object of a key, of which the caller hands out nothing that can be changed in place."""
        return self._table.get(key, default)


class JournaledList(ListState):
    """A handle of a list of which a call that only appends needs no copy."""

    __slots__ = ()
    _table: Any

    def append(self, item: Any) -> None:
        if type(item) not in PLAIN:
            check_put(self.name, item)
        self._table.append(self._holder.current_key, item)

    add = append

    def __len__(self) -> int:
        return len(self._table.peek(self._holder.current_key, ()))


class JournaledMap(MapState):
    """A handle of a mapping of which a call that only reads and sets single values needs no copy."""

    __slots__ = ()
    _table: Any

    def get(self, key: Any = MISSING, default: Any = None) -> Any:
        if key is MISSING:
            return super().get()
        found = self._table.peek(self._holder.current_key, {}).get(key, default)
        return found if immutable(found) else super().get(key, default)

    def __getitem__(self, key: Any) -> Any:
        found = self._table.peek(self._holder.current_key, {})[key]
        return found if immutable(found) else super().__getitem__(key)

    def put(self, key: Any, value: Any) -> None:
        if type(value) not in PLAIN:
            check_put(self.name, value)
        self._table.put(self._holder.current_key, key, value)

    __setitem__ = put

    def contains(self, key: Any) -> bool:
        return key in self._table.peek(self._holder.current_key, ())

    __contains__ = contains

    def __len__(self) -> int:
        return len(self._table.peek(self._holder.current_key, ()))


_JOURNALED: dict[type, Any] = {ListState: JournaledList, MapState: JournaledMap}
"""Class of a handle -> the class that it has with a journal. The others copy each value that can be changed in place."""


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
        handle.__class__ = _JOURNALED.get(type(handle), type(handle))
    for state in states:
        held = state.__dict__.pop("_value")
        state.__class__ = JournaledState
        state.__dict__ |= {"_journal": journal, "held": held}
