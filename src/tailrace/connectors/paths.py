"""The files that a source reads, found at the path that the user gives.

| path | files |
|---|---|
| a file | this file |
| a folder | all files in it and in its subfolders |
| a pattern (`*`, `?`, `[…]`, `**` for folders of any depth) | the files that match |

Names that start with `.` or `_` are skipped (hidden files, and files that programs keep beside their data), unless the path
writes such a start out. A file that has several names (links) is one file: it is read once, under the first of them.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterable, Iterator

from tailrace.errors import ConfigError

MAGIC = re.compile(r"[*?[]")


def is_passed_over(name: str) -> bool:
    """True if a file or folder of this name is skipped. A folder that holds a column (`_day=1`) is not, as in Spark."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def base_of(path: str) -> str:
    """The folder that an absolute path, or the pattern in it, begins in."""
    if os.path.isdir(path):
        return path
    base, pattern = _split(path)
    return base if pattern else os.path.dirname(path)


def files_at(path: str) -> list[str]:
    """The files at an absolute path, in the order of their names. Raises `ConfigError` if there are none."""
    found = _once(_find(path))
    if not found:
        raise ConfigError(f"there are no files at {path!r} (names that begin with . or _ are passed over)")
    return found


def _find(path: str) -> Iterable[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        return _below(path)
    base, pattern = _split(path)
    return _matching(base, pattern) if pattern else []


def _split(path: str) -> tuple[str, list[str]]:
    """The folder that a pattern begins in, and the parts of the pattern. The folder exists literally: it may have a `[` in
    its name."""
    parts = path.split(os.sep)
    at = 1
    while at < len(parts) and os.path.isdir(os.sep.join(parts[: at + 1])):
        at += 1
    rest = parts[at:]
    return os.sep.join(parts[:at]) or os.sep, rest if any(map(MAGIC.search, rest)) else []


def _below(folder: str, above: _Folders = ()) -> Iterator[str]:
    """All files of a folder and its subfolders, its own files first."""
    above = _with(folder, above)
    names = [name for name in _names(folder) if not is_passed_over(name)]
    paths = [os.path.join(folder, name) for name in names]
    yield from (path for path in paths if _is_file(path))
    for path in paths:
        if _is_folder(path) and _identity(path) not in above:
            yield from _below(path, above)


def _matching(folder: str, pattern: list[str], above: _Folders = ()) -> Iterator[str]:
    """The files that match a pattern below a folder."""
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        yield from _matching(folder, rest, above) if rest else _below(folder, above)
        if rest:
            inner = _with(folder, above)
            for name in _names(folder):
                path = os.path.join(folder, name)
                if not is_passed_over(name) and _is_folder(path) and _identity(path) not in inner:
                    yield from _matching(path, pattern, inner)
        return
    names = fnmatch.filter(_names(folder), first) if MAGIC.search(first) else [first]
    for name in names:
        path = os.path.join(folder, name)
        if is_passed_over(name) and name[0] != first[0]:
            continue
        if not rest and _is_file(path):
            yield path
        elif rest and _is_folder(path):
            yield from _matching(path, rest, above)


_Folders = tuple[tuple[int, int], ...]
"""Identities of the folders around a place. A link to one of them is not followed: it would have no end."""


def _with(folder: str, above: _Folders) -> _Folders:
    return (*above, _identity(folder))


def _identity(path: str) -> tuple[int, int]:
    """(device, inode) of a path, whatever its name; (-1, -1) if it was removed meanwhile."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return (-1, -1)
    return (status.st_dev, status.st_ino)


def _is_file(path: str) -> bool:
    return stat.S_ISREG(_mode(path))


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: str) -> int:
    """The type and rights of a file or folder; 0 for a name with nothing behind it. Raises `OSError` if that cannot be
    known: a file that may not be looked at, or a disk that does not answer, is not left out."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return 0  # removed meanwhile, or a link to nothing
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        return 0


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []  # it was removed meanwhile


def _once(paths: Iterable[str]) -> list[str]:
    """The paths, with each file only under the first of its names."""
    seen: dict[tuple[int, int], str] = {}
    for path in paths:
        seen.setdefault(_identity(path), path)
    seen.pop((-1, -1), None)
    return list(seen.values())
