"""The checkpoints of one job in a folder: claims, manifests, seals, state files.

    <folder>/<job>/<incarnation>/claim                    made atomically at the start and at each restart
    <folder>/<job>/<incarnation>/<n>.manifest             checkpoint n; made atomically, which is the commit
    <folder>/<job>/<incarnation>/<n>.published            all that this manifest has prepared was published
    <folder>/<job>/<incarnation>/chk-<n>/w<slot>-<e>.state
    <folder>/<job>/<incarnation>/ready                    every earlier incarnation is sealed
    <folder>/<job>/<incarnation>/closed                   the job has ended and said so
    <folder>/<job>/<incarnation>/swept                    nothing is left behind of earlier runs (`leftovers`)

Fencing. The manifest slots of an incarnation are taken one after the other, and each by one only. They begin with slot 0.
Behind a manifest in slot n comes n + 1; where the next checkpoint has another number m, the slot that comes next is taken
with a pointer, `tailrace-next <m>`, and m comes behind that. The driver that claims an incarnation seals every earlier
one: it takes the slot that comes next there, with a text that is neither. So from then on a commit of the earlier
driver fails. Only then it reads the newest manifest. So no commit of an earlier driver is missed, and none comes later.
(Before manifests had the numbers of their checkpoints they were 0, 1, 2, ..., which is the same without pointers.)

Invariant L1: of two drivers that use one manifest slot, exactly one succeeds.
Invariant L2: once `claim` has returned i, no commit under an incarnation below i succeeds any more.
Invariant L3: `latest` after `claim` gives every commit that has succeeded under an earlier incarnation its due: it returns
the last of them.
Claims, seals and `ready` are never deleted by us. Where somebody else has deleted seals, or the whole folder, L1 and L2 hold
all the same for a driver that commits under what it has claimed itself: it looks whether its claim is there and its own, and
after its commit whether anybody has come to the end of a newer claim.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, CheckpointsRemoved, ConfigError, Fenced
from tailrace.state.manifest import Manifest, decode_manifest, manifest_name, published_mark
from tailrace.state.takeover import Holder, barred_by, overtaken_by
from tailrace.storage.filesystem import Folder, LocalFolder, Writer
from tailrace.storage.leftovers import Leftovers, back_to_the_mark
from tailrace.storage.opening import absolute, open_folder
from tailrace.storage.parallel import at_once
from tailrace.storage.processes import Owner, Process, this_process
from tailrace.storage.seals import seal_before
from tailrace.storage.slots import (
    MANIFEST,
    POINTER,
    SEAL,
    incarnations_in,
    job_in,
    listed,
    newest_in,
    numbers_in,
    owner_of,
    pointed_to,
)

_CLAIMS = 100
"""So many starts of a job may come before one that claims at the same time."""
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def folder_name(job: str) -> str:
    """The folder of a job. A plain name (small letters, digits, `_`, `-`) is its own folder. Any other gets a hash of it
    at its end, so that two jobs never share a folder, also where upper and lower case are one."""
    if _PLAIN.fullmatch(job):
        return job
    readable = re.sub(r"[^a-z0-9_-]+", "_", job.lower())[:60].strip("_") or "job"
    return f"{readable}.{hashlib.sha256(job.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class Store:
    """The checkpoints of the job `job` under a path or URL. Opening it touches nothing.

    Names are relative to the job's folder. Every method may be called from any thread, `claim`, `commit`, `release` and
    `sweep` from one at a time. An error of the filesystem comes out as it is: the operation may be done or not.
    """

    def __init__(
        self,
        url: str,
        job: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        folder: Folder | None = None,
        process: Process | None = None,
    ) -> None:
        self.job = job
        self.folder = folder or open_folder(
            f"{absolute(os.fspath(url)).rstrip('/')}/{folder_name(job)}", storage_options
        )
        self._process = process
        self._held: list[int] = []
        """The incarnations that this object has claimed: those of one run."""
        self._claims: dict[int, bytes] = {}
        """What it has written into their claims."""
        self._run_id = ""
        self._barren: set[int] = set()
        """Incarnations under which there is no manifest, and never will be one."""
        self._leftovers = Leftovers(self.folder)

    @classmethod
    def at(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
        """The store whose job folder is at a path or URL, to read from it."""
        folder = open_folder(url, storage_options)
        store = cls(url, "", folder=folder)
        store.job = job_in(folder) or folder.url.rpartition("/")[2]
        return store

    @property
    def url(self) -> str:
        """The job's folder."""
        return self.folder.url

    def url_of(self, name: str) -> str:
        """The full path or URL of a name."""
        return self.folder.url_of(name)

    def local_path(self) -> str | None:
        """The job's folder as a path of this machine, where it is one."""
        return self.url if isinstance(self.folder, LocalFolder) else None

    def make(self) -> None:
        """Makes the job's folder, where folders are made. Raises `ConfigError` where nothing can be kept in it."""
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
        """Who has claimed an incarnation, if that can be read."""
        return owner_of(self.folder, incarnation)

    def holder(self, incarnation: int) -> Holder:
        """Who has claimed an incarnation."""
        owner = self.owner(incarnation)
        return Holder(incarnation, None) if owner is None else _holder(incarnation, owner)

    def live_holder(self) -> Holder | None:
        """Who holds the newest incarnation, if that is a live process of this host and has not released it."""
        incarnations = self.incarnations()
        if not incarnations or self.folder.exists(f"{incarnations[-1]}/closed"):
            return None
        owner = self.owner(incarnations[-1])
        return _holder(incarnations[-1], owner, lives=True) if owner is not None and self._lives(owner) else None

    def claim(self, owner: str, takeover: bool = False) -> int:
        """A new incarnation for the run `owner`; nobody can commit under an older one once this has returned.

        Called again, it is a restart of the same run. Raises `ConfigError` where another live job of this host has the
        name, unless `takeover`; `Fenced` at a restart when another run has taken over.
        """
        process = self._me()
        who = Owner(self.job, owner, process.host, process.pid, process.started, self._nonce(), self.url)
        data = msgspec.json.encode(who)
        incarnation = max(self._held, default=0)
        for _ in range(_CLAIMS):
            incarnations = self.incarnations()
            self._check_may_claim(owner, incarnations, takeover)
            incarnation = max(incarnation, *incarnations[-1:], 0) + 1
            if self._take(incarnation, data):
                break
        else:
            raise OSError(
                f"{self.url}: {_CLAIMS} incarnations in a row up to {incarnation} were taken by others when they were "
                "claimed; does the store refuse every conditional write?"
            )
        first, self._run_id = not self._held, owner
        self._held.append(incarnation)
        self._claims[incarnation] = data
        try:
            self._check_create(f"{incarnation}/claim", data)
            seal_before(self.folder, incarnation)
        except BaseException:
            if first:
                self._give_up(incarnation, data)
            raise
        return incarnation

    def _take(self, incarnation: int, data: bytes) -> bool:
        name = f"{incarnation}/claim"
        try:
            self.folder.create(name, data)
        except FileExistsError:
            return self.folder.read(name) == data  # made at a first try that seemed to fail
        except BaseException:
            if not self._held:
                self._give_up(incarnation, data)
            raise
        return True

    def _give_up(self, incarnation: int, data: bytes) -> None:
        """The first claim of a run has failed: what it may have left does not bar the name while we live."""
        self._held = []
        with contextlib.suppress(Exception):  # out of reach
            if self.folder.read(f"{incarnation}/claim") == data:
                self._close(incarnation)

    def release(self, incarnation: int) -> None:
        """The job has ended: its name may be used again."""
        mine = {incarnation, *self._held}
        for newer in [one for one in self.incarnations() if one > incarnation and one not in mine]:
            owner = self.owner(newer)
            if owner is not None and owner.run_id == self._run_id:  # a claim that seemed to fail
                mine.add(newer)
        for one in sorted(mine):
            self._close(one)
        self._held = []

    def _close(self, incarnation: int) -> None:
        if not self.folder.exists(f"{incarnation}/claim"):
            return  # somebody has removed it: there is no claim to give up
        with contextlib.suppress(FileExistsError):
            self.folder.create(f"{incarnation}/closed", b"closed\n")

    def _me(self) -> Process:
        if self._process is None:
            self._process = this_process()
        return self._process

    def _nonce(self) -> str:
        return uuid.uuid4().hex

    def _lives(self, owner: Owner) -> bool:
        return self._me().lives(owner)

    def _check_may_claim(self, run_id: str, incarnations: list[int], takeover: bool) -> None:
        if self._held and run_id == self._run_id:
            self._check_ours(self._held[-1])
            newer = overtaken_by(run_id, map(self.holder, reversed([i for i in incarnations if i > self._held[-1]])))
            if newer is not None:
                raise Fenced(f"{self._taken_over(newer)}: this one cannot restart")
            return
        barred = barred_by(run_id, None if takeover else self.live_holder())
        if barred is not None:
            raise ConfigError(
                f"two live jobs of one name: job {self.job!r} with checkpoints in {self.url} is running already, as run "
                f"{barred.run_id} in {barred.where}. Wait for it, stop it, or give this job another name"
            )

    def _taken_over(self, by: Holder) -> str:
        who = f" (run {by.run_id}, {by.where})" if by.run_id is not None else ""
        return f"a newer start of job {self.job!r}{who} has taken over with incarnation {by.incarnation}"

    def _check_create(self, name: str, data: bytes) -> None:
        if self.folder.checked:
            return
        try:
            self.folder.create(name, data)
        except FileExistsError:
            self.folder.checked = True
            return
        raise ConfigError(
            f"{self.url}: the store, or the installed botocore, does not know conditional writes (If-None-Match), so two "
            "drivers could commit over each other; use a store that does, and botocore 1.35.20 or newer"
        )

    # Manifests.

    def commit(self, incarnation: int, after: int, number: int, data: bytes, needs: Iterable[str] = ()) -> str:
        """Makes the manifest of checkpoint `number`, and with it the checkpoint real: its name. The commit before it under
        this incarnation was that of `after`, 0 where there was none. Done twice with the same bytes it is done once.
        Raises `Fenced` where a slot is taken, and `CheckpointsRemoved` where a file is gone that the checkpoint `needs`,
        or our claim; after any other error the checkpoint may be committed or not, and only a new claim can tell."""
        name = manifest_name(incarnation, number)
        self._check_ours(incarnation)
        self._check_there(incarnation, needs)
        following = after + 1 if after else 0
        taken = [name]
        if following != number:
            taken.append(manifest_name(incarnation, following))
            self._put(taken[-1], POINTER + b"%d\n" % number, name)
        self._put(name, data, name)
        self._check_nobody_newer(incarnation, taken)
        return name

    def _put(self, slot: str, data: bytes, name: str) -> None:
        """Takes a slot on the way to the manifest `name`, unless we have done so already."""
        try:
            self.folder.create(slot, data)
        except FileExistsError:
            there = self.folder.read(slot)
            if there != data:
                by = re.match(rb"tailrace-seal by (\d+)", there)
                newer = int(by[1]) if by else max(self.incarnations())
                raise Fenced(f"{self._taken_over(self.holder(newer))}: {name} cannot be committed") from None

    def _check_ours(self, incarnation: int) -> None:
        """The claim is the first file in a folder of ours. If it is gone, any other may be gone, and the number may be
        somebody else's by now."""
        ours = self._claims.get(incarnation)
        if ours is None:
            return  # claimed by another object: this one cannot tell
        try:
            there = self.folder.read(f"{incarnation}/claim")
        except FileNotFoundError:
            raise CheckpointsRemoved(
                f"the checkpoint folder {self.url} was removed, or a part of it, while job {self.job!r} ran: the claim "
                f"{incarnation}/claim is gone. What the job has published stays; its checkpoints cannot be relied on"
            ) from None
        if there != ours:
            raise Fenced(
                f"the checkpoint folder {self.url} was removed while job {self.job!r} ran, and the job was started again: "
                f"incarnation {incarnation} is not ours any more"
            )

    def _check_there(self, incarnation: int, needs: Iterable[str]) -> None:
        """Every file that a manifest is to name, with one look at each folder. A newer driver removes those that no manifest
        names."""
        wanted: dict[str, set[str]] = {}
        for name in needs:
            wanted.setdefault(name.rpartition("/")[0], set()).add(name)
        if not wanted:
            return
        if isinstance(self.folder, LocalFolder):
            entries = list(map(self.folder.entries, wanted))
        else:
            entries = at_once(self.folder.entries, wanted, "tailrace-list")
        missing = set().union(*wanted.values()) - {entry.name for each in entries for entry in each}
        if missing:
            if (newer := self._newer(incarnation)) is not None:
                raise Fenced(f"{self._taken_over(newer)}: {min(missing)} is gone")
            raise CheckpointsRemoved(
                f"state files in {self.url} were removed while job {self.job!r} ran: the next checkpoint needs "
                f"{listed(sorted(missing))}. Has somebody cleaned up by hand, or a rule that deletes old files?"
            )

    def _check_nobody_newer(self, incarnation: int, taken: list[str]) -> None:
        """If a newer driver has come to the end of its claim, its seal was in the slot of our commit, and somebody has
        removed it. Nobody has seen our manifest: removes it."""
        if (newer := self._newer(incarnation)) is not None:
            self.folder.delete(taken)
            raise Fenced(f"{self._taken_over(newer)} (and its seal is gone): {taken[0]} cannot be committed")

    def _newer(self, incarnation: int) -> Holder | None:
        """The claim of a newer driver that has come to its end."""
        if incarnation not in self._claims:
            return None  # claimed by another object: this one cannot tell
        newer = [one for one in self.incarnations() if one > incarnation and one not in self._claims]
        others = (one for one in map(self.holder, newer) if overtaken_by(self._run_id, [one]) is not None)
        return next((one for one in others if self.folder.exists(f"{one.incarnation}/ready")), None)

    def latest(self) -> tuple[str, Manifest] | None:
        """The newest committed manifest with its name. Raises `CheckpointCorrupt` for one that cannot be read."""
        barren: list[int] = []
        found = newest_in(self.folder, [one for one in self.incarnations() if one not in self._barren], barren)
        self._barren.update(one for one in barren if self._held and one < self._held[-1])  # sealed, and so for good
        return None if found is None else (found, self.manifest(found))

    def manifest(self, name: str) -> Manifest:
        """The manifest of this name, without prepared output that is known to be published: readers may have moved its
        files meanwhile. Raises `CheckpointNotFound`, `CheckpointCorrupt`."""
        try:
            data = self.folder.read(name)
        except FileNotFoundError as error:
            raise CheckpointNotFound(f"there is no {self.url_of(name)}") from error
        if data.startswith(SEAL):
            raise CheckpointNotFound(
                f"{self.url_of(name)} is no checkpoint: it marks where incarnation {name.partition('/')[0]} has ended"
            )
        if data.startswith(POINTER):
            raise CheckpointNotFound(
                f"{self.url_of(name)} is no checkpoint: the next one of its incarnation is {pointed_to(data)}"
            )
        found = decode_manifest(data, self.url_of(name))
        self._check_place(name, found)
        if found.prepared and self.folder.exists(published_mark(name)):
            found = msgspec.structs.replace(found, prepared=[])
        return found

    def _check_place(self, name: str, found: Manifest) -> None:
        """A copy under a later number would be the newest checkpoint, and the job would go back without a word. (A number
        below that of the checkpoint is from when slots were counted.)"""
        incarnation, _, file = name.partition("/")
        slot = MANIFEST.fullmatch(file)
        if slot is None or int(slot[1]) > found.checkpoint or incarnation != str(found.incarnation):
            raise CheckpointCorrupt(
                f"{self.url_of(name)} holds checkpoint {found.checkpoint} of incarnation {found.incarnation}: somebody has "
                f"renamed or copied it. Move it back to {manifest_name(found.incarnation, found.checkpoint)}, or away"
            )

    def is_published(self, name: str) -> bool:
        """Whether this manifest is marked: all its prepared output was published."""
        return self.folder.exists(published_mark(name))

    def mark_published(self, name: str) -> None:
        """Marks the manifest: all its prepared output was published."""
        with contextlib.suppress(FileExistsError):
            self.folder.create(published_mark(name), b"published\n")

    # Files.

    def writer(self, name: str) -> Writer:
        """Begins a file."""
        return self.folder.writer(name)

    def read(self, name: str) -> bytes:
        """A whole file."""
        return self.folder.read(name)

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """A part of a file."""
        return self.folder.read_range(name, offset, length)

    def size(self, name: str) -> int:
        """The size of a file."""
        return self.folder.size(name)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files; what is missing is fine. Manifests go first: none is left behind without its files."""
        names = list(names)
        manifests = [name for name in names if MANIFEST.fullmatch(name.rpartition("/")[2])]
        for some in (manifests, [name for name in names if name not in set(manifests)]):
            if some:
                self.folder.delete(some)

    def names(self, incarnation: int) -> list[str]:
        """Every file under an incarnation."""
        return self._leftovers.names(incarnation)

    # What is left behind.

    def sweep(self, before: int, needed: Iterable[str] = ()) -> list[str]:
        """Deletes what this run has left under its incarnations below `before`: state files and manifests that are not
        among `needed`, and files half made. Of earlier runs it deletes, once, state files that no manifest names, files half
        made, and inputs of those that never had a checkpoint. No claim goes, and no seal. Own files of inputs
        (`<incarnation>/inputs`) are needed as long as the run lasts: they go only where `before` is above every incarnation
        of it, as it is at the end. Returns the names."""
        over = all(held < before for held in self._held)
        own = [held for held in self._held if held < before]
        gone = self._leftovers.of_this_run(own, set(needed), over) if own else []
        self.delete(gone)
        if self._held and not self._leftovers.earlier_swept:
            earlier = self._leftovers.of_earlier_runs(self._unswept(), self._run_of)
            self.delete(earlier)
            gone += earlier
            self._leftovers.earlier_swept = True
        return gone

    def mark_swept(self) -> None:
        """Notes that sinks have removed hidden output of earlier runs, too: the next start need not look there."""
        if self._held and self._leftovers.earlier_swept:
            with contextlib.suppress(FileExistsError):
                self.folder.create(f"{self._held[0]}/swept", b"swept\n")

    def abandoned(self) -> list[str]:
        """Earlier runs that may have left output under cover which nobody will publish. Not those with a checkpoint whose
        output may not be published yet: a start from it does that. Nor those of another folder: this one may be a copy,
        and a job that goes on in the original may live."""
        runs: dict[str, bool] = {}
        for incarnation in self._unswept():
            owner = self.owner(incarnation)
            if owner is None or owner.job != self.job or owner.run_id == self._run_id or not self._is_here(owner.root):
                continue
            runs[owner.run_id] = runs.get(owner.run_id, True) and not self._unpublished(incarnation)
        return sorted(run for run, may_go in runs.items() if may_go)

    def _unswept(self) -> list[int]:
        """Incarnations of earlier runs, back to that of the newest one that has swept what was before it."""
        earlier = [one for one in self.incarnations() if one < self._held[0]]
        return list(back_to_the_mark(earlier, lambda one: self.folder.exists(f"{one}/swept")))

    def _run_of(self, incarnation: int) -> str | None:
        owner = self.owner(incarnation)
        return None if owner is None else owner.run_id

    def _unpublished(self, incarnation: int) -> bool:
        for number in numbers_in(self.folder, incarnation):
            try:
                if self.manifest(manifest_name(incarnation, number)).prepared:
                    return True
            except CheckpointNotFound:
                continue  # a seal, or a pointer
            except CheckpointCorrupt:
                return True  # nobody can say
        return False

    def _is_here(self, root: str) -> bool:
        if isinstance(self.folder, LocalFolder) and root:
            return os.path.realpath(root) == os.path.realpath(self.url)
        return root == self.url


def _holder(incarnation: int, owner: Owner, lives: bool = False) -> Holder:
    return Holder(incarnation, owner.run_id, f"process {owner.pid} of {owner.host}", lives)
