"""Folders on any filesystem that Spark users have, behind one small contract.

| URL | by |
|---|---|
| a plain path, `file:` | the operating system |
| `hdfs:` | pyarrow, and Hadoop's libhdfs for what pyarrow does not offer |
| `s3:`, `s3a:`, `s3n:` | s3fs; credentials and endpoint come from the usual `AWS_` variables |
| `gs:`, `gcs:` | gcsfs |
| `abfs:`, `abfss:` | adlfs |

Everything else here rests on `Folder.create`: a file is there whole or not at all, and of several that create the same
name exactly one succeeds.
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
"""What a file is called while it is made, before it gets its name."""

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_TRIES = 100
"""So often a folder is made again while others remove it because it is empty."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Entry(NamedTuple):
    """What a folder holds."""

    name: str
    """Relative to the folder that was opened."""
    folder: bool
    size: int


class Writer(Protocol):
    """One file that is being written. Nobody is to read it before `close` has returned."""

    def append(self, data: bytes | memoryview) -> None:
        """Adds to the end."""
        ...

    def close(self) -> None:
        """The file is complete, and durable when this returns."""
        ...

    def discard(self) -> None:
        """Nothing of it stays. Harmless after `close`, a failure, or another `discard`."""
        ...


class Folder(ABC):
    """A folder, whether it exists yet or not. Names are relative to it, with `/` between parts; folders between are made
    as needed. What is not there raises `FileNotFoundError`."""

    url: str
    """Absolute; a plain path where it is local."""
    checked = True
    """Whether `create` is known to refuse an existing name. Where it is not, its user tries it out before relying on it."""

    def url_of(self, name: str) -> str:
        """The full path or URL of a name."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    def make(self) -> None:
        """Makes the folder itself, durably, where the filesystem has folders, and a file in it, which goes again. Raises
        `OSError` or `ConfigError`, saying what is wrong, where that cannot be."""
        probe = temporary_name("probe")
        self.create(probe, b"")
        self.delete([probe])

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Makes a file atomically, durable when this returns. Raises `FileExistsError` where the name is taken. After any
        other error it may be there or not."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A whole file."""

    @abstractmethod
    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """A part of a file; less where the file ends before."""

    @abstractmethod
    def size(self, name: str) -> int:
        """The size of a file."""

    @abstractmethod
    def entries(self, name: str = "") -> list[Entry]:
        """What is directly in a folder, by name; nothing where there is no such folder."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Deletes files; what is missing is fine. A folder that is empty after that goes as well, if it is not this one."""

    @abstractmethod
    def writer(self, name: str) -> Writer:
        """Begins a file. One that is there is replaced."""

    @abstractmethod
    def rename(self, name: str, to: str) -> None:
        """Gives a file another name; one that is there is replaced. Atomic on filesystems; object stores copy and
        delete."""

    def give_up(self, wanted: Callable[[str], bool]) -> None:
        """Gives up files that somebody has begun to write, and that have no name before they are complete, where their
        name is wanted. Their writers were lost. Elsewhere such files have names, and are deleted by these. (Google and
        Azure drop them by themselves, after a week.)"""
        return None

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def walk(self, name: str = "") -> Iterator[Entry]:
        """All files in a folder and in those below it."""
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
    """Another name in the same folder, which nobody else has."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.{uuid.uuid4().hex}.tmp"


class Disk:
    """The disk that a folder of this machine lies on. Where it is not mounted any more, the folder is not there, or is made
    anew on the disk below: what was kept is out of reach then, and not gone."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number: int | None = None
        """Its device number, once it was looked at."""

    def check(self) -> None:
        """Raises `OSError` where the folder lies on another disk than at the first look."""
        number = self._look()
        if self._number is None:
            self._number = number
        elif number != self._number:
            raise OSError(errno.ENODEV, "its disk is not mounted any more", self._path)

    def _look(self) -> int:
        path = self._path
        while True:
            try:
                return os.stat(path).st_dev
            except OSError as error:  # the path leads nowhere: the disk is that of what is there above
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) or path == os.path.dirname(path):
                    raise
                path = os.path.dirname(path)


class LocalFolder(Folder):
    """A folder of this machine, or one that is mounted. Durable here means synced, and the folder too."""

    def __init__(self, path: str) -> None:
        self.url = path
        self._disk = Disk(path)

    def path_of(self, name: str) -> str:
        """The path of a name."""
        return os.path.join(self.url, name)

    def make(self) -> None:
        super().make()
        _sync_parents(self.url)

    def create(self, name: str, data: bytes) -> None:
        self._disk.check()
        path, temporary = self.path_of(name), self.path_of(temporary_name(name))
        with _opened(temporary, "xb") as file:
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
        with self._found(), open(self.path_of(name), "rb") as file:
            return file.read()

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        parts = []
        with self._found(), open(self.path_of(name), "rb", buffering=0) as file:
            while length > 0 and (data := os.pread(file.fileno(), length, offset)):
                parts.append(data)
                offset += len(data)
                length -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, name: str) -> int:
        path = self.path_of(name)
        if os.path.isdir(path):
            raise FileNotFoundError(errno.ENOENT, "is a folder", path)
        with self._found():
            return os.path.getsize(path)

    @contextlib.contextmanager
    def _found(self) -> Iterator[None]:
        """A file is there as long as this lasts: else it is missing, also where its path leads through a file, or its disk
        is not mounted any more."""
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
        make_folder(os.path.dirname(new))
        os.replace(path, new)
        _sync_above(new, self.url)
        if os.path.dirname(path) != os.path.dirname(new):
            _sync_folder(os.path.dirname(path))

    def link(self, path: str, name: str) -> bool:
        """Gives a complete file of this machine a second name, in this folder, durably. False where it is on another disk,
        or the filesystem does not do that. Raises `FileExistsError` where the name is taken."""
        self._disk.check()
        there = self.path_of(name)
        make_folder(os.path.dirname(there))
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
        self._file = _opened(folder.path_of(name), "wb")

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
        with contextlib.suppress(OSError):  # nobody wants a file that could not be written whole
            self._file.close()
        self._folder.delete([self._name])


def _opened(path: str, mode: str) -> IO[bytes]:
    """A new file, in a folder that somebody else may remove for being empty at any time."""
    for _ in range(_TRIES):
        make_folder(os.path.dirname(path))
        try:
            return open(path, mode, buffering=1 << 20)
        except FileNotFoundError as error:
            lost = error
    raise lost


def make_folder(path: str) -> None:
    """Makes a folder of this machine and those above it, durably. Raises `OSError`, with the path that is at fault, where
    that cannot be: it is tried again only where somebody else has removed a folder for being empty meanwhile."""
    lost: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    for _ in range(_TRIES):
        if os.path.isdir(path):
            return
        above = os.path.dirname(path)
        make_folder(above)
        try:
            os.mkdir(path)
        except FileNotFoundError as error:
            lost = error  # the one above was removed meanwhile; or it is one in which nothing can be made
            continue
        except FileExistsError:
            obstacle = _obstacle(path)
            if obstacle is not None:
                raise obstacle from None
        _sync_folder(above)
    raise lost


def _obstacle(path: str) -> OSError | None:
    """What is in the way of a folder; None where it is a folder, or nothing, by now."""
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
    """The names of a new file and of the folders around it are durable, up to those in `top`: the process that
    made one of the folders may have died before it was synced."""
    folder = os.path.dirname(path)
    _sync_folder(folder)
    while len(folder) > len(top):
        folder = os.path.dirname(folder)
        _sync_folder(folder)


def _sync_parents(path: str) -> None:
    """The same for a folder that was there before: its maker, or that of one above it, may have died before the sync.
    One above that cannot be synced is not of our making."""
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        with contextlib.suppress(OSError):
            _sync_folder(path)


def _sync_folder(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return  # somebody has removed it for being empty: nothing of ours was in it
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems have no such thing
            raise
    finally:
        os.close(handle)
