"""Scenarios in which lost workers are replaced while the others go on: the same jobs, and workers that are killed again and
again, some of them soon after each other."""

from __future__ import annotations

import random
from dataclasses import replace

from tailrace.testing.faults import Fault
from tailrace.testing.overtaking import closely, overtaking, overtaking_run
from tailrace.testing.random_flows.drawing import Run
from tailrace.testing.scenarios import MS, Scenario


def replacing(made: Scenario) -> Scenario:
    """The scenario with two or three workers at least, of which one to four are killed. One without checkpoints stays as it
    is."""
    if made.checkpoints is None:
        return made
    rng = random.Random(f"tailrace replacing {made.seed}")
    turns, found = 0, []
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        turns += rng.randint(10, rng.choice([100, 500, 1_500]))
        found.append(Fault(turns, rng.choice(["kill", "kill", "kill", "respawn"]), which=rng.randint(0, 5)))
    return replace(made, replaces=True, parallelism=max(made.parallelism, rng.choice([2, 3])), faults=tuple(found))


def standing_by(made: Scenario) -> Scenario:
    """The same with one to three processes that stand by, which are killed like all others."""
    rng = random.Random(f"tailrace standing by {made.seed}")
    return replace(replacing(made), spares=rng.randint(1, 3))


def past_what_waits(made: Scenario) -> Scenario:
    """The same with barriers that go past what waits, in channels that are narrow, and checkpoints that follow each other
    closely. Some workers are lost two at a time: then all start again, and what was in flight comes back."""
    made = replacing(overtaking(made))
    settings = made.checkpoints
    if settings is None:
        return made
    rng = random.Random(f"tailrace past what waits {made.seed}")
    settings = replace(
        settings,
        interval=max(200, (settings.interval or MS) // rng.choice([1, 2, 8])),
        overtakes_after=rng.choice([0, 0, 0, settings.overtakes_after, 200]),
        most_inflight=rng.choice([-1, -1, -1, settings.most_inflight]),
    )
    turns, found = 0, list[Fault]()
    for _ in range(rng.choice([1, 2, 3, 4])):
        turns += rng.randint(10, rng.choice([100, 500, 1_500]))
        which = rng.randint(0, 5)
        if rng.random() < 0.5:  # soon after a checkpoint, which has something in flight then
            found.append(Fault(rng.randint(0, 60), "kill", which=which, after=f"commit {rng.randint(1, 6)} done"))
            continue
        found.append(Fault(turns, "kill", which=which))
        if rng.random() < 0.3:
            found.append(Fault(turns + rng.randint(0, 3), "kill", which=which + 1))
    made = replace(made, faults=tuple(found), checkpoints=settings, spares=rng.choice([0, 0, 1, 2]))
    return replace(made, window=rng.choice([1, 1, 60, 200, 400]), rate=None)


def past_what_waits_run(run: Run) -> Run:
    """A random dataflow likewise."""
    return replacing_run(closely(overtaking_run(run)))


def replacing_run(run: Run) -> Run:
    """A random dataflow likewise, at the parallelism that it was drawn with."""
    return replace(run, world=replace(replacing(run.world), parallelism=run.world.parallelism))
