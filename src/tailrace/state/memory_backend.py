"""The backend in memory: state as Python objects in dictionaries (`memory_tables`), below the layers of both backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.state.codecs import Codec
from tailrace.state.layers import LayeredBackend
from tailrace.state.memory_tables import MemoryBase
from tailrace.state.tables import Base


class MemoryBackend(LayeredBackend):
    """State as Python objects."""

    def make_base(self, index: int, codec: Codec, group_of: Callable[[Any], int]) -> Base:
        """A dictionary as the lowest layer of a table."""
        return MemoryBase()
