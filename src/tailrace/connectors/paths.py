"""Which files a source reads: a path that the user wrote, as the files that are there.

| path | files |
|---|---|
| a file | this one |
| a folder | all in it and in its subfolders |
| a pattern (`*`, `?`, `[…]`, `**` for folders of any depth) | those that match |

Names that start with `.` or `_` are passed over (hidden files, and what others keep beside their data), unless the path
writes such a start out. A file that has several names (links) is one file: it is read once, under the first of them.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator

from tailrace.connectors.hidden import normal, protocol_of
from tailrace.errors import ConfigError

_PASSED_OVER = (".", "_")
_MAGIC = re.compile(r"[*?[]")


def local_path(path: str | os.PathLike[str], who: str) -> str:
    """The path of a source as an absolute one. Raises `ConfigError` for a URL that is no `file:` one."""
    text = normal(path)
    if protocol_of(text) is not None:
        raise ConfigError(
            f"{who}: {text} is a URL, and this source reads local paths; let Spark read it: "
            f"env.from_dataframe(spark.read...)"
        )
    return text


def files_at(path: str) -> list[str]:
    """The files of an absolute path, in the order of their names. Raises `ConfigError` where there is none."""
    found = _once(_found(path))
    if not found:
        raise ConfigError(f"there are no files at {path!r} (names that begin with . or _ are passed over)")
    return found


def _found(path: str) -> Iterable[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        return _below(path)
    base, pattern = _split(path)
    return _matching(base, pattern) if pattern else []


def _split(path: str) -> tuple[str, list[str]]:
    """The folder that a pattern begins in, which is there literally (it may have a `[` in its name), and the rest."""
    parts = path.split(os.sep)
    at = 1
    while at < len(parts) and os.path.isdir(os.sep.join(parts[: at + 1])):
        at += 1
    rest = parts[at:]
    return os.sep.join(parts[:at]) or os.sep, rest if any(map(_MAGIC.search, rest)) else []


def _below(folder: str, above: _Folders = ()) -> Iterator[str]:
    """All files of a folder, its own first."""
    above = _with(folder, above)
    names = [name for name in _names(folder) if not name.startswith(_PASSED_OVER)]
    paths = [os.path.join(folder, name) for name in names]
    yield from (path for path in paths if os.path.isfile(path))
    for path in paths:
        if os.path.isdir(path) and _identity(path) not in above:
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
                if not name.startswith(_PASSED_OVER) and os.path.isdir(path) and _identity(path) not in inner:
                    yield from _matching(path, pattern, inner)
        return
    names = fnmatch.filter(_names(folder), first) if _MAGIC.search(first) else [first]
    for name in names:
        path = os.path.join(folder, name)
        if name.startswith(_PASSED_OVER) and name[0] != first[0]:
            continue
        if not rest and os.path.isfile(path):
            yield path
        elif rest and os.path.isdir(path):
            yield from _matching(path, rest, above)


_Folders = tuple[tuple[int, int], ...]
"""The folders that one is in: a link to one of them is not followed, for there is no end to it."""


def _with(folder: str, above: _Folders) -> _Folders:
    return (*above, _identity(folder))


def _identity(path: str) -> tuple[int, int]:
    """Device and inode, whatever the name. A path that went while we looked has none that another has."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return (-1, -1)
    return (status.st_dev, status.st_ino)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []  # it went while we looked


def _once(paths: Iterable[str]) -> list[str]:
    """Each file under the first of its names."""
    seen: dict[tuple[int, int], str] = {}
    for path in paths:
        seen.setdefault(_identity(path), path)
    seen.pop((-1, -1), None)
    return list(seen.values())
