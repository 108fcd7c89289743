"""A sink whose published files are the result of its job. It finds them, and reports if some were removed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.connectors import hidden
from tailrace.connectors.filesinks import FileSink
from tailrace.connectors.hidden import SinkFolder
from tailrace.connectors.travelling import (
    WINDOW_BYTES,
    Reading,
    ResultFolder,
    check_sign,
    folder_of,
    has_sign,
    is_local,
    leave_sign,
    removal_error,
    split_of,
)
from tailrace.errors import ConfigError, GraphError


class Result(FileSink):
    """A sink whose files live in a folder that the launcher gives, a path or URL, until the Spark session ends."""

    _options: Mapping[str, Any] | None = None
    """Options of the folder's filesystem."""
    _shared = False
    """True if the folder is a local path that executors must see as well."""
    _begun = False
    """True if this process has left its sign in the folder. If the sign is missing later, the files were removed."""
    brought = False
    """True if the folder is one of this machine that executors do not see."""
    _known: frozenset[str] | None = None
    """Published files of an ended job; None as long as more may be published."""

    @property
    def place(self) -> None:
        """None: each job has a folder of its own."""
        return None

    def bind(self, directory: str, options: Mapping[str, Any] | None = None, *, shared: bool = False) -> None:
        """Sets the folder; the launcher calls it once before the job starts. With `shared` the writers look for the sign
        that the driver has left in the folder."""
        self.path, self._options, self._shared = directory, options, shared
        self.brought = False

    def begin(self) -> None:
        """Makes the folder for the result of a job that starts; the launcher calls it. The sign in it distinguishes an empty
        folder from one that was removed."""
        leave_sign(self._bound_folder(), self._options)
        self._begun, self._known = True, None

    def note_end(self) -> None:
        """Notes the published files of a job that has ended. If the folder cannot be read now, it is read when the user
        requests the result."""
        with contextlib.suppress(Exception):  # a failure here must not hide how the job ended
            self._known = frozenset(self.files())

    def bring(self, directory: str) -> None:
        """Copies the result into a folder of this machine, because its present place is about to go. The job has ended."""
        files = self.files()
        os.makedirs(directory, exist_ok=True)
        for file in files:
            with self._open_file(file) as source, open(os.path.join(directory, split_of(file)[1]), "xb") as copy:
                shutil.copyfileobj(source, copy, WINDOW_BYTES)
        self.bind(directory)
        self.begin()
        self.brought = True

    def publish(self, prepared: Sequence[bytes]) -> None:
        """Publishes prepared files of this run. Files that an earlier run prepared are in the folder of that run, and no
        part of this result."""
        folder = self._folder(self._bound_folder())
        here = f"{folder.url if isinstance(folder, ResultFolder) else self.path}/"
        super().publish([one for one in prepared if hidden.plain_name(one).startswith(here)])

    def _make_visible(self, prepared: Sequence[bytes]) -> None:
        folder = self._folder(self._bound_folder())
        if isinstance(folder, ResultFolder):
            folder.publish(prepared)
        else:
            super()._make_visible(prepared)

    def settled(self, prepared: Sequence[bytes]) -> None:
        """Removes the traces in a local folder. Elsewhere there are marks instead of traces, which stay."""
        if is_local(self._bound_folder()):
            super().settled(prepared)

    def _folder(self, path: str) -> SinkFolder:
        return super()._folder(path) if is_local(path) else ResultFolder(path, self._options)

    def _writes_into(self) -> SinkFolder:
        """The folder, for a writer. Raises `ConfigError` if it is not the driver's folder."""
        path = self._bound_folder()
        if self._shared:
            check_sign(path)
        return self._folder(path)

    @property
    def directory(self) -> str | None:
        """The folder; None before the job started."""
        return self.path

    def _bound_folder(self) -> str:
        if self.path is None:
            raise ConfigError(f"the {self.description} sink has no folder: it was not started by a job")
        return self.path

    def files(self) -> list[str]:
        """The published files, in the order of subtasks. Raises `GraphError` before the job has run, and `ConfigError` if
        published files were removed."""
        if self.path is None:
            raise GraphError("there is no result yet: the job of this sink has not run")
        if self._known is None and self._begun and not has_sign(self.path, self._options):
            raise removal_error(self.path, f"the result of this {self.description} sink")
        there = self._published_files()
        lost = (self._known or frozenset()).difference(there)
        if lost:
            raise removal_error(min(lost), f"records of the result of this {self.description} sink")
        return there

    def _published_files(self) -> list[str]:
        assert self.path is not None
        folder = self._folder(self.path)
        if isinstance(folder, ResultFolder):
            return [folder.folder.url_of(name) for name in folder.published_files()]
        if not os.path.isdir(self.path):
            return []
        names = sorted(name for name in os.listdir(self.path) if not name.startswith((".", "_")))
        return [os.path.join(self.path, name) for name in names]

    def _open_file(self, file: str) -> io.BufferedReader:
        """One of `files`, opened to be read."""
        if is_local(file):
            return open(file, "rb")
        folder, name = split_of(file)
        return io.BufferedReader(Reading(folder_of(folder, self._options), name))
