"""Files in which DataFrames and results travel: in a folder of Tailrace, on this machine, behind a URL, or at the driver.

Only Tailrace takes files away from such a folder. So a result's file in a place that is no local path has its plain name
from the start. An empty file beside it, its mark, means that it was published: no store has to rename or copy files. On
local paths results are published as the files of every sink (`connectors.folders`).
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tailrace.connectors import hidden
from tailrace.connectors.hidden import CoveredFile, FileOrigin, Hidden, origin_of
from tailrace.connectors.pieces import Pieces
from tailrace.errors import ConfigError
from tailrace.storage import filesystem, opening
from tailrace.storage.filesystem import Writer, scheme_of
from tailrace.storage.parallel import at_once

AT_THE_DRIVER = "tailrace"
"""The scheme of a folder that the driver serves (`runtime.outpost.hosted_folder`)."""
MARK = ".published"
"""Suffix of the name of a published file's mark."""
SEEN = ".of-the-driver"
"""Name of the driver's sign: a file in the folder of a result, and in a local folder that executors must share."""
WINDOW_BYTES = 8 << 20
"""Minimum number of bytes in one read."""
PIECE_BYTES = 4 << 20


def is_local(place: str) -> bool:
    """True if `place` is a path of this machine, and no URL."""
    return scheme_of(place) == "file"


def folder_of(place: str, options: Mapping[str, Any] | None = None) -> filesystem.Folder:
    """The folder at a path or URL."""
    if scheme_of(place) != AT_THE_DRIVER:
        return opening.open_folder(place, options)
    from tailrace.runtime.outpost.hosted_folder import open_hosted  # sockets: only where they are needed

    return open_hosted(place)


def split_of(url: str) -> tuple[str, str]:
    """(folder, name) of the URL of a file."""
    folder, _, name = url.rpartition("/")
    return folder, name


def leave_sign(place: str, options: Mapping[str, Any] | None = None) -> None:
    """Makes a folder with the driver's sign: a local folder that executors must share, or a folder for a result. The sign is
    the oldest file there: a cleaner that removes files by their age takes it first."""
    if is_local(place):
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, SEEN), "w"):
            pass
    else:
        with contextlib.suppress(FileExistsError):
            folder_of(place, options).create(SEEN, b"")


def has_sign(place: str, options: Mapping[str, Any] | None = None) -> bool:
    """True if the driver's sign is still in a folder. Raises if that cannot be known."""
    return folder_of(place, options).exists(SEEN)


def removal_error(what: str, who: str) -> ConfigError:
    """The error for a result that was removed since it was published."""
    return ConfigError(
        f"{what} is not there any more, and with it {who}: it was removed, by the end of its Spark session, by a cleaner of "
        f"temporary files or by hand. Run the job again, and read its result before the session ends; or give "
        f"Environment(work_dir=...) a folder or URL in which nobody cleans up"
    )


def check_sign(folder: str) -> None:
    """Raises `ConfigError` in a process that does not see the driver's sign in this folder: the files that it writes there
    would be missing in the result without an error."""
    try:
        os.stat(os.path.join(folder, SEEN))
    except OSError as error:
        raise ConfigError(
            f"{folder} is no folder that driver and executors share: on {socket.gethostname()} it does not have what the "
            f"driver has put into it ({error.strerror}). Give Environment(work_dir=...), or the folder of checkpoints, "
            f"where it is that one, a path or URL that all of them reach; without a work_dir none is needed"
        ) from None


class Reading(io.RawIOBase):
    """A file in a folder that is read in large windows."""

    def __init__(self, folder: filesystem.Folder, name: str) -> None:
        super().__init__()
        self._folder, self._name = folder, name
        self._size = folder.size(name)
        self._at = 0
        self._window, self._begin = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = min(len(view), self._size - self._at)
        if count <= 0:
            return 0
        if not self._begin <= self._at <= self._at + count <= self._begin + len(self._window):
            self._window = self._folder.read_range(self._name, self._at, max(count, WINDOW_BYTES))
            self._begin = self._at
            if len(self._window) < count:
                raise OSError(f"{self._folder.url_of(self._name)} has become shorter than it was")
        start = self._at - self._begin
        view[:count] = self._window[start : start + count]
        self._at += count
        return count


class Writing(Pieces):
    """A file that is being written into a folder, in large pieces. It exists when `complete` has returned."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(PIECE_BYTES)
        self._writer = writer

    def _send(self, piece: bytes) -> None:
        self._writer.append(piece)

    def complete(self) -> None:
        self._rest()
        self._writer.close()

    def discard(self) -> None:
        self._writer.discard()


class Unsynced:
    """A new file of this machine that lives no longer than the program: it is not synced."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "xb")  # noqa: SIM115 - closed by close or discard

    def append(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # as in `LocalHidden`
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class ResultFolder(hidden.SinkFolder):
    """The folder of a result sink's files in a place that is no local path."""

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self.folder = folder_of(url, options)
        self.url = self.folder.url
        """URL with which the names of the folder's files begin: one folder has several URLs (`s3a:`, `s3:`)."""

    def create(self, name: str) -> Hidden:
        return _ResultFile(self.folder, name)

    def publish(self, prepared: Sequence[bytes]) -> None:
        """Marks finished files as published. Raises `FileNotFoundError` if one is missing, before it marks any of them."""
        names = sorted(hidden.names_in(prepared))
        lost: list[str] = []
        # Not by listing the folder: a job may run for days, and publish each second.
        at_once(lambda name: None if self.folder.exists(name) else lost.append(name), names, "tailrace-publish")
        if lost:
            raise FileNotFoundError(
                f"{self.folder.url_of(min(lost))}: prepared, and not there any more; somebody has removed it, and its "
                f"records are lost"
            )
        at_once(self._mark, names, "tailrace-publish")

    def _mark(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            self.folder.create(name + MARK, b"")

    def published_files(self) -> list[str]:
        """The names of published files, sorted. Raises `ConfigError` if one of them was removed."""
        there = {entry.name for entry in self.folder.entries()}
        names = sorted(name.removesuffix(MARK) for name in there if name.endswith(MARK))
        for name in names:
            # A store lists in pages: a file may come after its page was listed, and its mark before the mark's page was.
            if name not in there and not self.folder.exists(name):
                raise removal_error(self.folder.url_of(name), "records of a result")
        return names

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        """Removes files of chosen origins that were not published. There are no traces in this kind of folder."""
        there = {entry.name for entry in self.folder.entries()}
        gone = []
        for name in there:
            origin = origin_of(name)
            if origin is not None and goes(origin) and name + MARK not in there and name not in keep:
                gone.append(name)
        self.folder.delete(gone)


class _ResultFile(Hidden):
    def __init__(self, folder: filesystem.Folder, name: str) -> None:
        self._url = folder.url_of(name)
        self.stream = Writing(folder.writer(name))

    def finish(self) -> bytes:
        self.stream.complete()
        return msgspec.json.encode(CoveredFile(self._url, self._url))

    def discard(self) -> None:
        self.stream.discard()
