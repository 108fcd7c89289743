"""Scenarios in which lost workers are replaced while the others go on. Their jobs are those of `search.scenarios`; workers
are killed again and again, some of them soon after each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from search.campaigns.unaligned import closely, overtaking, overtaking_run
from search.drawn_faults import jumps
from search.random_flows.description import Loop, Step, change_steps
from search.random_flows.drawing import Run
from search.random_flows.remembering import drawing, reading, remembering
from search.scenarios import MS, Scenario
from tailrace.testing.faults import Fault, Kind

MOVE_ANCHORS = ("commit 1", "commit 2 done", "StateHeld", "replaced a worker", "moved a worker alone", "Restored")
"""Moments of a move, or of a replacement, at which another machine is about to go."""
MOMENTS = ("Resume", "Restored", "Replaced", "ReplayDone", "TakeSlot", "WorkerLost", "Reset", "claim", "Deployed")
"""Moments of a replacement, and of a restart."""


def replacing(made: Scenario) -> Scenario:
    """The scenario with two or three workers at least, of which one to four are killed. The records that workers keep have
    little room in memory, or none; clocks are set as they were. A scenario without checkpoints stays as it is."""
    if made.checkpoints is None:
        return made
    rng = random.Random(f"tailrace replacing {made.seed}")
    turns, found = 0, []
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        turns += rng.randint(10, rng.choice([100, 500, 1_500]))
        found.append(Fault(turns, rng.choice(["kill", "kill", "kill", "respawn"]), which=rng.randint(0, 5)))
    parallelism = max(made.parallelism, rng.choice([2, 3]))
    kept = rng.choice([0, 0, 300, 3_000, made.kept])
    return replace(made, replaces=True, parallelism=parallelism, faults=(*found, *jumps(made.faults)), kept=kept)


def standing_by(made: Scenario) -> Scenario:
    """The scenario of `replacing` with one to three processes that stand by, which are killed like all others."""
    rng = random.Random(f"tailrace standing by {made.seed}")
    return replace(replacing(made), spares=rng.randint(1, 3))


def moving(made: Scenario) -> Scenario:
    """The scenario of `standing_by`, or of `replacing`, whose executors are about to go, one after the other or several at
    once. Some go before their workers have moved, and some workers are killed beside."""
    rng = random.Random(f"tailrace moving {made.seed}")
    made = replacing(made)
    if made.checkpoints is None:
        return made
    turns, found = 0, [fault for fault in made.faults if rng.random() < 0.3]
    for _ in range(rng.choice([1, 2, 3, 4])):
        turns += rng.randint(10, rng.choice([100, 300, 900]))
        after = rng.choice(MOVE_ANCHORS) if rng.random() < 0.5 else ""
        first, at = rng.randint(0, 5), rng.randint(0, 40) if after else turns
        for which in range(first, first + rng.choice([1, 1, 2, 3])):
            found.append(Fault(at, "move", which, duration=rng.choice([0, 0, 0, 1, 4, 12, 40]) * MS, after=after))
    interval = (made.checkpoints.interval or MS) * rng.choice([1, 1, 5])
    made = replace(
        narrow(made),
        faults=tuple(found),
        spares=rng.choice([0, 1, 1, 2, 3]),
        depth=rng.choice([1, 1, 2]),
        executor_slots=rng.choice([0, 0, 2, 3]),
        checkpoints=replace(made.checkpoints, interval=interval),
    )
    return _seen_by_workers(made) if made.spares else made


def _seen_by_workers(made: Scenario) -> Scenario:
    """The scenario in which now and then workers themselves report that their executor is about to go: they move where a
    standby is for them."""
    rng = random.Random(f"tailrace seen by workers {made.seed}")
    faults = [replace(one, other=int(rng.random() < 0.4)) if one.kind == "move" else one for one in made.faults]
    return replace(made, faults=tuple(faults))


def narrow(made: Scenario) -> Scenario:
    """The scenario in which, now and then, the histories that workers and the coordinator know of others have hardly any
    room in memory, or the history of a worker itself has little room."""
    rng = random.Random(f"tailrace narrow histories {made.seed}")
    copied, history = rng.choice([None, 1, 200, 2_000, 20_000]), rng.choice([*[None] * 6, 3_000, 20_000])
    return replace(made, copied=copied, history=history)


LASTS = {"fast": 60 * MS, "in small steps": 60 * MS, "uneven": 200 * MS, "slow": 300 * MS}
"""How long a job runs on each network, such that standbys follow its workers for most of the time."""


def following(made: Scenario) -> Scenario:
    """The scenario of `replacing` with a hot standby for each worker, in a job that lasts. Most first losses come when
    standbys follow, others when there are some again; now and then two are lost soon after each other."""
    made = replacing(made)
    if made.checkpoints is None:
        return made
    rng = random.Random(f"tailrace following {made.seed}")
    found, after, most = list[Fault](), "Follow", rng.choice([60, 200, 600])
    if random.Random(f"tailrace followed by none {made.seed}").random() < 0.2:
        after = "commit 1 done"
    for _ in range(rng.choice([1, 2, 2, 3])):
        at = rng.randint(10, most)
        found.append(Fault(at, "kill", rng.randint(0, 5), after=after))
        if rng.random() < 0.2:
            found.append(Fault(at + rng.choice([0, 1, 10, 100]), "kill", rng.randint(0, 5), after=after))
        after = rng.choice(["ReplayDone", "commit 4 done", "commit 7 done"])
    lasts = LASTS[made.network]
    pace = random.Random(f"tailrace pace of following {made.seed}").choice([None, None, 300, 3 * MS, lasts // 40])
    return replace(
        made,
        pace=pace,
        rate=made.n * 1e6 / lasts,
        faults=(*found, *jumps(made.faults)),
        spares=made.parallelism,
        hot=True,
        depth=rng.choice([1, 1, 2]),
        checkpoints=replace(made.checkpoints, interval=lasts // rng.choice([4, 8, 16])),
    )


def several_at_once(made: Scenario) -> Scenario:
    """The scenario of `replacing`, where two or three workers may be lost at once. They are lost in the same moment, soon
    after each other, and while replacements replay."""
    rng = random.Random(f"tailrace several at once {made.seed}")
    made = replacing(made)
    if made.checkpoints is None:
        return made
    turns, found = 0, []
    for _ in range(rng.choice([1, 2, 2, 3])):
        turns += rng.randint(10, rng.choice([100, 500, 1_500]))
        for _ in range(rng.choice([2, 2, 2, 3])):
            found.append(Fault(turns, rng.choice(["kill", "kill", "kill", "respawn"]), which=rng.randint(0, 5)))
            turns += rng.choice([0, 1, rng.randint(2, 40), rng.randint(10, 200)])
    size = max(made.parallelism, min(rng.choice([3, 4]), made.max_parallelism - 1))
    depth = rng.choice([2, 2, 3])
    return replace(
        made, parallelism=size, depth=depth, spares=rng.choice([0, 1, 3]), faults=(*found, *jumps(made.faults))
    )


def executors_lost(made: Scenario) -> Scenario:
    """The scenario of `replacing` with executors of two or three slots, which are lost as a whole: one at a time, or two at
    once where two may be lost. Now and then a worker is lost alone, soon before or after."""
    rng = random.Random(f"tailrace executors lost {made.seed}")
    made = replacing(made)
    if made.checkpoints is None:
        return made
    depth, turns, found = rng.choice([1, 1, 2]), 0, list[Fault]()
    for _ in range(rng.choice([1, 2, 2, 3])):
        turns += rng.randint(10, rng.choice([100, 500, 1_500]))
        after, at = rng.choice([(f"commit {rng.randint(1, 8)} done", rng.randint(0, 60)), ("", turns)])
        for kind in rng.choice([["lose-executor"] * depth, ["lose-executor"] * depth, ["kill", "lose-executor"]]):
            found.append(Fault(at, kind, rng.randint(0, 5), after=after))  # type: ignore[arg-type]
            at += rng.choice([0, 0, 1, rng.randint(2, 40), rng.randint(10, 200)])
    size = max(made.parallelism, min(rng.choice([3, 4, 5]), made.max_parallelism - 1))
    slots, spares = rng.choice([2, 2, 3]), rng.choice([0, 1, 2, 3])
    faults = (*found, *jumps(made.faults))
    return replace(narrow(made), parallelism=size, depth=depth, spares=spares, executor_slots=slots, faults=faults)


def coordinators_lost(made: Scenario) -> Scenario:
    """The scenario of `standing_by`, in which the coordinator's process is lost alone as well: before and after workers are,
    while a standby takes a place, and while all start again. Workers notice it sooner or later, and another process of the
    run takes over, at once or later. In most scenarios the workers wait for it, and it goes on with them."""
    rng = random.Random(f"tailrace coordinators lost {made.seed}")
    made = standing_by(made)
    if made.checkpoints is None:
        return made
    found = list[Fault]()
    for _ in range(rng.choice([1, 2, 2, 3])):
        near, duration = rng.choice(made.faults), rng.choice([0, 0, 2, 20, 90]) * MS
        after, at = rng.choice([("", near.turn), ("", near.turn), (rng.choice(MOMENTS), 0)])
        found.append(Fault(max(0, at + rng.randint(-10, 90)), "lose-coordinator", duration=duration, after=after))
    waits = random.Random(f"tailrace coordinators waited for {made.seed}")
    log = waits.choice([None, 0, 2_000, 2_000, 20_000, 1 << 20])
    made = replace(made, faults=(*made.faults, *found), log=log)
    return hot(made) if waits.random() < 0.4 else made


def coordinators_alone(made: Scenario) -> Scenario:
    """The scenario without other faults than clocks that are set, with standbys or without, in which the coordinator alone
    is lost, up to six times, and the workers wait for another one: nothing starts again."""
    if made.checkpoints is None:
        return made
    rng = random.Random(f"tailrace coordinators alone {made.seed}")
    faults = jumps(made.faults)
    if rng.random() < 0.5:
        made = standing_by(made)
    turns, found = 0, list[Fault]()
    for _ in range(rng.choice([1, 2, 3, 4, 6])):
        turns += rng.randint(10, rng.choice([100, 300, 900]))
        after, at = rng.choice([("", turns), ("", turns), (rng.choice(("Ack", "commit", "Complete", "mark")), 0)])
        duration = rng.choice([0, 0, 2, 12]) * MS
        found.append(Fault(at, "lose-coordinator", duration=duration, after=after))
    made = replace(made, faults=(*found, *faults), log=rng.choice([0, 2_000, 20_000, 1 << 20]))
    return hot(made) if made.replaces and rng.random() < 0.5 else made


def hot(made: Scenario) -> Scenario:
    """The scenario with a hot standby for each worker."""
    return replace(made, spares=made.parallelism, hot=True)


def past_what_waits(made: Scenario) -> Scenario:
    """The scenario of `replacing` with barriers that go past what waits, in channels that are narrow, and checkpoints that
    follow each other closely. Some workers are lost two at a time: then all start again, and the records in flight come
    back."""
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
    made = replace(made, faults=(*found, *jumps(made.faults)), checkpoints=settings, spares=rng.choice([0, 0, 1, 2]))
    return replace(made, window=rng.choice([1, 1, 60, 200, 400]), rate=None)


def all_together(made: Scenario) -> Scenario:
    """The scenario with all of the above at once. Several workers are lost at once, soon after checkpoints that hold
    records in flight, in channels so narrow that there always are some, with hardly any memory for the records that
    workers keep."""
    made = several_at_once(past_what_waits(made))
    if made.checkpoints is None:
        return made
    rng = random.Random(f"tailrace all together {made.seed}")
    turns, found = 0, list[Fault]()
    for _ in range(rng.choice([1, 2, 2, 3])):
        turns += rng.randint(10, rng.choice([100, 500, 1_500]))
        after, at = rng.choice([(f"commit {rng.randint(1, 8)} done", rng.randint(0, 60)), ("", turns)])
        for _ in range(rng.choice([1, 2, 2, 2, 3])):
            found.append(Fault(at, rng.choice(["kill", "kill", "kill", "respawn"]), rng.randint(0, 5), after=after))
            at += rng.choice([0, 0, 1, rng.randint(2, 40), rng.randint(10, 200)])
    window, kept = rng.choice([1, 60, 200, 400]), rng.choice([0, 0, 300, 3_000])
    return replace(
        made, faults=(*found, *jumps(made.faults)), window=window, kept=kept, rate=None, debug=rng.random() < 0.3
    )


def failing(made: Scenario) -> Scenario:
    """The scenario of `replacing` whose workers live and fail: user code raises, once or again and again, links break, and
    workers freeze for longer than their lease and thaw. Others are killed or move beside, in executors of several slots."""
    rng = random.Random(f"tailrace failing {made.seed}")
    made = replacing(made)
    if made.checkpoints is None:
        return made
    turns, found = 0, list[Fault]()
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        turns += rng.randint(0, 60) if rng.random() < 0.3 else rng.randint(10, rng.choice([100, 500, 1_500]))
        kind: Kind = rng.choice(["raise", "raise", "raise", "cut-link", "cut-link", "freeze", "freeze", "kill"])
        after = f"commit {rng.randint(1, 6)} done" if rng.random() < 0.3 else ""
        at, lasts = rng.randint(0, 60) if after else turns, rng.choice([90, 90, 250, 4_500]) * MS
        which, other, times = rng.randint(0, 5), rng.randint(0, 8), rng.choice([1, 1, 1, 2, 2, 3, 5])
        found.append(Fault(at, kind, which, other, lasts, after, times=times))
    depth, spares = rng.choice([1, 1, 1, 2]), rng.choice([0, 1, 1, 2])
    slots = rng.choice([0, 0, 2, 3])
    if slots:
        found = [replace(fault, kind="lose-executor") if fault.kind == "kill" else fault for fault in found]
    if rng.random() < 0.3:
        found.append(
            Fault(rng.randint(10, turns + 100), "move", rng.randint(0, 5), duration=rng.choice([0, 0, 4]) * MS)
        )
    faults = (*found, *jumps(made.faults))
    return replace(made, depth=depth, spares=spares, executor_slots=slots, faults=faults)


def replacing_run(run: Run) -> Run:
    """A random dataflow, changed as by `replacing`, at the parallelism that it was drawn with."""
    return _as_drawn(run, replacing(run.world))


def past_what_waits_run(run: Run) -> Run:
    """A random dataflow, changed as by `past_what_waits`."""
    return replacing_run(closely(overtaking_run(run)))


def all_together_run(run: Run) -> Run:
    """A random dataflow, changed as by `all_together`, with checkpoints that follow each other closely."""
    run = closely(overtaking_run(run))
    return _as_drawn(run, all_together(run.world))


def following_run(run: Run) -> Run:
    """A random dataflow, changed as by `following`, with checkpoints as they were drawn, and records that take their time.
    Half of them go without their loops."""
    world, drawn = following(run.world), run.world.checkpoints
    if drawn is not None and world.checkpoints is not None:
        world = replace(world, checkpoints=replace(world.checkpoints, interval=drawn.interval))
    source, steps = run.flow.source, run.flow.steps
    source = replace(source, pace=min(10_000, max(2_000, LASTS[run.world.network] // source.n)))
    if random.Random(f"tailrace following in {run.seed}").random() < 0.5:
        steps = change_steps(steps, _without_loop)
    run = replace(run, flow=replace(run.flow, source=source, steps=steps))
    return _as_drawn(run, world)


def _without_loop(step: Step) -> tuple[Step, ...]:
    """Nothing in the place of a loop. Its steps outside of it might make records late, which no loop does."""
    return () if isinstance(step, Loop) else (step,)


def run_of(tune: Callable[[Scenario], Scenario]) -> Callable[[Run], Run]:
    """The function that changes random dataflows as `tune` changes scenarios."""
    if tune is past_what_waits:
        return past_what_waits_run
    if tune is following:
        return following_run
    return all_together_run if tune is all_together else lambda run: _as_drawn(run, tune(run.world))


def _as_drawn(run: Run, world: Scenario) -> Run:
    """The run in this world, except for settings that depend on how it was drawn. These are its parallelism, the network,
    for which the duration of the run is known, and whether barriers overtake: they do not where operators come and go."""
    drawn, settings = run.world, world.checkpoints
    if settings is not None and drawn.checkpoints is not None:
        settings = replace(settings, timeout=drawn.checkpoints.timeout)
        if drawn.checkpoints.overtakes_after < 0:
            settings = replace(settings, overtakes_after=-1)
    memory = random.Random(f"tailrace replaced memory {run.seed}")
    if memory.random() < 0.5:
        run = replace(run, flow=remembering(memory, run.flow))
    anew = random.Random(f"tailrace drawn anew {run.seed}")
    if anew.random() < 0.15:
        run = replace(run, flow=drawing(anew, run.flow))
    readings = random.Random(f"tailrace replaced readings {run.seed}")
    if readings.random() < 0.4:
        run = replace(run, flow=reading(readings, run.flow))
    return replace(
        run, world=replace(world, parallelism=drawn.parallelism, network=drawn.network, checkpoints=settings)
    )


TUNES = {
    "replacing": replacing,
    "standing-by": standing_by,
    "following": following,
    "moving": moving,
    "several-at-once": several_at_once,
    "executors-lost": executors_lost,
    "coordinators-lost": coordinators_lost,
    "coordinators-alone": coordinators_alone,
    "past-what-waits": past_what_waits,
    "all-together": all_together,
    "failing": failing,
}
"""Functions that change a scenario, by the name under which a search takes them."""
