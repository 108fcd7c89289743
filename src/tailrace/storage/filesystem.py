"""Folders on any filesystem that Spark users have, behind one small contract.

| URL | by |
|---|---|
| a plain path, `file:` | the operating system |
| `hdfs:` | pyarrow, and Hadoop's libhdfs for what pyarrow does not offer |
| `s3:`, `s3a:`, `s3n:` | s3fs; credentials and endpoint come from the usual `AWS_` variables |
| `gs:`, `gcs:` | gcsfs |
| `abfs:`, `abfss:` | adlfs |

Everything else in this package rests on `Folder.create`: a file is there whole or not at all, and of several calls that
create the same name exactly one succeeds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple, Protocol

from tailrace.errors import ConfigError

TEMPORARY = re.compile(r"\..*\.[0-9a-f]{32}\.tmp")
"""Pattern of the name of a file while it is made, before it gets its final name."""

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_TRIES = 100
"""Number of times that a folder is made again while other processes remove it because it is empty."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Entry(NamedTuple):
    """A file or folder inside a folder."""

    name: str
    """Name relative to the folder that was opened."""
    folder: bool
    size: int


class Writer(Protocol):
    """One file that is being written. No process may read it before `close` has returned."""

    def append(self, data: bytes | memoryview) -> None:
        """Adds bytes to the end of the file."""

    def close(self) -> None:
        """Completes the file. It is durable when this returns."""

    def discard(self) -> None:
        """Removes the file, complete or not. Harmless after `close`, a failure, or another `discard`."""


class Folder(ABC):
    """A folder, which may not exist yet. Names are relative to it, with `/` between parts; folders between are made as
    needed. Reading a missing file raises `FileNotFoundError`."""

    url: str
    """Absolute URL; a plain path if the folder is local."""
    checked = True
    """True if `create` is known to refuse an existing name. If it is False, the caller must try it out before relying on
    it."""

    def url_of(self, name: str) -> str:
        """The full path or URL of a name."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    def make(self) -> None:
        """Makes the folder itself, durably, if the filesystem has folders. Also creates and deletes a file in it as a test.
        Raises `OSError` or `ConfigError`, with the reason, if that fails."""
        probe = temporary_name("probe")
        self.create(probe, b"")
        self.delete([probe])

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Makes a file atomically, durable when this returns. Raises `FileExistsError` if the name is taken. After any other
        error the file may be there or not."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a whole file."""

    @abstractmethod
    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """A part of a file; shorter than `length` if the file ends before."""

    @abstractmethod
    def size(self, name: str) -> int:
        """The size of a file in bytes."""

    @abstractmethod
    def entries(self, name: str = "") -> list[Entry]:
        """The files and folders directly in a folder, by name; empty if there is no such folder."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Deletes files; missing ones are ignored. Also deletes a folder that is empty after that, except this one."""

    @abstractmethod
    def writer(self, name: str) -> Writer:
        """Begins a file, and returns its writer. An existing file is replaced."""

    @abstractmethod
    def rename(self, name: str, to: str) -> None:
        """Gives a file another name; an existing file of that name is replaced. Atomic on filesystems; object stores copy
        and delete."""

    def give_up(self, goes: Callable[[str], bool]) -> None:
        """Aborts uploads of files that lost writers have begun, if `goes` returns True for their name. On S3 such a file
        has no name in the folder before it is complete. On filesystems it has a name, and is deleted by that. (Google and
        Azure drop uploads by themselves, after a week.)"""
        return None

    def exists(self, name: str) -> bool:
        """True if there is such a file."""
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def walk(self, name: str = "") -> Iterator[Entry]:
        """All files in a folder and in the folders below it."""
        for entry in self.entries(name):
            if entry.folder:
                yield from self.walk(entry.name)
            else:
                yield entry


def scheme_of(url: str) -> str:
    """The scheme of a URL; `file` for a plain path."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else "file"


def temporary_name(name: str) -> str:
    """A name in the same folder as `name` that no other file has."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.{uuid.uuid4().hex}.tmp"


class Disk:
    """The disk that a folder of this machine lies on. If the disk is not mounted any more, the folder is missing, or would
    be made anew on the disk below. The data is then out of reach, and not gone."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number: int | None = None
        """Device number of the disk; None before the first look."""

    def check(self) -> None:
        """Raises `OSError` if the folder lies on another disk than at the first look."""
        number = self._look()
        if self._number is None:
            self._number = number
        self._compare(number)

    def make(self, above: str, name: str) -> None:
        """Makes a folder in another one. Raises `OSError` if that lies on another disk than at the first look: the disk may
        have gone since `check`, and nothing is to be made in the folder below it."""
        there = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._compare(os.fstat(there).st_dev)
            try:
                os.mkdir(name, dir_fd=there)
            except OSError as error:
                error.filename = os.path.join(above, name)
                raise
        finally:
            os.close(there)

    def _compare(self, number: int) -> None:
        if number != self._number:
            raise OSError(errno.ENODEV, "its disk is not mounted any more", self._path)

    def _look(self) -> int:
        path = self._path
        while True:
            try:
                return os.stat(path).st_dev
            except OSError as error:  # the path leads nowhere: the nearest folder above it that exists is on the disk
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) or path == os.path.dirname(path):
                    raise
                path = os.path.dirname(path)


class LocalFolder(Folder):
    """A folder of this machine, or one that is mounted. Durable here means that the file and its folder are synced."""

    def __init__(self, path: str) -> None:
        self.url = path
        self._disk = Disk(path)

    def path_of(self, name: str) -> str:
        """The path of a name on this machine."""
        return os.path.join(self.url, name)

    def make(self) -> None:
        super().make()
        _sync_parents(self.url)

    def create(self, name: str, data: bytes) -> None:
        self._disk.check()
        path, temporary = self.path_of(name), self.path_of(temporary_name(name))
        with _open_new(temporary, "xb", self._disk) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                os.link(temporary, path)  # unlike a rename, this fails where the name is taken
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                    raise
                raise ConfigError(
                    f"the filesystem of {self.url} cannot make hard links, which checkpoints need to be created "
                    f"atomically ({error}); choose a folder on another filesystem"
                ) from error
            finally:
                os.unlink(temporary)
        _sync_above(path, self.url)

    def read(self, name: str) -> bytes:
        with self._finding(), open(self.path_of(name), "rb") as file:
            return file.read()

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        parts = []
        with self._finding(), open(self.path_of(name), "rb", buffering=0) as file:
            while length > 0 and (data := os.pread(file.fileno(), length, offset)):
                parts.append(data)
                offset += len(data)
                length -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, name: str) -> int:
        path = self.path_of(name)
        if os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, "is a folder", path)
        with self._finding():
            return os.path.getsize(path)

    @contextlib.contextmanager
    def _finding(self) -> Iterator[None]:
        """A context in which a missing file raises `FileNotFoundError`, also if its path leads through a file. Raises
        `OSError` instead if the disk is not mounted any more."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            self._disk.check()
            if isinstance(error, FileNotFoundError):
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), error.filename) from error

    def entries(self, name: str = "") -> list[Entry]:
        found = []
        prefix = f"{name}/" if name else ""
        try:
            with os.scandir(self.path_of(name)) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                        folder = entry.is_dir()
                        found.append(Entry(prefix + entry.name, folder, 0 if folder else entry.stat().st_size))
        except (FileNotFoundError, NotADirectoryError):
            self._disk.check()
            return []
        return sorted(found)

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            path = self.path_of(name)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
            folders.add(os.path.dirname(path))
        for folder in sorted(folders - {self.url}):
            with contextlib.suppress(OSError):  # not empty, or gone
                os.rmdir(folder)

    def writer(self, name: str) -> Writer:
        self._disk.check()
        return _LocalWriter(self, name)

    def rename(self, name: str, to: str) -> None:
        self._disk.check()
        path, new = self.path_of(name), self.path_of(to)
        make_folder(os.path.dirname(new), self._disk)
        os.replace(path, new)
        _sync_above(new, self.url)
        if os.path.dirname(path) != os.path.dirname(new):
            _sync_folder(os.path.dirname(path))

    def link(self, path: str, name: str) -> bool:
        """Gives a complete file of this machine a second name, in this folder, durably. Returns False if it is on another
        disk, or the filesystem has no links. Raises `FileExistsError` if the name is taken."""
        self._disk.check()
        there = self.path_of(name)
        make_folder(os.path.dirname(there), self._disk)
        try:
            os.link(path, there)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        _sync_above(there, self.url)
        return True


class _LocalWriter:
    def __init__(self, folder: LocalFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._file = _open_new(folder.path_of(name), "wb", folder._disk)

    def append(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def close(self) -> None:
        if self._file.closed:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        _sync_above(self._folder.path_of(self._name), self._folder.url)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # a file that could not be written whole is of no use
            self._file.close()
        self._folder.delete([self._name])


def _open_new(path: str, mode: str, disk: Disk) -> IO[bytes]:
    """A new file. Another process may remove its folder at any time because it is empty; the folder is then made again."""
    for _ in range(_TRIES):
        make_folder(os.path.dirname(path), disk)
        try:
            return open(path, mode, buffering=1 << 20)
        except FileNotFoundError as error:
            lost = error
    raise lost


def make_folder(path: str, disk: Disk | None = None) -> None:
    """Makes a folder of this machine and the folders above it, durably, and all of them on `disk`. Raises `OSError`, with
    the path at fault, if that fails. Tries again only if another process has removed a folder meanwhile because it was
    empty."""
    lost: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    for _ in range(_TRIES):
        if os.path.isdir(path):
            return
        above = os.path.dirname(path)
        make_folder(above, disk)
        try:
            if disk is None:
                os.mkdir(path)
            else:
                disk.make(above, os.path.basename(path))
        except FileNotFoundError as error:
            lost = error  # the folder above was removed meanwhile, or nothing can be made in it
            continue
        except FileExistsError:
            obstacle = _obstacle(path)
            if obstacle is not None:
                raise obstacle from None
        _sync_folder(above)
    raise lost


def _obstacle(path: str) -> OSError | None:
    """The error for the thing that is in the way of a folder; None if the path is a folder, or free, by now."""
    try:
        kind = os.lstat(path).st_mode  # one look: a folder may come and go between two
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(kind) or (stat.S_ISLNK(kind) and os.path.isdir(path)):
        return None
    if stat.S_ISLNK(kind):
        reason = f"is a link to {os.path.realpath(path)}, where there is no folder (is a disk not mounted?)"
        return NotADirectoryError(errno.ENOTDIR, reason, path)
    return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def _sync_above(path: str, top: str) -> None:
    """Makes the names of a new file and of the folders around it durable, up to the names in `top`. The process that made
    one of the folders may have died before it synced it."""
    folder = os.path.dirname(path)
    _sync_folder(folder)
    while len(folder) > len(top):
        folder = os.path.dirname(folder)
        _sync_folder(folder)


def _sync_parents(path: str) -> None:
    """Makes the name of an existing folder and of all folders above it durable. The process that made one of them may have
    died before it synced it. A folder above that cannot be synced was not made by Tailrace."""
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        with contextlib.suppress(OSError):
            _sync_folder(path)


def _sync_folder(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return  # another process has removed it because it was empty: none of our files was in it
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems have no such thing
            raise
    finally:
        os.close(handle)
