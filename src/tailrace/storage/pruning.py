"""Removal of what dead runs have left in the folder of a job: their checkpoints, files, claims and seals. It happens on
request (`tailrace prune`), and at each start of a job with the setting `keep_runs`.

The newest run is never touched. Nor are earlier runs as long as the newest one may go on from them: it has begun, and has
no checkpoint of its own yet. Of the runs before it that have left a checkpoint or the mark of their end, the newest stay,
as many as the user requests. All other runs are deleted, except

- each file that a manifest names which stays, whichever run has written it, and
- files of inputs of runs that had a checkpoint: a later run, of any job, may have gone on from it, and still reads them.

Claims and seals keep old drivers from committing. Without them a driver that wakes up notices that its own claim is gone,
or that a newer run has completed its claim (`fencing.Claims`): it commits nothing all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tailrace.errors import CheckpointCorrupt, ConfigError
from tailrace.state.manifest import Manifest, Prepared, decode_manifest
from tailrace.state.paths import (
    CAPSULES,
    capsule_place,
    claim_name,
    closed_mark,
    ended_mark,
    is_input,
    manifest_name,
    manifest_place,
    ready_mark,
)
from tailrace.storage.claim_owner import this_process
from tailrace.storage.filesystem import Folder
from tailrace.storage.manifest_slots import (
    holds_manifest,
    incarnations_in,
    is_barren,
    is_seal,
    job_in,
    numbers_in,
    owner_of,
)


@dataclass(frozen=True)
class Run:
    """One run of the job, described by the files it has left."""

    run_id: str
    incarnations: tuple[int, ...]
    manifests: tuple[str, ...]
    ended: bool
    """True if the mark of its end is there."""

    @property
    def counts(self) -> bool:
        """True if the run has left a checkpoint, or its end. A run that has left neither has published nothing."""
        return self.ended or bool(self.manifests)


@dataclass(frozen=True)
class Surplus:
    """The runs and files that are to be deleted."""

    runs: list[Run]
    names: list[str]
    """The files, in the order of deletion: manifests before the files they name, and claims last."""
    prepared: list[Prepared]
    """Prepared output of these runs. If it is not visible, no run publishes it any more."""


def runs_in(folder: Folder) -> list[Run]:
    """The runs in the folder of a job, oldest first. An incarnation whose claim cannot be read counts as a run of its
    own."""
    found: dict[str, list[int]] = {}
    for incarnation in incarnations_in(folder):
        owner = owner_of(folder, incarnation)
        found.setdefault(f"?{incarnation}" if owner is None else owner.run_id, []).append(incarnation)
    return [_run(folder, run_id, incarnations) for run_id, incarnations in found.items()]


def _run(folder: Folder, run_id: str, incarnations: list[int]) -> Run:
    slots = [manifest_name(one, number) for one in incarnations for number in numbers_in(folder, one)]
    manifests = tuple(name for name in slots if _manifest(folder, name) is not None)
    ended = any(folder.exists(ended_mark(one)) for one in incarnations)
    return Run(run_id, tuple(incarnations), manifests, ended)


def dead_in(runs: list[Run], keep: int, spare: Collection[str] = ()) -> list[Run]:
    """The runs in a folder that are to be deleted. The newest `keep` runs that have left something stay, as do the newest of
    all and the runs with an id in `spare`."""
    stay = {run.run_id for run in [run for run in runs if run.counts][-keep:] + runs[-1:]}.union(spare)
    return [run for run in runs if run.run_id not in stay]


def surplus_in(folder: Folder, keep: int, spare: Collection[str] = ()) -> Surplus:
    """The files that dead runs have left and that no remaining manifest needs. Raises `CheckpointCorrupt` if a remaining
    manifest cannot be read: the files that it needs are then unknown."""
    runs = runs_in(folder)
    dead = dead_in(runs, keep, spare)
    needed = {name for one in _manifests(folder, [run for run in runs if run not in dead]) for name in _named_by(one)}
    names = [name for run in dead for name in _going(folder, run) if name not in needed]
    gone = {incarnation for run in dead for incarnation in run.incarnations}
    names += [name for name in capsules_in(folder) if _capsule_of(name)[0] in gone]
    prepared: list[Prepared] = []
    for run in dead:
        with contextlib.suppress(CheckpointCorrupt):  # its files are deleted all the same
            prepared += [each for one in _manifests(folder, [run]) for each in one.prepared]
    return Surplus(dead, sorted(names, key=_order), prepared)


def capsules_in(folder: Folder) -> list[str]:
    """The capsules of failed calls in the folder of a job, oldest first."""
    return sorted(
        (one.name for one in folder.entries(CAPSULES) if capsule_place(one.name) is not None), key=_capsule_of
    )


def _capsule_of(name: str) -> tuple[int, int, int]:
    return capsule_place(name) or (0, 0, 0)


def check_settled(folder: Folder) -> None:
    """Raises `ConfigError` if the newest run may live and has no checkpoint of its own: it may go on from any other one."""
    runs = runs_in(folder)
    if not runs or runs[-1].counts or not runs[:-1]:
        return
    incarnation = runs[-1].incarnations[-1]
    owner = owner_of(folder, incarnation)
    here = this_process()
    gone = owner is not None and owner.host == here.host and not here.lives(owner)
    if not (gone or folder.exists(closed_mark(incarnation))):
        where = "" if owner is None else f", in process {owner.pid} of {owner.host}"
        raise ConfigError(
            f"{folder.url}: run {runs[-1].run_id} of job {job_in(folder)!r} has begun{where}, and has no checkpoint of its "
            "own yet. It may go on from any that is there, so nothing is removed; try again when it has one, or has ended"
        )


def _going(folder: Folder, run: Run) -> Iterator[str]:
    """Every file of a run that is to be deleted, without regard to what manifests need. If files of inputs stay, the claim
    and the seal stay as well: they show which run the files belong to, and that it had a checkpoint."""
    begun = not all(is_barren(folder, incarnation) for incarnation in run.incarnations)
    for incarnation in run.incarnations:
        names = [entry.name for entry in folder.walk(str(incarnation))]
        inputs = begun and any(map(is_input, names))
        for name in names:
            known = name in (claim_name(incarnation), ready_mark(incarnation)) or is_seal(folder, name)
            if not (inputs and (known or is_input(name))):
                yield name


def _order(name: str) -> tuple[int, str]:
    return (0 if manifest_place(name) is not None else 2 if name.endswith("/claim") else 1), name


def _named_by(manifest: Manifest) -> Iterator[str]:
    yield from (file.name for file in manifest.files)
    yield from manifest.older


def _manifests(folder: Folder, runs: list[Run]) -> Iterator[Manifest]:
    for name in [name for run in runs for name in run.manifests]:
        data = _manifest(folder, name)
        if data is not None:
            yield decode_manifest(data, folder.url_of(name))


def _manifest(folder: Folder, name: str) -> bytes | None:
    try:
        data = folder.read(name)
    except FileNotFoundError:
        return None  # its job has deleted it meanwhile
    return data if holds_manifest(data) else None
