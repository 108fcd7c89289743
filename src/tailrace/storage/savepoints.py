"""Savepoints: a checkpoint in a folder of its own, which a user may move. This module makes such folders, for every writer
of savepoints, and copies the files of a job's checkpoint into them.

    savepoint.begun                         made first, atomically: reserves the folder for one writer; deleted at the end
    savepoint.manifest                      made last, atomically: with it the savepoint is real
    <incarnation>/chk-<n>/w<slot>-<e>.state the state files, under the names that they had
    inputs/<k>/<file>                       the files of DataFrames that sources have left to read

Invariant L4: a start from a savepoint needs no file of the job outside of its folder, but for the batches of streaming
queries, and it is a savepoint from the moment on in which its manifest is made, when all else is there. A writer that fails
before that removes what it has made, unless it is killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from tailrace.errors import CheckpointError, ConfigError
from tailrace.state.manifest import InputFile, Manifest, encode_savepoint
from tailrace.state.paths import SAVEPOINT, SAVEPOINT_BEGUN, SAVEPOINTS
from tailrace.storage.filesystem import Folder, LocalFolder
from tailrace.storage.manifest_slots import list_text
from tailrace.storage.opening import open_folder
from tailrace.storage.parallel import at_once

CHUNK = 8 << 20
"""Size in bytes of the pieces in which a file is copied that cannot be linked."""


Located = tuple[str, InputFile]
"""An input, and the path or URL where it is."""


class Stopped(CheckpointError):
    """The error of a copy that was given up because its job has ended."""


def default_place(job_folder: str, savepoint: Manifest) -> str:
    """The place of a savepoint for which the user has named none: beside the folder of the job. No folder of a job or of an
    incarnation has such a path."""
    above, _, job = job_folder.rpartition("/")
    at = datetime.fromtimestamp(savepoint.timestamp / 1e6, UTC)
    return f"{above}/{SAVEPOINTS}/{job}-{savepoint.checkpoint}-{at:%Y%m%dT%H%M%S}"


def check_place(target: Folder, job_folder: str | None = None) -> None:
    """Raises `ConfigError` unless a savepoint can be put into `target`. The folder must be empty or missing, and must not
    lie in the folder of the savepoint's job, whose files come and go."""
    if job_folder is not None and f"{target.url.rstrip('/')}/".startswith(f"{job_folder.rstrip('/')}/"):
        raise ConfigError(
            f"{target.url} is in the folder of the job's checkpoints, which it cleans up; give the savepoint another place"
        )
    if isinstance(target, LocalFolder) and os.path.lexists(target.url) and not os.path.isdir(target.url):
        raise ConfigError(f"{target.url} is no folder; a savepoint is one: give it another path")
    there = [entry.name for entry in target.entries()]
    if SAVEPOINT not in there and SAVEPOINT_BEGUN in there:
        raise ConfigError(
            f"{target.url}: somebody writes a savepoint there, or was killed at it; give this one another path, or remove "
            f"the folder"
        )
    if SAVEPOINT in there:
        raise ConfigError(f"{target.url} is a savepoint already, and is not overwritten; give this one another path")
    if there:
        raise ConfigError(
            f"{target.url} is not empty (it holds {list_text(there)}); give the savepoint a path of its own"
        )


def begin(target: Folder, job_folder: str | None = None) -> None:
    """Reserves a place for a savepoint: no other writer can begin one there. Raises `ConfigError` as `check_place` does."""
    check_place(target, job_folder)
    try:
        target.create(SAVEPOINT_BEGUN, b"")
    except FileExistsError:
        raise ConfigError(f"{target.url}: somebody else writes a savepoint there; give this one another path") from None


def seal(target: Folder, manifest: bytes) -> None:
    """Makes the manifest of a savepoint, when all else is there. From then on the folder is a savepoint."""
    target.create(SAVEPOINT, manifest)
    with contextlib.suppress(Exception):  # left behind it does no harm
        target.delete([SAVEPOINT_BEGUN])


def names_in(savepoint: Manifest) -> list[str]:
    """The files of a savepoint, but for its manifest."""
    return [file.name for file in savepoint.files] + [file.name for file in savepoint.inputs]


def copy_savepoint(
    source: Folder,
    target: Folder,
    savepoint: Manifest,
    stopped: Callable[[], bool] = lambda: False,
    inputs: Sequence[Located] = (),
    options: Mapping[str, Any] | None = None,
) -> int:
    """Puts a savepoint with the state files of `source`, and with inputs, into `target`. Returns the number of bytes of its
    files. Calls `stopped` now and then, and gives up when it returns True. `options`: of the filesystem of the inputs.
    Raises `ConfigError` for a place that is taken, `Stopped`, and `OSError`; after an error nothing is left."""
    savepoint = msgspec.structs.replace(savepoint, inputs=[file for _, file in inputs])
    data = encode_savepoint(savepoint)
    fresh = not (isinstance(target, LocalFolder) and os.path.isdir(target.url))
    begin(target, source.url)
    made: list[str] = []
    try:
        for file in savepoint.files:
            made.append(file.name)
            _copy(source, file.name, target, file.name, file.size, stopped)
        made = names_in(savepoint)
        copy_inputs(inputs, target, options, stopped)
        _check(stopped, target)
        seal(target, data)
    except BaseException:
        remove(target, made, fresh)
        raise
    return sum(file.size for file in savepoint.files) + sum(file.size for file in savepoint.inputs)


def copy_inputs(
    inputs: Sequence[Located],
    target: Folder,
    options: Mapping[str, Any] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Puts inputs into `target`, under their names. `options`: of the filesystem in which they are. Raises what
    `copy_savepoint` raises."""
    folders = {place: open_folder(place, options) for place in {url.rpartition("/")[0] for url, _ in inputs}}

    def copy(one: Located) -> None:
        (place, _, name), file = one[0].rpartition("/"), one[1]
        _copy(folders[place], name, target, file.name, file.size, stopped)

    at_once(copy, inputs, "tailrace-inputs")


def remove(target: Folder, names: list[str], whole: bool = False) -> None:
    """Removes files of a savepoint, and its folder if it was made for the savepoint (`whole`) and is empty. What cannot be
    removed stays: without a manifest the folder is no savepoint."""
    with contextlib.suppress(Exception):
        target.delete([*names, SAVEPOINT_BEGUN])
        if not isinstance(target, LocalFolder):
            return
        folders = {os.path.dirname(os.path.dirname(target.path_of(name))) for name in names} - {target.url}
        for folder in sorted(folders) + ([target.url] if whole else []):
            with contextlib.suppress(OSError):  # not empty, or gone
                os.rmdir(folder)


def _copy(source: Folder, name: str, target: Folder, to: str, size: int, stopped: Callable[[], bool]) -> None:
    """Copies one file of this size. A state file, or an input, is never written again once it is complete, so on one disk a
    second name for it (a hard link) is a copy."""
    _check(stopped, target)
    if not (isinstance(source, LocalFolder) and isinstance(target, LocalFolder)) or not target.link(
        source.path_of(name), to
    ):
        _write(source, name, target, to, stopped)
    if target.size(to) != size:
        raise OSError(f"{target.url_of(to)} has {target.size(to)} bytes, and not {size}")


def _write(source: Folder, name: str, target: Folder, to: str, stopped: Callable[[], bool]) -> None:
    writer = target.writer(to)
    try:
        at, size = 0, source.size(name)
        while at < size:
            _check(stopped, target)
            data = source.read_range(name, at, CHUNK)
            if not data:
                raise OSError(f"{source.url_of(name)} has become shorter while it was copied")
            writer.append(data)
            at += len(data)
        writer.close()
    except BaseException:
        writer.discard()
        raise


def _check(stopped: Callable[[], bool], target: Folder) -> None:
    if stopped():
        raise Stopped(f"the savepoint to {target.url} was given up: the job has ended")
