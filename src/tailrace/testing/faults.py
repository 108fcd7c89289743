"""Faults as data: what happens to a simulated job, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "kill",
    "respawn",
    "lose-executor",
    "move",
    "freeze",
    "cut-link",
    "raise",
    "delay",
    "checkpoint",
    "rescale",
    "slots",
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
    - `lose-executor`: all processes of a worker's executor die at once (`Conditions.executor_slots`);
    - `move`: the executor of a worker is about to go, as Spark reports, or, with `other` 1, its workers themselves. The
      driver moves its workers elsewhere, where it can; it goes after `duration` microseconds, where that is not 0;
    - `freeze`: a worker's process does nothing for `duration` microseconds;
    - `cut-link`: the connection of a worker to another one (`other`) breaks;
    - `raise`: user code of a worker raises an error, in a chain of operators that `other` chooses: behind the work of the
      chain's next step, of which nothing has gone out. With `times` above 1 the worker that goes on in its place, or after
      the restart, raises it as well: while it replays, or behind that;
    - `delay`: one link is slower by `duration` microseconds;
    - `checkpoint`: the user requests a checkpoint;
    - `rescale`: the user requests another size: `which` is the parallelism, but for operators that have one of their own;
    - `slots`: the cluster has `which` task slots from now on (`Conditions.slots`); processes that have none any more die;
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
    times: int = 1
    """With `raise`: the number of times that the error is raised."""
