"""Where file sinks write: a file is made under cover, and gets its plain name when it is published.

| where | under cover | published by |
|---|---|---|
| local paths, `file:` | a name that starts with `.` | rename |
| `hdfs:` | a name that starts with `.` | rename |
| `s3:`, `s3a:` | a multipart upload that is not completed | completing it |
| other stores (`gs:`, `abfs:`, …) | a name that starts with `.` | copy and delete |

What `finish` gives is all that `publish` needs, in whatever process: a small text. Publishing twice is harmless: names
never repeat, so a plain name that is there was published before; and of what was published and taken away there is a trace
(`connectors.publishing`), an empty file whose name starts with `.`, until nobody will ask for it any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.connectors.publishing import Finished, make_visible, one_by_one, settle
from tailrace.errors import ConfigError
from tailrace.storage.filesystem import make_folder
from tailrace.storage.parallel import at_once
from tailrace.storage.remote import open_uploads

PART_BYTES = 8 << 20
"""A multipart upload goes out in parts of this size. S3 takes 5 MiB at least, and 10,000 parts at most."""
_RENAMING = {"hdfs", "webhdfs"}
_S3 = {"s3", "s3a", "s3n"}
COVER, TRACE = ".inprogress", ".publishing"
"""How the name of a file under cover ends, and that of a trace. Both start with `.`."""
_NAME = re.compile(r"part-\d+-(.+)-(\d+)-([0-9a-f]{8})-\d+\.\w+")


Columns = list[tuple[str, str]]
"""Names and types."""


class Moved(msgspec.Struct, frozen=True, tag="moved", omit_defaults=True):
    """A finished file under cover, and the name that it is to get: two paths or URLs."""

    hidden: str
    final: str
    columns: Columns | None = None
    """What is in it, where nobody has declared that: all files of a sink must agree (`connectors.agreement`)."""


class Uploaded(msgspec.Struct, frozen=True, tag="uploaded", omit_defaults=True):
    """A multipart upload that is to be completed with these parts (number, etag)."""

    url: str
    upload: str
    parts: list[tuple[int, str]]
    columns: Columns | None = None


_tokens = msgspec.json.Decoder(Moved | Uploaded)


@dataclass(frozen=True)
class Origin:
    """Whose file it is, as its name says."""

    run_id: str
    incarnation: int
    whose: str


def whose(uid: str) -> str:
    """How file names tell the sinks of one folder apart."""
    return hashlib.sha256(uid.encode()).hexdigest()[:8]


def name_of(subtask: int, run_id: str, incarnation: int, uid: str, count: int, suffix: str) -> str:
    """The plain name of the `count`-th file of a writer: never the same twice. In the order of names, files are in the
    order of subtasks, and for one subtask in the order in which they were written."""
    return f"part-{subtask:05d}-{run_id}-{incarnation:04d}-{whose(uid)}-{count:06d}{suffix}"


def origin_of(name: str) -> Origin | None:
    """What a plain name says, or None where it is none of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else Origin(found[1], int(found[2]), found[3])


class Hidden:
    """A file under cover, being written."""

    stream: Any
    """Takes bytes: a binary file."""

    def finish(self) -> bytes:
        """All of it is durable from here on. What it gives is for `publish`."""
        raise NotImplementedError

    def discard(self) -> None:
        """Gives it up."""
        raise NotImplementedError


class Folder:
    """A place for the files of a sink."""

    def create(self, name: str) -> Hidden:
        """A new file that will have this name."""
        raise NotImplementedError

    def sweep(self, wanted: Callable[[Origin], bool], keep: set[str]) -> None:
        """Removes files under cover, and traces, of these origins, but for those with a plain name in `keep` (see
        `plain_name`)."""
        raise NotImplementedError


def folder_at(path: str) -> Folder:
    """The folder of a path or URL."""
    protocol = protocol_of(path)
    if protocol is None:
        return LocalFolder(path)
    if protocol in _S3:
        return S3Folder(path)
    return RemoteFolder(path)


def protocol_of(path: str) -> str | None:
    """The protocol of a URL; None for a local path."""
    return path.partition("://")[0] if "://" in path else None


def normal(path: str | os.PathLike[str]) -> str:
    """A local path as an absolute one, a URL without a slash at its end. `file:` URLs become paths."""
    text = os.fspath(path)
    local = re.fullmatch(r"file:(?://(?:localhost)?)?(/.*)", text)
    if local is not None:
        text = local[1]
    return os.path.abspath(text) if protocol_of(text) is None else text.rstrip("/")


def plain_name(token: bytes) -> str:
    """The name that a finished file gets when it is published."""
    made = _tokens.decode(token)
    return made.final if isinstance(made, Moved) else made.url


def with_columns(token: bytes, columns: Columns) -> bytes:
    """The same token, which also says what is in the file."""
    return msgspec.json.encode(msgspec.structs.replace(_tokens.decode(token), columns=columns))


def columns_in(token: bytes) -> Columns | None:
    """What a token says about what is in the file."""
    return _tokens.decode(token).columns


def publish_files(prepared: Sequence[bytes]) -> None:
    """Gives finished files their plain names. Raises `FileNotFoundError` for one that is lost."""
    for files, each in _in_places(prepared):
        make_visible(files, each)


def settle_files(prepared: Sequence[bytes]) -> None:
    """Nobody will ask again for these to be published: what was kept to know that they were goes."""
    for files, each in _in_places(prepared):
        settle(files, each)


def _in_places(prepared: Sequence[bytes]) -> Iterator[tuple[list[Finished], Any]]:
    """What is local one after the other; what is remote several at once, since each request takes its time."""
    local: list[Finished] = []
    remote: list[Finished] = []
    for one in prepared:
        made = _tokens.decode(one)
        if isinstance(made, Uploaded):
            remote.append(FinishedUpload(made))
        elif protocol_of(made.final) is None:
            local.append(FinishedLocal(made))
        else:
            remote.append(FinishedRemote(made))
    if local:
        yield local, one_by_one
    if remote:
        yield remote, _at_once


def _at_once(do: Callable[[Finished], object], files: Sequence[Finished]) -> None:
    at_once(do, files, "tailrace-publish")


# Local.


def _trace_of(final: str) -> str:
    folder, slash, name = final.rpartition("/")
    return f"{folder}{slash}.{name}{TRACE}"


class LocalFolder(Folder):
    def __init__(self, path: str) -> None:
        self.path = path

    def create(self, name: str) -> Hidden:
        make_folder(self.path)
        return LocalHidden(os.path.join(self.path, f".{name}{COVER}"), os.path.join(self.path, name))

    def sweep(self, wanted: Callable[[Origin], bool], keep: set[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name, plain in _covered(os.listdir(self.path), wanted):
                if os.path.join(self.path, plain) not in keep:
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(self.path, name))


def _covered(names: list[str], wanted: Callable[[Origin], bool]) -> Iterator[tuple[str, str]]:
    """The names under cover, and of traces, of wanted origins, each with the plain name that it is for."""
    for name in names:
        plain = name[1:].removesuffix(COVER) if name.endswith(COVER) else name[1:].removesuffix(TRACE)
        if name.startswith(".") and name.endswith((COVER, TRACE)):
            origin = origin_of(plain)
            if origin is not None and wanted(origin):
                yield name, plain


class LocalHidden(Hidden):
    def __init__(self, hidden: str, final: str) -> None:
        self.hidden, self.final = hidden, final
        self.stream = open(hidden, "wb")  # noqa: SIM115 - closed by finish or discard

    def finish(self) -> bytes:
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        _sync(os.path.dirname(self.hidden))
        return msgspec.json.encode(Moved(self.hidden, self.final))

    def discard(self) -> None:
        self.stream.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.hidden)


def _is_there(path: str) -> bool:
    """Whether there is such a file. What keeps us from knowing (a disk that does not answer) is raised."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


class FinishedLocal(Finished):
    def __init__(self, made: Moved) -> None:
        self.hidden, self.name, self.trace = made.hidden, made.final, _trace_of(made.final)

    def covered(self) -> bool:
        return _is_there(self.hidden)

    def visible(self) -> bool:
        return _is_there(self.name)

    def traced(self) -> bool:
        return _is_there(self.trace)

    def leave_trace(self) -> None:
        os.close(os.open(self.trace, os.O_CREAT | os.O_WRONLY, 0o644))

    def uncover(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.hidden, self.name)

    def remove_trace(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.trace)

    def sync(self) -> None:
        _sync(os.path.dirname(self.name))


def _sync(folder: str) -> None:
    """Makes the names in a folder durable, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# Any filesystem that fsspec knows.


def filesystem(url: str) -> Any:
    """What reaches the files of a URL. Raises `ConfigError` where nothing is installed that does."""
    protocol = protocol_of(url)
    try:
        import fsspec
    except ImportError:
        raise ConfigError(f"{url}: files on {protocol}: need fsspec; pip install fsspec") from None
    if protocol in _S3:  # by Hadoop's names too
        url = f"s3://{url.partition('://')[2]}"
    try:
        fs, _ = fsspec.core.url_to_fs(url, use_listings_cache=False)  # other processes write as well
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url}: {error}") from None
    return fs


class RemoteFolder(Folder):
    """Rename or copy, over fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs = filesystem(url)

    def create(self, name: str) -> Hidden:
        return RemoteHidden(self.fs, self.url, name)

    def sweep(self, wanted: Callable[[Origin], bool], keep: set[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            names = [path.rpartition("/")[2] for path in self.fs.ls(self.url, detail=False, refresh=True)]
            for name, plain in _covered(names, wanted):
                if f"{self.url}/{plain}" not in keep:
                    with contextlib.suppress(OSError):
                        self.fs.rm_file(f"{self.url}/{name}")


class RemoteHidden(Hidden):
    def __init__(self, fs: Any, folder: str, name: str) -> None:
        self.fs = fs
        self.hidden, self.final = f"{folder}/.{name}{COVER}", f"{folder}/{name}"
        if protocol_of(folder) in _RENAMING:
            fs.makedirs(folder, exist_ok=True)
        self.stream = fs.open(self.hidden, "wb")

    def finish(self) -> bytes:
        self.stream.close()
        return msgspec.json.encode(Moved(self.hidden, self.final))

    def discard(self) -> None:
        with contextlib.suppress(Exception):  # an upload that cannot be finished is given up as well
            self.stream.close()
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.hidden)


class FinishedRemote(Finished):
    def __init__(self, made: Moved) -> None:
        self.hidden, self.name, self.trace = made.hidden, made.final, _trace_of(made.final)
        self.fs = filesystem(made.final)
        self.fs.invalidate_cache()

    def covered(self) -> bool:
        return self._there(self.hidden)

    def visible(self) -> bool:
        return self._there(self.name)

    def traced(self) -> bool:
        return self._there(self.trace)

    def _there(self, path: str) -> bool:
        # Not by fsspec's `exists`, which says no as well where the store did not answer.
        try:
            self.fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def leave_trace(self) -> None:
        self.fs.pipe_file(self.trace, b"")

    def uncover(self) -> None:
        try:
            if protocol_of(self.name) in _RENAMING:
                self.fs.mv(self.hidden, self.name)
            else:
                # Never deleted before it is whole under its plain name.
                self.fs.cp_file(self.hidden, self.name)
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm_file(self.hidden)
        except Exception:
            if self.covered():
                raise

    def remove_trace(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.trace)


# S3.


class S3Folder(Folder):
    def __init__(self, url: str) -> None:
        self.fs = filesystem(url)
        bucket, _, prefix = url.partition("://")[2].partition("/")
        self.bucket, self.prefix = bucket, prefix and f"{prefix}/"

    def create(self, name: str) -> Hidden:
        return Upload(self.fs, self.bucket, f"{self.prefix}{name}")

    def sweep(self, wanted: Callable[[Origin], bool], keep: set[str]) -> None:
        for key, upload in list(self._uploads()):
            origin = origin_of(key.removeprefix(self.prefix))
            if origin is not None and wanted(origin) and f"s3://{self.bucket}/{key}" not in keep:
                with contextlib.suppress(OSError):
                    self.fs.call_s3("abort_multipart_upload", Bucket=self.bucket, Key=key, UploadId=upload)
        keys = list(self._traces())
        for name, plain in _covered([key.removeprefix(self.prefix) for key in keys], wanted):
            if f"s3://{self.bucket}/{self.prefix}{plain}" not in keep:
                with contextlib.suppress(OSError):
                    self.fs.call_s3("delete_object", Bucket=self.bucket, Key=f"{self.prefix}{name}")

    def _traces(self) -> Iterator[str]:
        at: dict[str, str] = {}
        while True:
            page = self.fs.call_s3("list_objects_v2", Bucket=self.bucket, Prefix=f"{self.prefix}.part-", **at)
            for one in page.get("Contents", ()):
                yield one["Key"]
            if not page.get("IsTruncated"):
                return
            at = {"ContinuationToken": page["NextContinuationToken"]}

    def _uploads(self) -> Iterator[tuple[str, str]]:
        return open_uploads(self.fs, self.bucket, f"{self.prefix}part-")


class Upload(Hidden, io.RawIOBase):
    """A multipart upload, written as a file."""

    def __init__(self, fs: Any, bucket: str, key: str) -> None:
        super().__init__()
        self.fs, self.bucket, self.key = fs, bucket, key
        self.stream = self
        self.parts: list[tuple[int, str]] = []
        self._waiting = bytearray()
        self._size = 0
        self.upload: str = fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._waiting += data
        self._size += size
        while len(self._waiting) >= PART_BYTES:
            self._send(PART_BYTES)
        return size

    def _send(self, size: int) -> None:
        number = len(self.parts) + 1
        body = bytes(self._waiting[:size])
        where = {"Bucket": self.bucket, "Key": self.key, "UploadId": self.upload}
        answer = self.fs.call_s3("upload_part", **where, PartNumber=number, Body=body)
        self.parts.append((number, answer["ETag"]))
        del self._waiting[:size]

    def finish(self) -> bytes:
        if self._waiting or not self.parts:
            self._send(len(self._waiting))
        self.close()
        return msgspec.json.encode(Uploaded(f"s3://{self.bucket}/{self.key}", self.upload, self.parts))

    def discard(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self.fs.call_s3("abort_multipart_upload", Bucket=self.bucket, Key=self.key, UploadId=self.upload)


class FinishedUpload(Finished):
    def __init__(self, made: Uploaded) -> None:
        self.made = made
        self.name, self.trace = made.url, _trace_of(made.url)
        self.fs = filesystem(made.url)
        self.bucket, _, self.key = made.url.partition("://")[2].partition("/")

    def covered(self) -> bool:
        try:
            self.fs.call_s3("list_parts", Bucket=self.bucket, Key=self.key, UploadId=self.made.upload, MaxParts=1)
        except FileNotFoundError:
            return False
        return True

    def visible(self) -> bool:
        return self._there(self.key)

    def traced(self) -> bool:
        return self._there(self.trace.partition("://")[2].partition("/")[2])

    def _there(self, key: str) -> bool:
        try:
            self.fs.call_s3("head_object", Bucket=self.bucket, Key=key)
        except FileNotFoundError:
            return False
        return True

    def leave_trace(self) -> None:
        key = self.trace.partition("://")[2].partition("/")[2]
        self.fs.call_s3("put_object", Bucket=self.bucket, Key=key, Body=b"")

    def uncover(self) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in self.made.parts]
        with contextlib.suppress(FileNotFoundError):  # another publisher was quicker
            self.fs.call_s3(
                "complete_multipart_upload",
                Bucket=self.bucket,
                Key=self.key,
                UploadId=self.made.upload,
                MultipartUpload={"Parts": parts},
            )

    def remove_trace(self) -> None:
        key = self.trace.partition("://")[2].partition("/")[2]
        self.fs.call_s3("delete_object", Bucket=self.bucket, Key=key)
