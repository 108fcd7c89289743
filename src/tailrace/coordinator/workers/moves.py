"""Planned moves: workers whose machines are about to go are taken elsewhere before these go.

    reported -> a checkpoint is complete -> standbys hold it -> the workers are replaced -> the next workers
                                      +---------------------> all workers restart

Workers that move are fenced and replaced like lost ones (`replacements`), right behind a checkpoint, so that their
replacements have little to repeat. The workers of as many executors move together as may be lost at once, where there is a
standby for each; the others follow. Where the job replaces no workers, all of them restart behind the checkpoint. A machine
that goes earlier is a loss like any other.
"""

from __future__ import annotations

from collections.abc import Collection

from tailrace.coordinator.decisions import Decisions
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.job.attempts import Attempts
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.workers.places import Start
from tailrace.coordinator.workers.replacements import Replacements
from tailrace.coordinator.workers.roster import Roster, Slot
from tailrace.protocol.deployment import FailureKind


class Moves:
    """The bookkeeping of one job's planned moves; the coordinator carries out what follows while the job is RUNNING.

    Invariant Y12: a worker that moves is replaced only behind a checkpoint that was triggered after the report, and only
    when a standby on another machine holds its state as of that checkpoint, or the limit `move` has passed.
    """

    def __init__(
        self,
        limits: Limits,
        roster: Roster,
        attempts: Attempts,
        durability: Durability,
        replacements: Replacements,
        may_restart: bool,
    ) -> None:
        """`may_restart`: True if the restart strategy allows restarts at all."""
        self._limits = limits
        self._roster = roster
        self._attempts = attempts
        self._durability = durability
        self._replacements = replacements
        self._may_restart = may_restart
        self._leaving: set[Start] = set()
        """Starts of slots whose machines are about to go."""
        self._room = True
        """True if there are task slots on other machines, as far as is known."""
        self._waits_in: int | None = None
        """The attempt of the job in which the wait for the next move has begun; None where it has not."""
        self._until = 0
        """The time at which that wait ends (int64 microseconds)."""
        self._after = 0
        """The first checkpoint that was triggered in that wait, or is to be."""
        self._rounds = 0
        """The number of checkpoints that the standby has yet to hold. The first one may take long to read; behind the last
        one there is little to repeat."""

    def report(self, launches: Collection[Start], room: bool = True) -> Decisions:
        """Takes the report that the machines of these starts are about to go. It may come again and again. Standbys among
        them are started elsewhere at once. A start that is not the current one of its place is over. `room`: False where
        nobody knows whether Spark has task slots on other machines. Then a worker moves only where a standby is for it: it
        is better off on its machine, for as long as that is there."""
        durability, replaces = self._durability, self._replacements.enabled
        if not durability.takes_checkpoints or not (self._may_restart or replaces):
            return []
        if not room and not (replaces and self._roster.standbys.replicas):
            return []
        self._room = room
        current = {slot.start for slot in self._roster.connected}
        self._leaving = {start for start in (*self._leaving, *launches) if start in current}
        return self._roster.move_standbys(launches)

    @property
    def _next(self) -> list[Slot]:
        """The slots whose workers move next: those in as many executors as may be lost at once."""
        if not self._leaving or self._replacements.active:
            return []
        leaving = [slot for slot in self._roster.connected if slot.start in self._leaving]
        return self._replacements.at_once(leaving)

    @property
    def _waiting(self) -> bool:
        return self._waits_in == self._attempts.restarts

    @property
    def due_at(self) -> int | None:
        """The time at which `advance` has something to do: 0 for at once; None for never, as things stand."""
        slots = self._next
        if not slots:
            return None
        return self._until if self._waiting and not self._has_come(slots) else 0

    def advance(self, now: int) -> Decisions:
        """Begins the wait for the next move, requests another checkpoint, or moves workers."""
        slots = self._next
        assert slots
        if not self._waiting:
            return self._begin(slots, now)
        if now < self._until and self._rounds > 1:
            self._rounds -= 1
            self._after = self._durability.checkpoints.hurry(now)
            return []
        self._waits_in = None
        covered = self._replaceable(slots)
        if covered:
            moved = self._with_standbys(covered) or (covered[:1] if self._room else [])
            self._leaving -= {slot.start for slot in moved}
            return [_cause_of(slot) for slot in moved]
        if not self._room:
            return []
        leaving, self._leaving = self._leaving, set()
        return self._roster.move(leaving) if self._may_restart else []

    def _begin(self, slots: list[Slot], now: int) -> Decisions:
        standbys, newest = self._roster.standbys, self._newest
        held = all(standbys.has_state(slot.index, max(1, newest)) for slot in slots)
        self._waits_in = self._attempts.restarts
        self._until = now + self._limits.move
        self._after = self._durability.checkpoints.hurry(now)
        self._rounds = 1 if not standbys.replicas or held else 2
        return standbys.fill() if self._replacements.enabled else []

    def _replaceable(self, slots: list[Slot]) -> list[Slot]:
        """The slots whose workers can be replaced alone."""
        if not self._replacements.enabled:
            return []
        return [slot for slot in slots if self._replacements.refusal(_cause_of(slot), JobStatus.RUNNING) is None]

    def _with_standbys(self, slots: list[Slot]) -> list[Slot]:
        """The slots for which a standby is there that holds their state as of the checkpoint, a standby for each; all of
        them where the job has no standbys."""
        standbys = self._roster.standbys
        if not standbys.replicas:
            return slots
        found = standbys.takers([slot.index for slot in slots], self._after)
        return [slot for slot in slots if slot.index in found]

    def _has_come(self, slots: list[Slot]) -> bool:
        """True if the wait is over before its time: what it is for has come, or never will."""
        if not self._replacements.enabled:
            checkpoints = self._durability.checkpoints
            failed = checkpoints.next_id > self._after and max(checkpoints.pending, default=0) < self._after
            return failed or self._newest >= self._after
        covered = self._replaceable(slots)
        if self._durability.committing or not covered or self._newest < self._after:
            return False
        ready = self._with_standbys(covered)
        awaited = self._roster.standbys.reading(self._after)
        return bool(ready) and all(slot in ready or slot.index not in awaited for slot in covered)

    @property
    def _newest(self) -> int:
        newest = self._durability.newest
        return 0 if newest is None else newest[0]


def _cause_of(slot: Slot) -> Cause:
    what = f"the executor of worker {slot.index} is about to go, and its slot moves to another one"
    return Cause(what, FailureKind.MOVED, slot=slot.index)
