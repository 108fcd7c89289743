"""Files under cover: their names, the tokens of finished ones, and the contract of the folders they are made in."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.errors import ConfigError

S3 = {"s3", "s3a", "s3n"}
COVER = ".inprogress"
"""Suffix of the name of a file under cover. The name starts with `.`."""
TRACE = ".publishing"
"""Suffix of the name of a trace. The name starts with `.`."""
_NAME = re.compile(r"part-(\d+)-(.+)-(\d+)-([0-9a-f]{8})-(\d+)\.\w+")
Columns = list[tuple[str, str]]
"""Names and types of columns."""


class CoveredFile(msgspec.Struct, frozen=True, tag="moved", omit_defaults=True):
    """A finished file under cover, and the name that publishing gives it: two paths or URLs."""

    hidden: str
    final: str
    columns: Columns | None = None
    """Columns of the file if they are not declared: all files of a sink must agree (`filesinks.Agreement`)."""


class Uploaded(msgspec.Struct, frozen=True, tag="uploaded", omit_defaults=True):
    """A multipart upload that publishing completes with these parts (number, etag)."""

    url: str
    upload: str
    parts: list[tuple[int, str]]
    columns: Columns | None = None


tokens = msgspec.json.Decoder(CoveredFile | Uploaded)


@dataclass(frozen=True)
class FileOrigin:
    """The origin of a file, from its name: run, incarnation, sink, subtask and number."""

    run_id: str
    incarnation: int
    whose: str
    subtask: int
    count: int


def whose(uid: str) -> str:
    """The part of file names that distinguishes the sinks of one folder: a hash of the uid."""
    return hashlib.sha256(uid.encode()).hexdigest()[:8]


def name_of(subtask: int, run_id: str, incarnation: int, uid: str, count: int, suffix: str) -> str:
    """The plain name of the `count`-th file of a writer. Names never repeat. Sorted names are in the order of subtasks, and
    for one subtask in the order in which the files were written."""
    return f"part-{subtask:05d}-{run_id}-{incarnation:04d}-{whose(uid)}-{count:06d}{suffix}"


def origin_of(name: str) -> FileOrigin | None:
    """The origin in a plain name; None if the name is not one of `name_of`."""
    found = _NAME.fullmatch(name)
    return None if found is None else FileOrigin(found[2], int(found[3]), found[4], int(found[1]), int(found[5]))


class Hidden:
    """A file under cover, being written."""

    stream: Any
    """Binary file to write to."""

    def finish(self) -> bytes:
        """Makes the whole file durable and returns a token for `publish`."""
        raise NotImplementedError

    def discard(self) -> None:
        """Gives the file up and removes it."""
        raise NotImplementedError


class SinkFolder:
    """A place for the files of a sink."""

    def create(self, name: str) -> Hidden:
        """A new file under cover that gets this name when it is published."""
        raise NotImplementedError

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        """Removes files under cover, and with `traces` also traces, of chosen origins, except files with a plain name in
        `keep` (see `plain_name`)."""
        raise NotImplementedError


def protocol_of(path: str) -> str | None:
    """The protocol of a URL; None for a local path."""
    return path.partition("://")[0] if "://" in path else None


def normal(path: str | os.PathLike[str]) -> str:
    """A path or URL in its normal form: a local path or a `file:` URL as an absolute path, another URL without a slash at
    its end. Raises `ConfigError` for what is no path."""
    if not isinstance(path, str | os.PathLike) or not (text := os.fspath(path)) or not isinstance(text, str):
        raise ConfigError(f"a path or URL is a text, not {path!r}")
    local = re.fullmatch(r"file:(?://(?:localhost)?)?(/.*)", text)
    if local is not None:
        text = local[1]
    return os.path.abspath(os.path.expanduser(text)) if protocol_of(text) is None else text.rstrip("/")


def folder_for_files(path: str | os.PathLike[str], who: str) -> str:
    """The folder of a sink, in the form of `normal`. Raises `ConfigError` if a file is in its place."""
    text = normal(path)
    above = text
    while protocol_of(text) is None and above != (upper := os.path.dirname(above)):
        if os.path.isfile(above):
            what = "is a file, and" if above == text else f"cannot be made, because {above} is a file;"
            raise ConfigError(f"{who}: {text} {what} a sink writes a folder of files: choose another path")
        above = upper
    return text


def plain_name(token: bytes) -> str:
    """The name that a finished file gets when it is published."""
    made = tokens.decode(token)
    return made.final if isinstance(made, CoveredFile) else made.url


def with_columns(token: bytes, columns: Columns) -> bytes:
    """The token of a file, with the columns of the file added."""
    return msgspec.json.encode(msgspec.structs.replace(tokens.decode(token), columns=columns))


def columns_in(token: bytes) -> Columns | None:
    """The columns in a token; None if it has none."""
    return tokens.decode(token).columns


def trace_of(final: str) -> str:
    """The path or URL of the trace of a file with this plain name."""
    folder, slash, name = final.rpartition("/")
    return f"{folder}{slash}.{name}{TRACE}"


def under_cover(names: list[str], goes: Callable[[FileOrigin], bool], traces: bool) -> Iterator[tuple[str, str]]:
    """The names of files under cover, and with `traces` also of traces, of chosen origins, each with its plain name."""
    for name in names:
        plain = name[1:].removesuffix(COVER) if name.endswith(COVER) else name[1:].removesuffix(TRACE)
        if name.startswith(".") and name.endswith((COVER, TRACE) if traces else COVER):
            origin = origin_of(plain)
            if origin is not None and goes(origin):
                yield name, plain
