"""The settings with which a simulated worker is made, and made again for a replay."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.runtime.worker.random_state import SharedGenerators
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.recorded_answers import Outside
from tailrace.task.contract.tuning import Tuning
from tailrace.task.worker.machine import Worker
from tailrace.testing.backing import InMemory, OnDisk


@dataclass(frozen=True)
class Setting:
    """The settings of the workers of a job."""

    tuning: Tuning | None = None
    small: int | None = None
    """Number of entries up to which an operator's state is written as a whole each time; None: as in production."""
    disk: str | None = None
    """The folder for state on disk; None: state is in memory."""

    def worker(
        self,
        slot: int,
        load: Callable[[], JobSpec],
        checkpointing: bool,
        covered: Counter[str],
        outside: Outside | None = None,
    ) -> Worker:
        """A worker that has not joined."""
        make = InMemory(self.small) if self.disk is None else OnDisk(self.disk, covered, self.small)
        backend = make if checkpointing else None
        shared = SharedGenerators()
        return Worker(
            slot, lambda _: load(), random.Random, backend, outside=outside, tuning=self.tuning, shared=shared
        )
