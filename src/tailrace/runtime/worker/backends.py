"""State backends of a worker: in memory, or on disk in a folder of its process."""

from __future__ import annotations

import os
import threading

from tailrace.state.backend import Backend
from tailrace.state.memory_backend import MemoryBackend
from tailrace.storage.scratch import Scratch, remove_abandoned
from tailrace.task.contract.jobspec import JobSpec


class Backends:
    """The maker of the backends of one worker."""

    def __init__(self) -> None:
        self._scratch: Scratch | None = None
        """A folder of this process for state on disk, once there is any."""
        self._made = 0
        """Number of backends on disk."""

    def __call__(self, spec: JobSpec, uid: str, subtask: int) -> Backend:
        """The backend for the keyed state of one operator."""
        groups, allowed = spec.plan.graph.max_parallelism, spec.allow_dropped_state
        if spec.state_backend == "memory":
            return MemoryBackend(uid=uid, subtask=subtask, max_parallelism=groups, allow_dropped=allowed)
        from tailrace.storage.disk_backend import DiskBackend

        if self._scratch is None:
            self._scratch = Scratch()
        self._made += 1
        folder = os.path.join(self._scratch.path, str(self._made))
        return DiskBackend(folder, uid=uid, subtask=subtask, max_parallelism=groups, allow_dropped=allowed)

    def remove_abandoned(self) -> None:
        """Removes the folders of processes that were killed, in a thread."""
        threading.Thread(target=remove_abandoned, name="tailrace-scratch", daemon=True).start()

    def close(self) -> None:
        """Removes the folder."""
        if self._scratch is not None:
            self._scratch.close()
