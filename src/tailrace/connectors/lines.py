"""The lines of a text file (UTF-8), plain or compressed, from any byte of it on."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tailrace.api.connectors import NOTHING_YET, Reader
from tailrace.connectors.files.blocks import open_blocks
from tailrace.connectors.files.places import open_file, seek, version_of
from tailrace.connectors.hidden import protocol_of
from tailrace.connectors.pace import Pace
from tailrace.errors import ConfigError

CHUNK = 1 << 18
"""Number of bytes in one read."""
_COMPRESSED = 1 << 15
"""Number of compressed bytes in one read of members. It is small: the bytes after the end of a member are copied."""


class Members:
    """A file of compressed members, one after the other, as one stream of bytes. A member may be followed by zeros.

    Python's `bz2.open` and `lzma.open` take a damaged member after the first one for the end of the file.
    """

    def __init__(self, file: Any, decompressor: Callable[[], Any]) -> None:
        self._file = file
        self._new, self._member = decompressor, decompressor()
        self._left = b""
        """Compressed bytes that were read beyond the end of a member."""
        self._begun = False
        """True if bytes of the current member were read."""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end. Raises `EOFError` for a member that is cut, and the decompressor's error
        for one that is damaged."""
        while True:
            if self._member.eof:
                self._left, self._member, self._begun = self._member.unused_data, self._new(), False
            given, self._left = self._left, b""
            if not given and self._member.needs_input:
                given = self._file.read(_COMPRESSED)
                if not given:
                    if self._begun:
                        raise EOFError("the file ends within its compressed data")
                    return b""
            if not self._begun:
                given = given.lstrip(b"\0")
                if not given:
                    continue
                self._begun = True
            found: bytes = self._member.decompress(given, size)
            if found:
                return found

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


_OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": lambda file: Members(file, bz2.BZ2Decompressor),
    ".xz": lambda file: Members(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)),
    ".zst": lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"),
    ".br": lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "brotli"),
    ".lz4": lambda file: open_blocks(file, "lz4"),
    ".snappy": lambda file: open_blocks(file, "snappy"),
}
"""End of the name of a compressed file -> the opener of what it holds."""
_REFUSED = (".Z", ".lzo", ".zip", ".7z", ".tar", ".tgz", ".tbz2", ".txz", ".lzma")
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
"""Errors of the openers for a file that is damaged, or not of the kind of its name."""


def compression_of(path: str) -> str | None:
    """The end of the name of a compressed file; None for a plain one."""
    return next((end for end in (*_OPENERS, *_REFUSED) if path.endswith(end)), None)


def check_readable(paths: list[str], who: str = "TextFiles") -> list[str]:
    """The paths, checked. Raises `ConfigError` for an archive, or a compression that this source does not read."""
    for path in paths:
        end = compression_of(path)
        if end is not None and end not in _OPENERS:
            raise ConfigError(
                f"{who}: {path} is an archive or compressed as {end}, which this source does not read; it reads plain "
                f"files and {', '.join(_OPENERS)}"
            )
    return paths


class Splitter:
    """A splitter of bytes into lines. A line ends with a line feed, or at the end of its file."""

    def __init__(self, path: str, at: int, keeps: int = 0, decodes: bool = True) -> None:
        self.path, self.at, self._decodes = path, at, decodes
        self.strips = True
        """False if lines as bytes keep a carriage return at their end, so that their lengths give their places."""
        """`decodes`: false for lines as bytes. `at`: number of bytes of the file up to the end of the last line that was
        handed out."""
        self.before, self._keeps = b"", keeps
        """`before`: the last `keeps` bytes before `at`."""
        self._parts: list[bytes] = []
        """The bytes from `at` on. Only the last part may hold line feeds: the parts of a long line are joined once."""

    def add(self, chunk: bytes) -> None:
        """Takes the next bytes of the file."""
        if self._parts and b"\n" in self._parts[-1]:
            chunk = self._parts.pop() + chunk
        self._parts.append(chunk)

    def rest(self) -> int:
        """The number of bytes after the last line that was handed out."""
        return sum(map(len, self._parts))

    def tail(self) -> bytes:
        """The last `keeps` of all bytes that were added."""
        found, at = b"", len(self._parts)
        while len(found) < self._keeps and at:
            at -= 1
            found = self._parts[at][-self._keeps :] + found
        return self._last_of(self.before + found)

    def _last_of(self, data: bytes) -> bytes:
        return data[max(0, len(data) - self._keeps) :]

    def lines(self, limit: int) -> list[Any]:
        """The next lines, at most `limit`, as texts, or as bytes if they are not decoded. Raises `ValueError` for a line
        that is not UTF-8."""
        if not self._parts or b"\n" not in self._parts[-1]:
            return []
        whole = b"".join(self._parts)
        parts = whole.split(b"\n", limit)
        taken, self._parts = parts[:-1], parts[-1:]
        found = self._texts(taken)
        size = len(whole) - len(parts[-1])
        self.at += size
        if self._keeps:
            self.before = self._last_of(self.before + whole[max(0, size - self._keeps) : size])
        return found

    def drop(self) -> None:
        """Drops the bytes after the last line that was handed out."""
        self._parts = []

    def last(self) -> list[Any]:
        """The bytes after the last line feed as a line, if any: the last line of a file may lack its line feed."""
        self.before = self.tail()
        raw, self._parts = b"".join(self._parts), []
        found = [] if not raw or (self.at == 0 and raw == BOM_UTF8) else self._texts([raw])
        self.at += len(raw)
        return found

    def _texts(self, raws: list[bytes]) -> list[Any]:
        if self.at == 0 and raws:
            raws = [raws[0].removeprefix(BOM_UTF8), *raws[1:]]
        if not self._decodes:
            return [raw.removesuffix(b"\r") for raw in raws] if self.strips else raws
        try:
            return [raw.decode().removesuffix("\r") for raw in raws]
        except UnicodeDecodeError:
            self._refuse(raws)
            raise

    def _refuse(self, raws: list[bytes]) -> None:
        """Raises `ValueError` with the place of the line that cannot be decoded."""
        at = self.at
        for raw in raws:
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.path} at byte {at}: not UTF-8: {error}") from None
            at += len(raw) + 1


class Version:
    """The version of a file that is read. A file behind a URL must be what it was at the position of a checkpoint; on this
    machine, where a copied folder gives its files new times, it must not be shorter."""

    def __init__(self, path: str, position: Any) -> None:
        self.path = path
        self.at: Any = position
        self.version: str | None = None
        if protocol_of(path) is None:
            return
        self.version = version_of(path)
        if position is not None:
            self.at, known = position
            self.check(known)

    def check(self, known: str) -> None:
        """Raises `ConfigError` if the file has another version than a known one."""
        version = version_of(self.path) if self.version is None else self.version
        if version != known:
            raise ConfigError(
                f"{self.path} was written anew since the job has found it ({known}, {version}): a source reads a file that "
                f"does not change, whole; put what is new into a file of another name"
            )

    def position(self, at: Any) -> Any:
        return at if self.version is None else (at, self.version)


class LineReader(Reader):
    """The lines of a file that does not change. The position is a number of bytes; in a compressed file, of uncompressed
    bytes."""

    def __init__(self, path: str, position: Any, decodes: bool = True) -> None:
        self.path = check_readable([path])[0]
        self.version = Version(path, position or None)
        at: int = self.version.at or 0
        self.splitter = Splitter(path, at, decodes=decodes)
        end = compression_of(path)
        self._file = self.file = open_file(path)
        if end is None:
            seek(self.file, at, path)
        else:
            self.file = _OPENERS[end](self._file)
            self._skip(at)

    def _skip(self, count: int) -> None:
        while count:
            passed = len(self._more(min(CHUNK, count)))
            if not passed:
                raise ValueError(
                    f"{self.path} has become shorter since the checkpoint: it was read up to byte {self.splitter.at}"
                )
            count -= passed

    def _more(self, size: int) -> bytes:
        try:
            found: bytes = self.file.read(size)
        except _BROKEN as error:
            raise ValueError(f"{self.path}, behind byte {self.splitter.at}: cannot be read: {error}") from error
        return found

    def read(self, limit: int, now: float) -> Any:
        lines = self.splitter.lines(limit)
        while not lines:
            chunk = self._more(CHUNK)
            if not chunk:
                lines = self.splitter.last()
                if not lines:
                    return None
                break
            self.splitter.add(chunk)
            lines = self.splitter.lines(limit)
        return lines

    @property
    def position(self) -> Any:
        return self.version.position(self.splitter.at)

    def close(self) -> None:
        self.file.close()
        self._file.close()


class PacedLines(Reader):
    """The lines of several files, one after the other, at a rate. The position is the file and the byte in it."""

    def __init__(self, paths: list[str], position: tuple[int, Any], pace: Pace, decodes: bool = True) -> None:
        self.paths, self.pace, self._decodes = paths, pace, decodes
        self.file, at = position
        self.reader = LineReader(paths[self.file], at, decodes)

    def read(self, limit: int, now: float) -> Any:
        limit = self.pace.allowance(limit, now)
        if not limit:
            return NOTHING_YET
        while (lines := self.reader.read(limit, now)) is None:
            if self.file + 1 == len(self.paths):
                return None
            self.reader.close()
            self.file += 1
            self.reader = LineReader(self.paths[self.file], 0, self._decodes)
        self.pace.done += len(lines)
        return lines

    @property
    def position(self) -> tuple[int, Any]:
        return self.file, self.reader.position

    def next_at(self, now: float) -> float:
        return self.pace.next_at(now)

    def close(self) -> None:
        self.reader.close()
