"""Spill files: a place for feedback of a loop, and for sent frames kept by workers, that have no room in memory.

Nothing in them outlives the process: checkpoints make feedback durable, and kept frames are made again. The files have no
name, so nothing stays behind, however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, NamedTuple, NoReturn

from tailrace.errors import InternalError, TailraceError

SEGMENT_BYTES = 64 << 20
"""Size in bytes at which a new file is begun. A file is given back to the disk as a whole, when none of its bytes are needed
any more."""


class Segment:
    """One spill file."""

    __slots__ = ("end", "file", "live")

    def __init__(self, file: Any) -> None:
        self.file = file
        self.end = 0
        self.live = 0
        """Number of references to it that are not released."""


class Ref(NamedTuple):
    segment: Segment
    offset: int
    length: int


class SpillFiles:
    """A spill in `folder` (None: the machine's folder for temporary files). Synchronous; the page cache makes it fast.

    Invariant: a file other than the current one has a live reference; `held` is the sum of the live references' lengths.
    """

    def __init__(self, folder: str | None = None, what: str = "feedback", segment_bytes: int = SEGMENT_BYTES) -> None:
        """`what` names the spilled data in the text of errors."""
        self.folder = folder
        self.what = what
        self.held = 0
        self._segment_bytes = segment_bytes
        self._current: Segment | None = None
        self._segments: set[Segment] = set()

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self._segments)

    def append(self, data: bytes) -> Ref:
        """Stores bytes, and returns the reference to them. Raises `TailraceError` if the folder has no room or is
        missing."""
        segment = self._current
        if segment is None or segment.end >= self._segment_bytes:
            segment = self._next()
        view, at = memoryview(data), segment.end
        while view:
            try:
                written = os.pwrite(segment.file.fileno(), view, at)
            except OSError as error:  # the bytes written so far lie behind the end, and the next append overwrites them
                self._fail(error)
            view, at = view[written:], at + written
        ref = Ref(segment, segment.end, len(data))
        segment.end = at
        segment.live += 1
        self.held += len(data)
        return ref

    def read(self, ref: Ref) -> bytes:
        """The bytes of a reference."""
        parts: list[bytes] = []
        at, end = ref.offset, ref.offset + ref.length
        while at < end:
            try:
                part = os.pread(ref.segment.file.fileno(), end - at, at)
            except OSError as error:
                raise TailraceError(
                    f"{self.what} cannot be read back from a spill file in {self._place()}: {error}"
                ) from error
            if not part:
                raise InternalError(f"a spill file in {self._place()} ends at {at}, before {end}")
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self, ref: Ref) -> None:
        """Releases a reference: its bytes are not needed any more."""
        segment = ref.segment
        segment.live -= 1
        self.held -= ref.length
        if segment.live:
            return
        if segment is self._current:
            os.ftruncate(segment.file.fileno(), 0)
            segment.end = 0
        else:
            self._remove(segment)

    def close(self) -> None:
        """Gives all files back to the disk."""
        for segment in list(self._segments):
            self._remove(segment)
        self._current = None
        self.held = 0

    def _next(self) -> Segment:
        try:
            file = tempfile.TemporaryFile(buffering=0, prefix="tailrace-", dir=self.folder)  # noqa: SIM115
        except OSError as error:
            self._fail(error)
        self._current = Segment(file)
        self._segments.add(self._current)
        return self._current

    def _remove(self, segment: Segment) -> None:
        self._segments.discard(segment)
        segment.file.close()

    def _place(self) -> str:
        if self.folder is not None:
            return repr(self.folder)
        try:
            return repr(tempfile.gettempdir())
        except OSError:  # no folder of the machine can be written to
            return "a folder for temporary files"

    def _fail(self, error: OSError) -> NoReturn:
        raise TailraceError(
            f"{self.what} has no room in memory and cannot be written to {self._place()}: {error.strerror or error}; "
            f"{self.held:,} bytes of it are there. Make room, name a folder with room on every machine, Spill(dir=...), "
            f"or keep more in memory, Spill(memory_bytes=...)"
        ) from error
