"""Handles of states with a time to live: they give only what lives, and note the time of each write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tailrace.elements.callables import PLAIN, check_put
from tailrace.elements.keygroups import KeyGroups
from tailrace.elements.timestamps import MIN_TIME
from tailrace.errors import ConfigError
from tailrace.state.codecs import StampedValue
from tailrace.state.handles import AggregatingState, Bound, ListState, MapState, ReducingState, State, ValueState
from tailrace.state.tables import MISSING
from tailrace.state.ttl import living, size_of
from tailrace.state.ttl_lifetimes import CallClocks, Expiry, ExpiryOf, Lifetime
from tailrace.state.ttl_sweeping import Sweeper
from tailrace.state.views import ListView, MapView


class LivingOne(State):
    """A handle of a state with one value per key. What is over is removed when it is looked at."""

    __slots__ = ()

    def _entry(self, read: bool) -> Any:
        """The living entry of the current key; `MISSING` if there is none. `read`: its value is about to be read."""
        found = self._find(MISSING)
        if found is MISSING:
            return MISSING
        key, lifetime = self._holder.current_key, self._lifetime
        now = lifetime.now()
        if lifetime.is_over(key, found.stamp, now):
            self._table.pop(key)
            lifetime.expired(1)
            return MISSING
        if read and lifetime.on_read and found.stamp != now > MIN_TIME:
            found = self._top[key] = StampedValue(found.value, now)
        return found

    def _write(self, new: Any) -> None:
        self._top[self._holder.current_key] = StampedValue(new, self._lifetime.written_now())

    def _put(self, new: Any) -> None:
        if type(new) not in PLAIN:
            check_put(self.name, new)
        self._write(new)

    def exists(self) -> bool:
        return self._entry(read=False) is not MISSING


class LivingValue(LivingOne, ValueState):
    """A handle of a value."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        found = self._entry(read=True)
        if found is not MISSING:
            return found.value
        if self._plain_default:
            return self.default
        made = copy.deepcopy(self.default)  # stored, so that a change in place is not lost
        self._write(made)
        return made

    @value.setter
    def value(self, new: Any) -> None:
        self._put(new)


class LivingReducing(LivingOne, ReducingState):
    """A handle of a merged value. A value that is over is not merged."""

    __slots__ = ()

    def add(self, item: Any) -> None:
        found = self._entry(read=False)
        if found is MISSING:
            self._put(item)
        else:
            self._write(self._merge(found.value, item))

    def get(self) -> Any:
        found = self._entry(read=True)
        return None if found is MISSING else found.value

    def update(self, new: Any) -> None:
        self._put(new)


class LivingAggregating(LivingOne, AggregatingState):
    """A handle of an accumulator. One that is over is begun anew."""

    __slots__ = ()

    def add(self, item: Any) -> None:
        found = self._entry(read=False)
        accumulator = self.aggregate.create_accumulator() if found is MISSING else found.value
        self._write(self._add(item, accumulator))

    def get(self) -> Any:
        found = self._entry(read=True)
        return None if found is MISSING else self._result(found.value)

    def update(self, new: Any) -> None:
        self._put(new)


class LivingMany(State):
    """A handle of a state with several entries per key, each with a life of its own. What is over is removed when they are
    looked at."""

    __slots__ = ()

    def _entries(self) -> Any:
        """The living entries of the current key; None if there are none."""
        found = self._find(None)
        if found is None:
            return None
        key, lifetime, kind = self._holder.current_key, self._lifetime, self.kind
        left = living(kind, found, lifetime.lives(key, lifetime.now()))
        if left is not found:
            lifetime.expired(size_of(kind, found) - (0 if left is None else size_of(kind, left)))
            self._keep(left)
        return left

    def _keep(self, entries: Any) -> None:
        if entries:
            self._top[self._holder.current_key] = entries
        else:
            self.clear()

    def _anew(self) -> int | None:
        """The time of a read by which lives begin anew; None if they do not."""
        now = self._lifetime.now() if self._lifetime.on_read else MIN_TIME
        return None if now == MIN_TIME else now

    def exists(self) -> bool:
        return self._entries() is not None


class LivingList(LivingMany, ListState):
    """A handle of a list. The life of an item begins when it is put in."""

    __slots__ = ()

    def _read(self) -> list[Any]:
        """The living items, each of them read."""
        items: list[StampedValue] = self._entries() or []
        values, now = [one.value for one in items], self._anew()
        if now is not None and items:
            self._keep([StampedValue(value, now) for value in values])
        return values

    def get(self) -> list[Any]:
        return ListView(self._read())

    def append(self, item: Any) -> None:
        if type(item) not in PLAIN:
            check_put(self.name, item)
        made, found = StampedValue(item, self._lifetime.written_now()), self._entries()
        if found:
            found.append(made)
        else:
            self._keep([made])

    add = append

    def extend(self, items: Iterable[Any]) -> None:
        more = list(items)
        check_put(self.name, *more)
        self._keep([*(self._entries() or ()), *self._stamp(more)])

    def update(self, new: Iterable[Any]) -> None:
        items = list(new)
        check_put(self.name, *items)
        self._keep(self._stamp(items))

    def _stamp(self, items: list[Any]) -> list[StampedValue]:
        now = self._lifetime.written_now() if items else MIN_TIME
        return [StampedValue(one, now) for one in items]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._entries() or ())

    def __contains__(self, item: object) -> bool:
        return item in self._read()

    def __getitem__(self, index: Any) -> Any:
        items: list[StampedValue] = self._entries() or []
        found, now = items[index], self._anew()
        several = isinstance(index, slice)
        if now is not None and items:
            anew = list(items)
            anew[index] = [StampedValue(one.value, now) for one in found] if several else StampedValue(found.value, now)
            self._keep(anew)
        return [one.value for one in found] if several else found.value

    def __setitem__(self, index: Any, item: Any) -> None:
        items: list[Any] = [*(self._entries() or ())]
        if isinstance(index, slice):
            more = list(item)
            check_put(self.name, *more)
            items[index] = self._stamp(more)
        else:
            check_put(self.name, item)
            items[index] = StampedValue(item, self._lifetime.written_now())
        self._keep(items)

    def __delitem__(self, index: Any) -> None:
        items: list[Any] = [*(self._entries() or ())]
        del items[index]
        self._keep(items)


class LivingMap(LivingMany, MapState):
    """A handle of a mapping. The life of an entry begins when it is put in."""

    __slots__ = ()

    def _read(self) -> dict[Any, Any]:
        """The living entries, each of them read."""
        entries: dict[Any, StampedValue] = self._entries() or {}
        values, now = {key: one.value for key, one in entries.items()}, self._anew()
        if now is not None and entries:
            self._keep({key: StampedValue(value, now) for key, value in values.items()})
        return values

    def _read_one(self, key: Any) -> Any:
        """The value of a living entry; `MISSING` if there is none."""
        entries: dict[Any, StampedValue] = self._entries() or {}
        found, now = entries.get(key), self._anew()
        if found is None:
            return MISSING
        if now is not None:
            entries[key] = StampedValue(found.value, now)
            self._keep(entries)
        return found.value

    def get(self, key: Any = MISSING, default: Any = None) -> Any:
        if key is MISSING:
            return MapView(self._read())
        found = self._read_one(key)
        return default if found is MISSING else found

    @property
    def value(self) -> dict[Any, Any]:
        return MapView(self._read())

    @value.setter
    def value(self, new: Mapping[Any, Any]) -> None:
        entries = dict(new)
        check_put(self.name, *entries.values())
        self._keep(self._stamp(entries))

    def update(self, new: Mapping[Any, Any]) -> None:
        more = dict(new)
        check_put(self.name, *more.values())
        self._keep({**(self._entries() or {}), **self._stamp(more)})

    def _stamp(self, entries: dict[Any, Any]) -> dict[Any, StampedValue]:
        now = self._lifetime.written_now() if entries else MIN_TIME
        return {key: StampedValue(value, now) for key, value in entries.items()}

    def put(self, key: Any, value: Any) -> None:
        if type(value) not in PLAIN:
            check_put(self.name, value)
        made, entries = StampedValue(value, self._lifetime.written_now()), self._entries()
        if entries is None:
            entries = {}
        entries[key] = made
        self._keep(entries)

    __setitem__ = put

    def remove(self, key: Any) -> None:
        entries = self._entries()
        if entries is not None and key in entries:
            del entries[key]
            self._keep(entries)

    def contains(self, key: Any) -> bool:
        return self._read_one(key) is not MISSING

    __contains__ = contains

    def keys(self) -> list[Any]:
        return list(self._read())

    def values(self) -> list[Any]:
        return list(self._read().values())

    def items(self) -> list[tuple[Any, Any]]:
        return list(self._read().items())

    def __getitem__(self, key: Any) -> Any:
        found = self._read_one(key)
        if found is MISSING:
            raise KeyError(key)
        return found

    def __delitem__(self, key: Any) -> None:
        entries = self._entries() or {}
        del entries[key]
        self._keep(entries)

    def __len__(self) -> int:
        return len(self._entries() or ())


_LIVING: dict[type, Any] = {
    ValueState: LivingValue,
    ReducingState: LivingReducing,
    AggregatingState: LivingAggregating,
    ListState: LivingList,
    MapState: LivingMap,
}
"""Class of a handle -> the class that it has with a time to live."""


class Lifetimes:
    """The lifetimes of the states of one function that declare a time to live."""

    def __init__(
        self, handles: Bound, clocks: CallClocks, max_parallelism: int, note: Callable[[str, int], object]
    ) -> None:
        """`note` adds to a counter of the operator."""
        group_of = KeyGroups(max_parallelism).group_of
        self.by_table: dict[str, Lifetime] = {}
        self._sweeps: list[Sweeper] = []
        for handle in handles.values():
            if handle.ttl is None:
                continue
            kind = _LIVING.get(type(handle))
            if kind is None:
                raise ConfigError(
                    f"state {handle.name!r}: a {type(handle).__name__} takes no ttl; declare one of tr's states"
                )
            handle.__class__ = kind
            lifetime = Lifetime(handle.ttl, handle.name, clocks, group_of, partial(note, "expired"))
            handle._lifetime = self.by_table[handle.name] = lifetime
            self._sweeps.append(Sweeper(handle._table, lifetime))

    def begin(self) -> None:
        """Begins an attempt in front of its first calls: time goes on from there, and what was written before there was a
        lifetime counts as written then."""
        for lifetime in self.by_table.values():
            lifetime.begin()

    def sweep(self, calls: int) -> None:
        """Removes some of what is over, after this number of calls: so much that the rest does not grow with the state."""
        for sweep in self._sweeps:
            sweep.go_on(2 * calls + _LEAST)

    def save(self) -> dict[str, Expiry]:
        """The lifetimes at a cut, by table."""
        return {name: one.save() for name, one in self.by_table.items()}

    def restore(self, parts: Sequence[tuple[tuple[int, int], Mapping[str, Expiry]]], restamped: Container[str]) -> None:
        """Goes on from a checkpoint: the key groups [first, last) of old subtasks, with what each had by table. `restamped`:
        the tables with entries that had no time, or one on another clock."""
        for name, lifetime in self.by_table.items():
            known = [ExpiryOf(groups, by_table[name]) for groups, by_table in parts if name in by_table]
            lifetime.restore(known, name in restamped)

    def close(self) -> None:
        """Ends the sweeps."""
        for sweep in self._sweeps:
            sweep.end()


_LEAST = 64
"""Number of entries that a sweep looks at even if there were no calls."""
