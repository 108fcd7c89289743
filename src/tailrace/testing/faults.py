"""Faults as data: what befalls a simulated job, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

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
]


@dataclass(frozen=True)
class Fault:
    """At the turn `turn` of a simulation, or so many turns after the first line of the trace that has `after` in it:

    - `kill`: a worker's process dies;
    - `respawn`: the same, and Spark starts it again by itself, without a word to the driver;
    - `move`: a worker's machine is about to go, and the driver moves the worker elsewhere, where it can;
    - `freeze`: a worker's process does nothing for `duration` microseconds;
    - `cut-link`: the connection of a worker to another one (`other`) breaks;
    - `delay`: one link is slower by `duration` microseconds;
    - `checkpoint`: somebody asks for a checkpoint;
    - `crash-driver`: the driver dies, and another one goes on from the newest checkpoint;
    - `freeze-driver`: the driver does nothing for `duration` microseconds, is taken for dead, and another one goes on; then
      it wakes up, and its workers are still there;
    - `lose-coordinator`: the coordinator's process alone dies, as an executor's may; after `duration` microseconds its
      program, which lives, starts another one, and the same run goes on from its newest checkpoint;
    - `storage`: for `duration` turns each operation on the storage of checkpoints goes wrong with probability `chance`, as
      `outcome` says: it is refused, or there is no answer, and it was done or was not;
    - `hang`: for `duration` microseconds the storage of checkpoints does not answer anybody.

    `which` chooses among those that there are, by remainder.
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
    """With `storage`: only operations with this in what they are called and in the names of their files."""


def drawn_outages(rng: random.Random) -> tuple[Fault, ...]:
    """How the storage of checkpoints is out of reach for long: away, refusing writes, hanging, coming and going."""
    turn = rng.randint(1, 600)
    match rng.choice(["none"] * 12 + ["away", "full", "hanging", "flapping"]):
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
