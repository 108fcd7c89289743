"""The base in memory of a table from whose checkpoints another worker may go on exactly as this one does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.state.codecs import Codec
from tailrace.state.comingback import comes_back
from tailrace.state.tables import Entry, MemoryBase


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

    def stored(self, key: Any, group: int) -> Entry | None:
        found = super().stored(key, group)
        return found if found is None or type(found[1]) is not Stored else (key, None, found[1].data)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self.get(key, None)) for key in self.values)
