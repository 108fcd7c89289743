"""The backend in memory: state as Python objects in dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.state.codecs import Codec
from tailrace.state.layers import LayeredBackend
from tailrace.state.tables import Base, MemoryBase


class MemoryBackend(LayeredBackend):
    """State as Python objects."""

    def make_base(self, index: int, codec: Codec, group_of: Callable[[Any], int]) -> Base:
        """A dictionary as the lowest layer of a table."""
        return MemoryBase()
