"""Two calls of Hadoop that pyarrow does not offer: a rename that replaces nothing, and a delete that spares a folder that is
not empty. Both go through libhdfs, which pyarrow has already loaded if the folder is in HDFS."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

from tailrace.errors import ConfigError


class Hadoop:
    """A connection to one HDFS, made when it is first needed. `lib` is libhdfs, for tests."""

    def __init__(self, host: str, port: int, user: str | None = None, lib: Any = None) -> None:
        self._host, self._port, self._user = host, port, user
        self._lib = lib
        self._fs: Any = None

    def rename(self, path: str, to: str) -> bool:
        """Renames a file. Returns False, and leaves it as it is, if there is a file of the new name."""
        return bool(self._connect().hdfsRename(self._fs, path.encode(), to.encode()) == 0)

    def remove_if_empty(self, path: str) -> bool:
        """Deletes a folder if it is empty. Returns True if it was deleted."""
        return bool(self._connect().hdfsDelete(self._fs, path.encode(), 0) == 0)

    def _connect(self) -> Any:
        if self._fs is None:
            if self._lib is None:
                self._lib = _load()
            lib = self._lib
            builder = lib.hdfsNewBuilder()
            lib.hdfsBuilderSetNameNode(builder, self._host.encode())
            lib.hdfsBuilderSetNameNodePort(builder, self._port)
            if self._user:
                lib.hdfsBuilderSetUserName(builder, self._user.encode())
            self._fs = lib.hdfsBuilderConnect(builder)  # frees the builder
            if not self._fs:
                raise OSError(f"libhdfs cannot connect to {self._host}")
        return self._lib


def _places() -> Iterator[str]:
    """The paths at which pyarrow looks for libhdfs, in its order."""
    if folder := os.environ.get("ARROW_LIBHDFS_DIR"):
        yield os.path.join(folder, "libhdfs.so")
    yield "libhdfs.so"
    if home := os.environ.get("HADOOP_HOME"):
        yield os.path.join(home, "lib", "native", "libhdfs.so")
        yield os.path.join(home, "libhdfs.so")


def _load() -> Any:
    for place in _places():
        try:
            lib = ctypes.CDLL(place)
        except OSError:
            continue
        handle, text = ctypes.c_void_p, ctypes.c_char_p
        lib.hdfsNewBuilder.restype = handle
        lib.hdfsBuilderSetNameNode.argtypes = [handle, text]
        lib.hdfsBuilderSetNameNodePort.argtypes = [handle, ctypes.c_uint16]
        lib.hdfsBuilderSetUserName.argtypes = [handle, text]
        lib.hdfsBuilderConnect.argtypes, lib.hdfsBuilderConnect.restype = [handle], handle
        lib.hdfsRename.argtypes = [handle, text, text]
        lib.hdfsDelete.argtypes = [handle, text, ctypes.c_int]
        return lib
    raise ConfigError("libhdfs.so was not found: set HADOOP_HOME, or ARROW_LIBHDFS_DIR to the folder that has it")
