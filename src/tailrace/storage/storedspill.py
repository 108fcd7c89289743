"""A spill in the storage of checkpoints, for frames that a worker has sent and keeps: no disk of its machine has to hold
them.

Appended bytes are gathered into parts of some megabytes, and a thread makes a file of each part: no single frame waits
for the store. If the store is slower than the worker, or out of reach for a while, `append` waits. Nothing in these files
outlives the attempt. The next sweep deletes the files of a worker that was killed (`storage.leftovers`).
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tailrace.errors import TailraceError, error_text
from tailrace.retries import Retries
from tailrace.state.format import checksum
from tailrace.state.paths import kept_file
from tailrace.storage.filesystem import Folder

PART_BYTES, LEAST_BYTES = 8 << 20, 64 << 10
BEHIND = 2
"""Largest number of parts that wait for their files."""

T = TypeVar("T")


def part_bytes(memory: int) -> int:
    """The size of a part, in bytes, for a spill that is used beyond `memory` bytes. The parts that wait, the part that is
    gathered and the part that was read last take half of `memory` in addition."""
    return max(LEAST_BYTES, min(PART_BYTES, memory // 8))


class SpillFile:
    """A part of a stored spill: one file, or bytes that become one."""

    __slots__ = ("checksum", "data", "end", "live", "made", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.data: bytes | bytearray | None = bytearray()
        """The bytes of the part; None if only its file holds them."""
        self.end = 0
        self.live = 0
        """Number of references to it that are not released."""
        self.made = False
        """True if there may be a file."""
        self.checksum = 0


class StoredRef(NamedTuple):
    part: SpillFile
    offset: int
    length: int


class StoredSpill:
    """A spill in a folder of the storage. Names of its files begin with `prefix`, which no other spill has. `what` names the
    spilled data in the text of errors. A request that fails is tried again for `patience` seconds.

    Invariant: of a part that is full, and has no live reference, no file stays; `held` is the sum of the live references'
    lengths.
    """

    def __init__(
        self,
        folder: Folder,
        prefix: str,
        what: str,
        part_bytes: int = PART_BYTES,
        patience: float = 20.0,
    ) -> None:
        self.held = 0
        self._folder, self._prefix, self._what = folder, prefix, what
        self._part_bytes, self._retries = part_bytes, Retries(within=patience)
        self._numbers = 0
        self._current: SpillFile | None = None
        self._full: set[SpillFile] = set()
        self._last: tuple[SpillFile, bytes] | None = None
        """The part that was read last, with its bytes: frames are mostly read in order."""
        self._error: str | None = None
        """The reason why a file could not be made; None if there is none."""
        self._closed = threading.Event()
        self._room = threading.Semaphore(BEHIND)
        self._todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def append(self, data: bytes) -> StoredRef:
        """Stores bytes, and returns the reference to them. Raises `TailraceError` if the storage has refused earlier ones
        for too long."""
        part = self._current
        if part is None:
            self._numbers += 1
            part = self._current = SpillFile(kept_file(self._prefix, self._numbers))
        assert isinstance(part.data, bytearray)
        part.data += data
        ref = StoredRef(part, part.end, len(data))
        part.end += len(data)
        part.live += 1
        self.held += len(data)
        if part.end >= self._part_bytes:
            self._current = None
            self._full.add(part)
            part.data = bytes(part.data)
            part.checksum = checksum(part.data)
            self._room.acquire()
            self._do(lambda: self._make(part))
        if self._error is not None:
            raise TailraceError(self._error)
        return ref

    def read(self, ref: StoredRef) -> bytes:
        """The bytes of a reference. Raises `TailraceError` if the storage does not return them."""
        part, offset, length = ref
        data = part.data
        if data is None:
            if self._last is None or self._last[0] is not part:
                self._last = part, self._read(part)
            data = self._last[1]
        return bytes(memoryview(data)[offset : offset + length])

    def release(self, ref: StoredRef) -> None:
        """Releases a reference: its bytes are not needed any more."""
        part = ref.part
        part.live -= 1
        self.held -= ref.length
        if part.live:
            return
        if part is self._current:
            part.data, part.end = bytearray(), 0
            return
        self._forget(part)

    def close(self) -> None:
        """Closes the spill. A thread deletes its files while the worker goes on."""
        self._closed.set()
        for part in list(self._full):
            self._forget(part)
        self._current = None
        self.held = 0
        if self._thread is not None:
            self._todo.put(None)

    def settle(self) -> None:
        """Waits until all requests to the storage are done, once the spill is closed."""
        if self._thread is not None:
            self._thread.join()

    def _forget(self, part: SpillFile) -> None:
        self._full.discard(part)
        if self._last is not None and self._last[0] is part:
            self._last = None
        self._do(lambda: self._delete(part))

    def _do(self, work: Callable[[], object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tailrace-kept", daemon=True)
            self._thread.start()
        self._todo.put(work)

    def _read(self, part: SpillFile) -> bytes:
        try:
            data = self._try(lambda: self._folder.read(part.name))
        except Exception as error:
            raise TailraceError(
                f"{self._what} cannot be read back from {self._folder.url_of(part.name)}: {error_text(error)}"
            ) from error
        if checksum(data) != part.checksum:
            raise TailraceError(f"{self._what} is damaged in {self._folder.url_of(part.name)}")
        return data

    def _try(self, ask: Callable[[], T]) -> T:
        """Repeats a request to the storage until it succeeds, for a while."""
        return self._retries.call(ask, lambda error: True, self._closed.wait)

    # In the thread.

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            work()

    def _make(self, part: SpillFile) -> None:
        data = part.data
        assert isinstance(data, bytes)
        try:
            if part.live and not self._closed.is_set():
                part.made = True
                self._try(lambda: self._create(part, data))
                part.data = None
        except Exception as error:
            self._error = (
                f"{self._what} has no room in memory and cannot be written to {self._folder.url_of(part.name)}: "
                f"{error_text(error)}; {self.held:,} bytes of it are there. Look after the storage of "
                f"checkpoints, or keep more in memory, Spill(memory_bytes=...)"
            )
        finally:
            self._room.release()

    def _create(self, part: SpillFile, data: bytes) -> None:
        with contextlib.suppress(FileExistsError):  # an earlier try has made it, and seemed to fail
            self._folder.create(part.name, data)

    def _delete(self, part: SpillFile) -> None:
        if part.made:
            with contextlib.suppress(Exception):  # out of reach: the next sweep deletes the file
                self._folder.delete([part.name])
