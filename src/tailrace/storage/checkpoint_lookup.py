"""The lookup of the checkpoint that a user names: a path, a job, or the newest of all. If there is none, the error lists
what the folder holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tailrace.elements.timestamps import isoformat
from tailrace.errors import CheckpointNotFound, IncompatibleState, JobAlreadyFinished
from tailrace.state.end_mark import Dataflow, Ending, not_in
from tailrace.state.manifest import Manifest
from tailrace.state.paths import CLAIM, SAVEPOINT, checkpoint_number, claim_name, manifest_name, means_manifest
from tailrace.storage.filesystem import Folder, scheme_of
from tailrace.storage.manifest_slots import (
    holds_manifest,
    incarnations_in,
    job_in,
    list_text,
    newest_in,
    numbers_in,
    owner_of,
)
from tailrace.storage.opening import absolute, open_folder
from tailrace.storage.store import Store


def resolve(requested: str, *, job: str | None = None, options: Mapping[str, Any] | None = None) -> tuple[Store, str]:
    """The checkpoint that a user names, as a store and the name of a manifest in it. `requested` is the path of a
    manifest, of the folder of a checkpoint, of an incarnation or a job (the newest checkpoint in it), of a checkpoint
    folder (the newest of `job`, or else of all), or of a savepoint. Raises `CheckpointNotFound`, with a list of what is
    there, and `CheckpointCorrupt`."""
    url = absolute(os.fspath(requested))
    above, _, last = url.rpartition("/")
    if last == SAVEPOINT:
        return _savepoint(above, options)
    if means_manifest(last):
        return _store_of(above, last, options)
    number = checkpoint_number(last)
    if number is not None:
        return _by_number(above, number, last, options)
    opened = open_folder(url, options)
    if opened.exists(SAVEPOINT):
        return _savepoint(url, options)
    inside = incarnations_in(opened)
    if last.isdecimal() and (opened.exists(CLAIM) or numbers_in(opened, None)):
        store = Store.at(above, options)
        return store, _newest(store, f"in {url}", [int(last)])
    if any(opened.exists(claim_name(one)) or numbers_in(opened, one) for one in reversed(inside)):
        store = Store.at(url, options)
        return store, _newest(store, f"of job {store.job!r} in {url}")
    return _newest_of_all(url, job, options)


def find_by_number(requested: str, number: int, options: Mapping[str, Any] | None = None) -> tuple[Store, str]:
    """The checkpoint of a number, as `resolve` returns it. `requested` is the folder of a job, or a checkpoint folder with
    one job. Raises `CheckpointNotFound` if there is none, or if two runs of the job have one."""
    url = absolute(os.fspath(requested))
    if job_in(open_folder(url, options)) is None:
        jobs = _jobs(url, options)
        if len(jobs) != 1:
            raise CheckpointNotFound(f"checkpoint {number} of which job? In {url}, {_what_is_in(url, options)}")
        url = Store(url, jobs[0], options).url
    store = Store.at(url, options)
    found = [name for name, manifest in checkpoints_in(store) if manifest.checkpoint == number]
    if len(found) == 1:
        return store, found[0]
    if not found:
        raise CheckpointNotFound(f"there is no checkpoint {number} in {url} (any more): {_what_is_in(url, options)}")
    there = list_text([store.url_of(name) for name in found])
    raise CheckpointNotFound(
        f"several runs of job {store.job!r} have a checkpoint {number}: give the path of one, {there}"
    )


def checkpoints_in(store: Store, incarnations: Iterable[int] | None = None) -> Iterator[tuple[str, Manifest]]:
    """The checkpoints of a job, of the oldest run first: the name of each manifest, and the manifest. Only those of some
    incarnations, where these are given. A checkpoint that is removed meanwhile is left out. Raises `CheckpointCorrupt`."""
    for incarnation in store.incarnations() if incarnations is None else incarnations:
        for number in numbers_in(store.folder, incarnation):
            name = manifest_name(incarnation, number)
            try:
                manifest = store.manifest(name)
            except CheckpointNotFound:  # a seal, a pointer, or removed
                continue
            yield name, manifest


def newest_start(
    store: Store, *, or_new: bool = False, start_again: bool = False, dataflow: Dataflow | None = None
) -> str | None:
    """The name of the checkpoint that the next start of a job goes on from; None for a start from the beginning. `or_new`
    returns None if the job has no checkpoint yet. `start_again` returns None if the job has finished, or if its newest
    run has ended and keeps no checkpoint. Otherwise these cases raise `JobAlreadyFinished` or `CheckpointNotFound`.
    Raises `IncompatibleState` if another dataflow than `dataflow` has finished there: the one to be started has never
    run. If a newer run has ended, no checkpoint of an older run is returned: a start from it would publish again what the
    newer run has published."""
    name, ending = newest_in(store.folder)
    if ending is not None and (ending.finished or name is None):
        if start_again:
            return None
        if not ending.finished:
            raise CheckpointNotFound(_nothing_left(store, ending))
        if dataflow is not None and ending.dataflow:
            _check_dataflow(store, ending, dataflow)
        raise _already_finished(ending)
    if name is None and or_new:
        return None
    if name is not None:
        store.manifest(name)  # raises where it cannot be read, or its job has ended meanwhile
        return name
    return _newest(store, f"of job {store.job!r} in {_above(store)}")


def _already_finished(ending: Ending) -> JobAlreadyFinished:
    stays = f" Its last checkpoint stays ({ending.checkpoint}), for a start that names it." if ending.checkpoint else ""
    return JobAlreadyFinished(
        f"job {ending.job!r} has finished already, at {isoformat(ending.timestamp)} (run {ending.run_id}): all of its "
        f"output is published, and nothing is left to do.{stays} To run it once more from the beginning, and publish all of "
        f'that once more, say if_finished="start-again" (tailrace run: --if-finished start-again)',
        job=ending.job,
        run_id=ending.run_id,
        ended_at=ending.timestamp / 1e6,
    )


def _check_dataflow(store: Store, ending: Ending, dataflow: Dataflow) -> None:
    """Raises `IncompatibleState` if the run that has finished ran another dataflow than this one."""
    gone, new = not_in(ending.dataflow, dataflow), not_in(dataflow, ending.dataflow)
    if not gone and not new:
        return
    lines = [
        *(f"  - it had {one}, which is not in this dataflow" for one in gone),
        *(f"  - it had no {one}, which is in this dataflow" for one in new),
    ]
    raise IncompatibleState(
        f"the job {ending.job!r} in {store.url} that finished at {isoformat(ending.timestamp)} (run {ending.run_id}) ran "
        "another dataflow than this one:\n{}\nThis one has not run, and nothing was started. Give its job another name, "
        "env.execute(name), or another checkpoint folder; or, where it takes the place of the old one, begin anew with "
        'if_finished="start-again" (tailrace run: --if-finished start-again)'.format("\n".join(lines))
    )


def _nothing_left(store: Store, ending: Ending) -> str:
    """The text of a message about a job whose newest run has ended before its input had, and keeps no checkpoint."""
    saved = f"start from its savepoint, {ending.savepoint}, or " if ending.savepoint else ""
    return (
        f"there is no checkpoint of job {ending.job!r} in {store.url} to go on from: {ending}, and keeps none "
        f'(retain="never"). A checkpoint of an earlier run would publish once more what that one has published; {saved}'
        f'begin anew with if_finished="start-again" (tailrace run: --if-finished start-again)'
    )


def _newest(store: Store, where: str, incarnations: list[int] | None = None) -> str:
    name, ending = newest_in(store.folder, incarnations)
    if name is None:
        look = store.url if store.incarnations() else _above(store)
        over = "" if ending is None else f"{ending}, and keeps none; "
        raise CheckpointNotFound(f"there is no checkpoint {where}: {over}{_what_is_in(look, store.storage_options)}")
    store.manifest(name)  # raises where it cannot be read
    return name


def _above(store: Store) -> str:
    """The folder that holds the folders of all jobs."""
    return store.url.rpartition("/")[0]


def _savepoint(url: str, options: Mapping[str, Any] | None) -> tuple[Store, str]:
    store = Store.at(url, options)
    store.manifest(SAVEPOINT)  # raises where there is none, or it cannot be read
    return store, SAVEPOINT


def _store_of(above: str, last: str, options: Mapping[str, Any] | None) -> tuple[Store, str]:
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
        for name, manifest in checkpoints_in(store, [int(incarnation)]):
            if manifest.checkpoint == checkpoint:
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
    """The text of a message about the content of a folder in which something was not found."""
    folder = open_folder(url, options)
    claimed = [one for one in incarnations_in(folder) if owner_of(folder, one) is not None]
    if claimed:
        slots = [
            manifest_name(one, number) for one in reversed(claimed) for number in reversed(numbers_in(folder, one))
        ]
        there = [slot for slot in slots if _is_complete(folder, slot)]
        none = f"job {job_in(folder)!r} has none that is complete"
        return f"in {folder.url} there are {list_text(there)}" if there else none
    jobs = _jobs(url, options)
    if jobs:
        return f"there are the jobs {list_text([repr(one) for one in jobs])}"
    inside = [entry.name for entry in folder.entries()]
    if not inside and scheme_of(folder.url) == "file" and os.path.isfile(folder.url):
        return "it is a file, and none of a checkpoint"
    return (
        f"it holds {list_text(inside)}, and no job has begun there"
        if inside
        else "the folder is empty, or does not exist"
    )


def _is_complete(folder: Folder, slot: str) -> bool:
    """True if a slot holds a manifest."""
    try:
        return holds_manifest(folder.read(slot))
    except FileNotFoundError:
        return False  # its job has deleted it meanwhile


def _jobs(url: str, options: Mapping[str, Any] | None) -> list[str]:
    """The jobs of a checkpoint folder, by name."""
    folder = open_folder(url, options)
    found = [job_in(open_folder(folder.url_of(entry.name), options)) for entry in folder.entries() if entry.folder]
    return sorted(job for job in found if job is not None)


def job_folders(url: str) -> list[str]:
    """The folders of the jobs in a checkpoint folder; for the folder of a job, that folder alone."""
    folder = open_folder(absolute(url))
    if job_in(folder) is not None:
        return [folder.url]
    inside = [folder.url_of(entry.name) for entry in folder.entries() if entry.folder]
    return [one for one in sorted(inside) if job_in(open_folder(one)) is not None]
