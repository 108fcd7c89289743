"""The checkpoint of a stop holds a loop: behind their cuts heads let nothing go on, so that what was on its way is in the
checkpoint and nothing that follows from it has been done (FLIP-16's figure; `docs/protocols/snapshot.md`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from search.programs.golden import PROGRAMS
from search.scenarios import Scenario, build
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.elements.cuts import CutKind
from tailrace.storage.reading import load_index
from tailrace.task.subtask.machine import Task
from tailrace.task.subtask.work import TaskId
from tailrace.testing.simulator import Simulation


def held(world: Simulation) -> list[bool]:
    return [task.checkpoints.held_by is not None for task in heads(world).values()]


def records_in_logs(files: WatchedFiles) -> int:
    (_, manifest) = files.newest or (None, None)
    assert manifest is not None
    logs = [log for file in manifest.files for log in load_index(files, file.name).logs]
    return sum(piece.count for log in logs for piece in log.pieces)


@pytest.fixture
def book() -> Iterator[Book]:
    BOOKS["seed 3"] = Book()
    yield BOOKS["seed 3"]
    del BOOKS["seed 3"]


def scene(program: str) -> Scenario:
    return replace(Scenario(3, program, 100), checkpoints=CheckpointSettings(interval=None))


def world_with_a_held_loop(what: Scenario, files: WatchedFiles) -> Simulation:
    """A job with a loop in the middle of its work, whose heads have all made the cut of a stop. It is not complete."""
    world = build(what, PROGRAMS[what.program], Ledger("seed 3"), files, True)
    assert world.run_until("v2[0] read")
    for _ in range(40):
        world.turn()
    coordinator = world.coordinator
    coordinator.course.do(coordinator.durability.trigger(world.now, CutKind.CHECKPOINT, hold=True), world.now)
    world.coordinate(world.driver)
    while not all(held(world)):
        world.turn()
    assert not files.newest and coordinator.status is JobStatus.RUNNING
    return world


def heads(world: Simulation) -> dict[TaskId, Task]:
    return {task.id: task for worker in world.workers() for task in worker.tasks() if task.loop.head is not None}


def run_to_the_end(world: Simulation) -> None:
    """Heads that are held do nothing meanwhile."""
    standing = {ident: task.work.records_in for ident, task in heads(world).items()}
    while not world.coordinator.status.final:
        world.turn()
        for ident, task in heads(world).items():
            assert task.checkpoints.held_by is None or task.work.records_in == standing[ident]
    assert world.coordinator.status is JobStatus.FINISHED


@pytest.mark.parametrize("program", ["visited", "wandered"])
def test_a_held_loop_stands_still_and_its_checkpoint_has_what_was_on_its_way(book: Book, program: str) -> None:
    """And a job that goes on from there comes to what an undisturbed one does."""
    what, files = scene(program), WatchedFiles([book])
    run_to_the_end(world_with_a_held_loop(what, files))
    assert records_in_logs(files) > 0
    assert Counter(book.records()) != PROGRAMS[program].expected(what.n), "it has not come to its own end"
    again = build(what, PROGRAMS[program], Ledger("seed 3"), files, True, origin="latest", run_id="again")
    assert again.run() is JobStatus.FINISHED
    assert Counter(book.records()) == PROGRAMS[program].expected(what.n)


@pytest.mark.parametrize("program", ["visited", "wandered"])
def test_a_held_loop_goes_on_where_its_checkpoint_is_given_up(book: Book, program: str) -> None:
    what, files = scene(program), WatchedFiles([book])
    world = world_with_a_held_loop(what, files)
    course, durability = world.coordinator.course, world.coordinator.durability
    course.do(durability.abort(1, "it was given up", world.now, running=True), world.now)
    world.coordinate(world.driver)
    run_to_the_end(world)
    assert Counter(book.records()) == PROGRAMS[program].expected(what.n)
