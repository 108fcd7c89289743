"""Small stories under the simulator: one job, or several of which each goes on where the one before was left, and their
result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import tailrace as tr
from search.scenarios import LIMITS, NETWORKS
from search.watchers.checker import BOOKS, Book, Ledger, check_records
from search.watchers.loops import LoopFiles, LoopWatch
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation

MS = 1_000
EVERY_MS = CheckpointSettings(interval=1 * MS, keep=1, tolerated_failures=100_000)


@dataclass
class Story:
    """One job, or several of which each goes on where the one before was left, that write into the same books."""

    ledger: Ledger
    files: LoopFiles

    @classmethod
    def begin(cls, name: str) -> Story:
        BOOKS[name] = book = Book()
        return cls(Ledger(name), LoopFiles([book]))

    def simulation(self, program: Any, *, parallelism: int = 2, **options: Any) -> Simulation:
        """A job that has not begun. `program` makes the stream that goes into the books."""
        env = tr.Environment(
            parallelism=parallelism, checkpoint=tr.CheckpointConfig(dir="memory"), restart=tr.FixedDelay(1_000, 0.0)
        )
        program(env).sink_to(self.ledger, uid="ledger")
        chosen: dict[str, Any] = {
            "conditions": NETWORKS["fast"],
            "limits": LIMITS,
            "checkpoints": EVERY_MS,
            "files": self.files,
        }
        world = prepared_simulation(env, name="story", **(chosen | options))
        self.watch = LoopWatch(world, self.files)
        return world

    def again(self, program: Any, **options: Any) -> Simulation:
        """Another job that goes on from the newest checkpoint."""
        return self.simulation(program, origin="latest", run_id=f"again-{self.files.commits}", **options)

    def finish(self, world: Simulation) -> Simulation:
        """Brings a job to its end, and checks that its loops ended when they should."""
        if world.coordinator.status is JobStatus.CREATED:
            world.start()
        while not world.coordinator.status.final:
            world.turn()
        world.drain()
        assert world.coordinator.status is JobStatus.FINISHED, world.coordinator.cause
        assert self.watch.wrong == []
        return world

    def is_right(self, expected: Counter[Any], order: Any = None) -> None:
        """Checks that the published records are as if nothing had happened."""
        assert self.files.wrong == []
        assert check_records(self.ledger.book, expected, order) == []

    def held_count(self) -> int:
        """Number of records of feedback in the newest checkpoint."""
        return sum(self.files.feedback[-1].values())


def until_feedback_is_held(story: Story, world: Simulation, least: int = 1, commits: int = 1) -> None:
    """Goes on until that many more checkpoints are there, and the newest holds feedback."""
    target = len(story.files.feedback) + commits
    if world.coordinator.status is JobStatus.CREATED:
        world.start()
    while len(story.files.feedback) < target or story.held_count() < least:
        assert not world.coordinator.status.final, f"no checkpoint with feedback: {world.coordinator.cause}"
        world.turn()
