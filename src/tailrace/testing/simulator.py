"""A whole job, coordinator and workers, in one thread: the machines of production under a seeded network and scheduler
and a virtual clock.

At each turn the simulation picks one of the things that may happen now (a message arrives, a worker takes a step) by its
seed, and writes one line about it to the trace. Where nothing may happen now, the clock jumps to the next thing that
will. Messages cross each link in order; how long they take, how many records a step may take, and who goes first follow
the seed and nothing else.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tailrace.coordinator.lifecycle import JobStatus
from tailrace.coordinator.machine import Action as CoordinatorAction
from tailrace.coordinator.machine import CloseLink, Coordinator, Kill, Launch, Limits, Send, StatusChanged
from tailrace.coordinator.progress import job_metrics
from tailrace.elements.frames import decode as decode_frame
from tailrace.errors import InternalError, JobFailed
from tailrace.graph.plan import Plan
from tailrace.protocol import deployment
from tailrace.protocol.deployment import Hello
from tailrace.task.slice import ToPeer
from tailrace.task.worker import ConnectPeers, Exit, JobSpec, ToCoordinator, Worker

EPOCH = 1_700_000_000_000_000
"""Where the virtual clock starts (int64 microseconds): a fixed moment in 2023."""
_COORDINATOR = -1


@dataclass
class Conditions:
    """How the simulated world behaves. All times are microseconds, all choices uniform over these ranges."""

    delay: tuple[int, int] = (1, 2_000)
    step_cost: tuple[int, int] = (1, 200)
    budget: tuple[int, int] = (1, 64)
    max_turns: int = 5_000_000
    """After so many turns a simulation that has not ended is taken for one that never will."""

    @classmethod
    def calm(cls) -> Conditions:
        """No delays and large steps: the fastest way to the result."""
        return cls(delay=(0, 0), step_cost=(1, 1), budget=(1024, 1024))


@dataclass
class _Link:
    """One direction between two parties; what is sent arrives in order."""

    queue: deque[tuple[int, Any]] = field(default_factory=deque)
    last_arrival: int = 0


@dataclass
class _SimWorker:
    """A worker and what the simulation knows about it."""

    machine: Worker
    epoch: int = 0
    asleep_until: int | None = 0
    """0: may be stepped; None: only a message wakes it; else the clock does."""


class Simulation:
    """One job on a simulated cluster. `run()` brings it to its end."""

    def __init__(
        self,
        plan: Plan,
        load: Callable[[], JobSpec],
        *,
        seed: int = 0,
        name: str = "simulated",
        conditions: Conditions | None = None,
        limits: Limits | None = None,
        keep_trace: bool = True,
    ) -> None:
        self.plan = plan
        self.seed = seed
        self.name = name
        self.conditions = conditions if conditions is not None else Conditions()
        self.now = EPOCH
        self.turns = 0
        self.trace: list[str] = []
        self._keep_trace = keep_trace
        self._hash = hashlib.sha256()
        self._random = random.Random(f"tailrace simulation {seed}")
        self._load = load
        self._links: dict[tuple[int, int], _Link] = {}
        self._workers: dict[int, _SimWorker] = {}
        self.coordinator = Coordinator(name, 1, plan.slots, b"", limits)
        self.reports: list[Any] = []
        """The last figures of every subtask, taken when its worker left."""

    # Running.

    def run(self) -> JobStatus:
        """Brings the job to its end and returns its final status. Raises `InternalError` when it never ends."""
        self.coordinator.start(self.now)
        self._coordinate()
        while not self.coordinator.status.final:
            self.turn()
        return self.coordinator.status

    def turn(self) -> None:
        """One thing happens."""
        self.turns += 1
        if self.turns > self.conditions.max_turns:
            raise InternalError(f"the simulation with seed {self.seed} did not end", self.trace[-40:])
        choices = self._possible()
        if not choices:
            self._sleep()
            return
        choice = choices[self._random.randrange(len(choices))] if len(choices) > 1 else choices[0]
        if isinstance(choice, int):
            self._step(choice)
        else:
            self._deliver(choice)

    @property
    def digest(self) -> str:
        """A hash over the whole trace."""
        return self._hash.hexdigest()

    def workers(self) -> list[Worker]:
        """The machines of the workers that are there."""
        return [worker.machine for worker in self._workers.values()]

    # Choosing.

    def _possible(self) -> list[Any]:
        ready: list[Any] = [k for k, link in self._links.items() if link.queue and link.queue[0][0] <= self.now]
        for slot, worker in self._workers.items():
            wake = worker.asleep_until
            if worker.machine.stepping and wake is not None and wake <= self.now:
                ready.append(slot)
        return ready

    def _sleep(self) -> None:
        """Nothing may happen now: the clock jumps."""
        due = [link.queue[0][0] for link in self._links.values() if link.queue]
        due += [w.asleep_until for w in self._workers.values() if w.machine.stepping and w.asleep_until is not None]
        tick = self.coordinator.next_tick(self.now)
        if tick is not None and (not due or tick <= min(due)):
            self.now = max(self.now, tick)
            self._beat()
            self._note("tick")
            self.coordinator.tick(self.now)
            self._coordinate()
        elif due:
            self.now = max(self.now, min(due))
        else:
            raise InternalError(f"the simulation with seed {self.seed} stands still", self.trace[-40:])

    def _beat(self) -> None:
        """Living workers give their sign of life in time; it is not the protocol under test here."""
        for slot in self._workers:
            self.coordinator.heartbeat(slot, slot + 1, self.now)

    # Messages.

    def _send(self, source: int, target: int, item: Any) -> None:
        link = self._links.setdefault((source, target), _Link())
        delay = self._random.randint(*self.conditions.delay)
        link.last_arrival = max(link.last_arrival, self.now + delay)
        link.queue.append((link.last_arrival, item))

    def _deliver(self, key: tuple[int, int]) -> None:
        source, target = key
        item = self._links[key].queue.popleft()[1]
        self._note(f"{_who(source)} => {_who(target)} {_described(item)}")
        if target == _COORDINATOR:
            self._tell_coordinator(source, item)
            self._coordinate()
            return
        worker = self._workers.get(target)
        if worker is None:
            return
        worker.asleep_until = 0
        if isinstance(item, bytes):
            worker.machine.frame(item, source)
        elif item is _CONNECTED:
            worker.machine.peers_connected()
        else:
            worker.machine.control(deployment.decode(deployment.encode(item)))
        self._carry_out(target)

    def _tell_coordinator(self, source: int, item: Any) -> None:
        if isinstance(item, Hello):
            worker = self._workers[item.slot]
            epoch = self.coordinator.hello(item, self.now)
            worker.epoch = epoch if epoch is not None else 0
        elif isinstance(item, Exit):
            left = self._workers.pop(source, None)
            if left is not None and left.machine.slice is not None:
                self.reports.extend(left.machine.slice.reports({}))
            self.coordinator.slot_ended(source, None, self.now)
        else:
            message = deployment.decode(deployment.encode(item))
            self.coordinator.message(source, self._workers[source].epoch, message, self.now)

    # Workers.

    def _step(self, slot: int) -> None:
        worker = self._workers[slot]
        machine = worker.machine
        wakes: list[int] = []
        for task in machine.tasks():
            budget = self._random.randint(*self.conditions.budget)
            idle = machine.step(task, self.now, budget)
            if idle is None:
                self._note(f"{_who(slot)} {task.id} read {task.last_count}")
                break
            if idle.wake_at is not None:
                wakes.append(idle.wake_at)
            if not machine.stepping:
                break
        else:
            if machine.flush():
                self._note(f"{_who(slot)} flushed")
            else:
                worker.asleep_until = min(wakes, default=None)
                self._note(f"{_who(slot)} idle until {worker.asleep_until}")
        self.now += self._random.randint(*self.conditions.step_cost)
        self._carry_out(slot)

    def _carry_out(self, slot: int) -> None:
        machine = self._workers[slot].machine
        actions, machine.actions = machine.actions, []
        for action in actions:
            if isinstance(action, ToPeer):
                self._send(slot, action.slot, action.data)
            elif isinstance(action, ToCoordinator):
                self._send(slot, _COORDINATOR, action.message)
            elif isinstance(action, ConnectPeers):
                self._send(slot, slot, _CONNECTED)
            else:
                self._send(slot, _COORDINATOR, action)

    # The coordinator.

    def _coordinate(self) -> None:
        actions: list[CoordinatorAction] = self.coordinator.actions
        self.coordinator.actions = []
        for action in actions:
            if isinstance(action, Launch):
                machine = Worker(action.slot, lambda _: self._load(), random.Random)
                self._workers[action.slot] = _SimWorker(machine)
                hello = Hello(action.slot, "simulated", action.slot, action.slot + 1, self.name, 1)
                self._send(action.slot, _COORDINATOR, hello)
            elif isinstance(action, Send):
                self._send(_COORDINATOR, action.slot, action.message)
            elif isinstance(action, Kill):
                if self._workers.pop(action.slot, None) is not None:
                    self.coordinator.slot_ended(action.slot, None, self.now)
                    self._coordinate()
            elif isinstance(action, StatusChanged):
                self._note(f"status {action.status}")
            else:
                assert isinstance(action, CloseLink)

    def _note(self, line: str) -> None:
        text = f"{self.now - EPOCH:>12} {line}"
        self._hash.update(text.encode())
        if self._keep_trace:
            self.trace.append(text)


_CONNECTED = object()


def _who(party: int) -> str:
    return "coordinator" if party == _COORDINATOR else f"worker {party}"


def _described(item: Any) -> str:
    if isinstance(item, bytes):
        frame = decode_frame(item)
        return f"frame kind {frame.kind} {frame.channel} seq {frame.seq} x{frame.count}"
    return "connected" if item is _CONNECTED else type(item).__name__


class SimulatedJob:
    """The handle of a job that ran under simulation: like a real one, but already at its end."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.name = simulation.name

    @property
    def status(self) -> JobStatus:
        return self.simulation.coordinator.status

    @property
    def digest(self) -> str:
        """A hash over the whole trace: equal seeds give equal digests."""
        return self.simulation.digest

    @property
    def trace(self) -> list[str]:
        """What happened, a line each."""
        return self.simulation.trace

    def await_termination(self, timeout: float | None = None) -> bool:
        """True when the job finished. Raises `JobFailed` when it failed."""
        error = self.exception()
        if error is not None:
            raise error
        return True

    def exception(self) -> JobFailed | None:
        """Why the job failed, or None."""
        cause = self.simulation.coordinator.cause
        if cause is None:
            return None
        return JobFailed(
            f"job {self.name!r} failed: {cause.message}",
            job=self.name,
            operator=cause.operator,
            subtask=cause.subtask,
            record=cause.record,
        )

    def metrics(self) -> dict[str, Any]:
        """Figures of the whole job and of every subtask, as at the end; the shape is that of a real job's."""
        return job_metrics(self.simulation.plan, self.simulation.reports)
