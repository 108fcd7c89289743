"""What dead runs have left in the folder of a job: their checkpoints, files, claims and seals. It goes on request (`tailrace
prune`), and at each start of a job that wants it (`keep_runs`).

The newest run is never touched, nor is what is behind it as long as it may go on from that: it has begun, and has no
checkpoint of its own yet. Of the runs before it those stay that are wanted, the newest that have left a checkpoint, or the
mark of their end. All others go, but for

- each file that a manifest names which stays, whichever run has written it, and
- files of inputs of runs that had a checkpoint: a later run, of whatever job, may have gone on from that, and reads them
  still.

Claims and seals keep old drivers from committing. Without them a driver that wakes up sees that its own claim is gone, or
that a newer run has come to the end of its claim (`claims.Claims`): it commits nothing all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tailrace.errors import CheckpointCorrupt, ConfigError
from tailrace.state.manifest import Manifest, Prepared, decode_manifest
from tailrace.state.paths import (
    claim_name,
    closed_mark,
    ended_mark,
    is_input,
    manifest_name,
    manifest_place,
    ready_mark,
)
from tailrace.storage.filesystem import Folder
from tailrace.storage.processes import this_process
from tailrace.storage.slots import holds_manifest, incarnations_in, is_barren, is_seal, job_in, numbers_in, owner_of


@dataclass(frozen=True)
class Run:
    """One run of the job, by what it has left."""

    run_id: str
    incarnations: tuple[int, ...]
    manifests: tuple[str, ...]
    ended: bool
    """Whether the mark of its end is there."""

    @property
    def counts(self) -> bool:
        """Whether it has left a checkpoint, or its end. One that has not has published nothing."""
        return self.ended or bool(self.manifests)


@dataclass(frozen=True)
class Surplus:
    """What is to go."""

    runs: list[Run]
    names: list[str]
    """In the order in which they are to be deleted: manifests before what they name, and claims last."""
    prepared: list[Prepared]
    """Output of theirs, which nobody publishes any more where it is not visible."""


def runs_in(folder: Folder) -> list[Run]:
    """The runs in the folder of a job, the oldest first. An incarnation whose claim cannot be read is a run of its own."""
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
    """Those of the runs in a folder that go, where the newest `keep` stay that have left something, with the newest of all,
    and those called `spare`."""
    stay = {run.run_id for run in [run for run in runs if run.counts][-keep:] + runs[-1:]}.union(spare)
    return [run for run in runs if run.run_id not in stay]


def surplus_in(folder: Folder, keep: int, spare: Collection[str] = ()) -> Surplus:
    """What dead runs have left and no manifest needs that stays. Raises `CheckpointCorrupt` where one of these cannot be
    read: what it needs is not known."""
    runs = runs_in(folder)
    dead = dead_in(runs, keep, spare)
    needed = {name for one in _manifests(folder, [run for run in runs if run not in dead]) for name in _named_by(one)}
    names = [name for run in dead for name in _going(folder, run) if name not in needed]
    prepared: list[Prepared] = []
    for run in dead:
        with contextlib.suppress(CheckpointCorrupt):  # it goes all the same
            prepared += [each for one in _manifests(folder, [run]) for each in one.prepared]
    return Surplus(dead, sorted(names, key=_order), prepared)


def check_settled(folder: Folder) -> None:
    """Raises `ConfigError` where the newest run may live, and has no checkpoint of its own: it may go on from any other."""
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
    """Every file of a run that goes, whatever manifests need. Where files of inputs stay, so do the claim and the seal: they
    say whose these are, and that the run had a checkpoint."""
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
