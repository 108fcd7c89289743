"""The files of a source on this machine and behind URLs of any filesystem that fsspec knows.

| place | files |
|---|---|
| a file, a folder, a pattern of this machine | as in `connectors.paths` |
| a URL of a file | this file |
| a URL of a folder (or the beginning of keys, up to a `/`) | all files below |
| a URL with a pattern (`*`, `?`, `[…]`, `**`) | the files that match |

A file behind a URL is read only as one version: a job that comes back to it finds it as it was, or refuses it. HTTP has no
lists of files, so a URL there is one file.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tailrace.connectors import paths
from tailrace.connectors.hidden import protocol_of
from tailrace.connectors.remotefiles import filesystem
from tailrace.errors import ConfigError

_WITHOUT_LISTS = {"http", "https"}
_VERSIONS = ("ETag", "etag", "md5Hash", "crc32c", "content_md5", "checksum")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


class PlacedFile(NamedTuple):
    """A file at a place, as a list of files has it."""

    path: str
    version: str
    """Text that changes when the file is written anew."""
    changed_at: float
    """Time of the last change of the file, or of its name, in seconds since 1970."""


def files_of(place: str) -> list[str]:
    """The files at a place, in the order of their names. Raises `ConfigError` if there are none."""
    if protocol_of(place) is None:
        return paths.files_at(place)
    found = [one.path for one in _behind(place)]
    if not found:
        raise ConfigError(f"there are no files at {place} (names that begin with . or _ are passed over)")
    return found


def files_now(place: str) -> list[str]:
    """The files that are at a place where more may come; maybe none. Raises `ConfigError` for a folder of this machine that
    does not exist."""
    found = [one.path for one in list_files(place)]
    if (
        not found
        and protocol_of(place) is None
        and not os.path.isdir(place)
        and not any(map(paths.MAGIC.search, place))
    ):
        raise ConfigError(f"there is no folder {place!r}, and no file")
    return found


def list_files(place: str) -> list[PlacedFile]:
    """The files at a place; none if nothing is there."""
    if protocol_of(place) is not None:
        return _behind(place)
    found = []
    try:
        names = paths.files_at(place)
    except ConfigError:
        return []
    for path in names:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        # The time of the last change of the name: a file that is moved here keeps the time when it was written.
        found.append(PlacedFile(path, _local_version(status), max(status.st_ctime, status.st_mtime)))
    return found


def base_of(place: str) -> str:
    """The folder below which names of folders may hold columns."""
    if protocol_of(place) is None:
        return paths.base_of(place)
    head, pattern = _split(place)
    return head if pattern or not _is_file(place) else head.rpartition("/")[0]


def parts_below(base: str, path: str) -> list[str]:
    """The names of the folders between a base and a file."""
    return path.removeprefix(base).strip("/").split("/")[:-1]


def open_file(path: str) -> Any:
    """A binary file to read. Raises `FileNotFoundError` if there is none."""
    if protocol_of(path) is None:
        return open(path, "rb")
    fs = filesystem(path)
    return fs.open(_plain(path), "rb")


def version_of(path: str) -> str:
    """Text that changes when the file is written anew. Raises `FileNotFoundError` if there is no file."""
    if protocol_of(path) is None:
        return _local_version(os.stat(path))
    return _version(filesystem(path).info(_plain(path)))


def seek(file: Any, at: int, path: str) -> None:
    """Goes to a byte of an open file. Reads up to there if the server gives no parts of files."""
    if not at:
        return
    try:
        file.seek(at)
    except (ValueError, OSError):
        while at:
            passed = len(file.read(min(at, 1 << 20)))
            if not passed:
                raise ValueError(f"{path} has become shorter since the checkpoint") from None
            at -= passed


def _local_version(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns}"


def _version(info: dict[str, Any]) -> str:
    marks = [str(info[name]) for name in _VERSIONS if info.get(name)]
    return " ".join([str(info.get("size")), *(marks or [f"{_changed_at(info):.6f}"])])


def _changed_at(info: dict[str, Any]) -> float:
    """The time of the last change, in seconds since 1970; 0 if the filesystem keeps none."""
    for name in _TIMES:
        found = info.get(name)
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, int | float):
            return float(found)
        if isinstance(found, str) and found:
            return datetime.fromisoformat(found).timestamp()
    return 0.0


def _plain(url: str) -> str:
    """A URL with the protocol under which fsspec has its filesystem."""
    protocol, _, rest = url.partition("://")
    return f"s3://{rest}" if protocol in ("s3a", "s3n") else url


def _behind(url: str) -> list[PlacedFile]:
    """The files behind a URL, sorted by name."""
    fs = filesystem(url)
    protocol, _, _ = url.partition("://")
    if protocol in _WITHOUT_LISTS:
        return _one_page(fs, url)
    head, pattern = _split(url)
    try:
        info = fs.info(_plain(url))
    except FileNotFoundError:
        info = None
    if info is not None and info["type"] == "file":
        return [PlacedFile(url, _version(info), _changed_at(info))]
    if info is not None:
        head, pattern = url, ["**"]
    elif not pattern:
        return []
    found = []
    root = fs._strip_protocol(_plain(head))
    for name, one in sorted(_find(fs, _plain(head)).items()):
        below = name.removeprefix(root).strip("/")
        if one["type"] == "file" and not name.endswith("/") and _matches(below.split("/"), pattern):
            found.append(PlacedFile(f"{head}/{below}", _version(one), _changed_at(one)))
    return found


def _find(fs: Any, folder: str) -> dict[str, dict[str, Any]]:
    """All files below a folder, by name. Raises the error of a list that fails: fsspec's own `find`, which filesystems have
    that do not define one, leaves out all below a folder whose list fails."""
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    own = getattr(type(fs), "_find", None) or type(fs).find
    if own not in (AbstractFileSystem.find, AsyncFileSystem._find):
        return fs.find(folder, detail=True)  # type: ignore[no-any-return]
    found: dict[str, dict[str, Any]] = {}
    folders = [str(fs._strip_protocol(folder))]
    for one in folders:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            for info in fs.ls(one, detail=True):
                if info["type"] != "directory":
                    found[info["name"]] = info
                elif info["name"].rstrip("/") != one.rstrip("/"):
                    folders.append(info["name"])
    return found


def _one_page(fs: Any, url: str) -> list[PlacedFile]:
    if any(map(paths.MAGIC.search, url.partition("?")[0].split("/"))):
        raise ConfigError(f"{url} is a pattern, and HTTP has no lists of files: name each file")
    try:
        info = fs.info(url)
    except FileNotFoundError:
        return []
    return [PlacedFile(url, _version(info), _changed_at(info))]


def _is_file(url: str) -> bool:
    try:
        return bool(filesystem(url).info(_plain(url))["type"] == "file")
    except FileNotFoundError:
        return False


def _split(url: str) -> tuple[str, list[str]]:
    """The folder that a pattern begins in, and the parts of the pattern."""
    protocol, _, rest = url.partition("://")
    parts = rest.split("/")
    at = next((at for at, part in enumerate(parts) if at and paths.MAGIC.search(part)), len(parts))
    return f"{protocol}://{'/'.join(parts[:at])}", parts[at:]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """True if the parts of a path match a pattern. Its hidden parts match only what writes their beginning out."""
    if not pattern or not parts:
        return not pattern and not parts
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        if rest and _matches(parts, rest):
            return True
        if paths.is_passed_over(parts[0]):
            return False
        return (len(parts) == 1 and not rest) or _matches(parts[1:], pattern)
    if paths.is_passed_over(parts[0]) and parts[0][0] != first[0]:
        return False
    return fnmatch.fnmatchcase(parts[0], first) and _matches(parts[1:], rest)
