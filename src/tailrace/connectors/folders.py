"""Where file sinks write: a file is made under cover, and gets its plain name when it is published.

| where | under cover | published by |
|---|---|---|
| local paths, `file:` | a name that starts with `.` | rename |
| `hdfs:` | a name that starts with `.` | rename |
| `s3:`, `s3a:` | a multipart upload that is not completed | completing it |
| other stores (`gs:`, `abfs:`, …) | a name that starts with `.` | copy and delete |

What `finish` gives is all that `publish` needs, in whatever process: a small text. Publishing twice is harmless: names
never repeat, so a plain name that is there was published before.
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

from tailrace.errors import ConfigError
from tailrace.storage.filesystem import make_folder

PART_BYTES = 8 << 20
"""A multipart upload goes out in parts of this size. S3 takes 5 MiB at least, and 10,000 parts at most."""
_RENAMING = {"hdfs", "webhdfs"}
_S3 = {"s3", "s3a", "s3n"}
_NAME = re.compile(r"part-\d+-(.+)-(\d+)-([0-9a-f]{8})-\d+\.\w+")


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A finished file under cover, and the name that it is to get: two paths or URLs."""

    hidden: str
    final: str


class Uploaded(msgspec.Struct, frozen=True, tag="uploaded"):
    """A multipart upload that is to be completed with these parts (number, etag)."""

    url: str
    upload: str
    parts: list[tuple[int, str]]


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
        """Removes files under cover of these origins, but for those with a cover in `keep` (see `cover_of`)."""
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


def cover_of(token: bytes) -> str:
    """Under which cover a finished file is: a hidden name, or the id of an upload."""
    made = _tokens.decode(token)
    return made.hidden if isinstance(made, Moved) else made.upload


def publish_files(prepared: Sequence[bytes]) -> None:
    """Gives finished files their plain names. Raises `FileNotFoundError` for one that is neither under cover nor there."""
    for one in prepared:
        made = _tokens.decode(one)
        if isinstance(made, Uploaded):
            _complete(made)
        elif protocol_of(made.final) is None:
            _rename(made)
        else:
            _move(made)


# Local.


class LocalFolder(Folder):
    def __init__(self, path: str) -> None:
        self.path = path

    def create(self, name: str) -> Hidden:
        make_folder(self.path)
        return LocalHidden(os.path.join(self.path, f".{name}.inprogress"), os.path.join(self.path, name))

    def sweep(self, wanted: Callable[[Origin], bool], keep: set[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in _covered(os.listdir(self.path), wanted):
                path = os.path.join(self.path, name)
                if path not in keep:
                    with contextlib.suppress(OSError):
                        os.unlink(path)


def _covered(names: list[str], wanted: Callable[[Origin], bool]) -> Iterator[str]:
    """The names under cover of wanted origins."""
    for name in names:
        if name.startswith(".") and name.endswith(".inprogress"):
            origin = origin_of(name[1:].removesuffix(".inprogress"))
            if origin is not None and wanted(origin):
                yield name


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


def _rename(made: Moved) -> None:
    try:
        os.replace(made.hidden, made.final)
    except FileNotFoundError:
        if not os.path.exists(made.final):
            raise
    _sync(os.path.dirname(made.final))


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
            for name in _covered(names, wanted):
                url = f"{self.url}/{name}"
                if url not in keep:
                    with contextlib.suppress(OSError):
                        self.fs.rm_file(url)


class RemoteHidden(Hidden):
    def __init__(self, fs: Any, folder: str, name: str) -> None:
        self.fs = fs
        self.hidden, self.final = f"{folder}/.{name}.inprogress", f"{folder}/{name}"
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


def _move(made: Moved) -> None:
    fs = filesystem(made.final)
    fs.invalidate_cache()
    renames = protocol_of(made.final) in _RENAMING
    try:
        if renames:
            fs.mv(made.hidden, made.final)
        else:
            # Never deleted before it is whole under its plain name; copying again after a crash in between is harmless.
            fs.cp_file(made.hidden, made.final)
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(made.hidden)
    except Exception as error:
        if not fs.exists(made.final) or fs.exists(made.hidden):
            raise FileNotFoundError(f"{made.hidden} cannot become {made.final}: {error}") from error


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
            if origin is not None and wanted(origin) and upload not in keep:
                with contextlib.suppress(OSError):
                    self.fs.call_s3("abort_multipart_upload", Bucket=self.bucket, Key=key, UploadId=upload)

    def _uploads(self) -> Iterator[tuple[str, str]]:
        at: dict[str, str] = {}
        while True:
            page = self.fs.call_s3("list_multipart_uploads", Bucket=self.bucket, Prefix=f"{self.prefix}part-", **at)
            for one in page.get("Uploads", ()):
                yield one["Key"], one["UploadId"]
            going_on = (("KeyMarker", "NextKeyMarker"), ("UploadIdMarker", "NextUploadIdMarker"))
            before, at = at, {name: page[next_one] for name, next_one in going_on if page.get(next_one)}
            if not page.get("IsTruncated") or at == before:  # a store that does not go on would say the same for ever
                return


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


def _complete(made: Uploaded) -> None:
    fs = filesystem(made.url)
    bucket, _, key = made.url.partition("://")[2].partition("/")
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in made.parts]
    try:
        fs.call_s3(
            "complete_multipart_upload",
            Bucket=bucket,
            Key=key,
            UploadId=made.upload,
            MultipartUpload={"Parts": parts},
        )
    except Exception as error:
        try:  # the upload is gone where it was completed before; the object is there then, and its name is nobody else's
            fs.call_s3("head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            raise FileNotFoundError(f"{made.url} cannot be completed: {error}") from error
