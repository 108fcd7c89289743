"""The task slots that jobs of this process reserve of those that Spark has."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tailrace.errors import SlotsError
from tailrace.spark.cluster.application import Application
from tailrace.spark.cluster.capacity import is_dynamic, is_fixed, may_give, share_of

SETTLE_SECONDS = 15.0
"""Seconds after the start of a session in which executors of a cluster may still be on their way."""
_taken: dict[str, tuple[int, Fraction]] = {}
"""Slots held by running jobs of this process, by job tag: the number of slots, and the share of a core that each takes."""
_lock = threading.Lock()


@dataclass(frozen=True)
class _SlotRequest:
    """The slots that a job requests, and the application that is to give them."""

    app: Application
    slots: int
    cpus: float | None = None
    """The share of a core that each slot takes; None for the share in Spark's settings."""
    profile: Any = None
    """Spark's resource profile for `cpus`; None for the default profile."""

    @property
    def share(self) -> Fraction:
        return share_of(self.app.setting, self.cpus)

    @property
    def dynamic(self) -> bool:
        return is_dynamic(self.app.master, self.app.setting)

    @property
    def most(self) -> int | None:
        return may_give(self.app.master, self.app.setting, self.share)

    def there(self) -> int | None:
        """Number of slots on the executors that are there; None where Spark does not report it."""
        return self.app.total_slots(self.profile)

    def total(self, patience: float) -> int | None:
        """Number of slots that the application may have; None where Spark does not report it. The executors of a cluster
        may still be on their way: this waits up to `patience` seconds for as many as are needed. It does not wait for
        executors that Spark starts only once tasks wait for them."""
        if is_fixed(self.app.master):
            return self.there()
        most = self.most
        if self.dynamic or (most is not None and most < self.slots):
            return most
        there = self.there()
        deadline = time.monotonic() + patience
        while there is not None and there < self.slots and time.monotonic() < deadline:
            time.sleep(0.2)
            there = self.there()
        return there if most is None or (there is not None and there < self.slots) else max(there or 0, most)

    def may_be_more(self) -> bool:
        """True while there may be more slots than the executors report. The executors of a cluster come one after another,
        and no setting may give their number."""
        if is_fixed(self.app.master) or self.most is not None:
            return False
        return time.time() < self.app.started + SETTLE_SECONDS


def take_slots(
    app: Application,
    needed: int,
    name: str,
    tag: str,
    patience: float = 0.0,
    cpus: float | None = None,
    profile: Any = None,
    beside: int = 0,
    standbys: int = 0,
) -> str | None:
    """Takes slots for a job until `give_back`. Raises `SlotsError`, with the numbers, when there are too few. Returns a
    warning when it takes the last free slot or finds too few for the standbys, else None. Slots that Spark has not given
    yet count too: the job then waits for them when it starts its workers. `cpus` is the share of a core that each slot
    takes, by the resource profile `profile`. `beside` of the slots are for tasks other than workers. Up to `standbys` more
    slots are taken, as far as there are free ones."""
    request = _SlotRequest(app, needed, cpus, profile)
    total, share = request.total(patience), request.share
    with _lock:  # one lock to check and to take, for jobs that start at once
        taken = math.ceil(sum(slots * each for slots, each in _taken.values()) / share)
        enough = total is None or needed <= total - taken
        if enough:
            room = standbys if total is None else min(standbys, total - taken - needed)
            _taken[tag] = (needed + room, share)
    if not enough:
        others = f", {taken} of them taken by running jobs" if taken else ""
        has = "gives at most" if request.dynamic else "has"
        parts = f"its largest parallelism is {needed - beside}"
        if beside:
            parts += f", and {beside} are for its coordinator and for what that says to this program"
        raise SlotsError(
            f"job {name!r} needs {needed} task slots ({parts}), and Spark {has} {total}{others} "
            f"(master {app.master}); lower the parallelism, or start the session with more"
            + (f": {app.start_with(needed + taken + 1)}" if app.is_local else "")
        )
    if room < standbys and not request.may_be_more():
        return (
            f"job {name!r} takes all free task slots of Spark (master {app.master}), and has {room} of {standbys} standbys: "
            f"the others start when slots are free; start the session with {standbys - room} more, or set replicas=0"
        )
    if total is not None and needed + room == total - taken and not request.may_be_more():
        return (
            f"job {name!r} takes all {needed + room} free task slots of Spark (master {app.master}): other queries of this "
            f"session wait until it ends"
        )
    return None


def free_slots(app: Application, tag: str, most: int, patience: float, cpus: float | None, profile: Any) -> int | None:
    """The number of slots that a job may have: those that it holds, and free ones. None where Spark does not report it.
    Waits up to `patience` seconds for `most`. Without dynamic allocation only slots on executors count that are
    there."""
    request = _SlotRequest(app, most, cpus, profile)
    total = request.total(patience)
    total = total if request.dynamic else request.there()
    with _lock:
        others = sum(slots * each for one, (slots, each) in _taken.items() if one != tag)
    return None if total is None else max(0, total - math.ceil(others / request.share))


def hold_slots(app: Application, tag: str, needed: int, name: str, profile: Any = None) -> None:
    """Makes a job that has slots hold this number of them. Raises `SlotsError`, with the numbers, when there are too few:
    the job then holds what it held. A job that is over holds none."""
    with _lock:
        if tag not in _taken:
            return  # the job is over
        held, share = _taken[tag]
    cpus = None if is_fixed(app.master) else float(share)
    request = _SlotRequest(app, needed, cpus, profile)
    total = request.total(0.0)
    with _lock:
        others = math.ceil(sum(slots * each for one, (slots, each) in _taken.items() if one != tag) / share)
        enough = needed <= held or total is None or needed <= total - others
        if enough and tag in _taken:
            _taken[tag] = (needed, share)
    if not enough:
        beside = f", {others} of them taken by other running jobs" if others else ""
        has = "gives at most" if request.dynamic else "has"
        raise SlotsError(
            f"job {name!r} would need {needed} task slots, and Spark {has} {total}{beside} (master {app.master}); the job "
            f"goes on with what it has: ask for fewer, or start the session with more"
        )


def have_room(app: Application, tag: str, profile: Any = None, least: int | None = None) -> bool:
    """True where the executors that stay have slots for all jobs of this process, or Spark may start more executors. `tag`
    is the tag under which the requesting job took its slots, `least` the number of these without which it cannot go on
    (None: all)."""
    if is_dynamic(app.master, app.setting):
        return True
    with _lock:
        share = _taken[tag][1] if tag in _taken else share_of(app.setting, None)
        mine, each = _taken.get(tag, (0, share))
        spared = 0 if least is None else max(0, mine - least) * each
        needed = math.ceil((sum(slots * each for slots, each in _taken.values()) - spared) / share)
    there = app.total_slots(profile)
    return there is None or needed <= there


def give_back(tag: str) -> None:
    """Frees the slots that were taken under this tag."""
    with _lock:
        _taken.pop(tag, None)
