"""The state backends of simulated workers."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from tailrace.state.backend import Backend
from tailrace.state.memory import MemoryBackend
from tailrace.storage.disk import DiskBackend
from tailrace.task.contract.jobspec import JobSpec


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
