"""Scenarios with unaligned checkpoints: the jobs and faults of `search.scenarios`, and barriers that overtake what
waits."""

from __future__ import annotations

import random
from dataclasses import replace

from search.random_flows.drawing import Phase, Run
from search.scenarios import MS, Scenario


def overtaking(made: Scenario) -> Scenario:
    """The scenario with barriers that overtake, at once or after a time-out, with a cap or without, in channels that are
    mostly narrow. A scenario without checkpoints stays as it is."""
    if made.checkpoints is None:
        return made
    rng = random.Random(f"tailrace overtaking {made.seed}")
    network = rng.choice([made.network, "in small steps", "slow"])
    settings = replace(
        made.checkpoints,
        timeout=made.checkpoints.timeout if network == made.network else 600_000_000,
        overtakes_after=rng.choice([0, 0, 0, 200, 1 * MS, 5 * MS]),
        most_inflight=rng.choice([-1, -1, -1, 0, 300, 3_000]),
    )
    window, rate = rng.choice([None, 1, 200, 400, 3_000]), rng.choice([made.rate, None, None])
    settings = replace(settings, ahead=rng.choice([False, False, True]))
    return replace(made, checkpoints=settings, window=window, network=network, rate=rate)


def overtaking_run(run: Run) -> Run:
    """A random flow, changed as by `overtaking`, in the network that it was drawn with: its duration is known for that
    network. A flow whose operators come and go stays as it is: records in flight to an operator that is gone are refused,
    or given up."""
    if any(step.kind == "extra" for step in run.flow.operators()):
        return run
    return replace(run, world=replace(overtaking(run.world), network=run.world.network))


def rescaled_run(run: Run) -> Run:
    """A random flow that is left alone again and again, mostly soon after a checkpoint. It goes on at another parallelism
    before it has read what was in flight, in channels so narrow that there always is something. A flow that changes from
    phase to phase keeps the phases that were drawn."""
    run = overtaking_run(run)
    if run.world.checkpoints is None or any(getattr(step, "phases", ()) for step in run.flow.all()):
        return run
    rng = random.Random(f"tailrace rescaled {run.seed}")
    sizes = [run.phases[0].parallelism, *rng.choices([1, 2, 3], k=rng.choice([2, 3, 4]))]
    phases = [_left_alone(rng, number, size) for number, size in enumerate(sizes[:-1])]
    settings = replace(run.world.checkpoints, overtakes_after=rng.choice([0, 0, 0, 200]))
    world = replace(run.world, window=rng.choice([1, 1, 200, 400]), checkpoints=settings)
    return replace(run, world=world, phases=(*phases, Phase(sizes[-1])))


def closely(run: Run) -> Run:
    """The run with checkpoints that follow each other so closely that most runs have records in flight at some of them: a
    random flow has few records, and is soon at rest. A run with aligned checkpoints stays as it is."""
    settings = run.world.checkpoints
    if settings is None or settings.overtakes_after < 0 or settings.interval is None:
        return run
    rng = random.Random(f"tailrace closely {run.seed}")
    interval = max(100, settings.interval // rng.choice([8, 30]))
    return replace(run, world=replace(run.world, checkpoints=replace(settings, interval=interval, min_pause=0)))


def resting_run(run: Run) -> Run:
    """A random flow that is left alone soon after the coordinator has sent something to a loop, about its event time or
    its end. Its checkpoints follow each other closely, so that this message, and what follows from it, is in flight at the
    cut. A flow without loops, or with rounds, stays as it is."""
    run = overtaking_run(run)
    loops, checkpoints = run.flow.loops(), run.world.checkpoints
    if checkpoints is None or not loops or any(loop.rounds for loop in loops):
        return run
    if any(getattr(step, "phases", ()) for step in run.flow.all()):
        return run
    rng = random.Random(f"tailrace resting {run.seed}")
    sizes = [run.phases[0].parallelism, *rng.choices([1, 2, 3], k=rng.choice([1, 2, 3]))]
    commands = [rng.choice(["Advance", "Advance", "CallFinish", "Release", "EndLoop"]) for _ in sizes[1:]]
    phases = [Phase(size, rng.randint(0, 150), one) for size, one in zip(sizes, commands, strict=False)]
    settings = replace(
        checkpoints,
        overtakes_after=0,
        interval=rng.choice([1, 2, 4]) * MS,
        min_pause=0,
        timeout=600_000_000,
        max_concurrent=rng.choice([1, 3]),
    )
    world = replace(run.world, window=rng.choice([1, 200, 400]), checkpoints=settings)
    return replace(run, world=world, phases=(*phases, Phase(sizes[-1])))


def _left_alone(rng: random.Random, number: int, size: int) -> Phase:
    """Phase `number`: it lasts until soon after a checkpoint, or for some turns."""
    if rng.random() < 0.6:
        return Phase(size, rng.randint(0, 40), f"commit {rng.randint(2 * number + 1, 2 * number + 3)} done")
    return Phase(size, rng.randint(100, 800))
