"""The replacement of workers that are lost, or have failed, while the other workers go on: the requests, messages and starts
for it, and the cases in which it is not done. `replacement_phases` has what is known of these workers, `first_failures` the
failures before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from tailrace.coordinator.actions import (
    CloseLink,
    HistoryFills,
    NotReplaced,
    Replacing,
    Send,
    ValuesNotCompared,
    WorkerReplaced,
)
from tailrace.coordinator.decisions import Decisions, RescaleCut, StopFailed, Tell
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.loops.termination import Nests
from tailrace.coordinator.workers.first_failures import FirstFailures
from tailrace.coordinator.workers.hot_standbys import HotStandbys
from tailrace.coordinator.workers.replacement_phases import Takeovers
from tailrace.coordinator.workers.roster import Roster, Slot
from tailrace.elements.entrylog import EACH
from tailrace.protocol.deployment import FailureKind
from tailrace.protocol.replay import NotCompared, Replaced
from tailrace.state.manifest import encode_manifest


class Replacements:
    """The bookkeeping of one job's replacements; the course of the job carries out what follows."""

    def __init__(
        self,
        limits: Limits,
        roster: Roster,
        durability: Durability,
        nests: Nests,
        takeovers: Takeovers,
        hot: bool = False,
    ) -> None:
        """`hot`: standbys follow the workers of their slices."""
        self.hot = HotStandbys(hot, roster, durability, takeovers)
        self.limits = limits
        self._roster = roster
        self._durability = durability
        self._nests = nests
        self._takeovers = takeovers
        self._failures = FirstFailures()
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

    def at_once(self, slots: list[Slot]) -> list[Slot]:
        """The slots of these that are in the first executors, as many as may be lost at once."""
        found = self._takeovers.at_once([slot.index for slot in slots])
        return [slot for slot in slots if slot.index in found]

    # Before a worker is lost.

    def not_compared(self, message: NotCompared) -> Decisions:
        """Notes that the values of an operator are not all compared."""
        if message.operator in self._not_compared:
            return []
        self._not_compared.add(message.operator)
        return [ValuesNotCompared(message.operator, message.reason)]

    def relieve(self, slot: Slot, now: int) -> Decisions:
        """Makes a checkpoint due where a worker's history takes half of the memory that it may take: when it takes all, it
        is dropped, and a loss of the worker is a restart. Where the last checkpoint has failed, another one would soon fail
        as well."""
        checkpoints, (entries, size, _) = self._durability.checkpoints, slot.log
        taken = size + EACH * entries
        if slot.log_left is None or slot.log_left > taken or not self.enabled or self.active:
            return []
        if checkpoints.pending or checkpoints.in_a_row or checkpoints.trigger_due(now):
            return []
        checkpoints.hurry(now)
        return [HistoryFills(slot.index, taken, taken + slot.log_left)]

    # A worker is lost.

    def refusal(self, cause: Cause, status: JobStatus) -> str | None:
        """The reason why the other workers cannot go on after this failure. Empty where it is not that of one worker, or
        the job replaces none; None where they can go on."""
        slot = cause.worker
        if slot is None or not self._takeovers.enabled:
            return ""
        if cause.alone is not None:
            if self._does_again(slot):
                return "it has failed before it had done all that the worker before it did"
            if self._failures.first(cause) is not None:
                return "a worker has failed in the same way since the newest checkpoint, and was replaced for that"
        return self._takeovers.refusal(slot) or self._out_of_place(slot, status)

    def first_cause(self, cause: Cause) -> Cause:
        """The cause to be reported of a failure that no replacement covers: the first failure of its way, or that for which
        the worker was being replaced."""
        first = self._failures.first(cause)
        if first is not None:
            self._failures.repeat(cause, self._durability.checkpoints.next_id - 1)
            return first
        slot = cause.slot if cause.alone is None else cause.alone
        for one in self._takeovers.active.values():
            if one.failure is not None and (slot == one.slot or (slot is None and cause.kind is FailureKind.WORKER)):
                what = f"{one.failure.message}\nThe worker that was to take its place: {cause.message}"
                return replace(one.failure, kind=cause.kind, slot=cause.slot, message=what)
        return cause

    def _out_of_place(self, slot: int, status: JobStatus) -> str | None:
        if status not in (JobStatus.RUNNING, JobStatus.STOPPING):
            return f"the job is {status}"
        if not self._durability.takes_checkpoints:
            return "the job takes no checkpoints"
        if self._durability.may_be_stopped:
            return "the checkpoint of a stop is being committed"
        if self._durability.may_be_resized:
            return "the checkpoint behind which the job changes its size is being committed"
        others = [one for one in self._roster.slots if one.index != slot and one.index not in self._takeovers.active]
        return None if all(one.connected and one.deployed for one in others) else "another worker is not there"

    def not_replaced(self, cause: Cause, why: str) -> Decisions:
        """Notes that the loss of a worker is not covered."""
        slot = cause.worker
        assert slot is not None
        self._takeovers.failovers.refuse(slot, why)
        return [NotReplaced(slot, why)]

    def begin(self, cause: Cause, now: int, there: bool) -> Decisions:
        """Begins the replacement of a worker that is lost, or has failed. Checkpoints under way are given up, another
        process is started where none is `there`, and what the survivors know is requested."""
        lost = cause.worker
        assert lost is not None
        given_up = self._durability.suspend(f"worker {lost} is being replaced", now)
        decided: Decisions = [
            one for one in given_up if not isinstance(one, StopFailed | RescaleCut)
        ]  # the stop, or the change of size, is begun once more
        if cause.alone is not None:
            self._failures.add(cause, self._durability.checkpoints.next_id - 1)
        if cause.alone is not None or cause.kind is FailureKind.MOVED:
            decided += self._end(lost)
        if lost not in self._takeovers.active:
            decided.append(Replacing(lost, cause))
        for useless in self._takeovers.begin(lost, now):
            decided += [*self._end(useless), *self._roster.replace(useless)]
        if cause.alone is not None:
            self._takeovers.active[lost].failure = cause
        decided += self._roster.replace(lost, there)
        self.hot.note_loss(lost)
        return [*decided, *self.query()]

    def _end(self, index: int) -> Decisions:
        """Ends a worker that lives: nothing that it sends from now on counts."""
        slot = self._roster.slots[index]
        self._roster.lose(index)
        return [CloseLink(index, slot.epoch)]

    def cannot_reach(self, index: int, what: str) -> Decisions | None:
        """Decides what follows when a replacement that still replays cannot reach another worker: the replacement is lost.
        Most likely the other worker is lost as well. None where the worker is no such replacement."""
        if not self._does_again(index):
            return None
        return [*self._end(index), Cause(what, FailureKind.WORKER, slot=index)]

    def cut_off(self, links: Iterable[tuple[int, int]]) -> Decisions:
        """Decides what follows from links that have been closed for a while between workers that live: (the worker that
        reported it, the peer). What went over such a link is lost. A replacement that still replays is replaced once more:
        no worker has received anything from it. Where neither end is one, the worker at one end of all these links is
        replaced; where there is none, all workers start again."""
        links = list(links)
        again = [(slot, peer) for slot, peer in links if self._does_again(slot) or self._does_again(peer)]
        others = [link for link in links if link not in again]
        if others:
            common = set.intersection(*map(set, others))
            alone = min(common, key=lambda end: self._cost(end, links), default=None)
            return [Cause(_link_text(*others[0]), FailureKind.PEER, alone=alone)]
        if not again:
            return []
        # Other replacements that still replay are ended with the first one: their links need nothing more.
        slot, peer = again[0]
        return self.cannot_reach(slot if self._does_again(slot) else peer, _link_text(slot, peer)) or []

    def _cost(self, index: int, broken: list[tuple[int, int]]) -> tuple[bool, int, tuple[int, int, int], int]:
        """The cost of replacing a worker, to be compared with that of the other end of a broken link: whether that is
        possible at all, how many of these links the other one would leave, and how much there is to be done again."""
        refused = self._takeovers.refusal(index) is not None
        return refused, -sum(index in link for link in broken), self._roster.slots[index].log, index

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

    def commit_done(self, checkpoint: int) -> Decisions:
        """Goes on after the commit of a manifest, which may have been on its way when a worker was lost."""
        self._failures.complete(checkpoint)
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
        # A standby may depend on what of another lost worker nobody else knows. And its barriers went behind all that it
        # had made: it does not know what those of the lost worker overtook, which their readers have behind them.
        overtaken = newest is not None and bool(newest[1].in_flight)
        hot = slots[0].hot if len(slots) == 1 and not overtaken else 0
        decided: Decisions = []
        for slot in slots:
            peer = next(one for one in peers if one.slot == slot.index)
            replaced = Replaced(peer, takeovers.checkpoint, takeovers.known_of(slot.index), hot > 0)
            decided += [Tell(replaced, one) for one in takeovers.survivors]
        for slot in slots:
            slot.deployed = True
            takeovers.resumes += 1
            deploy = restored.deploy(plan, peers, claims.deployed, hot or slot.attempt + takeovers.resumes)
            if newest is not None:
                manifest = encode_manifest(msgspec.structs.replace(newest[1], prepared=[]))
                deploy = msgspec.structs.replace(deploy, manifest=manifest, folder="", own=True)
            takeovers.failovers.resumes(slot.index, deploy.attempt)
            decided.append(Tell(takeovers.resume(slot.index, deploy, in_flight, hot), slot.index))
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
        self._nests.note_redone(slot)
        place = self._roster.slots[slot]
        decided: Decisions = [WorkerReplaced(slot, now - active.began_at)]
        decided += [Send(place.index, place.epoch, message) for message in history]
        decided += self._durability.output.worker_replaced(slot, now)
        if not self.active:
            self._roster.standbys.fill_at_last(now + self.limits.calm)
            self._durability.resume()
        return decided


def _link_text(slot: int, peer: int) -> str:
    return f"worker {slot} has lost the connection to worker {peer}, which lives"
