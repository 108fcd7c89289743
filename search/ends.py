"""Checks of the end of a job, and of another start with the same command, where a simulated job is started again.

A job that is over marks its end and removes what is not to outlive it. Meanwhile its storage fails, or its driver dies.
Then its user starts it with `latest` again. That start must go on from the newest checkpoint that was ever complete, or
report that the job has finished, where it has. It must never go back behind what was published.
"""

from __future__ import annotations

import random
from dataclasses import replace

from msgspec import structs

from search.watchers.checker import WatchedFiles
from tailrace.api.restore.identity import dataflow_of
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import CheckpointNotFound, IncompatibleState, JobAlreadyFinished
from tailrace.state.end_mark import Dataflow
from tailrace.state.paths import ended_mark, manifest_name, manifest_place
from tailrace.storage.checkpoint_lookup import newest_start
from tailrace.storage.end_of_run import leave
from tailrace.testing.memorystore import MemoryStore
from tailrace.testing.simulator import Simulation
from tailrace.testing.storing import Trouble

FINISHED = "finished"
NOTHING = "nothing"
ANOTHER = "another dataflow"
BEGINNING = ""


def leaves(world: Simulation, chance: random.Random) -> str:
    """Lets a job that is over clean up its folder, with any `retain`. Its storage fails now and then, or for good. Returns
    a text with the `retain` that was drawn, and how far the cleanup came."""
    coordinator, driver = world.coordinator, world.driver
    assert driver.store is not None
    retain = chance.choice(["on-cancellation", "on-cancellation", "always", "never"])
    coordinator.checkpoints.settings = replace(coordinator.checkpoints.settings, retain=retain)
    ending = coordinator.ending(False, world.now)
    if isinstance(world.files, WatchedFiles):
        world.files.newest = None  # the newest checkpoint may be removed now
    trouble = Trouble(1 << 60, chance.choice([0.0, 0.0, 0.3, 1.0]), "any")
    world.storage.trouble = trouble
    done = "all of it"
    try:
        leave(driver.store, driver.run_id, ending, coordinator.give_up(False))
    except OSError as error:
        done = f"up to {error}"
    world.storage.trouble = Trouble()
    return f"with retain={retain!r}, {done}"


def newest_committed(files: WatchedFiles) -> str:
    """The newest checkpoint that was ever complete in a folder, there or not."""
    return max(files.lineage, key=lambda name: manifest_place(name) or (0, 0))


def found_by(files: WatchedFiles, *, start_again: bool = False, dataflow: Dataflow | None = None) -> str:
    """Result of `latest-or-new` in a folder: the name of a checkpoint, `FINISHED`, `NOTHING`, `ANOTHER` or `BEGINNING`."""
    store = MemoryStore("golden", files)
    try:
        return newest_start(store, or_new=True, start_again=start_again, dataflow=dataflow) or BEGINNING
    except IncompatibleState:
        return ANOTHER
    except JobAlreadyFinished:
        return FINISHED
    except CheckpointNotFound:
        return NOTHING


def mistake(found: str, files: WatchedFiles, ended: JobStatus | None) -> str | None:
    """The error in what `latest` has found, after a run that has `ended` so (None: it was left alone); None where it is
    right."""
    newest = newest_committed(files)
    marked = ended_mark((manifest_place(newest) or (0, 0))[0]) in files.contents
    if newest in files.contents and marked:  # the job may have failed to remove its files after the mark
        right = found == (FINISHED if ended is JobStatus.FINISHED else NOTHING)
    elif newest in files.contents:
        right = found == newest
    elif ended is JobStatus.FINISHED:
        right = found == FINISHED
    else:
        right = found == NOTHING
    return None if right else f"behind {newest} ({ended}) it goes on from {found or 'the beginning'!r}"


def mistaken(world: Simulation, files: WatchedFiles) -> str | None:
    """The error where a job has finished, its user gives its name to another dataflow, and that is not noticed. In the
    other dataflow a source, a sink or an operator with state is missing, has another uid, or is new. None where it is
    noticed."""
    first, *rest = dataflow_of(world.plan.graph)
    other = structs.replace(first, uid="of another program")
    for what, dataflow in (("missing", rest), ("of another uid", [other, *rest]), ("new", [other, first, *rest])):
        found = found_by(files, dataflow=dataflow)
        if found != ANOTHER:
            return f"another dataflow is taken for the finished one ({found}): {first} is {what}"
    return None


def once_more(world: Simulation, files: WatchedFiles) -> tuple[str, str]:
    """Lets a job that is over clean up its folder, and looks there as another start with the same command does. Returns
    what that finds, and what it should find."""
    newest, coordinator, driver = files.newest, world.coordinator, world.driver
    assert driver.store is not None
    finished = coordinator.status is JobStatus.FINISHED and newest is not None and newest[1].final
    if finished:
        files.newest = None  # the newest checkpoint may be removed now
    leave(driver.store, driver.run_id, coordinator.ending(False, world.now), coordinator.give_up(False))
    right = FINISHED if finished else manifest_name(*newest[0]) if newest is not None else BEGINNING
    return found_by(files, dataflow=dataflow_of(world.plan.graph)) or "the beginning", right or "the beginning"
