"""The settings with which a simulated worker is made, and made again for a replay; and those of a job, for each of its
drivers."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.restarts import Strategy
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.loops.termination import WavePace
from tailrace.coordinator.workers.rescaling import ElasticSizes
from tailrace.graph.plan import Plan
from tailrace.graph.sizes import Sizes, plan_of_size
from tailrace.runtime.worker.random_state import SharedGenerators
from tailrace.state.backend import Backend
from tailrace.state.memory_backend import MemoryBackend
from tailrace.storage.disk_backend import DiskBackend
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.outside import Outside
from tailrace.task.contract.tuning import Tuning
from tailrace.task.worker.machine import Worker
from tailrace.testing.calls import SimulatedCalls
from tailrace.testing.memorystore import MemoryFiles


def size_bytes(sizes: Sizes | None) -> bytes:
    """The plan of a size, as the coordinator of a simulated job has it; None: the plan that the job began with."""
    return b"" if sizes is None else msgspec.json.encode(sizes)


def spec_of_size(spec: JobSpec, plan: bytes) -> JobSpec:
    """The job as a worker receives it with such a plan."""
    return replace(spec, plan=plan_of_size(spec.plan, msgspec.json.decode(plan))) if plan else spec


class InMemory:
    """Maker of backends in memory."""

    def __init__(self, small: int | None = None) -> None:
        self._small = small

    def __call__(self, spec: JobSpec, uid: str, subtask: int) -> Backend:
        groups = spec.plan.graph.max_parallelism
        return MemoryBackend(uid=uid, subtask=subtask, max_parallelism=groups, small=self._small)


class OnDisk:
    """Maker of backends on disk that keep little in memory, each in a folder of its own."""

    def __init__(self, folder: str, covered: Counter[str], small: int | None = None) -> None:
        self._small = small
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._covered = covered
        self._made = 0

    def __call__(self, spec: JobSpec, uid: str, subtask: int) -> Backend:
        self._made += 1
        self._covered["backends on disk"] += 1
        place = self._folder / str(self._made)
        groups, small = spec.plan.graph.max_parallelism, self._small
        return DiskBackend(place, groups, uid, subtask, top_entries=4, cache_entries=3, small=small)


@dataclass(frozen=True)
class Setting:
    """The settings of the workers of a job."""

    tuning: Tuning | None = None
    small: int | None = None
    """Number of entries up to which an operator's state is written as a whole each time; None: as in production."""
    disk: str | None = None
    """The folder for state on disk; None: state is in memory."""
    reports_each: int = 0
    """Microseconds from one progress report of a worker to the next; 0: there are none."""

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
        outside = Outside() if outside is None else outside
        outside.calls = SimulatedCalls()
        return Worker(
            slot,
            lambda plan: spec_of_size(load(), plan),
            random.Random,
            backend,
            outside=outside,
            tuning=self.tuning,
            shared=shared,
        )


From = tuple[MemoryFiles, str] | Literal["latest"]
"""The checkpoint that a job starts from: a manifest in some folder, or the newest in its own folder."""


@dataclass(frozen=True)
class DrivenJob:
    """The settings that every driver of a job receives."""

    plan: Plan
    name: str
    run_id: str
    limits: Limits | None
    checkpoints: CheckpointSettings | None
    restarts: Callable[[], Strategy] | None
    origin: From | None
    allow_dropped_state: bool | tuple[str, ...]
    pace: WavePace | None = None
    standbys: int | None = None
    """Number of worker processes that stand by; None: lost workers are not replaced alone."""
    elastic: ElasticSizes | None = None
    """The sizes of a job that changes its size by itself."""
    hot: bool = False
    """True if standbys do what the workers of their slices do."""
    depth: int = 0
    """Number of executors whose workers may be lost at once and are replaced."""
    copied: int = 0
    """Bytes in memory of the workers' histories that the coordinator knows; 0: no limit."""
    log: int | None = None
    """Bytes of the coordinator's log between two of its bases; None: a lost coordinator is a restart of all."""
