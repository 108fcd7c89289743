"""Files that are written in large pieces, for places where each request takes its time."""

from __future__ import annotations

import io
from typing import Any


class Pieces(io.RawIOBase):
    """A file that is being written. Its bytes wait until there is a piece of `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._piece = size
        self._waiting = bytearray()
        self._size = 0

    def _send(self, piece: bytes) -> None:
        """Writes the next bytes of the file."""
        raise NotImplementedError

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._waiting += data
        self._size += size
        while len(self._waiting) >= self._piece:
            self._pass_on(self._piece)
        return size

    def _pass_on(self, size: int) -> None:
        with memoryview(self._waiting) as waiting, waiting[:size] as part:
            piece = bytes(part)
        del self._waiting[:size]
        self._send(piece)

    def _rest(self) -> None:
        """Sends the bytes that still wait."""
        if self._waiting:
            self._pass_on(len(self._waiting))
