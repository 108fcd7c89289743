"""Bugs to be planted in clocks: a process waits by a wall clock, which a fault sets; or event time goes on by the clock
where it should not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from search.planted.ordering import alone
from search.planted.patches import RANDOM, Bug, Patches, method
from search.scenarios import Scenario
from tailrace.runtime.eventloop.clock import JobClock
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.testing.clocks import HOURS
from tailrace.testing.faults import Fault
from tailrace.testing.world import Driver


def _by_its_own_machine() -> Patches:
    """Bug: a worker does not take over the clock of its driver."""
    return [method(JobClock, "follow", lambda follow: lambda self, now: None)]


def _by_the_wall() -> Patches:
    """Bug: a job goes by the wall clock of its driver throughout."""
    return [method(JobClock, "__init__", lambda init: lambda self, wall, steady: init(self, wall, wall))]


def _coordinator_by_the_wall() -> Patches:
    """Bug: a coordinator measures by the wall clock how long workers take."""
    return [method(Driver, "now", lambda now: lambda self: self.clocks.wall())]


def _beside_others() -> Patches:
    """Bug: event time goes on by the clock as soon as one split of several is silent."""

    def make(silence: Any) -> Any:
        def hasty(self: TimestampsTask, splits: list[int], now: int) -> None:
            silence(self, splits, now)
            if splits and self.spec.when_all_idle == "advance" and not self.idle:
                newest = max(self.largest.values()) - self.spec.out_of_orderness - 1
                self.idle_since, self.idle_from, self.moved_at = now, newest, now - self._move
                self.move_by_the_clock(now)

        return hasty

    return [method(TimestampsTask, "_silence", make)]


def _set_while_workers_come_and_go(made: Scenario) -> Scenario:
    """A scenario in which clocks of workers are set, and the workers are lost after that."""
    rng, faults = random.Random(f"tailrace clocks {made.seed}"), []
    for turn in (20, 100, 300):
        which, hours = rng.randint(0, 2), rng.choice([-5, 3]) * HOURS
        faults += [Fault(turn, "jump-clock", which + 1, duration=hours), Fault(turn + 10, "kill", which)]
    return replace(made, faults=tuple(faults))


CLOCK_BUGS = (
    Bug("a worker goes by the clock of its machine", "counted", _by_its_own_machine, _set_while_workers_come_and_go),
    Bug("a job goes by the wall clock of its driver", RANDOM, _by_the_wall, seed=1),
    Bug(
        "event time goes on beside a split that gives",
        RANDOM,
        _beside_others,
        seed=8,
        shape=alone("tumbling", "in order", splits=3, goes_on=True, falls_silent=True, endless=True, pace=0),
    ),
    Bug("a coordinator waits by the wall clock", "counted", _coordinator_by_the_wall, seed=5),
)
