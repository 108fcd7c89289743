"""Files of sinks on local paths, published by rename."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import msgspec

from tailrace.connectors.hidden import COVER, CoveredFile, FileOrigin, Hidden, SinkFolder, trace_of, under_cover
from tailrace.connectors.publishing import Finished
from tailrace.storage.filesystem import Disk, make_folder


class LocalSinkFolder(SinkFolder):
    """A folder of a sink on a local path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._disk = Disk(path)

    def create(self, name: str) -> Hidden:
        self._disk.check()
        make_folder(self.path)
        own = name.rpartition("/")[2]
        return LocalHidden(os.path.join(self.path, f".{own}{COVER}"), os.path.join(self.path, name))

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name, plain in under_cover(os.listdir(self.path), goes, traces):
                if plain not in keep:
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(self.path, name))


class LocalHidden(Hidden):
    """A local file under cover, whose name starts with `.`."""

    def __init__(self, hidden: str, final: str) -> None:
        self.hidden, self.final = hidden, final
        self.stream = open(hidden, "wb")  # noqa: SIM115 - closed by finish or discard

    def finish(self) -> bytes:
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        _sync(os.path.dirname(self.hidden))
        return msgspec.json.encode(CoveredFile(self.hidden, self.final))

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # a full disk does not take what is left in the buffer
            self.stream.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.hidden)


def _is_there(path: str) -> bool:
    """True if the file exists. Raises `OSError` if that cannot be known, as for a disk that does not answer."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


class FinishedLocal(Finished):
    """A finished local file, published by rename."""

    def __init__(self, made: CoveredFile) -> None:
        self.hidden, self.name, self.trace = made.hidden, made.final, trace_of(made)

    def is_covered(self) -> bool:
        return _is_there(self.hidden)

    def visible(self) -> bool:
        return _is_there(self.name)

    def has_trace(self) -> bool:
        return _is_there(self.trace)

    def leave_trace(self) -> None:
        os.close(os.open(self.trace, os.O_CREAT | os.O_WRONLY, 0o644))

    def uncover(self) -> None:
        folder = os.path.dirname(self.name)
        if folder != os.path.dirname(self.hidden):
            make_folder(folder)
        try:
            os.replace(self.hidden, self.name)
        except FileNotFoundError:
            if self.is_covered():
                raise  # the folder is gone again

    def remove_trace(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.trace)

    def sync(self) -> None:
        for folder in {os.path.dirname(self.name), os.path.dirname(self.trace)}:
            _sync(folder)


def _sync(folder: str) -> None:
    """Makes the names in a folder durable, if the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
