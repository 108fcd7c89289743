"""Folders behind fsspec: object stores, and HDFS."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tailrace.errors import ConfigError
from tailrace.retries import Retries
from tailrace.storage.filesystem import Entry, Folder, Writer, scheme_of, temporary_name
from tailrace.storage.hadoop import Hadoop
from tailrace.storage.parallel import at_once
from tailrace.storage.time_limits import with_time_limit

PART_BYTES = 8 << 20
"""Size in bytes of the parts in which a file is uploaded. S3 takes 10,000 of them."""
_CONFLICTS = Retries(within=60.0, tries=6)
"""Retries of a create that S3 refuses because another create is under way."""

_PROTOCOLS = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfs",
    "hdfs": "hdfs",
}
_PACKAGES = {"s3": ("s3fs", "pip install 'tailrace[s3]'"), "gs": ("gcsfs", "pip install gcsfs")}
_PACKAGES |= {"abfs": ("adlfs", "pip install adlfs"), "hdfs": ("pyarrow", "pip install pyarrow")}


def check_scheme(url: str, what: str) -> None:
    """Raises `ConfigError` for a path or URL with a scheme that is not supported. `what` names the things that would be kept
    there."""
    scheme = scheme_of(url)
    if scheme != "file" and scheme not in _PROTOCOLS:
        known = ", ".join(f"{one}:" for one in ("file", *_PROTOCOLS))
        raise ConfigError(f"{url}: {what} cannot be kept in {scheme}:; use a local path, or one of {known}")


def open_remote(url: str, storage_options: Mapping[str, Any]) -> Folder:
    """The folder at a URL with a scheme."""
    check_scheme(url, "checkpoints and results")
    scheme = scheme_of(url)
    kind = _PROTOCOLS[scheme]
    package, install = _PACKAGES[kind]
    try:
        importlib.import_module(package)
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConfigError(
            f"{url} needs the package {package}, which cannot be imported ({error}): {install}"
        ) from error
    if kind in ("s3", "gs"):
        url = f"{kind}{url[len(scheme) :]}"
    try:
        fs, root = url_to_fs(url, **_options(kind, storage_options))
    except (TypeError, ValueError) as error:
        why = _without_values(str(error), storage_options)
        raise ConfigError(f"{url} cannot be opened with storage_options {sorted(storage_options)}: {why}") from None
    except OSError as error:
        if kind != "hdfs":
            raise
        raise ConfigError(
            f"{url} cannot be opened: {error}. HDFS needs Java and a Hadoop on every machine: set HADOOP_HOME, and "
            "CLASSPATH to what `hadoop classpath --glob` prints"
        ) from error
    return HadoopFolder(url, fs, root) if kind == "hdfs" else ObjectFolder(url, with_time_limit(fs), root, kind)


def _without_values(text: str, options: Mapping[str, Any]) -> str:
    """The text of an error of a library, without the values of the options that the user has given: they may be secret."""
    for value in options.values():
        if isinstance(value, Mapping):
            text = _without_values(text, value)
        elif isinstance(value, str) and value:
            text = text.replace(value, "***")
    return text


def _options(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(given)
    if kind == "hdfs":
        return options
    options.setdefault("use_listings_cache", False)  # other processes write as well
    if kind == "s3" and "endpoint_url" not in options and "endpoint_url" not in options.get("client_kwargs", {}):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            options["endpoint_url"] = endpoint
    return options


class _FsspecFolder(Folder):
    """The common base of folders in object stores and in HDFS."""

    def __init__(self, url: str, fs: Any, root: str) -> None:
        self.url = url.rstrip("/")
        self.fs = fs
        self.root = root.rstrip("/")

    def path_of(self, name: str) -> str:
        """The path of a name, as fsspec takes it."""
        return f"{self.root}/{name}" if name else self.root or "/"

    def read(self, name: str) -> bytes:
        return bytes(self.fs.cat_file(self.path_of(name)))

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        return bytes(self.fs.cat_file(self.path_of(name), start=offset, end=offset + length))

    def size(self, name: str) -> int:
        path = self.path_of(name)
        info = self.fs.info(path)
        if info["type"] == "directory":
            raise FileNotFoundError(path)
        return int(info["size"])

    def entries(self, name: str = "") -> list[Entry]:
        path = self.path_of(name)
        try:
            found = self.fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        inside, prefix = path.strip("/") + "/", f"{name}/" if name else ""
        entries: set[Entry] = set()
        for info in found:
            full = info["name"].strip("/")
            if full.startswith(inside):  # False for the folder's own marker, and for a file of the folder's name
                folder = info["type"] == "directory"
                entries.add(Entry(prefix + full[len(inside) :], folder, 0 if folder else int(info["size"] or 0)))
        return sorted(entries)

    def delete(self, names: Iterable[str]) -> None:
        at_once(self._delete, map(self.path_of, names), "tailrace-delete")

    def _delete(self, path: str) -> None:
        # One by one: deleting many at once goes through patterns in fsspec, and a name may look like one.
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def writer(self, name: str) -> Writer:
        return _Upload(self, name)


class ObjectFolder(_FsspecFolder):
    """A prefix in an object store.

    A conditional write makes `create` atomic. S3 answers 412 to a PUT with `If-None-Match: *` if the key exists, and 409
    if another conditional PUT is under way. Google compares the generation with 0. Azure refuses to overwrite a blob if
    the request forbids it. Some stores with the interface of S3 ignore the condition, and an old botocore drops it: hence
    `checked`.
    """

    def __init__(self, url: str, fs: Any, root: str, kind: str) -> None:
        super().__init__(url, fs, root)
        self.kind = kind
        self.checked = kind != "s3"
        self._create: dict[str, Any] = {"overwrite": False} if kind == "abfs" else {"mode": "create"}

    def create(self, name: str, data: bytes) -> None:
        path = self.path_of(name)
        try:
            _CONFLICTS.call(
                lambda: self.fs.pipe_file(path, data, **self._create),
                lambda error: _answer(error)[1] == "ConditionalRequestConflict",
            )
        except OSError as error:
            status, code = _answer(error)
            if status == 412 or code == "PreconditionFailed":
                raise FileExistsError(path) from error
            raise

    def rename(self, name: str, to: str) -> None:
        self.fs.cp_file(self.path_of(name), self.path_of(to))
        self._delete(self.path_of(name))

    def give_up(self, goes: Callable[[str], bool]) -> None:
        if self.kind != "s3":
            return
        bucket, _, prefix = self.path_of("").strip("/").partition("/")
        prefix = prefix and f"{prefix}/"
        for key, upload in list(open_uploads(self.fs, bucket, prefix)):
            if goes(key.removeprefix(prefix)):
                with contextlib.suppress(FileNotFoundError):  # completed, or aborted by another process
                    self.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)


def open_uploads(fs: Any, bucket: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Multipart uploads to S3 that are not completed: (key, upload id)."""
    at: dict[str, str] = {}
    while True:
        page = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **at)
        for one in page.get("Uploads", ()):
            yield one["Key"], one["UploadId"]
        going_on = (("KeyMarker", "NextKeyMarker"), ("UploadIdMarker", "NextUploadIdMarker"))
        before, at = at, {name: page[next_one] for name, next_one in going_on if page.get(next_one)}
        if not page.get("IsTruncated") or at == before:  # a store that ignores markers repeats its page for ever
            return


def _answer(error: BaseException) -> tuple[int, str]:
    """The answer of S3 in an error: (status, code); (0, "") if the error holds none."""
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return 0, ""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status, response.get("Error", {}).get("Code", "")


class HadoopFolder(_FsspecFolder):
    """A folder in HDFS.

    The move of pyarrow deletes a file that is in the way, so it cannot serve `create`. The rename of Hadoop does not
    replace a file; the name node decides that atomically. It is called through libhdfs (`hadoop`).
    """

    def __init__(self, url: str, fs: Any, root: str, hadoop: Hadoop | None = None) -> None:
        super().__init__(url, fs, root)
        kwargs = getattr(fs, "storage_options", {})
        self.hadoop = hadoop or Hadoop(kwargs.get("host", "default"), kwargs.get("port", 0), kwargs.get("user"))

    def create(self, name: str, data: bytes) -> None:
        path, temporary = self.path_of(name), self.path_of(temporary_name(name))
        self._make_folder(name)
        try:
            with self.fs.open(temporary, "wb") as file:
                file.write(data)
            if not self.hadoop.rename(temporary, path):
                if self.exists(name):
                    raise FileExistsError(path)
                raise OSError(f"HDFS did not rename {temporary} to {path}")
        except BaseException:
            with contextlib.suppress(Exception):  # a temporary file that stays does no harm
                self._delete(temporary)
            raise

    def rename(self, name: str, to: str) -> None:
        self._make_folder(to)
        self.fs.mv(self.path_of(name), self.path_of(to))

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)
        super().delete(names)
        for folder in sorted({name.rpartition("/")[0] for name in names} - {""}):
            self.hadoop.remove_if_empty(self.path_of(folder))

    def _delete(self, path: str) -> None:
        try:
            super()._delete(path)
        except OSError:  # for a missing file pyarrow does not always raise FileNotFoundError
            if self.fs.exists(path):
                raise

    def writer(self, name: str) -> Writer:
        self._make_folder(name)
        return super().writer(name)

    def _make_folder(self, name: str) -> None:
        self.fs.makedirs(self.path_of(name.rpartition("/")[0]), exist_ok=True)


class _Upload:
    """A file of fsspec that is being written. In an object store it appears when it is closed, and not before."""

    def __init__(self, folder: _FsspecFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._file = folder.fs.open(folder.path_of(name), "wb", block_size=PART_BYTES)

    def append(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        if not self._file.closed:
            with contextlib.suppress(Exception):  # the upload may never have begun
                if hasattr(self._file, "discard"):
                    self._file.discard()
                    self._file.closed = True  # or it would complete itself when it is collected
                else:
                    self._file.close()
        self._folder.delete([self._name])
