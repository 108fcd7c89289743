"""The contract of a state backend, and the backend in memory.

A backend holds tables; a table maps keys to values of one declared state of one operator. The key group of a key is a
function of the key (`elements.keys`), so a table need not store it: what lays state out by key group (a snapshot, a
restore at another parallelism) computes it once per key.
"""

from __future__ import annotations

from collections.abc import ItemsView
from typing import Any, Protocol


class Table(Protocol):
    """One state of one operator: the part of a mapping that handles and operators use. Keys are `plain_key`s."""

    def __getitem__(self, key: Any, /) -> Any: ...
    def get(self, key: Any, default: Any = None, /) -> Any: ...
    def pop(self, key: Any, default: Any = None, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def items(self) -> ItemsView[Any, Any]: ...


class Backend(Protocol):
    """All keyed state of one operator in one subtask."""

    def table(self, name: str) -> Table:
        """The table of this name; the same one each time."""
        ...

    def entries(self) -> int:
        """How many entries there are in all tables."""
        ...


class MemoryBackend:
    """State as Python objects in dictionaries."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}  # plain dictionaries: they have all that a Table needs

    def table(self, name: str) -> Table:
        found: Table = self.tables.setdefault(name, {})
        return found

    def entries(self) -> int:
        return sum(len(table) for table in self.tables.values())
