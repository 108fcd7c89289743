"""A worker of an attempt that is over wakes up and calls the others: they do not let it in."""

from __future__ import annotations

from collections import Counter

from search.programs.golden import PROGRAMS
from search.scenarios import Scenario, build
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus


def test_a_worker_that_slept_through_a_restart_is_refused_by_its_peers() -> None:
    """Worker 0 is frozen when it has received which peers to call. Its lease runs out, another process takes its place,
    and all run. It wakes up before it notices that its link was closed, and does what it was about to do."""
    what = Scenario(3, "counted", 200, parallelism=2, rate=400, checkpoints=CheckpointSettings(interval=2_000))
    book = BOOKS["meeting"] = Book()
    try:
        world = build(what, PROGRAMS["counted"], Ledger("meeting"), WatchedFiles([book]), True)
        assert world.run_until("coordinator => worker 0 Deploy")
        [sleeper] = [process for process in world.cluster.processes.values() if process.slot == 0]
        sleeper.frozen_until = world.cluster.now + 10**12
        assert world.run_until("restart 1") and world.run_until("status RUNNING")
        world.cluster.links[world.driver.party, sleeper.party].queue.clear()
        sleeper.frozen_until = 0
        assert world.run_until("refused a peer")
        assert world.covered["restarted"] == 1
        while not world.coordinator.status.final:
            world.turn()
        assert world.coordinator.status is JobStatus.FINISHED and world.covered["restarted"] == 1
        assert Counter(book.records()) == PROGRAMS["counted"].expected(what.n)
    finally:
        del BOOKS["meeting"]
