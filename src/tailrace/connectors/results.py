"""A sink whose published files are its job's result: where they are, and whether all of them are still there."""

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
    gone,
    has_sign,
    is_local,
    leave_sign,
    split_of,
)
from tailrace.errors import ConfigError, GraphError


class Result(FileSink):
    """A sink whose files live in a folder that the launcher gives, a path or URL, until the Spark session ends."""

    _options: Mapping[str, Any] | None = None
    """For the filesystem of that folder."""
    _shared = False
    """Whether it is a local path that others must see as well."""
    _begun = False
    """Whether there is a sign in the folder, of this process: without it what was there is gone."""
    brought = False
    """Whether the folder is one of this machine that executors do not see."""
    _known: frozenset[str] | None = None
    """The published files, once there will be no more; None as long as there may be."""

    @property
    def place(self) -> None:
        """None: each job has a folder of its own."""
        return None

    def bind(self, directory: str, options: Mapping[str, Any] | None = None, *, shared: bool = False) -> None:
        """The launcher says where; called once before the job starts. With `shared` the writers look for the sign that the
        driver has left there."""
        self.path, self._options, self._shared = directory, options, shared
        self.brought = False

    def begin(self) -> None:
        """The launcher makes the folder, for the result of a job that starts. An empty folder is told from one that is gone
        by the sign in it."""
        leave_sign(self._bound(), self._options)
        self._begun, self._known = True, None

    def ended(self) -> None:
        """The job has ended: nothing more is published, and what was is known. Where the folder cannot be read now, it is
        read when somebody asks for the result."""
        with contextlib.suppress(Exception):  # how the job ended is told, whatever becomes of its result
            self._known = frozenset(self.files())

    def bring(self, directory: str) -> None:
        """The result comes from where it is into a folder of this machine, since that place goes. Nobody writes it any
        more."""
        files = self.files()
        os.makedirs(directory, exist_ok=True)
        for file in files:
            with self._opened(file) as source, open(os.path.join(directory, split_of(file)[1]), "xb") as copy:
                shutil.copyfileobj(source, copy, WINDOW_BYTES)
        self.bind(directory)
        self.begin()
        self.brought = True

    def publish(self, prepared: Sequence[bytes]) -> None:
        """Output that an earlier run prepared lies in its folder, and is no part of this run's result."""
        folder = self._folder(self._bound())
        here = f"{folder.url if isinstance(folder, ResultFolder) else self.path}/"
        super().publish([one for one in prepared if hidden.plain_name(one).startswith(here)])

    def _make_visible(self, prepared: Sequence[bytes]) -> None:
        folder = self._folder(self._bound())
        if isinstance(folder, ResultFolder):
            folder.publish(prepared)
        else:
            super()._make_visible(prepared)

    def settled(self, prepared: Sequence[bytes]) -> None:
        """In a place that is no local path there are marks instead of traces, which stay."""
        if is_local(self._bound()):
            super().settled(prepared)

    def _folder(self, path: str) -> SinkFolder:
        return super()._folder(path) if is_local(path) else ResultFolder(path, self._options)

    def _writes_into(self) -> SinkFolder:
        """The folder, for a writer. Raises `ConfigError` where it is another one than the driver's."""
        path = self._bound()
        if self._shared:
            check_sign(path)
        return self._folder(path)

    @property
    def directory(self) -> str | None:
        """The folder; None before the job started."""
        return self.path

    def _bound(self) -> str:
        if self.path is None:
            raise ConfigError(f"the {self.description} sink has no folder: it was not started by a job")
        return self.path

    def files(self) -> list[str]:
        """The published files, in the order of subtasks. Raises `GraphError` before the job has run, and `ConfigError` where
        what was published is gone."""
        if self.path is None:
            raise GraphError("there is no result yet: the job of this sink has not run")
        if self._known is None and self._begun and not has_sign(self.path, self._options):
            raise gone(self.path, f"the result of this {self.description} sink")
        there = self._published()
        lost = (self._known or frozenset()).difference(there)
        if lost:
            raise gone(min(lost), f"records of the result of this {self.description} sink")
        return there

    def _published(self) -> list[str]:
        assert self.path is not None
        folder = self._folder(self.path)
        if isinstance(folder, ResultFolder):
            return [folder.folder.url_of(name) for name in folder.published()]
        if not os.path.isdir(self.path):
            return []
        names = sorted(name for name in os.listdir(self.path) if not name.startswith((".", "_")))
        return [os.path.join(self.path, name) for name in names]

    def _opened(self, file: str) -> io.BufferedReader:
        """One of `files`, to read."""
        if is_local(file):
            return open(file, "rb")
        folder, name = split_of(file)
        return io.BufferedReader(Reading(folder_of(folder, self._options), name))
