"""A savepoint is whole: the state of every key group is in its own files, whatever earlier checkpoints hold. The request for
it goes from the coordinator over triggers and barriers down to the state, and what is behind it goes on as before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from search.programs.golden import PROGRAMS
from search.scenarios import Scenario, build
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles, check_records
from search.watchers.restorable import Restorable
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.elements.cuts import CutKind
from tailrace.state.manifest import Manifest, decode_manifest
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.simulator import Simulation

ON_REQUEST = CheckpointSettings(interval=None, keep=10, max_concurrent=2)
WHAT = Scenario(5, "toggled", 400, parallelism=2, rate=12_000, checkpoints=ON_REQUEST, small=0)


@pytest.fixture
def book() -> Iterator[Book]:
    BOOKS["whole"] = Book()
    yield BOOKS["whole"]
    del BOOKS["whole"]


def take(world: Simulation, number: int, kind: CutKind) -> None:
    """Has a checkpoint taken, and waits until it is complete."""
    coordinator = world.coordinator
    coordinator.course.do(coordinator.durability.trigger(world.now, kind), world.now)
    world.coordinate(world.driver)
    assert world.run_until(f"commit {number} done")


def manifests(files: MemoryFiles) -> dict[int, Manifest]:
    found = [decode_manifest(bytes(data), name) for name, data in files.contents.items() if name.endswith(".manifest")]
    return {manifest.checkpoint: manifest for manifest in found}


def test_a_savepoint_among_checkpoints_refers_to_no_other_files(book: Book) -> None:
    files = WatchedFiles([book])
    world = build(WHAT, PROGRAMS["toggled"], Ledger("whole"), files, True)
    with Restorable(files, book).watching() as restorable:
        assert world.run_until("v1[0] read")
        for number, kind in enumerate((CutKind.CHECKPOINT, CutKind.CHECKPOINT, CutKind.SAVEPOINT), 1):
            for _ in range(240 if number == 1 else 60):
                world.turn()
            take(world, number, kind)
        found = manifests(files)
        assert found[2].older != [], "a checkpoint refers to what the one before has"
        assert found[3].older == []
        for _ in range(60):
            world.turn()
        take(world, 4, CutKind.CHECKPOINT)
        while not world.coordinator.status.final:
            world.turn()
        assert world.coordinator.status is JobStatus.FINISHED
    assert restorable.errors() == []
    assert check_records(book, PROGRAMS["toggled"].expected(WHAT.n), None) == []


def test_a_job_starts_from_the_files_of_a_savepoint_alone(book: Book) -> None:
    """Everything else of the folder is gone. What the first job has published until then, and the second one from there, is
    the result."""
    files = WatchedFiles([book])
    BOOKS["whole, again"] = rest = Book()
    world = build(WHAT, PROGRAMS["toggled"], Ledger("whole"), files, True)
    assert world.run_until("v1[0] read")
    for number, kind in enumerate((CutKind.CHECKPOINT, CutKind.SAVEPOINT), 1):
        for _ in range(240 if number == 1 else 60):
            world.turn()
        take(world, number, kind)
    path = next(name for name in files.contents if name.endswith("/2.manifest"))
    while f"{path.removesuffix('manifest')}published" not in files.contents:
        world.turn()
    needed = {path, f"{path.removesuffix('manifest')}published", *(file.name for file in manifests(files)[2].files)}
    alone = WatchedFiles([rest])
    alone.contents = {name: data for name, data in files.contents.items() if name in needed}
    again = build(WHAT, PROGRAMS["toggled"], Ledger("whole, again"), alone, True, run_id="again", origin=(alone, path))
    assert again.run() is JobStatus.FINISHED
    del BOOKS["whole, again"]
    assert 0 < len(list(book.records())) < WHAT.n
    assert Counter(book.records()) + Counter(rest.records()) == PROGRAMS["toggled"].expected(WHAT.n)
