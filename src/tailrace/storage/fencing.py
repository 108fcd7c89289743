"""Fencing of earlier drivers of a job, in its folder: the claims of one run, by which it gets an incarnation, releases it,
and notices that another run has taken the job over; and the seals that keep earlier drivers from committing. `store`
describes what they guarantee.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

import msgspec

from tailrace.errors import CheckpointsRemoved, ConfigError, Fenced
from tailrace.state.job_holder import Holder, barred_by, overtaken_by
from tailrace.state.paths import claim_name, closed_mark, manifest_name, ready_mark
from tailrace.storage.claim_owner import Owner, ProcessId, this_process
from tailrace.storage.filesystem import Folder
from tailrace.storage.manifest_slots import SEAL, behind, incarnations_in, numbers_in, owner_of

_CLAIMS = 100
"""Largest number of incarnations that other starts may take before one claim gives up."""
_SEALS = 1000
"""Largest number of commits of an earlier driver that may come before its seal."""


class Claims:
    """The claims of one run of the job `job`. A new object has claimed nothing."""

    def __init__(
        self, folder: Folder, job: str, process: ProcessId | None = None, nonce: Callable[[], str] | None = None
    ) -> None:
        self.held: list[int] = []
        """The incarnations that this object has claimed, all for one run."""
        self.run_id = ""
        """The id of that run; empty as long as nothing is claimed."""
        self.term = 0
        """Number of coordinators of that run that were lost before the coordinator of this object."""
        self._folder = folder
        self._url = folder.url
        self._job = job
        self._process = process
        self._nonce = nonce if nonce is not None else lambda: uuid.uuid4().hex
        self._written: dict[int, bytes] = {}
        """Incarnation -> the content of its claim, as this object has written it."""

    def holder(self, incarnation: int) -> Holder:
        """The run and the process that have claimed an incarnation, as far as the claim can be read."""
        owner = owner_of(self._folder, incarnation)
        return Holder(incarnation, None) if owner is None else _holder(incarnation, owner)

    def live_holder(self) -> Holder | None:
        """The holder of the newest incarnation, if its process lives on this host and has not released it; else None."""
        incarnations = incarnations_in(self._folder)
        if not incarnations or self._folder.exists(closed_mark(incarnations[-1])):
            return None
        owner = owner_of(self._folder, incarnations[-1])
        return _holder(incarnations[-1], owner, lives=True) if owner is not None and self._me().lives(owner) else None

    def claim(self, owner: str, takeover: bool = False, at: str = "") -> int:
        """A new incarnation for the run `owner`, with every earlier one sealed. See `Store.claim`."""
        process = self._me()
        who = Owner(
            self._job, owner, process.host, process.pid, process.started, self._nonce(), self._url, self.term, at
        )
        data = msgspec.json.encode(who)
        incarnation = max(self.held, default=0)
        for _ in range(_CLAIMS):
            incarnations = incarnations_in(self._folder)
            self._check_may_claim(owner, incarnations, takeover)
            incarnation = max(incarnation, *incarnations[-1:], 0) + 1
            if self._take(incarnation, data):
                break
        else:
            raise OSError(
                f"{self._url}: {_CLAIMS} incarnations in a row up to {incarnation} were taken by others when they were "
                "claimed; does the store refuse every conditional write?"
            )
        first, self.run_id = not self.held, owner
        self.held.append(incarnation)
        self._written[incarnation] = data
        try:
            self._check_create(claim_name(incarnation), data)
            seal_before(self._folder, incarnation)
        except BaseException:
            if first:
                self._give_up(incarnation, data)
            raise
        return incarnation

    def hold(self, run_id: str, term: int) -> None:
        """Takes over the claims of another process of this run. See `Store.hold`."""
        self.term = term
        for incarnation in incarnations_in(self._folder):
            owner = owner_of(self._folder, incarnation)
            if owner is not None and owner.run_id == run_id and owner.term <= term:
                self.held.append(incarnation)
                self._written[incarnation] = self._folder.read(claim_name(incarnation))
        if not self.held:
            raise CheckpointsRemoved(f"the checkpoint folder {self._url} has no claim of run {run_id} any more")
        self.run_id = run_id

    def first_of_successors(self, incarnation: int) -> int:
        """The first incarnation of those up to this one that successors of lost coordinators of the run have claimed, one
        after the other, to go on with running workers."""
        for earlier in reversed([one for one in incarnations_in(self._folder) if one < incarnation]):
            owner = owner_of(self._folder, earlier)
            if owner is None or owner.run_id != self.run_id or not owner.at:
                break
            incarnation = earlier
        return incarnation

    def _take(self, incarnation: int, data: bytes) -> bool:
        name = claim_name(incarnation)
        try:
            self._folder.create(name, data)
        except FileExistsError:
            return self._folder.read(name) == data  # an earlier try has made it, and seemed to fail
        except BaseException:
            if not self.held:
                self._give_up(incarnation, data)
            raise
        return True

    def _give_up(self, incarnation: int, data: bytes) -> None:
        """Gives up the first claim of a run after it has failed. A claim that it may have left does not bar the name of the
        job while this process lives."""
        self.held = []
        with contextlib.suppress(Exception):  # out of reach
            if self._folder.read(claim_name(incarnation)) == data:
                self._close(incarnation)

    def release(self, incarnation: int) -> None:
        """Releases the name of the job at its end: another run may use it."""
        mine = {incarnation, *self.held}
        for newer in [one for one in incarnations_in(self._folder) if one > incarnation and one not in mine]:
            owner = owner_of(self._folder, newer)
            if owner is not None and owner.run_id == self.run_id and owner.term <= self.term:
                mine.add(newer)  # a claim that seemed to fail
        for one in sorted(mine):
            self._close(one)
        self.held = []

    def _close(self, incarnation: int) -> None:
        if not self._folder.exists(claim_name(incarnation)):
            return  # the file was removed: there is no claim to give up
        with contextlib.suppress(FileExistsError):
            self._folder.create(closed_mark(incarnation), b"closed\n")

    def _me(self) -> ProcessId:
        if self._process is None:
            self._process = this_process()
        return self._process

    def _check_may_claim(self, run_id: str, incarnations: list[int], takeover: bool) -> None:
        if self.held and run_id == self.run_id:
            self.check_ours(self.held[-1])
            later = map(self.holder, reversed([i for i in incarnations if i > self.held[-1]]))
            newer = overtaken_by(run_id, later, self.term)
            if newer is not None:
                raise Fenced(f"{self.taken_over(newer)}: this one cannot restart")
            return
        barred = barred_by(run_id, None if takeover else self.live_holder())
        if barred is not None:
            raise ConfigError(
                f"two live jobs of one name: job {self._job!r} with checkpoints in {self._url} is running already, as "
                f"run {barred.run_id} in {barred.where}. Wait for it, stop it, or give this job another name"
            )

    def taken_over(self, by: Holder) -> str:
        """The text of a message about another run that has taken the job over."""
        who = f" (run {by.run_id}, {by.where})" if by.run_id is not None else ""
        return f"a newer start of job {self._job!r}{who} has taken over with incarnation {by.incarnation}"

    def _check_create(self, name: str, data: bytes) -> None:
        if self._folder.checked:
            return
        try:
            self._folder.create(name, data)
        except FileExistsError:
            self._folder.checked = True
            return
        raise ConfigError(
            f"{self._url}: the store, or the installed botocore, does not know conditional writes (If-None-Match), so two "
            "drivers could commit over each other; use a store that does, and botocore 1.35.20 or newer"
        )

    # Changes that other processes may have made meanwhile.

    def check_ours(self, incarnation: int) -> None:
        """Checks that the claim of an incarnation is still the one that this object has written. The claim is the first file
        in the folder of an incarnation. If it is gone, any other file may be gone, and another run may have claimed the
        number. Raises `CheckpointsRemoved`, `Fenced`."""
        ours = self._written.get(incarnation)
        if ours is None:
            return  # claimed by another object: this one does not know the content
        try:
            there = self._folder.read(claim_name(incarnation))
        except FileNotFoundError:
            raise CheckpointsRemoved(
                f"the checkpoint folder {self._url} was removed, or a part of it, while job {self._job!r} ran: the "
                f"claim {claim_name(incarnation)} is gone. What the job has published stays; its checkpoints cannot be "
                f"relied on"
            ) from None
        if there != ours:
            raise Fenced(
                f"the checkpoint folder {self._url} was removed while job {self._job!r} ran, and the job was started again: "
                f"incarnation {incarnation} is not ours any more"
            )

    def newer(self, incarnation: int) -> Holder | None:
        """The holder of a newer claim, of another driver, that is complete; None if there is none."""
        if incarnation not in self._written:
            return None  # claimed by another object: this one does not know which claims are newer
        newer = [one for one in incarnations_in(self._folder) if one > incarnation and one not in self._written]
        others = (one for one in map(self.holder, newer) if overtaken_by(self.run_id, [one], self.term) is not None)
        return next((one for one in others if self._folder.exists(ready_mark(one.incarnation))), None)


def _holder(incarnation: int, owner: Owner, lives: bool = False) -> Holder:
    return Holder(incarnation, owner.run_id, f"process {owner.pid} of {owner.host}", lives, owner.term)


def seal_before(folder: Folder, incarnation: int) -> None:
    """Seals every incarnation before this one: no driver commits under them any more."""
    for earlier in reversed([i for i in incarnations_in(folder) if i < incarnation]):
        _seal(folder, earlier, incarnation)
        if folder.exists(ready_mark(earlier)):
            break  # its run has sealed every incarnation before it
    with contextlib.suppress(FileExistsError):
        folder.create(ready_mark(incarnation), b"ready\n")


def _seal(folder: Folder, incarnation: int, by: int) -> None:
    """Seals an incarnation: takes the manifest slot that comes next. It is done when a seal has the last taken slot. A slot
    whose old manifest is deleted meanwhile is not the end. Each try takes a slot behind the one of the try before,
    whatever the listing shows."""
    following = 0
    for _ in range(_SEALS):
        numbers = numbers_in(folder, incarnation)
        if numbers:
            last = _in_slot(folder, incarnation, numbers[-1])
            if last.startswith(SEAL):
                return
            following = max(following, behind(numbers[-1], last))
        try:
            folder.create(manifest_name(incarnation, following), SEAL + b"by %d\n" % by)
        except FileExistsError:  # a commit came first: then try the slot behind it
            following = behind(following, _in_slot(folder, incarnation, following))
    raise OSError(
        f"{folder.url_of(str(incarnation))} could not be sealed: at each of {_SEALS} tries a commit came first"
    )


def _in_slot(folder: Folder, incarnation: int, number: int) -> bytes:
    """The content of a slot; empty if its job has deleted it meanwhile, because a later slot is taken."""
    try:
        return folder.read(manifest_name(incarnation, number))
    except FileNotFoundError:
        return b""
