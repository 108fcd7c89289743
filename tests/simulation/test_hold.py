"""The checkpoint of a stop holds a loop: behind their cuts heads let nothing go on, so that what was on its way is in the
checkpoint and nothing that follows from it has been done (FLIP-16's figure; `docs/protocols/snapshot.md`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tailrace.coordinator.lifecycle import JobStatus
from tailrace.elements.cuts import CutKind
from tailrace.protocol.snapshot import Abort
from tailrace.storage.reading import load_index
from tailrace.task.events import CoordinatorSaid
from tailrace.testing.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.testing.programs import PROGRAMS
from tailrace.testing.scenarios import Scenario, build
from tailrace.testing.simulator import Simulation


def held(world: Simulation) -> list[bool]:
    return [task.held_by is not None for worker in world.workers() for task in worker.tasks() if task.head is not None]


def records_in_logs(files: WatchedFiles) -> int:
    (_, manifest) = files.newest or (None, None)
    assert manifest is not None
    logs = [log for file in manifest.files for log in load_index(files, file.name).logs]
    return sum(piece.count for log in logs for piece in log.pieces)


@pytest.mark.parametrize("program", ["visited", "wandered"])
def test_a_held_loop_stands_still_and_its_checkpoint_has_what_was_on_its_way(program: str) -> None:
    from tailrace.coordinator.checkpoints import CheckpointSettings

    what = replace(Scenario(3, program, 100), checkpoints=CheckpointSettings(interval=None))
    book = BOOKS["seed 3"] = Book()
    files = WatchedFiles([book])
    try:
        world = build(what, PROGRAMS[program], Ledger("seed 3"), files, True)
        assert world.run_until("v2[0] read")
        for _ in range(40):
            world.turn()
        coordinator = world.coordinator
        coordinator.course.do(coordinator.durability.trigger(world.now, CutKind.CHECKPOINT, hold=True), world.now)
        world.coordinate(world.driver)
        assert world.run_until("Complete")
        while not all(held(world)):
            world.turn()
        for _ in range(200):  # whatever is still to be done is done now
            world.turn()
        assert records_in_logs(files) > 0
        standing = [
            task.work.records_in for worker in world.workers() for task in worker.tasks() if task.head is not None
        ]
        for _ in range(50):
            world.turn()
        assert standing == [t.work.records_in for w in world.workers() for t in w.tasks() if t.head is not None]
        assert world.coordinator.status is JobStatus.RUNNING
        for worker in world.workers():  # the stop was given up
            worker.handle(CoordinatorSaid(Abort(1)))
        for process in world.processes.values():
            process.asleep_until = 0
        while not world.coordinator.status.final:
            world.turn()
        assert Counter(book.records()) == PROGRAMS[program].expected(what.n)
    finally:
        del BOOKS["seed 3"]
