"""Whether the executor that runs this process is about to go, as the process itself sees it.

An executor that Spark decommissions starts a thread that waits for its end. Only the driver of the Spark application has an
interface to that; a program that reaches Spark by Spark Connect has none, and neither has a coordinator on an executor. But
the executor's JVM is an ancestor of the worker, and Linux shows the names of its threads.
"""

from __future__ import annotations

import os
from pathlib import Path

WAITS = "wait-for-blocks-to-migrate"[:15]
"""The thread with which a decommissioned executor waits for its end (`CoarseGrainedExecutorBackend`), as Linux cuts its
name."""
JVM = "java"


class ExecutorWatch:
    """A watch of the JVM that runs this process. It sees nothing where the system has no such folder as Linux has."""

    def __init__(self, processes: Path = Path("/proc"), pid: int | None = None) -> None:
        """`processes`: the folder of the processes of this machine; `pid`: the process whose executor is watched."""
        self._processes = processes
        self._jvm = self._find(os.getpid() if pid is None else pid)
        """The folder of the JVM's threads; None where there is no JVM."""
        self._known: set[str] = set()
        """Threads that have had time to take their names."""
        self._new: set[str] = set()
        self._goes = False

    def look(self) -> bool:
        """True once the executor is about to go."""
        if self._jvm is None or self._goes:
            return self._goes
        try:
            there = set(os.listdir(self._jvm))
        except OSError:  # the executor has gone
            return False
        fresh = there - self._known
        self._known = (self._known | self._new) & there
        self._new = fresh
        self._goes = any(_name(self._jvm / thread) == WAITS for thread in fresh)
        return self._goes

    def _find(self, pid: int) -> Path | None:
        """The folder of the threads of the nearest ancestor that is a JVM."""
        while pid > 1:
            folder = self._processes / str(pid)
            if _name(folder) == JVM:
                return folder / "task"
            try:
                status = (folder / "status").read_text(encoding="utf-8", errors="replace")
            except OSError:
                return None
            pid = next((int(line[5:]) for line in status.splitlines() if line.startswith("PPid:")), 0)
        return None


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:  # it has ended
        return ""
