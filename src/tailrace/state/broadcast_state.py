"""Broadcast state: a mapping of which every subtask of an operator has an equal copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import msgspec

from tailrace.elements.callables import check_put
from tailrace.elements.valuedigests import ValueWriter
from tailrace.errors import StateAccessError
from tailrace.spelling import with_hints
from tailrace.state.codecs import immutable
from tailrace.state.format import TableInfo
from tailrace.state.operator_state import BROADCAST, OperatorState
from tailrace.state.tables import MISSING
from tailrace.state.views import MapView

_PORTION = 256
"""Number of entries of which a digest is made at once."""
_OUTSIDE = (
    "only process_broadcast may change it, because only that is called in every subtask for the same records; send the "
    "change as a record of the broadcast stream"
)
ON_A_KEY = (
    "in a loop over ctx.keys(...) the change would depend on which keys this subtask has, and the other subtasks have "
    "others; make the change before or behind the loop, from the record alone"
)
"""The reason why a state cannot be changed while there is a key."""


class Permission:
    """The permission of one function in one subtask to change its broadcast states."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused: str | None = _OUTSIDE
        """The reason why a state cannot be changed; None while a record of the broadcast stream is processed."""

    def allow(self) -> None:
        """Allows changes."""
        self.refused = None

    def forbid(self) -> None:
        """Forbids changes until the next record of the broadcast stream."""
        self.refused = _OUTSIDE


@with_hints
class BroadcastState(OperatorState):
    """A mapping that every subtask of a `BroadcastProcessFunction` has: `rules = tr.BroadcastState(str, Rule)` on the class.
    It is used like a dict. Only `process_broadcast` changes it; every other method reads it, without a key too.

    A checkpoint holds one copy of it. Each subtask gets the whole of it back, at whatever parallelism.
    """

    kind = BROADCAST
    codec_kind = "map"
    copied = True

    def __init__(self, key_type: Any = object, value_type: Any = object, *, encoding: str | None = None) -> None:
        super().__init__((key_type, value_type), encoding=encoding)
        self._writing = Permission()
        self.version = 0
        """Number that grows whenever the copy may have changed."""
        self._digested: tuple[int, int] | None = None
        """The version of the copy of which there is a digest, and the digest."""
        self._encoded: tuple[int, bytes] | None = None
        self.watched = False
        """True if its digest is made anew each time: a value may have been changed in place where that is forbidden."""

    def bind_to(self, writing: Permission, watched: bool) -> None:
        """Lets `writing` decide when the copy can be changed."""
        self._writing, self.watched = writing, watched

    # Reading.

    def _map(self) -> dict[Any, Any]:
        """The entries, to be read."""
        found = self._value
        if found is MISSING:
            return {}
        if self._writing.refused is None:
            self.version += 1  # a value that is handed out may be changed in place
        return found  # type: ignore[no-any-return]

    def get(self, key: Any = MISSING, default: Any = None) -> Any:
        """The value of the entry `key`, or `default`; without arguments a copy of the whole mapping, like `.value`."""
        return MapView(self._map()) if key is MISSING else self._map().get(key, default)

    @property
    def value(self) -> dict[Any, Any]:
        """A copy of the whole mapping. It refuses changes, which would be lost."""
        return MapView(self._map())

    @value.setter
    def value(self, new: Mapping[Any, Any]) -> None:
        entries = dict(new)
        check_put(self.name, *entries.values())
        self._to_change().clear()
        self._add(entries)

    def contains(self, key: Any) -> bool:
        """True if there is an entry `key`."""
        return key in self._map()

    def keys(self) -> list[Any]:
        """The keys of the entries, in the order in which they were added."""
        return list(self._map())

    def values(self) -> list[Any]:
        """The values of the entries."""
        return list(self._map().values())

    def items(self) -> list[tuple[Any, Any]]:
        """The entries."""
        return list(self._map().items())

    def exists(self) -> bool:
        """True if there is an entry."""
        return bool(self._map())

    def __getitem__(self, key: Any) -> Any:
        return self._map()[key]

    __contains__ = contains

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._map())

    # Changes.

    def _to_change(self) -> dict[Any, Any]:
        """The entries, to be changed. Raises `StateAccessError` where they cannot be."""
        value, refused = self._value, self._writing.refused
        if refused is not None:
            raise StateAccessError(f"broadcast state {self.name!r} cannot be changed here: {refused}")
        self.version += 1
        if value is MISSING:
            value = self._value = {}
        return value  # type: ignore[no-any-return]

    def _add(self, entries: Mapping[Any, Any]) -> None:
        self._to_change().update(entries)

    def put(self, key: Any, value: Any) -> None:
        """Sets one entry. Raises `StateAccessError` outside of `process_broadcast`."""
        check_put(self.name, value)
        self._to_change()[key] = value

    __setitem__ = put

    def update(self, new: Mapping[Any, Any]) -> None:
        """Adds or replaces these entries. Raises `StateAccessError` outside of `process_broadcast`."""
        entries = dict(new)
        check_put(self.name, *entries.values())
        self._add(entries)

    def remove(self, key: Any) -> None:
        """Removes one entry, if it is there. Raises `StateAccessError` outside of `process_broadcast`."""
        self._to_change().pop(key, None)

    def __delitem__(self, key: Any) -> None:
        del self._to_change()[key]

    def clear(self) -> None:
        """Removes all entries. Raises `StateAccessError` outside of `process_broadcast`."""
        self._to_change().clear()

    # Checkpoints.

    @property
    def listed(self) -> bool:
        """True: every subtask gets the whole at any parallelism."""
        return True

    def table_info(self) -> TableInfo:
        """A description of the copy, with its digest."""
        digest = 0 if self.each else self.digest()
        return msgspec.structs.replace(super().table_info(), empty=not self.exists(), digest=digest)

    def encode(self) -> bytes:
        """The bytes of the copy. They are kept while nothing of it can have changed."""
        if self._encoded is None or self._encoded[0] != self.version or not all(map(immutable, self._value.values())):
            self._encoded = self.version, super().encode()
        return self._encoded[1]

    def digest(self) -> int:
        """A hash over the entries, in their order: equal copies have equal ones, in every process."""
        if self._digested is None or self._digested[0] != self.version or self.watched:
            made, writer = 0, ValueWriter()
            items = [] if self._value is MISSING else [*self._value.items()]
            for at in range(0, len(items), _PORTION):
                made = crc32(writer.write(items[at : at + _PORTION]), made)
            self._digested = self.version, made
        return self._digested[1]
