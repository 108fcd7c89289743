"""The checkpoints of one job in a folder: claims, manifests, seals, state files.

    <folder>/<job>/<incarnation>/claim                    made atomically at the start and at each restart
    <folder>/<job>/<incarnation>/<n>.manifest             checkpoint n; made atomically, which is the commit
    <folder>/<job>/<incarnation>/<n>.published            all that this manifest has prepared was published
    <folder>/<job>/<incarnation>/chk-<n>/w<slot>-<e>.state
    <folder>/<job>/<incarnation>/ready                    every earlier incarnation is sealed
    <folder>/<job>/<incarnation>/closed                   the job has ended and released its name
    <folder>/<job>/<incarnation>/ended                    how its run has ended, where no checkpoint says where to go on
    <folder>/<job>/<incarnation>/swept                    nothing is left behind of earlier runs (`leftovers`)

Fencing. The manifest slots of an incarnation are taken one after the other, and each only once. They begin with slot 0.
Behind a manifest in slot n comes n + 1. If the next checkpoint has another number m, its driver takes slot n + 1 with a
pointer, `tailrace-next <m>`, and m comes behind that. The driver that claims an incarnation seals every earlier one: it
takes the slot that comes next there with a seal, which is neither manifest nor pointer. From then on a commit of the
earlier driver fails. Only then the new driver reads the newest manifest. So it misses no commit of an earlier driver, and
none comes later. (Before manifests had the numbers of their checkpoints, slots were counted 0, 1, 2, ..., which is the
same without pointers.)

Invariant L1: of two drivers that use one manifest slot, exactly one succeeds.
Invariant L2: once `claim` has returned i, no commit under an incarnation below i succeeds any more.
Invariant L3: `latest` after `claim` returns the last commit that has succeeded under an earlier incarnation.
Invariant L6: of two coordinators of one run, the one that was given up as lost never fences its successor.

Only `prune` deletes claims, seals and `ready`, for dead runs. If seals or the whole folder were deleted, L1 and L2 still
hold for a driver that commits under its own claim. Before its commit it checks that its claim is there and unchanged, and
after it that no other driver has completed a newer claim.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, CheckpointsRemoved, ConfigError, Fenced
from tailrace.state.end_mark import Ending, encode_ending
from tailrace.state.job_holder import Holder
from tailrace.state.manifest import Manifest, decode_manifest
from tailrace.state.paths import (
    SAVEPOINT,
    ended_mark,
    incarnation_of,
    is_fence,
    manifest_name,
    manifest_place,
    published_mark,
    swept_mark,
)
from tailrace.storage.claim_owner import Owner, ProcessId
from tailrace.storage.fencing import Claims
from tailrace.storage.filesystem import Folder, LocalFolder, Writer
from tailrace.storage.leftovers import Leftovers, back_to_the_mark
from tailrace.storage.manifest_slots import (
    POINTER,
    SEAL,
    incarnations_in,
    job_in,
    list_text,
    newest_in,
    numbers_in,
    owner_of,
    pointed_to,
)
from tailrace.storage.opening import absolute, open_folder
from tailrace.storage.parallel import at_once
from tailrace.storage.pruning import Surplus, capsules_in, dead_in, runs_in, surplus_in

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def folder_name(job: str) -> str:
    """The name of the folder of a job. A plain name (small letters, digits, `_`, `-`) is used as it is. Any other name gets
    a hash of it appended, so that two jobs never share a folder, even on a filesystem that ignores upper and lower case."""
    if _PLAIN.fullmatch(job):
        return job
    readable = re.sub(r"[^a-z0-9_-]+", "_", job.lower())[:60].strip("_") or "job"
    return f"{readable}.{hashlib.sha256(job.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class Store:
    """The checkpoints of the job `job` under a path or URL. A new store object reads and writes nothing.

    Names are relative to the job's folder. Every method may be called from any thread; `claim`, `commit`, `release` and
    `sweep` from one at a time. An error of the filesystem is raised as it is: the operation may be done or not.
    """

    def __init__(
        self,
        url: str,
        job: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        folder: Folder | None = None,
        process: ProcessId | None = None,
        nonce: Callable[[], str] | None = None,
    ) -> None:
        self.job = job
        self.folder = folder or open_folder(
            f"{absolute(os.fspath(url)).rstrip('/')}/{folder_name(job)}", storage_options
        )
        self.storage_options = storage_options
        self._claims = Claims(self.folder, job, process, nonce)
        self._barren: set[int] = set()
        """Incarnations that have no manifest, and never will have one."""
        self._leftovers = Leftovers(self.folder)
        self._lingering: set[str] = set()
        """Manifests that are to be deleted, and may still be there after a failure."""

    @classmethod
    def at(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
        """The store whose job folder is at a path or URL, for reading."""
        folder = open_folder(url, storage_options)
        return cls(url, job_in(folder) or folder.url.rpartition("/")[2], storage_options, folder=folder)

    @property
    def url(self) -> str:
        """The URL or path of the job's folder."""
        return self.folder.url

    def url_of(self, name: str) -> str:
        """The full path or URL of a name."""
        return self.folder.url_of(name)

    def make(self) -> None:
        """Makes the job's folder, if the filesystem has folders. Raises `ConfigError` if nothing can be kept in it."""
        try:
            self.folder.make()
        except OSError as error:
            where = f"{error.filename}: " if error.filename not in (None, self.url) else ""
            raise ConfigError(
                f"checkpoints cannot be kept in {self.url}: {where}{error.strerror or error}; choose another folder, "
                "CheckpointConfig(dir=...), or put that right"
            ) from error

    # Incarnations.

    def incarnations(self) -> list[int]:
        """Every incarnation that was claimed, oldest first."""
        return incarnations_in(self.folder)

    def owner(self, incarnation: int) -> Owner | None:
        """The content of the claim of an incarnation; None if it is missing or cannot be read."""
        return owner_of(self.folder, incarnation)

    def holder(self, incarnation: int) -> Holder:
        """The run and the process that have claimed an incarnation, as far as the claim can be read."""
        return self._claims.holder(incarnation)

    def live_holder(self) -> Holder | None:
        """The holder of the newest incarnation, if its process lives on this host and has not released it; else None."""
        return self._claims.live_holder()

    def claim(self, owner: str, takeover: bool = False, at: str = "") -> int:
        """A new incarnation for the run `owner`. Once this has returned, no driver can commit under an older one.

        A second call is a restart of the same run. Raises `ConfigError` if another live job of this host has the name,
        unless `takeover`; `Fenced` at a restart if another run has taken over. `at`: see `Owner.at`.
        """
        return self._claims.claim(owner, takeover, at)

    def check_claim(self, incarnation: int) -> None:
        """Checks that no other driver has taken the job over since this one has claimed `incarnation`. Raises `Fenced`, or
        `CheckpointsRemoved` where the claim is gone."""
        self._claims.check_ours(incarnation)
        if (newer := self._claims.newer(incarnation)) is not None:
            raise Fenced(f"{self._claims.taken_over(newer)}: this one ends")

    def first_of_successors(self, incarnation: int) -> int:
        """The first incarnation of those up to this one that successors of lost coordinators of the run have claimed, one
        after the other, to go on with running workers."""
        return self._claims.first_of_successors(incarnation)

    def successor_at(self, run_id: str) -> str:
        """The address at which a coordinator waits for the workers of a lost one, by the newest claim; empty where that is
        not by one of this run that waits."""
        newest = self.owner(max(self.incarnations(), default=0))
        return newest.at if newest is not None and newest.run_id == run_id else ""

    @property
    def term(self) -> int:
        """Number of coordinators of the run that were lost before the one that uses this store."""
        return self._claims.term

    def hold(self, run_id: str, term: int = 0) -> None:
        """Takes over the claims of another process of this run: this process works under them from now on.

        `term` is the number of coordinators of the run that were lost before. One of them may still run somewhere: once
        this process has claimed, that coordinator claims, commits and removes nothing more. Raises `CheckpointsRemoved`
        if the run has no claim.
        """
        self._claims.hold(run_id, term)

    def release(self, incarnation: int) -> None:
        """Releases the name of the job at its end: another run may use it."""
        self._claims.release(incarnation)

    # Manifests.

    def commit(self, incarnation: int, after: int, number: int, data: bytes, needs: Iterable[str] = ()) -> str:
        """Commits checkpoint `number`: makes its manifest, and returns the name of that. `after` is the number of the commit
        before it under this incarnation, 0 if there was none. A second call with the same bytes has no further effect.
        Raises `Fenced` if a slot is taken, and `CheckpointsRemoved` if a file that the checkpoint `needs`, or the claim
        of this driver, is gone. After any other error the checkpoint may be committed or not; only a new claim finds out."""
        name = manifest_name(incarnation, number)
        self._claims.check_ours(incarnation)
        self._check_there(incarnation, needs)
        following = after + 1 if after else 0
        taken = [name]
        if following != number:
            taken.append(manifest_name(incarnation, following))
            self._put(taken[-1], POINTER + b"%d\n" % number, name)
        if self._put(name, data, name):  # else made by an earlier try: a newer driver has found it
            self._check_nobody_newer(incarnation, number, taken)
        return name

    def _put(self, slot: str, data: bytes, name: str) -> bool:
        """Takes a slot on the way to the manifest `name`. Returns False if an earlier try that seemed to fail has taken it
        with the same content. Raises `Fenced` for other content."""
        try:
            self.folder.create(slot, data)
            return True
        except FileExistsError:
            there = self.folder.read(slot)
            if there != data:
                by = re.match(rb"tailrace-seal by (\d+)", there)
                newer = int(by[1]) if by else max(self.incarnations())
                raise Fenced(f"{self._claims.taken_over(self.holder(newer))}: {name} cannot be committed") from None
            return False

    def _check_there(self, incarnation: int, needs: Iterable[str]) -> None:
        """Checks that every file is there that a manifest is going to name, with one listing of each folder. A newer driver
        removes files that no manifest names. Raises `Fenced`, `CheckpointsRemoved`."""
        needed: dict[str, set[str]] = {}
        for name in needs:
            needed.setdefault(name.rpartition("/")[0], set()).add(name)
        if not needed:
            return
        if isinstance(self.folder, LocalFolder):
            entries = list(map(self.folder.entries, needed))
        else:
            entries = at_once(self.folder.entries, needed, "tailrace-list")
        missing = set().union(*needed.values()) - {entry.name for each in entries for entry in each}
        if missing:
            if (newer := self._claims.newer(incarnation)) is not None:
                raise Fenced(f"{self._claims.taken_over(newer)}: {min(missing)} is gone")
            raise CheckpointsRemoved(
                f"state files in {self.url} were removed while job {self.job!r} ran: the next checkpoint needs "
                f"{list_text(sorted(missing))}. Has somebody cleaned up by hand, or a rule that deletes old files? Or is "
                f"it a path that each machine has for itself? It must be one that all workers reach"
            )

    def _check_nobody_newer(self, incarnation: int, number: int, taken: list[str]) -> None:
        """Checks after a commit that no newer driver has missed it. If a newer driver has completed its claim, its seal is
        normally behind this manifest, and it has read the manifest. Otherwise its seal was in the slot of this manifest
        and was deleted: no driver has read this manifest, so it is deleted. Raises `Fenced` then."""
        newer = self._claims.newer(incarnation)
        if newer is None or self._is_sealed(manifest_name(incarnation, number + 1)):
            return
        self.folder.delete(taken)
        raise Fenced(f"{self._claims.taken_over(newer)} (and its seal is gone): {taken[0]} cannot be committed")

    def _is_sealed(self, slot: str) -> bool:
        try:
            return self.folder.read(slot).startswith(SEAL)
        except FileNotFoundError:
            return False

    def latest(self) -> tuple[str, Manifest] | None:
        """The newest committed manifest with its name. None if there is none, or if a newer run has ended and keeps none.
        Raises `CheckpointCorrupt` for a manifest that cannot be read."""
        barren: list[int] = []
        found, _ = newest_in(self.folder, [one for one in self.incarnations() if one not in self._barren], barren)
        held = self._claims.held
        self._barren.update(one for one in barren if held and one < held[-1])  # sealed, so they stay without a manifest
        return None if found is None else (found, self.manifest(found))

    def manifest(self, name: str) -> Manifest:
        """The manifest of this name, without prepared output that is known to be published, because readers may have moved
        its files meanwhile. Raises `CheckpointNotFound`, `CheckpointCorrupt`."""
        try:
            data = self.folder.read(name)
        except FileNotFoundError as error:
            raise CheckpointNotFound(f"there is no {self.url_of(name)}") from error
        if data.startswith(SEAL):
            raise CheckpointNotFound(
                f"{self.url_of(name)} is not a checkpoint: it marks the end of incarnation {name.partition('/')[0]}"
            )
        if data.startswith(POINTER):
            raise CheckpointNotFound(
                f"{self.url_of(name)} is not a checkpoint: the next one of its incarnation is {pointed_to(data)}"
            )
        found = decode_manifest(data, self.url_of(name))
        self._check_place(name, found)
        if found.prepared and self.folder.exists(published_mark(name)):
            found = msgspec.structs.replace(found, prepared=[])
        return found

    def _check_place(self, name: str, found: Manifest) -> None:
        """Checks that a manifest lies under its own name. A copy under a later number would count as the newest checkpoint,
        and the job would go back without an error. (A number below the number of the checkpoint is from the time when
        slots were counted.) Raises `CheckpointCorrupt`."""
        if (found.kind == "savepoint") != (name == SAVEPOINT):
            raise CheckpointCorrupt(
                f"{self.url_of(name)} holds a {found.kind}: somebody has renamed or copied it. Move it back, or away"
            )
        if found.kind == "savepoint":
            return
        place = manifest_place(name)
        named_so = place is not None and name.startswith(f"{found.incarnation}/")
        if place is None or not named_so or place[1] > found.checkpoint:
            raise CheckpointCorrupt(
                f"{self.url_of(name)} holds checkpoint {found.checkpoint} of incarnation {found.incarnation}: somebody has "
                f"renamed or copied it. Move it back to {manifest_name(found.incarnation, found.checkpoint)}, or away"
            )

    def is_published(self, name: str) -> bool:
        """True if the manifest is marked as published: all its prepared output was published."""
        return self.folder.exists(published_mark(name))

    def mark_published(self, name: str) -> None:
        """Marks the manifest as published: all its prepared output was published."""
        with contextlib.suppress(FileExistsError):
            self.folder.create(published_mark(name), b"published\n")

    def mark_ended(self, incarnation: int, ending: Ending) -> None:
        """Notes how a run has ended, in its newest incarnation. A second call has no effect."""
        with contextlib.suppress(FileExistsError):
            self.folder.create(ended_mark(incarnation), encode_ending(ending))

    # Files.

    def writer(self, name: str) -> Writer:
        """Begins a file, and returns its writer."""
        return self.folder.writer(name)

    def read(self, name: str) -> bytes:
        """The content of a whole file."""
        return self.folder.read(name)

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """A part of a file."""
        return self.folder.read_range(name, offset, length)

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        return self.folder.size(name)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files; missing ones are ignored. Manifests are deleted first, and with them the manifests that an earlier
        call could not delete, because the files to delete may be files that these name. So no manifest is left behind
        without its files."""
        names = list(names)
        manifests = {name for name in names if manifest_place(name) is not None}
        first = self._lingering = self._lingering | manifests
        if first:
            self.folder.delete(sorted(first))
            self._lingering = self._lingering - first
        rest = [name for name in names if name not in manifests]
        if rest:
            self.folder.delete(rest)

    def names(self, incarnation: int) -> list[str]:
        """Every file under an incarnation."""
        return self._leftovers.names(incarnation)

    # Leftovers.

    def keep_capsule(self, name: str, data: bytes, keep: int) -> None:
        """Writes a capsule of a failed call, and deletes the oldest ones beyond `keep`."""
        with contextlib.suppress(FileExistsError):  # made by an earlier try
            self.folder.create(name, data)
        self.folder.delete(capsules_in(self.folder)[:-keep])

    def sweep(self, before: int, needed: Iterable[str] = ()) -> list[str]:
        """Deletes what this run has left under its incarnations below `before`: state files and manifests that are not among
        `needed`, and temporary files. Once, it also deletes what earlier runs have left: state files that no manifest
        names, temporary files, and inputs of runs that never had a checkpoint. It deletes no claim and no seal. Own files
        of inputs (`<incarnation>/inputs`) are needed as long as the run lasts: they are deleted only if `before` is above
        every incarnation of the run, as it is at the end. Returns the names of the deleted files."""
        over = all(held < before for held in self._claims.held)
        own = [held for held in self._claims.held if held < before]
        gone = self._leftovers.of_this_run(own, set(needed), over) if own else []
        self.delete(gone)
        if self._claims.held and not self._leftovers.earlier_swept:
            earlier = self._leftovers.of_earlier_runs(self._unswept(), self._run_of)
            self.delete(earlier)
            gone += earlier
            self._leftovers.earlier_swept = True
        return gone

    def prune(self, keep: int, spare: Collection[str] = ()) -> Surplus:
        """Deletes what dead runs have left, except the newest `keep` of the runs that have left something, and the runs with
        an id in `spare`: see `pruning`. Returns what was deleted."""
        found = surplus_in(self.folder, keep, spare)
        claims = [name for name in found.names if is_fence(name)]
        self.delete(name for name in found.names if not is_fence(name))
        self.delete(claims)
        gone = {incarnation for run in found.runs for incarnation in run.incarnations}
        self.folder.give_up(lambda name: incarnation_of(name) in gone)
        return found

    def dead(self, keep: int, spare: Collection[str] = ()) -> list[str]:
        """The ids of the runs of which `prune` leaves nothing."""
        return [run.run_id for run in dead_in(runs_in(self.folder), keep, spare)]

    def mark_swept(self) -> None:
        """Notes that sinks have removed the hidden output of earlier runs, too: the next start need not look there."""
        if self._claims.held and self._leftovers.earlier_swept:
            with contextlib.suppress(FileExistsError):
                self.folder.create(swept_mark(self._claims.held[0]), b"swept\n")

    def abandoned_runs(self, dead: Collection[str] = ()) -> list[str]:
        """Ids of earlier runs that may have left hidden output which no run will publish. Runs with a checkpoint whose
        output may not be published yet are excluded, because a start from it publishes that output, unless they are
        `dead`. Runs of another folder are excluded: this folder may be a copy, and a job that goes on in the original may
        live."""
        runs: dict[str, bool] = {}
        pruned = [one for one in self.incarnations() if dead and self._run_of(one) in dead]
        for incarnation in sorted({*self._unswept(), *pruned}):
            owner = self.owner(incarnation)
            if owner is None or owner.job != self.job or not self._is_here(owner.root):
                continue
            if owner.run_id == self._claims.run_id:
                continue
            may_go = owner.run_id in dead or not self._may_be_unpublished(incarnation)
            runs[owner.run_id] = runs.get(owner.run_id, True) and may_go
        return sorted(run for run, may_go in runs.items() if may_go)

    def _unswept(self) -> list[int]:
        """Incarnations of earlier runs, newest first, back to the newest one whose run has swept what was before it."""
        earlier = [one for one in self.incarnations() if one < self._claims.held[0]]
        return list(back_to_the_mark(earlier, lambda one: self.folder.exists(swept_mark(one))))

    def _run_of(self, incarnation: int) -> str | None:
        owner = self.owner(incarnation)
        return None if owner is None else owner.run_id

    def _may_be_unpublished(self, incarnation: int) -> bool:
        for number in numbers_in(self.folder, incarnation):
            try:
                if self.manifest(manifest_name(incarnation, number)).prepared:
                    return True
            except CheckpointNotFound:
                continue  # a seal, or a pointer
            except CheckpointCorrupt:
                return True  # unknown
        return False

    def _is_here(self, root: str) -> bool:
        if isinstance(self.folder, LocalFolder) and root:
            return os.path.realpath(root) == os.path.realpath(self.url)
        return root == self.url
