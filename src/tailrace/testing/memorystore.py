"""A store of checkpoints in memory, with faults: the `Store` of production on files in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from tailrace.storage.claim_owner import Owner, ProcessId
from tailrace.storage.filesystem import Entry, Folder, Writer
from tailrace.storage.store import Store

_T = TypeVar("_T")

Fault = Literal["error", "unknown-done", "unknown-not-done"] | None
"""Fault of an operation. "error": it is refused. The other two: no answer comes, and it was done, or was not."""
Fail = Callable[[str, str], Fault]
"""Decides on the fault of an operation. It is called before each operation with the operation's name and the file's name:
create, read, read_range, size, entries, delete, rename, writer, append, close."""


class StoreFault(OSError):
    """An error that a fault caused."""


class StoreTimeout(StoreFault, TimeoutError):
    """An error after which it is unknown whether the operation was done."""


class MemoryFiles(Folder):
    """The folder of a job, in a dictionary; several drivers share it. Written data is there at once, as on a local disk: a
    writer that is lost leaves half a file."""

    def __init__(self, fail: Fail | None = None, url: str = "memory:") -> None:
        self.url = url
        self.contents: dict[str, bytes | bytearray] = {}
        self.claims = 0
        """Number of tries to claim the job; each try takes a number."""
        self.fail = fail
        """Decides on faults for a store that has no `fail` of its own."""

    def begin_run(self, run_id: str, origin: tuple[MemoryFiles, str] | None) -> None:
        """Marks that a run of a job begins here, from a manifest of some folder, or without one."""

    def create(self, name: str, data: bytes) -> None:
        if name in self.contents:
            raise FileExistsError(name)
        self.contents[name] = bytes(data)

    def read(self, name: str) -> bytes:
        if name not in self.contents:
            raise FileNotFoundError(name)
        return bytes(self.contents[name])

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        if name not in self.contents:
            raise FileNotFoundError(name)
        return bytes(memoryview(self.contents[name])[offset : offset + max(0, length)])

    def size(self, name: str) -> int:
        if name not in self.contents:
            raise FileNotFoundError(name)
        return len(self.contents[name])

    def entries(self, name: str = "") -> list[Entry]:
        prefix = f"{name}/" if name else ""
        found = set()
        for one, data in self.contents.items():
            if one.startswith(prefix):
                first, slash, _ = one[len(prefix) :].partition("/")
                found.add(Entry(prefix + first, bool(slash), 0 if slash else len(data)))
        return sorted(found)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.contents.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        if name not in self.contents:
            raise FileNotFoundError(name)
        self.contents[to] = self.contents.pop(name)

    def writer(self, name: str) -> Writer:
        self.contents[name] = bytearray()
        return _MemoryWriter(self, name)


class _MemoryWriter:
    def __init__(self, files: MemoryFiles, name: str) -> None:
        self._files, self._name = files, name
        self._data = files.contents[name]

    def append(self, data: bytes | memoryview) -> None:
        assert isinstance(self._data, bytearray)
        self._data += data

    def close(self) -> None:
        if self._files.contents.get(self._name) is self._data:
            self._files.contents[self._name] = bytes(self._data)

    def discard(self) -> None:
        self._files.delete([self._name])


class _Faulty(Folder):
    """One driver's access to the shared files, with faults."""

    def __init__(self, files: MemoryFiles, fail: Fail | None) -> None:
        self.url = files.url
        self._files, self._fail = files, fail

    def _do(self, operation: str, name: str, act: Callable[[], _T]) -> _T:
        fail = self._fail if self._fail is not None else self._files.fail
        fault = None if fail is None else fail(operation, name)
        if fault == "error":
            raise StoreFault(f"{operation} {name}: refused by a fault")
        if fault == "unknown-not-done":
            raise StoreTimeout(f"{operation} {name}: no answer")
        result = act()
        if fault == "unknown-done":
            raise StoreTimeout(f"{operation} {name}: no answer")
        return result

    def create(self, name: str, data: bytes) -> None:
        self._do("create", name, lambda: self._files.create(name, data))

    def read(self, name: str) -> bytes:
        return self._do("read", name, lambda: self._files.read(name))

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        return self._do("read_range", name, lambda: self._files.read_range(name, offset, length))

    def size(self, name: str) -> int:
        return self._do("size", name, lambda: self._files.size(name))

    def entries(self, name: str = "") -> list[Entry]:
        return self._do("entries", name, lambda: self._files.entries(name))

    def delete(self, names: Iterable[str]) -> None:
        listed = list(names)
        self._do("delete", ", ".join(listed), lambda: self._files.delete(listed))

    def rename(self, name: str, to: str) -> None:
        self._do("rename", name, lambda: self._files.rename(name, to))

    def writer(self, name: str) -> Writer:
        return _FaultyWriter(self, name, self._do("writer", name, lambda: self._files.writer(name)))


class _FaultyWriter:
    def __init__(self, folder: _Faulty, name: str, writer: Writer) -> None:
        self._folder, self._name, self._writer = folder, name, writer

    def append(self, data: bytes | memoryview) -> None:
        self._folder._do("append", self._name, lambda: self._writer.append(data))

    def close(self) -> None:
        self._folder._do("close", self._name, self._writer.close)

    def discard(self) -> None:
        self._writer.discard()


class MemoryStore(Store):
    """A `Store` on `MemoryFiles`. Several stores on the same files are several drivers of one job; each is a process that
    the others cannot see."""

    def __init__(self, job: str, files: MemoryFiles | None = None, *, fail: Fail | None = None) -> None:
        self.memory = files if files is not None else MemoryFiles()
        process = _Unseen("memory", 0, "")
        super().__init__("", job, folder=_Faulty(self.memory, fail), process=process, nonce=self._next)

    def _next(self) -> str:
        self.memory.claims += 1
        return str(self.memory.claims)


class _Unseen(ProcessId):
    """A process that sees no other process."""

    def lives(self, owner: Owner) -> bool:
        return False
