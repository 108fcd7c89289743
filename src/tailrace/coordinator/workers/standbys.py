"""Standbys: worker processes that are there before they are needed. One takes the slot of a worker that is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tailrace.coordinator.actions import CloseLink, Kill, Send, StandbyLost
from tailrace.coordinator.decisions import Decisions
from tailrace.coordinator.workers.places import WorkerPlace, executor_of
from tailrace.coordinator.workers.silence import declared_lost
from tailrace.coordinator.workers.standby_placement import Executor, deal
from tailrace.protocol.standby import Hold, StandBy, StateHeld

TRIES = 3
"""The starts of a standby in a row that may end before it is ready. Then it is left alone until the job starts again."""
REMEMBERED = 100
"""The number of checkpoints whose ages are known, to report how far a standby is behind."""


@dataclass
class Standby(WorkerPlace):
    """A process that stands by. `index` counts on behind the slots."""

    ready: bool = False
    """True if it has read the plan, and imported what the plan needs."""
    slots: list[int] = field(default_factory=list)
    """The slices whose state it is to hold, by the last `Hold`."""
    sent: int = 0
    """The checkpoint of the last `Hold`."""
    holding: list[int] = field(default_factory=list)
    """The slices whose state it holds."""
    held: int = 0
    """The checkpoint as of which it holds their state."""
    follows: int | None = None
    """The slice whose worker it is to follow, as a hot standby; None while it follows none."""
    follows_from: int = 0
    """The checkpoint with which that begins."""
    attempt: int = 0
    """The attempt as which it follows the worker; 0 before the worker feeds it."""
    failed: int = 0
    """The number of starts in a row that have ended before it was ready."""

    def follow_none(self) -> None:
        """Notes that it follows no worker."""
        self.follows, self.follows_from, self.attempt = None, 0, 0

    def attempt_of(self, slot: int) -> int:
        """The attempt as which it follows the worker of this slice; 0 if it does not."""
        return self.attempt if self.follows == slot else 0


class Standbys:
    """The standbys of one job.

    Invariant Y6: a process holds one place at a time: a standby that takes a slot is none from then on, and its Spark job
    is the slot's.
    """

    def __init__(self, slots: int, count: int, replicas: int = 1, first: int | None = None) -> None:
        """`replicas`: the replicas of each slice, as far as there are processes (`standby_placement`). `first`: the number
        of the first place; None: the one behind the slots."""
        self.all = [Standby((slots if first is None else first) + number) for number in range(count)]
        self.chosen, self.replicas = replicas, min(replicas, count)
        self._most = -(-slots * self.replicas // max(1, count))
        """The most slices that one standby mirrors: its memory is not to grow where other standbys are missing."""
        self.complete: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        """The last checkpoints that were complete: (number, time at which the standbys' bookkeeping learned of it)."""
        self.fill_at: int | None = None
        """The time at which missing standbys are to be started, where that has to wait (int64 microseconds)."""

    def has(self, index: int) -> bool:
        """True if a standby has the place of this number."""
        return bool(self.all) and 0 <= index - self.all[0].index < len(self.all)

    def at(self, index: int) -> Standby:
        """The standby of this place."""
        return self.all[index - self.all[0].index]

    def fill(self) -> Decisions:
        """Asks Spark for all standbys that are not there. The coordinator calls it while the job runs, not before: a
        standby that waits for a task slot in front of a worker might get it."""
        self.fill_at = None
        return [act for one in self.all if one.abandoned for act in one.relaunch()]

    def fill_at_last(self, at: int) -> None:
        """Refills abandoned standby places at `at`."""
        if any(one.abandoned for one in self.all):
            self.fill_at = at

    def welcome(self, place: Standby, plan: bytes) -> Decisions:
        """Sends the plan to a standby that has joined, so that it gets ready."""
        _empty(place)
        return [Send(place.index, place.epoch, StandBy(plan))]

    def is_ready(self, place: Standby) -> None:
        """Notes that a standby can take a slot at once."""
        place.ready, place.failed = True, 0

    def hold(
        self, checkpoint: int, manifest: Callable[[], bytes], homes: Sequence[Executor | None], now: int
    ) -> Decisions:
        """Makes ready standbys read this checkpoint, the newest complete one. `homes`: where the workers run. The slices
        are placed now, so that all standbys that have come by now count."""
        if not self.complete or self.complete[-1][0] != checkpoint:
            self.complete.append((checkpoint, now))
        here = {one.index: one for one in self.all if one.ready and one.hello is not None}
        executors = {index: executor_of(one.hello) for index, one in here.items() if one.hello is not None}
        followed = {index: one.follows for index, one in here.items() if one.follows is not None}
        slots = {index: one.slots for index, one in here.items()}
        dealt = deal(executors, slots, homes, self.replicas, self._most, followed)
        news = [
            one
            for index, one in here.items()
            if (one.slots or dealt[index]) and (one.sent, one.slots) != (checkpoint, dealt[index])
            if one.follows is None or one.attempt  # else it is about to begin with the checkpoint that it holds
        ]
        for one in news:
            one.sent, one.slots = checkpoint, dealt[one.index]
            one.holding = [slot for slot in one.holding if slot in one.slots]
        data = manifest() if any(one.slots for one in news) else b""
        return [Send(one.index, one.epoch, Hold(checkpoint, data, one.slots)) for one in news]

    def holds(self, place: Standby, report: StateHeld) -> None:
        """Notes the slices that a standby has read. Some may have been given to another standby meanwhile: they do not
        count."""
        place.held, place.holding = report.checkpoint, [slot for slot in report.slots if slot in place.slots]

    def has_state(self, slot: int, checkpoint: int) -> bool:
        """True if a standby that is ready holds the state of this slice as of this checkpoint, or of a newer one; or has
        reported without it, since a function of the slice cannot be copied: there is nothing to wait for."""
        here = [one for one in self.all if one.connected and one.ready and one.held >= checkpoint]
        return any(slot in one.holding or (slot in one.slots and one.held == one.sent) for one in here)

    def takers(self, slots: Sequence[int], checkpoint: int) -> set[int]:
        """The slots of these for which there is a standby with their state as of this checkpoint (as `has_state`), a
        standby for each of them. Of several it is one that holds the slot's state, and few others."""
        here = [one for one in self.all if one.connected and one.ready and one.held >= checkpoint]
        found = set[int]()
        for slot in slots:
            fit = [one for one in here if slot in one.slots]
            if fit:
                here.remove(min(fit, key=lambda one: (slot not in one.holding, len(one.holding))))
                found.add(slot)
        return found

    def reading(self, checkpoint: int) -> set[int]:
        """The slots whose state standbys have yet to read as of this checkpoint."""
        here = [one for one in self.all if one.connected and one.ready and one.held < checkpoint]
        return {slot for one in here for slot in one.slots}

    def behind(self, place: Standby) -> tuple[int, int]:
        """The checkpoints, and the microseconds, by which its state is older than the newest complete checkpoint."""
        complete, held = [*self.complete], place.held
        newer = [at for number, at in complete if number > held]
        since = next((at for number, at in complete if number == held), newer[0] if newer else 0)
        return len(newer), (newer[-1] - since if newer else 0)

    def choose(self, slot: int, left: Executor | None = None) -> Standby | None:
        """The standby that is to take a slot; None where none is connected. A standby that is ready comes first, then one
        in another executor than `left`, which may be lost as a whole, then one that holds the slot's state, then the newest
        state, then one that holds few others."""
        here = [(one, executor_of(one.hello)) for one in self.all if one.hello is not None]
        ranks = [
            ((one.ready, home != left, slot in one.holding, one.held, -len(one.holding)), one) for one, home in here
        ]
        return max(ranks, key=lambda rank: rank[0])[1] if ranks else None

    def take(self, place: Standby, slot: WorkerPlace) -> Decisions:
        """Sends a standby to take a slot. The standby will send `Hello` for it."""
        order = place.hand_over(slot)
        _empty(place)
        return [order]

    def lose(self, place: Standby, what: str, *, again: bool) -> Decisions:
        """Decides what follows when a standby is gone. No worker depends on it."""
        place.failed += not place.ready
        place.hello = None
        _empty(place)
        left = place.failed >= TRIES
        decided: Decisions = [StandbyLost(place.index, what, left)]
        return [*decided, *(place.relaunch() if again and not left else place.kill())]

    def dismiss(self) -> list[Kill]:
        """Ends standbys that still wait for a task slot: the job is over."""
        return [kill for one in self.all if not one.connected for kill in one.kill()]

    def replace_silent(self, now: int, lease: int) -> Decisions:
        """Replaces the first standby that has given no sign of life for `lease`."""
        for place, why in declared_lost(self.all, now, lease):
            return [CloseLink(place.index, place.epoch), *self.lose(place, f"it {why}", again=True)]
        return []


def _empty(place: Standby) -> None:
    """Notes that the process in the place, if there is one, holds nothing yet."""
    place.ready, place.slots, place.sent, place.holding, place.held = False, [], 0, [], 0
    place.follow_none()
