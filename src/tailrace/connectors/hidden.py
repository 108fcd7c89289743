"""Files under cover: their names, the tokens of finished ones, and the contract of the folders they are made in."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.errors import ConfigError

S3 = {"s3", "s3a", "s3n"}
COVER = ".inprogress"
"""Suffix of the name of a file under cover. The name starts with `.`."""
TRACE = ".publishing"
"""Suffix of the name of a trace. The name starts with `.`."""
_NAME = re.compile(r"part-(\d+)-(.+)-(\d+)-([0-9a-f]{8})-(\d+)\.\w+(\.gz|\.zst)?")  # of compressed files, both endings
Columns = list[tuple[str, str]]
"""Names and types of columns."""


class CoveredFile(msgspec.Struct, frozen=True, tag="moved", omit_defaults=True):
    """A finished file under cover, and the name that publishing gives it: two paths or URLs."""

    hidden: str
    final: str
    columns: Columns | None = None
    """Columns of the file if they are not declared: all files of a sink must agree (`filesinks.Agreement`)."""
    rows: int = 0
    """The number of rows of a segment (`connectors.segments`), and its size in bytes."""
    size: int = 0


class Uploaded(msgspec.Struct, frozen=True, tag="uploaded", omit_defaults=True):
    """A multipart upload that publishing completes with these parts (number, etag)."""

    url: str
    upload: str
    parts: list[tuple[int, str]]
    columns: Columns | None = None
    above: str | None = None
    """URL of the sink's folder, if the file is in a folder below it."""


class FileGroup(msgspec.Struct, frozen=True, tag="group"):
    """The finished files of one transaction, if they are several."""

    files: list[CoveredFile | Uploaded]


tokens = msgspec.json.Decoder(CoveredFile | Uploaded | FileGroup)


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
        """A new file under cover that gets this name when it is published. The name may begin with folders below this
        one."""
        raise NotImplementedError

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        """Removes files under cover, and with `traces` also traces, of chosen origins, except files with a plain name in
        `keep` (see `names_in`)."""
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
    """The folder of a sink (see `normal`). Raises `ConfigError` for a web server, and if a file is in its place."""
    text = normal(path)
    if protocol_of(text) in ("http", "https"):
        raise ConfigError(
            f"{who}: {text}: a web server is read only: write into a folder, or a bucket (s3://bucket/folder)"
        )
    above = text
    while protocol_of(text) is None and above != (upper := os.path.dirname(above)):
        if os.path.isfile(above):
            what = "is a file, and" if above == text else f"cannot be made, because {above} is a file;"
            raise ConfigError(f"{who}: {text} {what} a sink writes a folder of files: choose another path")
        above = upper
    return text


def files_in(token: bytes) -> list[CoveredFile | Uploaded]:
    """The finished files of a token."""
    made = tokens.decode(token)
    return made.files if isinstance(made, FileGroup) else [made]


def group(found: Sequence[bytes]) -> bytes | None:
    """One token for the files of these; None for none."""
    if len(found) < 2:
        return found[0] if found else None
    return msgspec.json.encode(FileGroup([one for token in found for one in files_in(token)]))


def name_of_file(made: CoveredFile | Uploaded) -> str:
    """The path or URL that a finished file gets when it is published."""
    return made.final if isinstance(made, CoveredFile) else made.url


def plain_name(token: bytes) -> str:
    """The path or URL that a finished file gets when it is published; of several, that of the first one."""
    return name_of_file(files_in(token)[0])


def names_in(found: Iterable[bytes]) -> set[str]:
    """The plain names of the files of these tokens, without folders. No two files have one name."""
    return {name_of_file(made).rpartition("/")[2] for token in found for made in files_in(token)}


def folder_of(made: CoveredFile | Uploaded) -> str:
    """The folder of the sink that has made a file."""
    if isinstance(made, CoveredFile):
        return made.hidden.rpartition("/")[0]
    return made.url.rpartition("/")[0] if made.above is None else made.above


def with_columns(token: bytes, columns: Columns) -> bytes:
    """The token of a file, with the columns of the file added."""
    [made] = files_in(token)
    return msgspec.json.encode(msgspec.structs.replace(made, columns=columns))


def trace_of(made: CoveredFile | Uploaded) -> str:
    """The path or URL of the trace of a finished file: in the folder of its sink, as what is under cover."""
    return f"{folder_of(made)}/.{name_of_file(made).rpartition('/')[2]}{TRACE}"


def under_cover(names: list[str], goes: Callable[[FileOrigin], bool], traces: bool) -> Iterator[tuple[str, str]]:
    """The names of files under cover, and with `traces` also of traces, of chosen origins, each with its plain name."""
    for name in names:
        plain = name[1:].removesuffix(COVER) if name.endswith(COVER) else name[1:].removesuffix(TRACE)
        if name.startswith(".") and name.endswith((COVER, TRACE) if traces else COVER):
            origin = origin_of(plain)
            if origin is not None and goes(origin):
                yield name, plain
