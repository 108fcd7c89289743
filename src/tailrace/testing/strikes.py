"""The times at which the faults of a simulated job strike, and their effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import GraphError
from tailrace.task.contract.events import Event as WorkerEvent
from tailrace.task.contract.usercode import user_error
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.subtask.machine import Task
from tailrace.testing.clocks import DRIVER
from tailrace.testing.cluster import Cluster
from tailrace.testing.drivers import Drivers
from tailrace.testing.faults import Fault
from tailrace.testing.sizes import rescale
from tailrace.testing.storing import Storage, Trouble
from tailrace.testing.successions import WAIT
from tailrace.testing.workers import Workers
from tailrace.testing.world import Event, Observer, SimulatedProcess

RAISED = "a fault has raised this"
"""Text of the errors that faults raise in user code."""
OF_DRIVERS = frozenset({"checkpoint", "rescale", "move", "crash-driver", "freeze-driver", "lose-coordinator"})
"""Faults that happen to the newest driver, or that it receives as a request."""


class Struck(Exception):
    """The error that a fault raises in user code."""


@dataclass
class _Raising:
    """A place in which user code raises an error."""

    slot: int
    vertex: int
    left: int
    """Number of times that it is still to raise it."""
    armed: Task | None = None
    """The task that is to raise it next."""


class Strikes(Observer):
    """The faults of a job. A fault that waits for a line of the trace gets its turn when the line is noted."""

    def __init__(
        self, cluster: Cluster, storage: Storage, workers: Workers, drivers: Drivers, faults: Sequence[Fault]
    ) -> None:
        self._cluster, self._storage, self._workers, self._drivers = cluster, storage, workers, drivers
        self._due = deque(sorted((f for f in faults if not f.after), key=lambda fault: fault.turn))
        self._anchored = [fault for fault in faults if fault.after]
        self._raising: list[_Raising] = []
        self._raised = 0
        cluster.observers.append(self)

    @property
    def to_come(self) -> bool:
        """True where a fault is still to come at some turn."""
        return bool(self._due)

    def stop(self) -> None:
        """Drops all faults that are still to come."""
        self._due.clear()
        self._anchored.clear()
        self._raising.clear()

    def on_line(self, line: str) -> None:
        due = [fault for fault in self._anchored if fault.after in line]
        if due:
            self._anchored = [fault for fault in self._anchored if fault not in due]
            placed = [replace(fault, turn=self._cluster.turns + fault.turn, after="") for fault in due]
            self._due = deque(sorted([*self._due, *placed], key=lambda fault: fault.turn))

    def on_event(self, process: SimulatedProcess, event: WorkerEvent) -> None:
        for one in self._raising:
            if one.slot == process.slot:
                self._arm(process, one)

    def strike_those_due(self) -> None:
        """Lets the faults happen whose turn has come."""
        while self._due and self._due[0].turn <= self._cluster.turns:
            self.strike(self._due.popleft())

    def strike(self, fault: Fault) -> None:
        """Lets a fault happen, where there is something for it to happen to."""
        cluster = self._cluster
        here = sorted(cluster.processes)
        process = cluster.processes[here[fault.which % len(here)]] if here else None
        if fault.kind == "jump-clock":
            self._jump_clock(fault)
            return
        if fault.kind == "slots":
            cluster.set_slots(fault.which, fault.other)
            return
        if fault.kind in OF_DRIVERS and not cluster.driver.alive:
            return  # a lost coordinator without a successor receives nothing, and cannot be lost once more
        if fault.kind == "storage":
            until = cluster.turns + fault.duration
            self._storage.trouble = Trouble(until, fault.chance, fault.outcome, fault.only, fault.slow)
            cluster.count("storage in trouble")
        elif fault.kind == "hang":
            cluster.count("the storage hangs")
            for (source, target), link in cluster.links.items():
                if source == target:  # requests to the storage, and its answers
                    link.last_arrival = max(link.last_arrival, cluster.now) + fault.duration
        elif fault.kind == "checkpoint":
            cluster.count("asked for a checkpoint")
            cluster.driver.coordinator.checkpoint(None, cluster.driver.now())
            self._drivers.coordinate(cluster.driver)
        elif fault.kind == "rescale":
            cluster.count("asked for another size")
            cluster.note(f"asked for the size {fault.which}")
            try:
                rescale(cluster, self._drivers.job, fault.which)
            except GraphError as error:
                cluster.count("asked for a size that the dataflow cannot have")
                cluster.note(error.args[0])
        elif fault.kind in ("crash-driver", "freeze-driver", "lose-coordinator"):
            self._end_driver(fault)
        elif fault.kind == "delay" and cluster.links:
            keys = sorted(cluster.links)
            cluster.links[keys[fault.which % len(keys)]].last_arrival = cluster.now + fault.duration
            cluster.count("delayed a link")
        elif process is not None:
            self._strike_worker(process, fault)

    def _strike_worker(self, process: SimulatedProcess, fault: Fault) -> None:
        cluster = self._cluster
        if fault.kind == "freeze":
            process.frozen_until = cluster.now + fault.duration
            cluster.count("froze a worker")
        elif fault.kind == "cut-link":
            self._cut_link(process, fault.other)
        elif fault.kind == "raise":
            tasks = process.machine.tasks()
            if tasks:
                vertex = tasks[fault.other % len(tasks)].vertex.id
                self._raising.append(_Raising(process.slot, vertex, fault.times))
                self._arm(process, self._raising[-1])
        elif fault.kind == "move":
            self._leave(process, fault.duration, by_itself=fault.other == 1)
        elif fault.kind == "lose-executor":
            cluster.count("lost an executor")
            for one in self._in_executor_of(process):
                cluster.kill(one, "killed", cut=True, announced=True)
        elif fault.kind in ("kill", "respawn"):
            if cluster.driver.coordinator.status is JobStatus.RESTARTING:
                cluster.count("lost a worker during recovery")
            again = fault.kind == "respawn"
            cluster.kill(process, "respawned" if again else "killed", cut=True, announced=not again)
            if again and process.driver.alive:
                self._workers.launch(process.driver, process.place, process.launch)

    def _in_executor_of(self, process: SimulatedProcess) -> list[SimulatedProcess]:
        """All processes in the executor of a worker."""
        found = [
            one for one in self._cluster.processes.values() if process.executor and one.executor == process.executor
        ]
        return found or [process]

    def _leave(self, process: SimulatedProcess, after: int, by_itself: bool) -> None:
        """Reports that the executor of a worker is about to go, and lets it go. `by_itself`: not Spark reports that, but the
        signs of life of its workers."""
        cluster, leaving = self._cluster, self._in_executor_of(process)
        launches = [(one.place, one.launch) for one in leaving if one.driver is cluster.driver]
        coordinator, now = cluster.driver.coordinator, cluster.driver.now()
        if by_itself:
            cluster.count("a worker reported that its machine is about to go")
            for one in leaving:
                coordinator.heartbeat(one.place, one.party, now, leaving=True)
        else:
            coordinator.move(launches, now)
        self._drivers.coordinate(cluster.driver)

        def act() -> None:
            for one in leaving:
                if one.party in cluster.processes:
                    cluster.kill(one, "its machine has gone", cut=True, announced=True)

        if after:
            cluster.later(cluster.now + after, "a machine goes", act)

    def _arm(self, process: SimulatedProcess, raising: _Raising) -> None:
        """Lets the next step of a task that does something raise an error. Of a task that replays it is by chance a step
        that is replayed, or the first one behind."""
        slice = process.machine.slice
        task = None if slice is None else slice.by_vertex.get(raising.vertex)
        if task is None or task is raising.armed or not raising.left:
            return
        raising.armed, armed = task, task

        def strike(act: Callable[..., Any], replayed: bool) -> Callable[..., Any]:
            def raises(*args: Any, **options: Any) -> Any:
                idle = act(*args, **options)
                here = replayed == (isinstance(slice, ReplayableSlice) and slice.again)
                if idle is None and here and raising.armed is armed and raising.left and self._raising:
                    raising.left -= 1
                    self._raise(armed)
                return idle

            return raises

        if isinstance(slice, ReplayableSlice) and self._cluster.chance.random() < 0.5:
            task.work.begin = strike(task.work.begin, replayed=True)  # type: ignore[method-assign]
        task.step = strike(task.step, replayed=False)  # type: ignore[method-assign]

    def _raise(self, task: Task) -> None:
        self._raised += 1
        self._cluster.count("raised an error in user code")
        error = Struck(f"{RAISED} ({self._raised})")
        raise user_error(error, task.vertex.name, task.id.subtask) from error

    def _jump_clock(self, fault: Fault) -> None:
        """Sets the wall clock of a machine. The trace has no line for it: nothing else is to change."""
        places = sorted({process.place for process in self._cluster.processes.values()})
        if fault.which == 0:
            self._cluster.ahead[DRIVER] += fault.duration
            self._cluster.covered["set the clock of the driver"] += 1
        elif places:
            self._cluster.ahead[places[(fault.which - 1) % len(places)]] += fault.duration
            self._cluster.covered["set the clock of a worker"] += 1

    def _cut_link(self, process: SimulatedProcess, other: int) -> None:
        """Breaks a connection between two workers; both live on."""
        cluster, slots = self._cluster, sorted(process.peers)
        if not slots:
            return
        slot = slots[other % len(slots)]
        peer = cluster.processes.get(process.peers[slot])
        if peer is not None:
            cluster.count("cut a link")
            cluster.lose_peer(process, slot, peer.party, "cut by a fault", cut=True)
            cluster.lose_peer(peer, process.slot, process.party, "cut by a fault", cut=True)

    def _end_driver(self, fault: Fault) -> None:
        """Ends the driver in the middle of its work, and its workers notice sooner or later; or freezes it. Another driver
        goes on from the newest checkpoint: at once as another run, or, where only the coordinator's process was lost,
        after a while as the same run."""
        cluster, old = self._cluster, self._cluster.driver
        status = old.coordinator.status
        if old.store is None or status is JobStatus.CREATED or status.final:
            return
        if status is JobStatus.RESTARTING:
            cluster.count("lost the driver during recovery")
        if fault.kind == "freeze-driver":
            cluster.count("froze the driver")
            old.frozen_until = cluster.now + fault.duration
        else:
            alone = fault.kind == "lose-coordinator"
            cluster.count("lost the coordinator alone" if alone else "crashed the driver")
            outlived = alone and fault.duration < WAIT // 2 and self._drivers.successions.all_outlive(old)
            old.alive = False
            cluster.cut_short(old.party)
            for process in cluster.processes.values():
                if process.driver is old:
                    loss = Event("coordinator lost", partial(self._drivers.successions.lose, process))
                    low, high = cluster.conditions.zombie
                    high = min(high, WAIT // 4) if old.coordinator.waits else high
                    cluster.send(old.party, process.party, loss, cluster.chance.randint(min(low, high), high))
        if fault.kind == "lose-coordinator":
            at = cluster.now + fault.duration
            cluster.later(
                at, "another coordinator", lambda: self._drivers.replace(old, "its executor was lost", outlived)
            )
        else:
            self._drivers.take_over()
