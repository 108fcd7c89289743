"""Places for the files of DataFrames and results, for one job (docs/decisions/0019-no-shared-disk.md).

| | DataFrames on their way in | results |
|---|---|---|
| the job has checkpoints | its checkpoint folder | |
| `work_dir` is given | it | it |
| local Spark | the session's temporary folder | the same |
| a cluster, with checkpoints | | the checkpoint folder |
| a cluster, without | the driver's folder | the same |

The first line that has an entry decides.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import uuid
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from tailrace.api.config import memory_bytes
from tailrace.connectors.segments.log import STREAMS
from tailrace.connectors.travelling import SEEN, folder_of, is_local, leave_sign
from tailrace.errors import ConfigError
from tailrace.passwords import hide_passwords
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.outpost.hosted_folder import FolderHost, Host
from tailrace.settings import SETTINGS
from tailrace.spark.cluster.application import Application, application
from tailrace.state.paths import inputs_folder
from tailrace.storage.filesystem import Folder
from tailrace.storage.opening import absolute
from tailrace.storage.remote import check_scheme
from tailrace.storage.store import Store, folder_name


class FilePlace(NamedTuple):
    """A folder for files on their way."""

    url: str
    """A path of this machine, or a URL."""
    options: Mapping[str, Any] | None = None
    """Options for its filesystem."""
    shared: bool = False
    """True for a path that other machines must see as well."""
    host: Host | None = None
    """The host through which other processes reach it, where the driver serves it."""

    def __repr__(self) -> str:
        return hide_passwords(f"Place({self.url!r})")  # its options have secrets

    def at(self, name: str) -> FilePlace:
        """A place for a folder inside this one."""
        return self._replace(url=f"{self.url.rstrip('/')}/{name}")

    def folder(self) -> Folder:
        """The folder itself, opened."""
        return folder_of(self.url, self.options)

    def make(self) -> None:
        """Makes the folder, where that is needed."""
        if self.shared:
            leave_sign(self.url)
        elif is_local(self.url):
            os.makedirs(self.url, exist_ok=True)

    def empty(self) -> None:
        """Removes the folder with all that is in it."""
        if is_local(self.url):
            shutil.rmtree(self.url, ignore_errors=True)
        else:
            folder = self.folder()
            folder.delete([entry.name for entry in folder.walk()])

    def keep_only(self, names: Collection[str]) -> None:
        """Removes all files but these: the rest come from tasks that Spark has started twice. Raises `ConfigError` where
        one of these is missing: an executor has written it, and this process does not see it."""
        folder = self.folder()
        there = {entry.name for entry in folder.entries() if not entry.folder}
        for name in names:
            if name not in there:
                raise ConfigError(
                    f"{folder.url_of(name)} was written by an executor and is not there for the driver: {self.url} is no "
                    f"folder that they share; give Environment(work_dir=...) a path or URL that they do, or none"
                )
        folder.delete(there - set(names) - {SEEN})


class Places:
    """The places of one job. Each is made at its first use."""

    def __init__(
        self,
        spark: Any,
        work_dir: str | None,
        store: Store | None,
        incarnation: int,
        at: Binding | None,
        far: FilePlace | None = None,
    ) -> None:
        self._work_dir = None if work_dir is None else absolute(work_dir)
        self._store = store
        self._incarnation = incarnation
        self._at = at
        """The address where executors reach the driver; None where they do not."""
        self._far = far
        """The folder that then takes the place of the driver's folder."""
        self._app = application(spark)
        self._local = self._app.on_this_machine
        self._work: FilePlace | None = None

    @property
    def store_options(self) -> Mapping[str, Any] | None:
        """Options for the filesystem of checkpoints."""
        return None if self._store is None else self._store.storage_options

    @property
    def shared(self) -> bool:
        """True where the folder of checkpoints is a path that other machines must see as well."""
        return self._store is not None and is_local(self._store.url) and not self._local

    def inputs(self) -> tuple[FilePlace, bool]:
        """The place for DataFrames, and True where it outlives this run: checkpoints then refer to its files."""
        if self._store is None:
            return self._folder(), False
        return self._stored_place(inputs_folder(self._incarnation)), True

    def stream(self, uid: str) -> tuple[FilePlace, str]:
        """The place of the stream that a sink writes for readers in Spark, and the name of its job. It outlives the runs of
        the job. Raises `ConfigError` for a job without checkpoints."""
        if self._store is None:
            raise ConfigError(
                f"to_streaming: the output of sink {uid!r} is published with checkpoints, and the job takes none: give the "
                f'Environment checkpoint=tr.CheckpointConfig(dir="...")'
            )
        return self._stored_place(f"{STREAMS}/{folder_name(uid)}"), self._store.job

    def results(self) -> FilePlace:
        """The place for results."""
        return self._folder()

    def lasting(self, name: str) -> FilePlace:
        """A folder that later runs of the job find again under its name; without checkpoints, one of this run."""
        return self._folder().at(name) if self._store is None else self._stored_place(f"results/{name}")

    def _folder(self) -> FilePlace:
        if self._work is None:
            self._work = self._make()
        return self._work

    def _make(self) -> FilePlace:
        name = f"job-{uuid.uuid4().hex}"
        if self._work_dir is not None:
            return _going(FilePlace(self._work_dir, None, is_local(self._work_dir)).at(name))
        if self._local and self._far is None:
            return FilePlace(self._app.folder()).at(name)
        if self._store is not None:
            return _going(self._stored_place(f"results/{name}"))
        if self._far is not None:
            return self._far.at(name)
        assert self._at is not None
        return hosted_place(self._app, self._at).at(name)

    def _stored_place(self, name: str) -> FilePlace:
        assert self._store is not None
        return FilePlace(self._store.url, self._store.storage_options, self.shared).at(name)


def _going(place: FilePlace) -> FilePlace:
    """Registers a place for removal when the program ends, and returns it."""
    atexit.register(_remove, place)
    return place


def _remove(place: FilePlace) -> None:
    with contextlib.suppress(Exception):  # a store that is out of reach does not change how the program ended
        place.empty()


_hosts: dict[str, FolderHost] = {}
"""Hosts of folders, by the path that they serve."""


def hosted_place(app: Application, at: Binding) -> FilePlace:
    """The session's folder, which the driver serves from now on until the session or the program ends. Files served under
    TLS are in another folder than files served without."""
    path = os.path.join(app.folder(), "served" if at.tls is None else f"served-{at.tls.source}")
    for other in [one for one in _hosts if one != path and not os.path.isdir(one)]:  # of ended sessions
        _hosts.pop(other).close()
    if path not in _hosts:
        os.makedirs(path, mode=0o700, exist_ok=True)
        try:
            _hosts[path] = FolderHost(path, at, space())
        except (OSError, ValueError) as error:
            raise at.refusal("executors", error) from error
        atexit.register(functools.partial(_close, path))
    host = _hosts[path].host
    return FilePlace(host.url, host=host)


def _close(path: str) -> None:
    host = _hosts.pop(path, None)
    if host is not None:
        host.close()


def space() -> int:
    """Number of bytes that the driver's folder may hold, by `TAILRACE_DRIVER_SPACE`. Raises `ConfigError` for a text that
    is no size."""
    setting = SETTINGS["driver_space"].value()
    try:
        return memory_bytes(setting)
    except ConfigError as error:
        raise ConfigError(f"{SETTINGS['driver_space'].variable}: {error}") from None


def checked_work_dir(work_dir: Any) -> str | None:
    """A `work_dir`, as text: a path or URL. Raises `ConfigError` for anything else, and for a URL of an unknown kind."""
    if work_dir is None:
        return None
    text = os.fspath(work_dir) if isinstance(work_dir, os.PathLike) else work_dir
    if not isinstance(text, str) or not text:
        raise ConfigError(f"work_dir is a path or URL, not {work_dir!r}")
    check_scheme(text, "a work_dir")
    return text
