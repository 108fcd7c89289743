"""The replacement of lost workers while the other workers go on: the requests, messages and starts for it, and the cases in
which it is not done. `takeovers` has what is known of these workers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailrace.coordinator.actions import CloseLink, NotReplaced, Replacing, Send, ValuesNotCompared, WorkerReplaced
from tailrace.coordinator.decisions import Decisions, StopFailed, Tell
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.loops.loops import Nests
from tailrace.coordinator.output.output import PUBLISHER
from tailrace.coordinator.workers.roster import Roster
from tailrace.coordinator.workers.takeovers import Takeovers
from tailrace.protocol.deployment import FailureKind
from tailrace.protocol.replay import NotCompared, Replaced
from tailrace.state.manifest import encode_manifest


class Replacements:
    """The bookkeeping of one job's replacements; the course of the job carries out what follows."""

    def __init__(
        self, limits: Limits, roster: Roster, durability: Durability, nests: Nests, takeovers: Takeovers
    ) -> None:
        self._limits = limits
        self._roster = roster
        self._durability = durability
        self._nests = nests
        self._takeovers = takeovers
        self._not_compared: set[str] = set()
        """Operators whose values are not all compared. Each is reported to the watchers once."""

    @property
    def enabled(self) -> bool:
        """True if lost workers are replaced while the other workers go on."""
        return self._takeovers.enabled

    @property
    def active(self) -> bool:
        """True if a worker is being replaced."""
        return bool(self._takeovers.active)

    # Before a worker is lost.

    def not_compared(self, message: NotCompared) -> Decisions:
        """Notes that the values of an operator are not all compared."""
        if message.operator in self._not_compared:
            return []
        self._not_compared.add(message.operator)
        return [ValuesNotCompared(message.operator, message.reason)]

    # A worker is lost.

    def refusal(self, cause: Cause, status: JobStatus) -> str | None:
        """The reason why the other workers cannot go on after this failure. Empty where no worker was lost or has to move,
        or the job replaces none; None where they can go on."""
        of_one = cause.kind in (FailureKind.WORKER, FailureKind.MOVED) and cause.slot is not None
        if not of_one or not self._takeovers.enabled:
            return ""
        assert cause.slot is not None
        return self._takeovers.refusal(cause.slot) or self._out_of_place(cause.slot, status)

    def _out_of_place(self, slot: int, status: JobStatus) -> str | None:
        if status not in (JobStatus.RUNNING, JobStatus.STOPPING):
            return f"the job is {status}"
        if not self._durability.takes_checkpoints:
            return "the job takes no checkpoints"
        if self._durability.may_be_stopped:
            return "the checkpoint of a stop is being committed"
        others = [one for one in self._roster.slots if one.index != slot and one.index not in self._takeovers.active]
        return None if all(one.connected and one.deployed for one in others) else "another worker is not there"

    def not_replaced(self, cause: Cause, why: str) -> Decisions:
        """Notes that the loss of a worker is not covered."""
        assert cause.slot is not None
        self._takeovers.failovers.refuse(cause.slot, why)
        return [NotReplaced(cause.slot, why)]

    def begin(self, cause: Cause, now: int, there: bool) -> Decisions:
        """Begins the replacement of a lost worker. Checkpoints under way are given up, another process is started where
        none is `there`, and the survivors are asked for what they know."""
        assert cause.slot is not None
        given_up = self._durability.suspend(f"worker {cause.slot} is being replaced", now)
        decided: Decisions = [one for one in given_up if not isinstance(one, StopFailed)]  # the stop is begun once more
        if cause.slot not in self._takeovers.active:
            decided.append(Replacing(cause.slot, cause))
        for useless in self._takeovers.begin(cause.slot, now):
            slot = self._roster.slots[useless]
            decided.append(CloseLink(slot.index, slot.epoch))
            self._roster.lose(slot.index)
            decided += self._roster.replace(slot.index)
        return [*decided, *self._roster.replace(cause.slot, there), *self.query()]

    def cannot_reach(self, index: int, what: str) -> Decisions | None:
        """Decides what follows when a replacement that still replays cannot reach another worker: the replacement is lost.
        Most likely the other worker is lost as well. None where the worker is no such replacement."""
        if not self._does_again(index):
            return None
        slot = self._roster.slots[index]
        closed = CloseLink(index, slot.epoch)
        self._roster.lose(index)
        return [closed, Cause(what, FailureKind.WORKER, slot=index)]

    def cut_off(self, links: Iterable[tuple[int, int]]) -> Decisions:
        """Decides what follows from links that have been closed for a while between workers that live: (the worker that
        reported it, the peer). What went over such a link is lost. A replacement that still replays is replaced once more:
        no worker has received anything from it. Where neither end is one, all workers start again."""
        found: list[tuple[int, str]] = []
        for slot, peer in links:
            what = f"worker {slot} has lost the connection to worker {peer}, which lives"
            again = [one for one in (slot, peer) if self._does_again(one)]
            if not again:
                return [Cause(what, FailureKind.PEER, slot=None)]
            found.append((again[0], what))
        # Other replacements that still replay are ended with the first one: their links need nothing more.
        return self.cannot_reach(*found[0]) or [] if found else []

    def _does_again(self, index: int) -> bool:
        active = self._takeovers.active.get(index)
        return active is not None and active.resumed

    # What is known goes to the replacements.

    def query(self) -> Decisions:
        """Requests the survivors' knowledge of the lost workers, once it is known which checkpoint is restored."""
        takeovers = self._takeovers
        if not takeovers.waiting or self._durability.committing:
            return []
        newest = self._durability.newest
        takeovers.checkpoint = 0 if newest is None else newest[0]
        return [Tell(lost, slot) for lost in takeovers.query() for slot in takeovers.survivors]

    def commit_done(self) -> Decisions:
        """Goes on after the commit of a manifest that was on its way when a worker was lost."""
        return self.query() if self.active else []

    def resume(self, plan: bytes) -> Decisions:
        """Sends each replacement what it has to do, when all of them are there, and all is known."""
        takeovers, slots = self._takeovers, [self._roster.slots[slot] for slot in sorted(self._takeovers.active)]
        if not takeovers.ready or not all(slot.connected for slot in slots):
            return []
        assert takeovers.checkpoint is not None
        why = takeovers.cut_short()
        if why is not None:
            return [Cause(why, FailureKind.WORKER)]
        claims, restored, newest = self._durability.claims, self._durability.output.restored, self._durability.newest
        in_flight = [] if restored.manifest is None else [*restored.manifest.in_flight]
        peers = self._roster.peers()
        decided: Decisions = []
        for slot in slots:
            peer = next(one for one in peers if one.slot == slot.index)
            decided += [Tell(Replaced(peer, takeovers.checkpoint), one) for one in takeovers.survivors]
        for slot in slots:
            slot.deployed = True
            takeovers.resumes += 1
            deploy = restored.deploy(plan, peers, claims.incarnation, slot.attempt + takeovers.resumes)
            if newest is not None:
                manifest = encode_manifest(msgspec.structs.replace(newest[1], prepared=[]))
                deploy = msgspec.structs.replace(deploy, manifest=manifest, folder="", own=True)
            takeovers.failovers.resumes(slot.index, deploy.attempt)
            decided.append(Tell(takeovers.resume(slot.index, deploy, in_flight), slot.index))
        return decided

    def replay_done(self, slot: int, received: int, now: int) -> Decisions:
        """Ends a replacement: it has done all that the lost worker did."""
        active = self._takeovers.active.get(slot)
        if active is None or not active.resumed:
            return []
        history = self._takeovers.over(slot, received)
        if history is None:
            return [Cause(f"the messages to worker {slot} are not known any more", FailureKind.WORKER)]
        self._takeovers.failovers.note_replay(slot, now)
        self._nests.note_replacement(slot)
        place = self._roster.slots[slot]
        decided: Decisions = [WorkerReplaced(slot, now - active.began_at)]
        decided += [Send(place.index, place.epoch, message) for message in history]
        if slot == PUBLISHER:
            decided += self._durability.output.publisher_replaced()
        if not self.active:
            self._roster.standbys.fill_at_last(now + self._limits.calm)
            self._durability.resume()
        return decided
