"""Files of sinks on any filesystem that fsspec knows, published by rename, or by copy and delete."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from tailrace.connectors.hidden import (
    COVER,
    S3,
    CoveredFile,
    FileOrigin,
    Hidden,
    SinkFolder,
    protocol_of,
    trace_of,
    under_cover,
)
from tailrace.connectors.publishing import Finished
from tailrace.errors import ConfigError
from tailrace.storage.time_limits import with_time_limit

_RENAMING = {"hdfs", "webhdfs"}


def filesystem(url: str) -> Any:
    """The filesystem of a URL. Raises `ConfigError` if its package is not installed."""
    protocol = protocol_of(url)
    try:
        import fsspec
    except ImportError:
        raise ConfigError(f"{url}: files on {protocol}: need fsspec; pip install fsspec") from None
    if protocol in S3:  # by Hadoop's names too
        url = f"s3://{url.partition('://')[2]}"
    try:
        fs, _ = fsspec.core.url_to_fs(url, use_listings_cache=False)  # other processes write as well
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url}: {error}") from None
    return with_time_limit(fs)


class RemoteFolder(SinkFolder):
    """A folder on fsspec, whose files are published by rename or copy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs = filesystem(url)

    def create(self, name: str) -> Hidden:
        return RemoteHidden(self.fs, self.url, name)

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        with contextlib.suppress(FileNotFoundError):
            names = [path.rpartition("/")[2] for path in self.fs.ls(self.url, detail=False, refresh=True)]
            for name, plain in under_cover(names, goes, traces):
                if plain not in keep:
                    with contextlib.suppress(OSError):
                        self.fs.rm_file(f"{self.url}/{name}")


class RemoteHidden(Hidden):
    """A file under cover on fsspec, whose name starts with `.`."""

    def __init__(self, fs: Any, folder: str, name: str) -> None:
        self.fs = fs
        self.hidden, self.final = f"{folder}/.{name.rpartition('/')[2]}{COVER}", f"{folder}/{name}"
        if protocol_of(folder) in _RENAMING:
            fs.makedirs(folder, exist_ok=True)
        self.stream = fs.open(self.hidden, "wb")

    def finish(self) -> bytes:
        self.stream.close()
        return msgspec.json.encode(CoveredFile(self.hidden, self.final))

    def discard(self) -> None:
        with contextlib.suppress(Exception):  # an upload that cannot be finished is given up as well
            self.stream.close()
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.hidden)


class FinishedRemote(Finished):
    """A finished file on fsspec, published by rename, or by copy and delete."""

    def __init__(self, made: CoveredFile) -> None:
        self.hidden, self.name, self.trace = made.hidden, made.final, trace_of(made)
        self.fs = filesystem(made.final)
        self.fs.invalidate_cache()

    def is_covered(self) -> bool:
        return self._there(self.hidden)

    def visible(self) -> bool:
        return self._there(self.name)

    def has_trace(self) -> bool:
        return self._there(self.trace)

    def _there(self, path: str) -> bool:
        # Not by fsspec's `exists`, which also returns False if the store did not answer.
        try:
            self.fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def leave_trace(self) -> None:
        self.fs.pipe_file(self.trace, b"")

    def uncover(self) -> None:
        folder = self.name.rpartition("/")[0]
        if folder != self.hidden.rpartition("/")[0]:
            self.fs.makedirs(folder, exist_ok=True)
        try:
            if protocol_of(self.name) in _RENAMING:
                self.fs.mv(self.hidden, self.name)
            else:
                # The file under cover is deleted only when it is whole under its plain name: Azure may go on with a copy
                # behind its answer.
                size = self.fs.info(self.hidden)["size"]
                if self._size() != size:
                    self.fs.cp_file(self.hidden, self.name)
                    if (found := self._size()) != size:
                        raise OSError(f"{self.name} has {found} of {size} bytes: its copy has not ended")
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm_file(self.hidden)
        except Exception:
            if self.is_covered():
                raise

    def _size(self) -> int | None:
        """The size of the file under its plain name; None if there is none."""
        try:
            return int(self.fs.info(self.name)["size"])
        except FileNotFoundError:
            return None

    def remove_trace(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.trace)
