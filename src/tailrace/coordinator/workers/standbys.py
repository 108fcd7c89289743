"""Standbys: worker processes that are there before they are needed. One takes the slot of a worker that is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tailrace.coordinator.actions import CloseLink, Kill, Send, StandbyLost
from tailrace.coordinator.decisions import Decisions
from tailrace.coordinator.workers.places import WorkerPlace, executor_of
from tailrace.coordinator.workers.standby_placement import Executor, deal
from tailrace.protocol.standby import Hold, StandBy, StateHeld, TakeSlot

TRIES = 3
"""How many starts of a standby in a row may end before it is ready. Then it is left alone until the job starts again."""
REMEMBERED = 100
"""Checkpoints by whose ages it is said how far a standby is behind."""


@dataclass
class Standby(WorkerPlace):
    """One of them. `index` counts on behind the slots."""

    ready: bool = False
    """Whether it has read the plan, and imported what that needs."""
    slots: list[int] = field(default_factory=list)
    """The slices whose state it was told to hold."""
    told: int = 0
    """As of which checkpoint."""
    holding: list[int] = field(default_factory=list)
    """Those whose state it holds."""
    held: int = 0
    """As of which checkpoint."""
    failed: int = 0
    """How many starts in a row have ended before."""


class Standbys:
    """Those of one job.

    Invariant Y6: a process holds one place at a time: a standby that takes a slot is none from then on, and its Spark job is
    the slot's.
    """

    def __init__(self, slots: int, count: int, replicas: int = 1) -> None:
        """Each slice has so many replicas, as far as there are processes (`dealing`)."""
        self.all = [Standby(slots + number) for number in range(count)]
        self.replicas = min(replicas, count)
        self._most = -(-slots * self.replicas // max(1, count))
        """How many slices one of them mirrors at most: its memory is not to grow where others are missing."""
        self.complete: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        """The last checkpoints that were complete: (number, when that was heard)."""
        self.fill_at: int | None = None
        """When those that are not there are asked for, where that has to wait (int64 microseconds)."""

    def fill(self) -> Decisions:
        """All are to be there, while the job runs: Spark is asked for those that are not. Not before: one that waits for a
        task slot in front of a worker might get it."""
        self.fill_at = None
        return [act for one in self.all if one.abandoned for act in one.relaunch()]

    def fill_at_last(self, at: int) -> None:
        """The same, at a time."""
        if any(one.abandoned for one in self.all):
            self.fill_at = at

    def welcome(self, place: Standby, plan: bytes) -> Decisions:
        """It has said hello: it is to get ready."""
        _empty(place)
        return [Send(place.index, place.epoch, StandBy(plan))]

    def is_ready(self, place: Standby) -> None:
        """It can take a slot at once."""
        place.ready, place.failed = True, 0

    def hold(
        self, checkpoint: int, manifest: Callable[[], bytes], homes: Sequence[Executor | None], now: int
    ) -> Decisions:
        """This checkpoint is the newest complete one: those that are ready read it. `homes`: where the workers run. Slices
        are dealt here and not before, so that all count that have come by then."""
        if not self.complete or self.complete[-1][0] != checkpoint:
            self.complete.append((checkpoint, now))
        here = {one.index: one for one in self.all if one.ready and one.hello is not None}
        executors = {index: executor_of(one.hello) for index, one in here.items() if one.hello is not None}
        dealt = deal(executors, {index: one.slots for index, one in here.items()}, homes, self.replicas, self._most)
        news = [
            one
            for index, one in here.items()
            if (one.slots or dealt[index]) and (one.told, one.slots) != (checkpoint, dealt[index])
        ]
        for one in news:
            one.told, one.slots = checkpoint, dealt[one.index]
            one.holding = [slot for slot in one.holding if slot in one.slots]
        data = manifest() if any(one.slots for one in news) else b""
        return [Send(one.index, one.epoch, Hold(checkpoint, data, one.slots)) for one in news]

    def holds(self, place: Standby, said: StateHeld) -> None:
        """It has read it; perhaps before it has heard that some of these slices are dealt to another one."""
        place.held, place.holding = said.checkpoint, [slot for slot in said.slots if slot in place.slots]

    def behind(self, place: Standby) -> tuple[int, int]:
        """How many checkpoints, and how many microseconds, what it holds is older than the newest complete one."""
        complete, held = [*self.complete], place.held
        newer = [at for number, at in complete if number > held]
        since = next((at for number, at in complete if number == held), newer[0] if newer else 0)
        return len(newer), (newer[-1] - since if newer else 0)

    def choose(self, slot: int) -> Standby | None:
        """One that takes a slot: one that holds its state, if there is one, or at least one that is ready."""
        here = [one for one in self.all if one.connected]
        return max(here, key=lambda one: (one.ready, slot in one.holding, one.held), default=None)

    def take(self, place: Standby, slot: WorkerPlace) -> Decisions:
        """A standby takes a slot, and will say hello for it."""
        assert place.start is not None
        told = Send(place.index, place.epoch, TakeSlot(slot.index))
        place.running.discard(place.start)
        slot.running.add(place.start)
        slot.start, place.start = place.start, None
        place.hello = None
        _empty(place)
        return [told]

    def lost(self, place: Standby, what: str, *, again: bool) -> Decisions:
        """One is gone. Nobody depends on it."""
        place.failed += not place.ready
        place.hello = None
        _empty(place)
        left = place.failed >= TRIES
        decided: Decisions = [StandbyLost(place.index, what, left)]
        return [*decided, *(place.relaunch() if again and not left else place.kill())]

    def dismiss(self) -> list[Kill]:
        """The job is over: those that still wait for a task slot are not wanted any more."""
        return [kill for one in self.all if not one.connected for kill in one.kill()]

    def replace_silent(self, now: int, lease: int) -> Decisions:
        """One has not been heard for `lease`."""
        silent = next((one for one in self.all if one.connected and one.silent_at(lease) <= now), None)
        if silent is None:
            return []
        what = f"it has given no sign of life for {(now - silent.heard_at) / 1e6:.0f} s"
        return [CloseLink(silent.index, silent.epoch), *self.lost(silent, what, again=True)]


def _empty(place: Standby) -> None:
    """Who holds the place now, if anybody, has nothing yet."""
    place.ready, place.slots, place.told, place.holding, place.held = False, [], 0, [], 0
