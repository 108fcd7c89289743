"""Faults of simulated jobs, drawn from a seed, and moments at which they strike."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tailrace.testing.clocks import HOURS
from tailrace.testing.faults import Fault

MS = 1_000

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
