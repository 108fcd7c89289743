"""The checkpoint that a user names: a path, a job, the newest of all; and what a folder holds where there is none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from tailrace.errors import CheckpointNotFound, ConfigError
from tailrace.state.paths import CLAIM, SAVEPOINT, checkpoint_number, claim_name, manifest_name, means_manifest
from tailrace.storage.opening import absolute, open_folder
from tailrace.storage.slots import holds_manifest, incarnations_in, job_in, listed, newest_in, numbers_in, owner_of
from tailrace.storage.store import Store


def resolve(
    wanted: str,
    *,
    job: str | None = None,
    folder: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Store, str]:
    """The checkpoint that a user names, as a store and the name of a manifest in it: the path of a manifest, of a
    checkpoint's folder, of an incarnation or a job (the newest in it), of a checkpoint folder (the newest of `job`, or else
    of all), of a savepoint, or "latest" with `folder` and `job`. Raises `CheckpointNotFound`, saying what is there, and
    `CheckpointCorrupt`."""
    if wanted == "latest":
        if folder is None or job is None:
            raise ConfigError('"latest" needs a checkpoint folder and the name of a job')
        store = Store(folder, job, options)
        return store, _newest(store, f"of job {job!r} in {absolute(folder)}", folder, options)
    url = absolute(os.fspath(wanted))
    above, _, last = url.rpartition("/")
    if last == SAVEPOINT:
        return _savepoint(above, options)
    if means_manifest(last):
        return _named(above, last, options)
    number = checkpoint_number(last)
    if number is not None:
        return _by_number(above, number, last, options)
    opened = open_folder(url, options)
    if opened.exists(SAVEPOINT):
        return _savepoint(url, options)
    inside = incarnations_in(opened)
    if last.isdecimal() and (opened.exists(CLAIM) or numbers_in(opened, None)):
        store = Store.at(above, options)
        return store, _newest(store, f"in {url}", above, options, [int(last)])
    if any(opened.exists(claim_name(one)) or numbers_in(opened, one) for one in reversed(inside)):
        store = Store.at(url, options)
        return store, _newest(store, f"of job {store.job!r} in {url}", url, options)
    return _newest_of_all(url, job, options)


def _newest(
    store: Store, where: str, look: str, options: Mapping[str, Any] | None, incarnations: list[int] | None = None
) -> str:
    name = newest_in(store.folder, incarnations)
    if name is None:
        raise CheckpointNotFound(f"there is no checkpoint {where}: {_what_is_in(look, options)}")
    store.manifest(name)  # raises where it cannot be read
    return name


def _savepoint(url: str, options: Mapping[str, Any] | None) -> tuple[Store, str]:
    store = Store.at(url, options)
    store.manifest(SAVEPOINT)  # raises where there is none, or it cannot be read
    return store, SAVEPOINT


def _named(above: str, last: str, options: Mapping[str, Any] | None) -> tuple[Store, str]:
    job_folder, _, incarnation = above.rpartition("/")
    store = Store.at(job_folder, options)
    name = f"{incarnation}/{last}"
    if not store.folder.exists(name):
        raise CheckpointNotFound(f"there is no {store.url_of(name)}: {_what_is_in(job_folder, options)}")
    store.manifest(name)
    return store, name


def _by_number(above: str, checkpoint: int, last: str, options: Mapping[str, Any] | None) -> tuple[Store, str]:
    job_folder, _, incarnation = above.rpartition("/")
    store = Store.at(job_folder, options)
    if incarnation.isdecimal():
        for number in reversed(numbers_in(store.folder, int(incarnation))):
            name = manifest_name(int(incarnation), number)
            with contextlib.suppress(CheckpointNotFound):  # a seal, or a pointer
                if store.manifest(name).checkpoint == checkpoint:
                    return store, name
    raise CheckpointNotFound(f"there is no complete checkpoint {above}/{last}: {_what_is_in(job_folder, options)}")


def _newest_of_all(url: str, job: str | None, options: Mapping[str, Any] | None) -> tuple[Store, str]:
    jobs = _jobs(url, options)
    found = []
    for one in [job] if job is not None and job in jobs else jobs:
        store = Store(url, one, options)
        newest = store.latest()
        if newest is not None:
            found.append((newest[1].timestamp, one, store, newest[0]))
    if not found:
        raise CheckpointNotFound(f"there is no checkpoint in {url}: {_what_is_in(url, options)}")
    return max(found, key=lambda each: each[:2])[2:]


def _what_is_in(url: str, options: Mapping[str, Any] | None) -> str:
    """What a message says of a folder where something was not found."""
    folder = open_folder(url, options)
    claimed = [one for one in incarnations_in(folder) if owner_of(folder, one) is not None]
    if claimed:
        slots = [
            manifest_name(one, number) for one in reversed(claimed) for number in reversed(numbers_in(folder, one))
        ]
        there = [slot for slot in slots if holds_manifest(folder.read(slot))]
        return f"in {folder.url} there are {listed(there)}" if there else f"job {job_in(folder)!r} has none"
    jobs = _jobs(url, options)
    if jobs:
        return f"there are the jobs {listed([repr(one) for one in jobs])}"
    inside = [entry.name for entry in folder.entries()]
    return (
        f"it holds {listed(inside)}, and no job has begun there" if inside else "the folder is empty, or does not exist"
    )


def _jobs(url: str, options: Mapping[str, Any] | None) -> list[str]:
    """The jobs of a checkpoint folder, by name."""
    folder = open_folder(url, options)
    found = [job_in(open_folder(folder.url_of(entry.name), options)) for entry in folder.entries() if entry.folder]
    return sorted(job for job in found if job is not None)
