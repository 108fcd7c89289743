"""Marks, by which a file is recognised whatever its name: by device and inode, and by its bytes.

An inode alone is not enough. A deleted file's inode is given to the next file, and a file may be cut to nothing and written
anew (`copytruncate`). A *mark* holds, beside the identity, the number of bytes of the file that were read, and hashes of
the first and the last of them: a log does not change bytes once they are written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import xxhash

from tailrace.connectors.lines import compression_of
from tailrace.errors import ConfigError

Kind = TypeVar("Kind")
HEAD = 1024
TAIL = 256


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mark of a file of which the first `size` bytes were read."""

    path: str
    device: int
    inode: int
    size: int = 0
    head: int = 0
    """Hash of the first of these bytes, at most `HEAD`."""
    tail: int = 0
    """Hash of the last of these bytes, at most `TAIL`."""

    @property
    def identity(self) -> tuple[int, int]:
        return (self.device, self.inode)


def from_checkpoint(value: Any, kind: type[Kind]) -> Kind:
    """A split, or a position, from its plain values. Raises `ConfigError` for values of another form."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"TextFiles: the checkpoint does not have marks of followed files ({error}): another version of tailrace, or "
            f"another source, has written it; start without it, or give the source another uid, so that it reads the files "
            f"from their beginning"
        ) from error


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """(device, inode): distinguishes a file from all other existing files."""
    return status.st_dev, status.st_ino


def make_mark(path: str, identity: tuple[int, int], size: int, head: bytes, tail: bytes) -> Mark:
    """The mark of a file of which the first `HEAD` and the last `TAIL` of `size` bytes are given."""
    hashed = (xxhash.xxh3_64_intdigest(head), xxhash.xxh3_64_intdigest(tail)) if size else (0, 0)
    return Mark(path, *identity, size, *hashed)


def ends_of(file: int, size: int) -> tuple[bytes, bytes]:
    """The first `HEAD` and the last `TAIL` of the first `size` bytes of an open file; shorter if the file is."""
    head = os.pread(file, min(size, HEAD), 0)
    return head, os.pread(file, min(size, TAIL), max(0, size - TAIL))


def mark_of(path: str, size: int | None = None) -> Mark | None:
    """The mark of the file that has this name now, over its first `size` bytes, or all of them. None if there is no such
    file, or it has fewer bytes."""
    with contextlib.suppress(FileNotFoundError), _open_file(path) as file:
        status = os.fstat(file)
        size = status.st_size if size is None else size
        head, tail = ends_of(file, size)
        if len(head) == min(size, HEAD) and len(tail) == min(size, TAIL):
            return make_mark(path, identity_of(status), size, head, tail)
    return None


def begins_as(path: str, mark: Mark) -> bool:
    """True if the file that has this name now begins with the bytes of a mark."""
    found = mark_of(path, mark.size)
    return found is not None and (found.head, found.tail) == (mark.head, mark.tail)


@contextlib.contextmanager
def _open_file(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def beside(path: str) -> list[str]:
    """The plain files in the folder of a file."""
    folder = os.path.dirname(path)
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return []
    paths = [os.path.join(folder, name) for name in names if compression_of(name) is None]
    return [one for one in paths if os.path.isfile(one)]


def may_be_rotated(path: str, to: str) -> bool:
    """True if a rotation may have made the name `path` from the name `to`: their folders are equal, and up to the first dot
    `path` begins with `to`."""
    (folder, name), (folder_to, name_to) = os.path.split(path), os.path.split(to)
    return folder == folder_to and name.partition(".")[0].startswith(name_to.partition(".")[0])


def copy_of(mark: Mark) -> Mark | None:
    """The mark of a copy of the marked file, as `copytruncate` makes it: another file in its folder that begins with all
    marked bytes. None if there is none."""
    if not mark.size:
        return None
    for path in beside(mark.path):
        found = mark_of(path, mark.size) if may_be_rotated(path, mark.path) else None
        if found is not None and found.identity != mark.identity and (found.head, found.tail) == (mark.head, mark.tail):
            return found
    return None


def known_again(mark: Mark, matching: Callable[[], Iterable[str]], *, moved: bool = False) -> tuple[str, bool] | None:
    """(path, same): the path of the marked file now, and whether it still begins with the marked bytes. None if the file is
    not found.

    `matching` returns the files that match the user's path. A file with the marked inode under another name counts only if
    it has the marked bytes: the inode may have been given to another file. With `moved` a file with the marked name and
    bytes counts whatever its inode: on another disk (a restored volume, a copy of the folder) it has another one.
    """
    with contextlib.suppress(FileNotFoundError):
        if identity_of(os.stat(mark.path)) == mark.identity and begins_as(mark.path, mark):
            return mark.path, True
    meant = list(matching())
    for path in dict.fromkeys([*meant, mark.path, *beside(mark.path)]):
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            if status.st_ino != mark.inode:
                continue
            same = begins_as(path, mark)
            if status.st_dev != mark.device and not (same and mark.size):
                continue  # devices get new numbers when they are mounted anew; the bytes decide
            if same or path in meant:
                return path, same
    if moved and mark.size and begins_as(mark.path, mark):
        return mark.path, True
    return None


def plain(value: Any) -> Any:
    """A mark, or a value with marks, as dicts, lists and numbers, which later versions can read from a checkpoint."""
    return msgspec.to_builtins(value)
