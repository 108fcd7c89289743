"""Scenarios whose jobs change their size while they run: the jobs and faults of `search.scenarios`, and requests of another
size at moments of chance, with losses and other faults meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import tailrace as tr
from search.campaigns.unaligned import overtaking
from search.programs.golden import PROGRAMS
from search.scenarios import MS, Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.workers.autoscaling import ScaleSettings
from tailrace.errors import GraphError
from tailrace.graph.sizes import check_elastic
from tailrace.testing.faults import Fault

BESIDE = (
    *("kill", "kill", "respawn", "lose-executor", "freeze", "cut-link", "raise", "delay", "checkpoint", "move"),
    *("storage", "hang", "crash-driver", "freeze-driver", "lose-coordinator", "rescale"),
)
"""Faults that come while a job changes its size."""
ANCHORS = (
    *("asked for the size", "asked for the size", "resizing from", "resizing from"),
    *("Trigger", "commit", "WasReset", "Deployed", "Publish", "size "),
)
"""Lines of the trace after which these faults come."""


def rescaled(made: Scenario) -> Scenario:
    """The scenario with requests of other sizes, and faults that come while the job changes its size. It takes
    checkpoints; in some of them barriers overtake records."""
    rng = random.Random(f"tailrace rescaled {made.seed}")
    if made.checkpoints is None:
        made = replace(made, checkpoints=CheckpointSettings(interval=2 * MS, tolerated_failures=10_000))
    if rng.random() < 0.3:
        made = overtaking(made)
    assert made.checkpoints is not None
    if rng.random() < 0.2:
        made = replace(made, checkpoints=replace(made.checkpoints, interval=None))
    sizes = [rng.choice([1, 2, 3, 4]) for _ in range(rng.choice([1, 1, 2, 3, 6]))]
    faults = [_request(rng, size) for size in sizes]
    if made.faults and rng.random() < 0.8:  # a seed without faults has none beside the changes of size either
        faults += [_beside(rng) for _ in range(rng.choice([1, 1, 2, 4]))]
    kept = [one for one in made.faults if rng.random() < 0.5]
    return replace(made, faults=(*kept, *faults), rate=made.rate or made.n / 0.02, started_again=0)


def elastic(made: Scenario) -> Scenario:
    """The scenario with an elastic job, on a cluster that loses task slots and gets them back, with requests of other sizes
    and faults meanwhile. There are slots for the least number of workers all the time."""
    made = rescaled(made)
    if not follows_slots(made.program):
        return made
    rng = random.Random(f"tailrace elastic {made.seed}")
    least = rng.choice([1, 1, 2]) if PROGRAMS[made.program].sinks is None else 2
    most = rng.choice([least, least + 1, 4, 4])
    first = rng.randint(least, most + 1)
    counts = [rng.randint(least, most + 1) for _ in range(rng.choice([1, 2, 4, 8]))]
    slots = [_slots(rng, count) for count in counts]
    asked = [one for one in made.faults if one.kind == "rescale"]
    others = [one for one in made.faults if one.kind != "rescale"]
    return replace(
        made,
        parallelism=least,
        elastic=(least, most),
        slots=first,
        max_parallelism=max(made.max_parallelism, most),
        faults=(*others, *(one for one in asked if rng.random() < 0.3), *slots),
    )


@cache
def follows_slots(program: str) -> bool:
    """True if operators of a golden program have the parallelism of the environment, or 1."""
    env = tr.Environment(parallelism=2, max_parallelism=4)
    PROGRAMS[program].build(env, 1, None).sink_to(tr.sinks.Collect())
    try:
        check_elastic(env._plan(env._pending()), 1, 2)
    except GraphError:
        return False
    return True


def elastic_with_standbys(made: Scenario) -> Scenario:
    """As `elastic`, where lost workers are replaced while the others go on."""
    made = elastic(made)
    rng = random.Random(f"tailrace elastic with standbys {made.seed}")
    return _some_hot(replace(made, replaces=True, depth=rng.choice([1, 1, 2]), spares=rng.choice([0, 1, 2])))


def _some_hot(made: Scenario) -> Scenario:
    """The scenario in which, in one of four, each worker has a hot standby, whatever size the job has."""
    rng = random.Random(f"tailrace hot in all sizes {made.seed}")
    return replace(made, hot=True, spares=made.parallelism) if rng.random() < 0.25 else made


def autoscaled(made: Scenario) -> Scenario:
    """As `elastic`, where the load decides how many workers the job has. In one of three its workers may be lost and are
    replaced while the others go on."""
    made = elastic(made)
    if made.elastic is None:
        return made
    rng = random.Random(f"tailrace autoscaled {made.seed}")
    if rng.random() < 0.3:
        made = elastic_with_standbys(made)
    cooldown = rng.choice([400, 1 * MS, 1 * MS, 4 * MS])
    scale = ScaleSettings(target_busy=rng.choice([0.1, 0.3, 0.7]), lag=30.0, cooldown=cooldown)
    faults = tuple(one for one in made.faults if one.kind != "slots" or rng.random() < 0.5)
    return replace(made, scale=scale, slots=rng.choice([0, made.slots]), faults=faults)


def _slots(rng: random.Random, count: int) -> Fault:
    anchor = rng.choice(
        ["", "", "status RE", "status RUNNING", "commit", "Trigger", "resizing", "WasReset", "Deployed"]
    )
    turn = rng.randint(0, rng.choice([5, 60])) if anchor else rng.randint(1, rng.choice([60, 300, 1_000]))
    return Fault(turn, "slots", count, rng.randint(0, 3), after=anchor)


def rescaled_with_standbys(made: Scenario) -> Scenario:
    """As `rescaled`, where lost workers are replaced while the others go on."""
    made = rescaled(made)
    rng = random.Random(f"tailrace rescaled with standbys {made.seed}")
    made = replace(
        made,
        replaces=True,
        depth=rng.choice([1, 1, 2]),
        spares=rng.choice([0, 1, 2, 3]),
        executor_slots=rng.choice([0, 0, 2]),
        kept=rng.choice([0, 300, made.kept]),
    )
    return _some_hot(made)


def _request(rng: random.Random, size: int) -> Fault:
    if rng.random() < 0.5:
        return Fault(rng.randint(1, rng.choice([60, 300, 1_000])), "rescale", size)
    anchor = rng.choice(["status RUNNING", "commit", "Trigger", "SubtasksFinished", "resizing from", "Complete"])
    return Fault(rng.randint(0, rng.choice([5, 60])), "rescale", size, after=anchor)


def _beside(rng: random.Random) -> Fault:
    kind: Any = rng.choice(BESIDE)
    which = rng.choice([1, 2, 3, 4]) if kind == "rescale" else rng.randint(0, 5)
    duration = rng.choice([2, 20, 90]) * MS
    fault = Fault(
        rng.randint(0, rng.choice([3, 20, 80])), kind, which, rng.randint(0, 5), duration, rng.choice(ANCHORS)
    )
    if kind == "storage":
        outcome: Any = rng.choice(["error", "unknown-done", "any"])
        return replace(fault, duration=rng.choice([20, 100]), chance=rng.choice([0.1, 0.6, 1.0]), outcome=outcome)
    return replace(fault, times=rng.choice([1, 1, 3])) if kind == "raise" else fault


SIZES = {
    "alone": rescaled,
    "with-standbys": rescaled_with_standbys,
    "elastic": elastic,
    "elastic-with-standbys": elastic_with_standbys,
    "autoscaled": autoscaled,
}
"""The scenarios with changes of size, by name."""
