"""Faults as data: what happens to a simulated job, and when."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from tailrace.testing.clocks import HOURS

MS = 1_000

Kind = Literal[
    "kill",
    "respawn",
    "move",
    "freeze",
    "cut-link",
    "delay",
    "checkpoint",
    "crash-driver",
    "freeze-driver",
    "lose-coordinator",
    "storage",
    "hang",
    "jump-clock",
]


@dataclass(frozen=True)
class Fault:
    """A fault at the turn `turn` of a simulation, or so many turns after the first line of the trace that has `after` in
    it:

    - `kill`: a worker's process dies;
    - `respawn`: as `kill`, and Spark starts the worker again by itself, without a report to the driver;
    - `move`: a worker's machine is about to go, and the driver moves the worker elsewhere, where it can;
    - `freeze`: a worker's process does nothing for `duration` microseconds;
    - `cut-link`: the connection of a worker to another one (`other`) breaks;
    - `delay`: one link is slower by `duration` microseconds;
    - `checkpoint`: the user requests a checkpoint;
    - `crash-driver`: the driver dies, and another one goes on from the newest checkpoint;
    - `freeze-driver`: the driver does nothing for `duration` microseconds, is taken for dead, and another one goes on; then
      it wakes up, and its workers are still there;
    - `lose-coordinator`: the coordinator's process alone dies, as an executor's may; after `duration` microseconds its
      program, which lives, starts another one, and the same run goes on from its newest checkpoint;
    - `storage`: for `duration` turns each operation on the storage of checkpoints goes wrong with probability `chance`, as
      `outcome` says: it is refused, or there is no answer, and it was done or was not; and each takes `slow` microseconds
      longer;
    - `hang`: for `duration` microseconds the storage of checkpoints does not answer;
    - `jump-clock`: the wall clock of a machine is set ahead by `duration` microseconds, or back where that is negative:
      with `which` 0 the clock of the driver, and of all drivers that follow it; else the clock of a worker, and of all
      workers that are started in its place.

    `which` chooses among the workers or links that there are, by remainder.
    """

    turn: int
    kind: Kind
    which: int = 0
    other: int = 0
    duration: int = 0
    after: str = ""
    chance: float = 0.0
    outcome: Literal["error", "unknown-done", "unknown-not-done", "any"] = "error"
    only: str = ""
    """With `storage`: only operations with this text in their name or in the names of their files go wrong."""
    slow: int = 0


WEIGHTS: dict[str, int] = {
    "kill": 6,
    "respawn": 2,
    "freeze": 3,
    "cut-link": 3,
    "delay": 4,
    "checkpoint": 2,
    "crash-driver": 4,
    "freeze-driver": 2,
    "storage": 4,
}
ANCHORS = (
    "commit 1",
    "commit 2 done",
    "claim",
    "Reset",
    "read state",
    "Publish",
    "SubtasksFinished",
    "FINISHING",
    "Deployed",
    "Complete 1",
    "Abort",
)
"""Moments that a turn chosen at random would seldom hit."""
LOOP_ANCHORS = (
    "Quiet",
    "StartWave",
    "WaveReport",
    "Advance",
    "CallFinish",
    "Release",
    "EndLoop",
    "ended a loop",
    "commit 3 done",
)
"""Moments in the life of a loop that a turn chosen at random would seldom hit."""


def drawn_faults(rng: random.Random, checkpointing: bool) -> tuple[Fault, ...]:
    """Draws the faults of a job."""
    kinds = [kind for kind in WEIGHTS if checkpointing or kind not in ("crash-driver", "freeze-driver", "storage")]
    found: list[Fault] = []
    turn = 0
    for _ in range(rng.choice([0, 1, 2, 2, 3, 4, 6])):
        kind: Any = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        near = bool(found) and rng.random() < 0.5  # in the middle of the recovery from the one before
        turn = turn + rng.randint(0, 120) if near else rng.randint(1, rng.choice([100, 400, 1000]))
        after = rng.choice(ANCHORS) if rng.random() < 0.3 else ""
        fault = Fault(
            rng.randint(0, 30) if after else turn,
            kind,
            which=rng.randint(0, 5),
            other=rng.randint(0, 5),
            duration=rng.choice([2, 20, 90, 250]) * MS,
            after=after,
        )
        if kind == "storage":
            chance, outcome = rng.choice([0.02, 0.1, 0.5, 1.0]), rng.choice(["error", "unknown-done", "any", "any"])
            fault = replace(fault, duration=rng.choice([20, 100, 400]), chance=chance, outcome=outcome)  # type: ignore[arg-type]
        if kind in ("kill", "cut-link") and rng.random() < 0.3:  # something is still under way when all start again
            found.append(replace(fault, kind="delay", turn=max(0, fault.turn - 10), which=rng.randint(0, 20)))
        found.append(fault)
        if kind == "kill" and rng.random() < 0.3:  # several at once
            found.append(replace(fault, which=fault.which + 1))
    return tuple(found)


NEW_DRIVERS = frozenset({"crash-driver", "freeze-driver"})
"""Faults after which another driver goes on, with a clock of its own."""


def drawn_jumps(rng: random.Random, again: bool, by_the_clock: bool = False) -> tuple[Fault, ...]:
    """Draws how wall clocks are set while a job runs. A new driver begins with the new time after a jump. Where another
    driver goes on with the job (`again`), the driver's clock is not set back: waits would last for hours, with a
    checkpoint in each millisecond. Where results also depend on the time from one driver to the next (`by_the_clock`), it
    is not set at all."""
    if rng.random() >= 0.35:
        return ()
    found = []
    for _ in range(rng.choice([1, 2, 2, 4])):
        which = rng.choice([0, 0, 1, 2, 3, 4])
        back = rng.random() < 0.5 and not (again and which == 0)
        hours = rng.choice([1, 3, 7, 30]) * HOURS
        fault = Fault(rng.choice([1, rng.randint(1, 60), rng.randint(1, 600)]), "jump-clock", which)
        if which or not (again and by_the_clock):
            found.append(replace(fault, duration=-hours if back else hours))
    return tuple(found)


def jumps(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """The jumps of clocks among the faults of a job."""
    return tuple(fault for fault in faults if fault.kind == "jump-clock")


def calm_clocks(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """The faults of a job without jumps of clocks."""
    return tuple(fault for fault in faults if fault.kind != "jump-clock")


def drawn_outages(rng: random.Random) -> tuple[Fault, ...]:
    """Draws a long outage of the storage of checkpoints: away, refusing writes, slow, hanging, coming and going; often
    none."""
    turn = rng.randint(1, 600)
    match rng.choice(["slow"] + ["none"] * 11 + ["away", "full", "hanging", "flapping"]):
        case "slow":
            chance, slow = rng.choice([0.0, 0.05]), rng.choice([1, 5, 20]) * MS
            return (Fault(turn, "storage", duration=rng.choice([1_000, 4_000]), chance=chance, slow=slow),)
        case "away":
            return (Fault(turn, "storage", duration=rng.choice([1_000, 4_000]), chance=1.0),)
        case "full":
            only = rng.choice(["append", "create", "close"])
            return (Fault(turn, "storage", duration=rng.choice([1_000, 4_000]), chance=1.0, only=only),)
        case "hanging":
            return (Fault(turn, "hang", duration=rng.choice([20, 200, 2_000]) * MS),)
        case "flapping":
            outcome: Any = rng.choice(["error", "any"])
            turns = range(turn, turn + 2_000, 200)
            return tuple(Fault(at, "storage", duration=100, chance=1.0, outcome=outcome) for at in turns)
    return ()
