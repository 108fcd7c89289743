"""Standbys: worker processes that are there before they are needed. One takes the slot of a worker that is lost."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.coordinator.actions import CloseLink, Kill, Send, StandbyLost
from tailrace.coordinator.decisions import Decisions
from tailrace.coordinator.places import Place
from tailrace.protocol.standby import StandBy, TakeSlot

TRIES = 3
"""How many starts of a standby in a row may end before it is ready. Then it is left alone until the job starts again."""


@dataclass
class Standby(Place):
    """One of them. `index` counts on behind the slots."""

    ready: bool = False
    """Whether it has read the plan, and imported what that needs."""
    failed: int = 0
    """How many starts in a row have ended before."""


class Standbys:
    """Those of one job.

    Invariant Y6: a process holds one place at a time: a standby that takes a slot is none from then on, and its Spark job is
    the slot's.
    """

    def __init__(self, slots: int, count: int) -> None:
        self.all = [Standby(slots + number) for number in range(count)]

    def fill(self) -> Decisions:
        """All are to be there, while the job runs: Spark is asked for those that are not. Not before: one that waits for a
        task slot in front of a worker might get it."""
        return [act for one in self.all if one.abandoned for act in one.relaunch()]

    def welcome(self, place: Standby, plan: bytes) -> Decisions:
        """It has said hello: it is to get ready."""
        place.ready = False
        return [Send(place.index, place.epoch, StandBy(plan))]

    def is_ready(self, place: Standby) -> None:
        """It can take a slot at once."""
        place.ready, place.failed = True, 0

    def choose(self) -> Standby | None:
        """One that takes a slot: a ready one, where there is one."""
        here = [one for one in self.all if one.connected]
        return max(here, key=lambda one: one.ready, default=None)

    def take(self, place: Standby, slot: Place) -> Decisions:
        """A standby takes a slot, and will say hello for it."""
        assert place.start is not None
        told = Send(place.index, place.epoch, TakeSlot(slot.index))
        place.running.discard(place.start)
        slot.running.add(place.start)
        slot.start, place.start = place.start, None
        place.hello, place.ready = None, False
        return [told]

    def lost(self, place: Standby, what: str, *, again: bool) -> Decisions:
        """One is gone. Nobody depends on it."""
        ready, place.hello, place.ready = place.ready, None, False
        place.failed += not ready
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
