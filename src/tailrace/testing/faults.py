"""Faults as data: what befalls a simulated job, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
      `outcome` says: it is refused, or there is no answer, and it was done or was not.

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
