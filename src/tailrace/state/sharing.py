"""The search for objects that several entries of state hold, for tests and debug runs.

In memory a change of such an object in place is in all of these entries; on disk, and after a restart, each of them has an
object of its own. Here each gets one at once: a copy, a twin of the first. Where one of the twins is changed while another
one is still in its entry, the program depends on where its state lies.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import xxhash

from tailrace.errors import StateAccessError, short_repr
from tailrace.state.codecs import immutable
from tailrace.state.tables import ATOMS, MISSING, StateTable

AS_BEFORE: Any = object()
"""A stand-in for the value of an entry that was neither read nor written since the last cut."""
_UNCHANGED = (*ATOMS, tuple, frozenset, type, FunctionType, BuiltinFunctionType)
_EACH_TIME = 64
"""Number of objects in an entry up to which it is looked at after each call. A larger one is looked at less often, so that
the time for a call does not grow with it."""


class Place(NamedTuple):
    """The place of an entry of state: the name of the state, and the key (None for state that belongs to none)."""

    state: str
    key: Any

    def __str__(self) -> str:
        return f"state {self.state!r}" + ("" if self.key is None else f" of key {short_repr(self.key, 40)}")


class UsedEntry(NamedTuple):
    """An entry of state that user code may have used."""

    place: Place
    read: Callable[[], Any]
    """A function that returns the value: `MISSING` if there is none, or `AS_BEFORE`."""
    write: Callable[[Any], None]


def entry_of(name: str, table: StateTable, key: Any) -> UsedEntry:
    """An entry of keyed state. It is read without a move between the layers of its table."""
    return UsedEntry(Place(name, key), partial(_read, table, key), partial(_write, table, key))


def _read(table: StateTable, key: Any) -> Any:
    value = table.top.get(key, MISSING)
    return AS_BEFORE if value is MISSING and key in table else value


def _write(table: StateTable, key: Any, value: Any) -> None:
    table.top[key] = value


@dataclass
class _Twin:
    """One of several equal objects in as many entries."""

    one: Any
    place: Place
    content: int | None
    """Fingerprint of the object at the last look."""


class Sharing:
    """All mutable objects in the state of one operator in one subtask.

    Invariant B9: no object is in two entries. No twin has changed since it has a twin.
    """

    def __init__(self) -> None:
        self._inside: dict[Place, dict[int, Any]] = {}
        """Mutable objects in each entry, by id. They stay alive here, so that no other object gets the id of one."""
        self._holders: dict[int, Place] = {}
        """Id of an object -> the entry that holds it."""
        self._twins: dict[Place, list[int]] = {}
        """Ids of the twins in each entry."""
        self._groups: dict[int, dict[int, _Twin]] = {}
        """Id of a twin -> it and its twins by id."""
        self._singles: dict[int, Any] = {}
        """Objects that are unpickled as themselves, such as time zones, by id. Entries may share them."""
        self._pauses: dict[Place, tuple[int, UsedEntry]] = {}
        """Number of calls for which a large entry need not be looked at."""

    def check(self, entries: Callable[[], Iterable[UsedEntry]]) -> None:
        """Looks at the entries that the last call of user code may have changed. Raises `StateAccessError` for an object
        that was changed in place and that another entry was given as well."""
        due = [entry for entry in entries() if self._is_due(entry.place)]
        changed = {entry.place: self._look(entry) for entry in due}
        here = {ident: place for place in changed for ident in self._inside.get(place, ())}
        for place in changed:
            self._compare_twins(place, here)
        self._settle_twins(changed, here)
        # What was there before keeps its objects, and so does the larger one of two entries.
        for entry in sorted(due, key=lambda one: (changed[one.place], -len(self._inside.get(one.place, ())))):
            self._hold(entry)

    def _is_due(self, place: Place) -> bool:
        paused = self._pauses.pop(place, None)
        if paused is None:
            return True
        if paused[0] > 1:
            self._pauses[place] = paused[0] - 1, paused[1]
        return False

    def _look(self, entry: UsedEntry) -> bool:
        """Looks at what an entry holds. Returns True if it holds something that it did not hold before."""
        place, value = entry.place, entry.read()
        before = self._inside.get(place, {})
        if value is AS_BEFORE:
            return False
        found, looked_at = _mutable_in(value)
        objects = {id(one): one for one in found if id(one) not in self._singles}
        if looked_at > _EACH_TIME:
            self._pauses[place] = looked_at // 16, entry
        for ident in before:
            if ident not in objects and self._holders.get(ident) == place:
                del self._holders[ident]
        if objects:
            self._inside[place] = objects
        else:
            self._inside.pop(place, None)
        return not objects.keys() <= before.keys()

    def _is_held(self, twin: _Twin, here: dict[int, Place]) -> bool:
        """True if its entry holds a twin, or one of the last call. A large entry that was not looked at is looked at."""
        if id(twin.one) in here:
            return True
        paused = self._pauses.pop(twin.place, None)
        if paused is not None:
            self._look(paused[1])
        return id(twin.one) in self._inside.get(twin.place, {})

    def _compare_twins(self, place: Place, here: dict[int, Place]) -> None:
        """Raises `StateAccessError` if a twin in this entry has changed while another one is in its own. `here` has the
        objects of the entries of the last call."""
        for ident in self._twins.get(place, ()):
            twin = self._groups[ident][ident]
            before, twin.content = twin.content, _fingerprint(twin.one)
            if before in (None, twin.content):
                continue
            group = self._groups[ident].values()
            other = next((one for one in group if one is not twin and self._is_held(one, here)), None)
            if other is not None:
                raise StateAccessError(
                    f"an object in {place} was changed in place, and {other.place} was given the same object: in memory "
                    f"both would have changed, on disk and after a restart only one; put a copy into one of them "
                    f"(copy.deepcopy); it is {short_repr(twin.one, 80)}"
                )

    def _settle_twins(self, places: Collection[Place], here: dict[int, Place]) -> None:
        """Notes in which entry each twin is. Drops those that none holds any more, and those that are alone."""
        before = [(ident, place) for place in places for ident in self._twins.pop(place, ())]
        for ident, place in before:
            group = self._groups[ident]
            if ident in here:
                at = group[ident].place = place if ident in self._inside.get(place, ()) else here[ident]
                self._twins.setdefault(at, []).append(ident)
            else:
                del group[ident], self._groups[ident]
        for place in places:
            for ident in [ident for ident in self._twins.get(place, ()) if len(self._groups[ident]) < 2]:
                self._twins[place].remove(ident)
                del self._groups[ident]

    def _hold(self, entry: UsedEntry) -> None:
        """Notes the objects of an entry as its own. One that holds an object of another entry gets a copy."""
        place, objects = entry.place, self._inside.get(entry.place, {})
        shared = [ident for ident in objects if self._holders.get(ident, place) != place and ident not in self._singles]
        owners = {ident: self._holders[ident] for ident in shared}
        if shared and not self._give_copy(entry, owners):
            return
        for ident in self._inside.get(place, {}):
            self._holders.setdefault(ident, place)

    def _give_copy(self, entry: UsedEntry, owners: dict[int, Place]) -> bool:
        """Gives an entry a copy of its value, in place of objects that others hold. Returns False if there is none."""
        value = entry.read()
        if value is AS_BEFORE:
            return False
        found, _ = _mutable_in(value)
        try:
            copy = pickle.loads(pickle.dumps(value, 5))
        except Exception:  # a checkpoint would report it
            return False
        made, _ = _mutable_in(copy)
        if len(made) != len(found):
            return False
        entry.write(copy)
        for one in found:
            if self._holders.get(id(one)) == entry.place:
                del self._holders[id(one)]
        for one, twin in zip(found, made, strict=True):
            if twin is one:
                self._singles[id(one)] = one
                self._holders.pop(id(one), None)
        self._inside[entry.place] = {id(one): one for one in made if id(one) not in self._singles}
        before, self._twins[entry.place] = {*self._twins.get(entry.place, ())}, []
        for one, twin in dict(zip(map(id, found), zip(found, made, strict=True), strict=True)).values():
            if twin is one:
                continue
            if id(one) in owners:
                group = self._groups.get(id(one), {})
                if not group:
                    self._add_twin(group, one, owners[id(one)])
                self._add_twin(group, twin, entry.place)
            elif id(one) in before:
                group = self._groups.pop(id(one))
                del group[id(one)]
                self._add_twin(group, twin, entry.place)
        return True

    def _add_twin(self, group: dict[int, _Twin], one: Any, place: Place) -> None:
        group[id(one)] = _Twin(one, place, _fingerprint(one))
        self._groups[id(one)] = group
        self._twins.setdefault(place, []).append(id(one))


def _mutable_in(value: Any) -> tuple[list[Any], int]:
    """The objects in a value that may be changed in place, as often and in the order in which pickle finds them, and the
    number of objects that were looked at."""
    kind = type(value)
    if value is MISSING or immutable(value):
        return [], 1
    if kind in (list, set, dict) and ATOMS.issuperset(map(type, chain(value, value.values() if kind is dict else ()))):
        return [value], len(value) // 8
    finder = _Finder()
    try:
        finder.dump(value)
    except Exception:  # as in `_give_copy`
        return [], finder.looked_at
    return finder.found, finder.looked_at


class _Finder(pickle.Pickler):
    """A pickler that keeps the objects that it pickles, and no bytes."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), 5)
        self.found: list[Any] = []
        self.looked_at = 0

    def persistent_id(self, one: Any) -> None:
        self.looked_at += 1
        if not isinstance(one, _UNCHANGED):
            self.found.append(one)


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


def _fingerprint(one: Any) -> int | None:
    try:
        return xxhash.xxh3_64_intdigest(pickle.dumps(one, 5))
    except Exception:  # as in `_give_copy`
        return None
