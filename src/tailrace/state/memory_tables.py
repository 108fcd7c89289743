"""The base of a table in memory: values as Python objects in a dictionary, the lowest layer of the backend in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tailrace.state.codecs import Codec
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.state.tables import MISSING, Entry, Portion


class MemoryBase:
    """A base of Python objects.

    It is one flat dictionary, so that a read needs no key group, and per group a list of its keys for writing the group
    as a whole: 8 bytes per key, while a set per group would take about 60. A deleted key stays in its list until about as
    many are deleted as alive.
    """

    mutable = True

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.alive: dict[int, int] = {}
        self.listed: dict[int, list[Any]] = {}

    def get(self, key: Any, default: Any, /) -> Any:
        return self.values.get(key, default)

    @property
    def count(self) -> int:
        return len(self.values)

    def put(self, key: Any, value: Any, group: int, data: bytes | None = None) -> bytes | None:
        values = self.values
        before = len(values)
        values[key] = value
        if len(values) != before:
            self.alive[group] = self.alive.get(group, 0) + 1
            listed = self.listed.get(group)
            if listed is None:
                self.listed[group] = [key]
            else:
                listed.append(key)
        return None

    def put_all(self, keys: Iterable[Any], values: Iterable[Any], group: int) -> None:
        """Writes entries of one key group, as `put` does with one that has no `data`."""
        held, entries = self.values, dict(zip(keys, values, strict=True))
        added = [key for key in entries if key not in held]
        held.update(entries)
        if added:
            self.alive[group] = self.alive.get(group, 0) + len(added)
            self.listed.setdefault(group, []).extend(added)

    def put_each(self, keys: Sequence[Any], values: Iterable[Any], groups: Sequence[int]) -> None:
        """Writes entries of different keys, each with its key group, as `put` does with one that has no `data`."""
        held = self.values
        added = [(key, group) for key, group in zip(keys, groups, strict=True) if key not in held]
        held.update(zip(keys, values, strict=True))
        for key, group in added:
            self.alive[group] = self.alive.get(group, 0) + 1
            self.listed.setdefault(group, []).append(key)

    def remove(self, key: Any, group: int) -> None:
        if key not in self.values:
            return
        del self.values[key]
        left = self.alive[group] - 1
        if not left:
            del self.alive[group], self.listed[group]
            return
        self.alive[group] = left
        if len(self.listed[group]) > 2 * left + 64:
            self._keys(group)

    def _keys(self, group: int) -> list[Any]:
        """The keys of a group, each once. Removes deleted and repeated keys from its list."""
        listed = self.listed.get(group, [])
        if len(listed) != self.alive.get(group, 0):
            values = self.values
            listed = self.listed[group] = [key for key in dict.fromkeys(listed) if key in values]
        return listed

    def commit(self) -> None:
        pass

    def cut(self) -> None:
        pass  # nothing is written below a freeze until the next one

    def uncut(self) -> None:
        pass

    def entry_at_cut(self, key: Any, group: int) -> Entry | None:
        value = self.values.get(key, MISSING)
        return None if value is MISSING else (key, value, None)

    def group(self, group: int, portion: int) -> Iterator[Portion]:
        values, keys = self.values, self._keys(group)
        for i in range(0, len(keys), portion):
            some = keys[i : i + portion]
            yield some, [values[key] for key in some], []

    def scan(self, group: int, portion: int) -> Iterator[Portion]:
        values, keys = self.values, self._keys(group)
        for i in range(0, len(keys), portion):
            some = [key for key in keys[i : i + portion] if key in values]
            yield some, [values[key] for key in some], []

    def keys(self) -> Iterator[Any]:
        return iter(self.values)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.values.items())


class Stored:
    """A value of an `ExactBase`, as the bytes that a checkpoint has of it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class ExactBase(MemoryBase):
    """A base of Python objects. It holds values that do not come back from their bytes as they are in the form of these
    bytes (B8)."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self._decode = codec.decode

    def get(self, key: Any, default: Any, /) -> Any:
        found = self.values.get(key, default)
        return self._decode(found.data) if type(found) is Stored else found

    def put(self, key: Any, value: Any, group: int, data: bytes | None = None) -> bytes | None:
        kept = value if data is None or comes_back(value) else Stored(data)
        return super().put(key, kept, group)

    def entry_at_cut(self, key: Any, group: int) -> Entry | None:
        found = super().entry_at_cut(key, group)
        return found if found is None or type(found[1]) is not Stored else (key, None, found[1].data)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self.get(key, None)) for key in self.values)
