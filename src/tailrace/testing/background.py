"""Work beside the tasks of a simulated worker: each call, and each wake of a reader, comes after a delay of chance."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from tailrace.task.contract.background import Beside
from tailrace.task.contract.events import ReaderWoken
from tailrace.testing.cluster import Cluster
from tailrace.testing.world import SimulatedProcess

CALLS_TAKE = 20
"""Time that a call takes, as a multiple of the delay of a message: it may wait for a server."""


class SimulatedBeside(Beside):
    """What a simulated process does beside its tasks. Nothing of it is done once the process is killed."""

    def __init__(self, cluster: Cluster, party: int, act: Callable[[SimulatedProcess], object]) -> None:
        """`act` carries out the actions of a process."""
        self._cluster, self._party, self._act = cluster, party, act
        self._calls: defaultdict[str, deque[Callable[[], object]]] = defaultdict(deque)
        self._waking: set[str] = set()
        self.warnings: list[str] = []

    def waker(self, uid: str) -> Callable[[], object]:
        def wake() -> None:
            if uid not in self._waking:
                self._waking.add(uid)
                self._later("a reader wakes its task", lambda process: self._wake(process, uid))

        return wake

    def call(self, uid: str, call: Callable[[], object]) -> None:
        self._cluster.count("calls behind a checkpoint")
        self._calls[uid].append(call)
        self._later("a call beside a task", lambda process: self._next_call(uid), CALLS_TAKE)

    def wait(self, uid: str) -> None:
        while self._calls[uid]:
            self._next_call(uid)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def _wake(self, process: SimulatedProcess, uid: str) -> None:
        self._waking.discard(uid)
        process.asleep_until = 0
        process.handle(ReaderWoken(uid))
        self._act(process)

    def _next_call(self, uid: str) -> None:
        if self._calls[uid]:
            self._calls[uid].popleft()()

    def _later(self, what: str, do: Callable[[SimulatedProcess], object], times: int = 1) -> None:
        cluster = self._cluster

        def act() -> None:
            process = cluster.processes.get(self._party)
            if process is None:
                return
            if process.frozen_until > cluster.now:
                cluster.later(process.frozen_until, what, act)
            else:
                do(process)

        cluster.later(cluster.now + times * cluster.chance.randint(*cluster.conditions.delay), what, act)
