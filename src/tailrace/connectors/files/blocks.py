"""Files of blocks as Hadoop and Spark write them (`.snappy`, `.lz4`), and framed Snappy.

| file | form |
|---|---|
| Hadoop's | blocks: the length of a block in 4 bytes, then chunks of it, each behind its compressed length in 4 bytes |
| framed Snappy | chunks with a type, a length and a CRC-32C, behind the mark `sNaPpY` |

Hadoop's blocks have no checksums: a file that is cut is noticed, a changed byte not always.
"""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

FRAMED = b"\xff\x06\x00\x00sNaPpY"
LZ4_FRAME = b"\x04\x22\x4d\x18"
_LARGEST = 1 << 30
"""Largest block that is read, in bytes: a larger length is no length."""


class BlockFile:
    """The bytes in a file of blocks. Raises `OSError` for a file that is cut, or is none."""

    def __init__(self, file: Any, codec: str, begin: bytes) -> None:
        """`begin`: the first bytes of the file, which were read already."""
        self._file, self._begin, self._codec = file, begin, pa.Codec(codec)
        self._is_snappy = codec == "snappy"
        self._framed = self._is_snappy and begin == FRAMED
        self._ready = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        while not self._ready:
            block = self._frame() if self._framed else self._block()
            if block is None:
                return b""
            self._ready = block
        found, self._ready = self._ready[:size], self._ready[size:]
        return found

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _take(self, size: int, may_end: bool = False) -> bytes:
        found, self._begin = self._begin[:size], self._begin[size:]
        while len(found) < size:
            more = self._file.read(size - len(found))
            if not more:
                if may_end and not found:
                    return b""
                raise OSError("the file ends within a block")
            found += more
        return found

    def _block(self) -> bytes | None:
        """The next block of Hadoop's; None at the end."""
        head = self._take(4, may_end=True)
        if not head:
            return None
        left = _length(head)
        parts = []
        while left:
            part = self._inflate(self._take(_length(self._take(4))), left)
            left -= len(part)
            parts.append(part)
        return b"".join(parts)

    def _inflate(self, data: bytes, most: int) -> bytes:
        size = _snappy_length(data) if self._is_snappy else most
        if not 0 < size <= most:
            raise OSError(f"a chunk of {size} bytes in a block that has {most} more")
        found: bytes = self._codec.decompress(data, decompressed_size=size, asbytes=True)
        return found

    def _frame(self) -> bytes | None:
        """The bytes of the next frames; None at the end."""
        head = self._take(4, may_end=True)
        if not head:
            return None
        kind, data = head[0], self._take(int.from_bytes(head[1:], "little"))
        if (kind == 0xFF and head + data == FRAMED) or 0x80 <= kind < 0xFF:
            return b""
        if kind > 1:
            raise OSError(f"a frame of the unknown kind {kind}")
        found = data[4:]
        if kind == 0:
            found = self._codec.decompress(found, decompressed_size=_snappy_length(found), asbytes=True)
        if _mask(crc32c(found)) != int.from_bytes(data[:4], "little"):
            raise OSError("the checksum of a frame is wrong")
        return found


def open_blocks(file: Any, codec: str) -> Any:
    """The bytes in a file of LZ4 or Snappy, in any of its forms."""
    begin = file.read(len(FRAMED))
    if codec == "lz4" and begin.startswith(LZ4_FRAME):
        file.seek(0)
        return pa.CompressedInputStream(pa.PythonFile(file, "r"), "lz4")
    return BlockFile(file, "lz4_raw" if codec == "lz4" else codec, begin)


def _length(data: bytes) -> int:
    size = int.from_bytes(data, "big")
    if size > _LARGEST:
        raise OSError(f"a block of {size} bytes")
    return size


def _snappy_length(data: bytes) -> int:
    """The length of what is compressed, a varint at its beginning."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size if size <= _LARGEST else 0
    return 0


@functools.cache
def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
        table.append(byte)
    return table


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of bytes."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _mask(crc: int) -> int:
    """A checksum as framed Snappy stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
