"""Savepoints of simulated jobs: taken while records flow, among checkpoints, under every policy, and started from alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from search.programs.golden import PROGRAMS
from search.scenarios import Scenario, build
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.coordinator.actions import SavepointEnded
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.testing.faults import Fault
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.simulator import Simulation

Booked = Callable[[str], Book]
SETTINGS = CheckpointSettings(interval=30_000, keep=1)


@pytest.fixture
def booked() -> Iterator[Booked]:
    """Gives books of their own to the sinks of several jobs."""

    def open_book(name: str) -> Book:
        BOOKS[name] = Book()
        return BOOKS[name]

    yield open_book
    for name in [name for name in BOOKS if name.startswith("savepoint")]:
        del BOOKS[name]


def taken(world: Simulation, turns: int) -> tuple[list[SavepointEnded], MemoryFiles]:
    """Lets a job run for so many turns, has a savepoint taken, and waits until that is over."""
    received: list[SavepointEnded] = []
    assert world.run_until("v1[0] read")
    for _ in range(turns):
        world.turn()
    world.coordinator.savepoint(received.append, "memory:backup", world.now)
    world.coordinate(world.driver)
    while not received and not world.coordinator.status.final:
        world.turn()
    return received, world.storage.savepoints.get("memory:backup", MemoryFiles())


@pytest.mark.parametrize("policy", [-1, 0, 3_000], ids=["aligned", "unaligned", "with a timeout"])
@pytest.mark.parametrize("program", ["toggled", "visited", "wandered"])
def test_a_job_forked_from_a_savepoint_has_the_rest_and_nothing_twice(
    booked: Booked, program: str, policy: int
) -> None:
    """The folder of the first job is gone by then, and it runs at another parallelism. Together they have published what one
    undisturbed run would have."""
    settings = replace(SETTINGS, overtakes_after=policy)
    what = Scenario(11, program, 240, parallelism=2, rate=12_000, checkpoints=settings)
    first, second = booked("savepoint, first"), booked("savepoint, second")
    world = build(what, PROGRAMS[program], Ledger("savepoint, first"), WatchedFiles([first]), True)
    [ended], files = taken(world, 150)
    assert ended.stats is not None and ended.stats.path == "memory:backup", ended.reason
    before = Counter(first.records())
    alone = WatchedFiles([second], "memory:moved")
    alone.contents = dict(files.contents)
    alone.lineage["savepoint.manifest"] = frozenset()
    other = replace(what, parallelism=3)
    mine = WatchedFiles([second], "memory:mine")
    again = build(
        other,
        PROGRAMS[program],
        Ledger("savepoint, second"),
        mine,
        True,
        run_id="b",
        origin=(alone, "savepoint.manifest"),
    )
    assert again.run() is JobStatus.FINISHED, again.coordinator.cause
    assert sum(before.values()) < sum(PROGRAMS[program].expected(what.n).values())
    assert before + Counter(second.records()) == PROGRAMS[program].expected(what.n)


@pytest.mark.parametrize("kind", ["kill", "storage", "crash-driver", "lose-coordinator", "freeze-driver"])
@pytest.mark.parametrize("seed", range(6))
def test_a_savepoint_among_faults_is_whole_or_leaves_nothing(booked: Booked, kind: str, seed: int) -> None:
    book = booked("savepoint, first")
    what = Scenario(seed, "toggled", 240, parallelism=2, rate=12_000, checkpoints=SETTINGS)
    world = build(what, PROGRAMS["toggled"], Ledger("savepoint, first"), WatchedFiles([book]), True)
    assert world.run_until("v1[0] read")
    received: list[SavepointEnded] = []
    for _ in range(60 + 30 * seed):
        world.turn()
    world.coordinator.savepoint(received.append, "memory:backup", world.now)
    world.coordinate(world.driver)
    for _ in range(5 * seed):
        world.turn()
    world.strike(Fault(0, kind, seed, duration=40, chance=0.6, outcome="any"))
    while not world.coordinator.status.final:
        world.turn()
    world.drain()
    assert world.coordinator.status is JobStatus.FINISHED
    assert Counter(book.records()) == PROGRAMS["toggled"].expected(what.n)
    there = world.storage.savepoints.get("memory:backup", MemoryFiles()).contents
    if received and received[0].stats is not None:
        assert "savepoint.manifest" in there and len(there) == 1 + what.parallelism
    elif received:  # else its driver has died
        assert there == {}, received[0].reason
