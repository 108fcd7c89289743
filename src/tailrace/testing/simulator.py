"""A whole job, coordinator and workers, in one thread: the machines of production under a seeded network and scheduler
and a virtual clock.

At each turn the simulation picks one of the things that may happen now (a message arrives, a worker takes a step, the
storage answers) by its seed, and writes one line about it to the trace. Where nothing may happen now, the clock jumps to
the next thing that will. Messages cross each link in order; how long they take, how many records a step may take, and who
goes first follow the seed and nothing else. Faults are data: see `testing.faults`.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, assert_never

from tailrace.api.compat import check
from tailrace.coordinator.actions import Action as CoordinatorAction
from tailrace.coordinator.actions import (
    CheckpointEnded,
    Claim,
    CloseLink,
    Commit,
    Delete,
    Kill,
    Launch,
    MarkPublished,
    MarkSwept,
    Restarting,
    Send,
    StatusChanged,
    Sweep,
    WasPublished,
)
from tailrace.coordinator.checkpoints import CheckpointSettings
from tailrace.coordinator.lifecycle import JobStatus
from tailrace.coordinator.limits import Limits
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.progress import job_metrics
from tailrace.coordinator.restarts import Strategy
from tailrace.errors import InternalError, JobFailed
from tailrace.graph.plan import Plan
from tailrace.protocol import wire
from tailrace.protocol.deployment import Hello
from tailrace.protocol.snapshot import Trigger
from tailrace.runtime.settings import nests_of, start_from
from tailrace.state.backend import Backend
from tailrace.storage.origins import Origin, origin_at
from tailrace.task.actions import Action as WorkerAction
from tailrace.task.actions import ClosePeers, ConnectPeers, Exit, ReadPrepared, ReadState, ToCoordinator
from tailrace.task.checkpoints import DropState, WriteState
from tailrace.task.events import (
    CoordinatorLost,
    CoordinatorSaid,
    Encode,
    Flush,
    FrameArrived,
    PeerLost,
    PeersConnected,
    PeersUnreachable,
    Step,
)
from tailrace.task.jobspec import JobSpec
from tailrace.task.slice import ToPeer
from tailrace.task.worker import Worker
from tailrace.testing import storing
from tailrace.testing.backing import in_memory
from tailrace.testing.faults import Fault, strike
from tailrace.testing.memorystore import Fault as Wrong
from tailrace.testing.memorystore import MemoryFiles, MemoryStore
from tailrace.testing.recording import Recordings
from tailrace.testing.world import (
    EPOCH,
    Conditions,
    Driver,
    Event,
    FrameItem,
    Link,
    Process,
    StoreWork,
    described,
)

__all__ = ["EPOCH", "Conditions", "From", "SimulatedJob", "Simulation"]

From = tuple[MemoryFiles, str] | Literal["latest"]
"""The checkpoint that a job starts from: a manifest in some folder, or the newest in its own."""


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
        checkpoints: CheckpointSettings | None = None,
        restarts: Callable[[], Strategy] | None = None,
        files: MemoryFiles | None = None,
        origin: From | None = None,
        allow_dropped_state: bool | tuple[str, ...] = False,
        faults: Sequence[Fault] = (),
        run_id: str = "run",
    ) -> None:
        self.plan = plan
        self.seed = seed
        self.name = name
        self.conditions = conditions if conditions is not None else Conditions()
        self.limits = limits
        self.settings = checkpoints
        self.restarts = restarts
        self.now = EPOCH
        self.turns = 0
        self.trace: list[str] = []
        self.covered: Counter[str] = Counter()
        """What happened how often: checkpoints, aborts, restarts, …"""
        self.causes: list[Any] = []
        """Why the job was restarted, each time."""
        self.files = files if files is not None else MemoryFiles()
        self.trouble: tuple[int, float, str] = (0, 0.0, "error")
        """Until which turn operations on the storage go wrong, how probably, and how."""
        self.trouble_only = ""
        """Which text such operations have in what they are called and in the names of their files."""
        self._faults = deque(sorted((f for f in faults if not f.after), key=lambda fault: fault.turn))
        self._anchored = [fault for fault in faults if fault.after]
        self._keep_trace = keep_trace
        self._hash = hashlib.sha256()
        self.chance = random.Random(f"tailrace simulation {seed}")
        self.load = load
        self.links: dict[tuple[int, int], Link] = {}
        self.processes: dict[int, Process] = {}
        self._drivers: dict[int, Driver] = {}
        self._later: list[tuple[int, int, str, Callable[[], None]]] = []
        """What happens at some time without a link: (time, number, what, act)."""
        self._parties = 0
        self._run_id = run_id
        self._quiet = False
        self.backend: Callable[[JobSpec, str, int], Backend] = in_memory
        """Makes the state backend of an operator's subtask."""
        self.recordings: Recordings | None = None
        """Where the events and actions of the workers are kept, if anywhere."""
        self.reports: list[Any] = []
        """The last figures of every subtask, taken when its worker left."""
        self._begun_from = origin
        self._allowed = allow_dropped_state
        self._elsewhere: dict[str, MemoryFiles] = {}
        """Folders of other jobs, by their URLs."""
        self.driver = self._new_driver(origin)

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the newest driver."""
        return self.driver.coordinator

    def _new_driver(self, wanted: From | None) -> Driver:
        number = len(self._drivers) + 1
        run_id = self._run_id if number == 1 else f"{self._run_id}-{number}"
        store, incarnation, origin = None, 1, None
        abandoned: list[str] = []
        settings = self.settings
        if settings is not None:
            trouble, self.trouble = self.trouble, (0, 0.0, "error")
            store = MemoryStore(self.name, self.files, fail=self._fail)
            settings = replace(settings, origin=store.url)
            incarnation = store.claim(run_id, takeover=True)
            abandoned = store.abandoned()
            origin = self._origin(store, wanted)
            self.trouble = trouble
        self.files.begun(run_id, None if origin is None else (self._files_in(origin.folder), origin.path))
        coordinator = Coordinator(
            self.name,
            incarnation,
            self.plan.slots,
            b"",
            self.limits,
            run_id=run_id,
            max_parallelism=self.plan.graph.max_parallelism,
            checkpoints=settings,
            restarts=self.restarts() if self.restarts is not None else None,
            start_from=start_from(origin, store),
            abandoned=abandoned,
            nests=nests_of(self.plan),
        )
        self._parties += 1
        self.driver = Driver(-self._parties, run_id, coordinator, store, origin)
        self._drivers[self.driver.party] = self.driver
        return self.driver

    def new_driver(self) -> None:
        """Another driver takes the job over, from the newest checkpoint."""
        self._new_driver("latest")
        self.start()

    def _origin(self, store: MemoryStore, wanted: From | None) -> Origin | None:
        """The checkpoint to start from, held against the dataflow as before any start. Raises `IncompatibleState`."""
        if wanted is None:
            return None
        if wanted == "latest":
            newest = store.latest()
            if newest is None:  # nothing of its own yet: whoever starts it again begins where it began
                begun = self._begun_from
                return None if begun is None or begun == "latest" else self._origin(store, begun)
            found = origin_at(store, newest[0])
        else:
            files, path = wanted
            self._elsewhere[files.url] = files
            found = origin_at(store if files is self.files else self.store_in(files.url), path)
        manifest, graph = found.manifest, self.plan.graph
        groups = (manifest.max_parallelism, graph.max_parallelism)
        check(manifest.operators, graph.nodes, self._allowed, max_parallelism=groups, prepared=manifest.prepared)
        return found

    def _files_in(self, folder: str) -> MemoryFiles:
        return self._elsewhere.get(folder, self.files)

    def store_in(self, folder: str) -> MemoryStore:
        """A folder of another job, to read from."""
        return MemoryStore(self.name, self._files_in(folder), fail=self._fail)

    # Running.

    def run(self) -> JobStatus:
        """Brings the job to its end and returns its final status. Raises `InternalError` when it never ends."""
        self.start()
        while not self.coordinator.status.final:
            self.turn()
        return self.coordinator.status

    def run_until(self, text: str) -> bool:
        """Begins, or goes on, until a new line of the trace has this text in it (True), or the job has ended."""
        if self.coordinator.status is JobStatus.CREATED:
            self.start()
        seen = len(self.trace)
        while not self.coordinator.status.final:
            self.turn()
            for line in self.trace[seen:]:
                if text in line:
                    return True
            seen = len(self.trace)
        return False

    def start(self) -> None:
        """The job begins."""
        self.coordinator.start(self.now)
        self.coordinate(self.driver)

    def turn(self) -> None:
        """One thing happens."""
        self.turns += 1
        if self.turns > self.conditions.max_turns:
            raise InternalError(f"the simulation with seed {self.seed} did not end", self.trace[-40:])
        while self._faults and self._faults[0].turn <= self.turns:
            strike(self, self._faults.popleft())
        choices = self._possible()
        if not choices:
            if not self._sleep():
                raise InternalError(f"the simulation with seed {self.seed} stands still", self.trace[-40:])
            return
        choice = choices[self.chance.randrange(len(choices))] if len(choices) > 1 else choices[0]
        if choice is None:
            _, _, what, act = heapq.heappop(self._later)
            self._note(what)
            act()
        elif isinstance(choice, Driver):
            self._tick(choice)
        elif isinstance(choice, Process):
            self._step(choice)
        else:
            self._deliver(choice)

    def drain(self) -> None:
        """After the end: whatever is left, old drivers and workers that nobody has told, comes to its own end. No more
        faults happen."""
        self._faults.clear()
        self._anchored.clear()
        self.trouble = (0, 0.0, "error")
        while True:
            self.turns += 1
            if self.turns > self.conditions.max_turns:
                raise InternalError(
                    f"what the simulation with seed {self.seed} left behind does not end", self.trace[-40:]
                )
            choices = self._possible()
            if not choices:
                if not self._sleep():
                    return
                continue
            self.turns -= 1
            self.turn()

    @property
    def digest(self) -> str:
        """A hash over the whole trace."""
        return self._hash.hexdigest()

    def workers(self) -> list[Worker]:
        """The machines of the workers that are there."""
        return [process.machine for process in self.processes.values()]

    @property
    def disturbed(self) -> bool:
        """Whether a fault is still to come at some turn, or lasts. One that waits for a line that never comes does not
        count."""
        if self._faults or self.turns < self.trouble[0]:
            return True
        thaws = [process.frozen_until for process in self.processes.values()]
        thaws += [driver.frozen_until for driver in self._drivers.values()]
        return any(thaw > self.now for thaw in thaws)

    # Choosing.

    def _possible(self) -> list[Any]:
        now, processes = self.now, self.processes
        ready: list[Any] = []
        for key, link in self.links.items():
            queue = link.queue
            if queue and queue[0][0] <= now and self._thaw(key[1]) <= now:
                ready.append(key)
        for process in processes.values():
            wake = process.asleep_until
            if wake is not None and wake <= now and process.frozen_until <= now and process.machine.stepping:
                ready.append(process)
        for driver in self._drivers.values():
            if driver.tick_at is not None and driver.tick_at <= now and driver.frozen_until <= now and driver.alive:
                ready.append(driver)
        if self._later and self._later[0][0] <= now:
            ready.append(None)
        return ready

    def _thaw(self, party: int) -> int:
        if party < 0:
            return self._drivers[party].frozen_until
        process = self.processes.get(party)
        return 0 if process is None else process.frozen_until

    def _sleep(self) -> bool:
        """Nothing may happen now: the clock jumps. False where nothing ever will."""
        due = [max(link.queue[0][0], self._thaw(k[1])) for k, link in self.links.items() if link.queue]
        due += [
            max(p.asleep_until, p.frozen_until)
            for p in self.processes.values()
            if p.asleep_until is not None and p.machine.stepping
        ]
        due += [max(d.tick_at, d.frozen_until) for d in self._drivers.values() if d.tick_at is not None and d.alive]
        due += [self._later[0][0]] if self._later else []
        if due:
            self.now = max(self.now, min(due))
        return bool(due)

    def _tick(self, driver: Driver) -> None:
        # Living workers give their signs of life in time; they are not the protocol under test here.
        for process in self.processes.values():
            if process.driver is driver and process.frozen_until <= self.now:
                driver.coordinator.heartbeat(process.slot, process.party, self.now)
        self._note("tick")
        driver.coordinator.tick(self.now)
        self.coordinate(driver)

    # What faults do.

    def kill(self, process: Process, why: str, error: str | None = "it died", *, cut: bool, announced: bool) -> None:
        """A process is gone. What it had sent still arrives, or with `cut` a part of it; then everybody who had a connection
        notices. `announced`: Spark says so to the driver."""
        self.count(why)
        del self.processes[process.party]
        if cut:
            self.cut_short(process.party)
        driver, slot, epoch, launch = process.driver, process.slot, process.epoch, process.launch
        for other in list(self.processes.values()):
            if other.peers.get(slot) == process.party:
                self.lose_peer(other, slot, process.party, why)
        if not driver.alive:
            return
        coordinator = driver.coordinator
        self.send(
            process.party,
            driver.party,
            Event(f"link of {slot} lost", lambda: coordinator.link_lost(slot, epoch, why, self.now)),
        )
        if announced:
            self._spark_ended(process, launch, error)

    def _spark_ended(self, process: Process, launch: int, error: str | None) -> None:
        coordinator, slot = process.driver.coordinator, process.slot
        driver, what = process.driver, f"spark job {launch} of {slot} ended"

        def act() -> None:
            if driver.frozen_until > self.now:
                self.later(driver.frozen_until, what, act)
            elif driver.alive:
                coordinator.slot_ended(slot, error, self.now, launch=launch)
                self.coordinate(driver)

        self.later(self.now + self.chance.randint(*self.conditions.delay), what, act)  # Spark tells it, not the process

    def later(self, at: int, what: str, act: Callable[[], None]) -> None:
        """Something happens at this time, to nobody in particular."""
        self._parties += 1
        heapq.heappush(self._later, (at, self._parties, what, act))

    def cut_short(self, party: int) -> None:
        """A party dies: what it had said last does not reach anybody, nor does all that it wanted of the storage."""
        for (source, _), link in self.links.items():
            if source == party and link.queue and self.chance.random() < 0.5:
                for _ in range(self.chance.randint(0, len(link.queue))):
                    link.queue.pop()

    def lose_peer(self, process: Process, slot: int, peer: int, why: str) -> None:
        """The connection of a process to a peer closes, after what came over it before."""
        incarnation = process.machine.incarnation

        def act() -> None:
            if process.machine.incarnation == incarnation and process.peers.get(slot) == peer:
                process.handle(PeerLost(slot, why))

        self.send(peer, process.party, Event(f"peer {slot} lost", act))

    def _fail(self, operation: str, name: str) -> Wrong:
        until, probability, outcome = self.trouble
        if self.turns >= until or self.trouble_only not in f"{operation} {name}" or self.chance.random() >= probability:
            return None
        self.covered["storage faults"] += 1
        found: Any = outcome
        return self.chance.choice(("error", "unknown-done", "unknown-not-done")) if outcome == "any" else found

    # Messages.

    def send(self, source: int, target: int, item: Any, extra: int = 0) -> None:
        """Something goes over a link."""
        link = self.links.get((source, target))
        if link is None:
            link = self.links[source, target] = Link()
        low, high = self.conditions.delay
        delay = extra + (low if low == high else self.chance.randint(low, high))
        link.last_arrival = max(link.last_arrival, self.now + delay)
        link.queue.append((link.last_arrival, item))

    def _deliver(self, key: tuple[int, int]) -> None:
        source, target = key
        link = self.links[key]
        item = link.queue.popleft()[1]
        if not link.queue and (source > 0 and source not in self.processes):
            del self.links[key]
        self._note(f"{self._who(source)} => {self._who(target)} {described(item)}")
        if target < 0:
            self._tell_driver(source, self._drivers[target], item)
            return
        process = self.processes.get(target)
        if process is None:
            if isinstance(item, StoreWork):
                item.orphan()
            return
        process.asleep_until = 0
        if isinstance(item, FrameItem):
            process.handle(FrameArrived(item.data, item.slot))
        elif isinstance(item, Event | StoreWork):
            item.act()
        else:
            process.handle(CoordinatorSaid(wire.decode(wire.encode(item))))
        self._carry_out(process)

    def _tell_driver(self, source: int, driver: Driver, item: Any) -> None:
        if not driver.alive:
            if isinstance(item, StoreWork):
                item.orphan()
            return
        if isinstance(item, Hello):
            process = self.processes.get(source)
            if process is None:
                return
            epoch = driver.coordinator.hello(item, self.now)
            process.epoch = epoch if epoch is not None else 0
            if epoch is None:
                self.kill(process, "a worker was not wanted", cut=False, announced=True)
        elif isinstance(item, Event | StoreWork):
            item.act()
        else:
            slot, epoch, message = item
            driver.coordinator.message(slot, epoch, wire.decode(wire.encode(message)), self.now)
        self.coordinate(driver)

    # Workers.

    def _step(self, process: Process) -> None:
        machine, chance = process.machine, self.chance
        if machine.encoding and chance.random() < 0.4:
            limit = chance.randint(*self.conditions.encode_limit)
            process.handle(Encode(self.now, limit))
            self._note(f"{self._who(process.party)} encoded {limit}")
        else:
            self._work(process)
        self.now += chance.randint(*self.conditions.step_cost)
        self._carry_out(process)

    def _work(self, process: Process) -> None:
        machine = process.machine
        wakes: list[int] = []
        for task in machine.tasks():
            budget = self.chance.randint(*self.conditions.budget)
            idle = process.handle(Step(task.id.vertex, self.now, budget))
            if idle is None:
                self._note(f"{self._who(process.party)} {task.id} read {task.last_count}")
                return
            if idle.wake_at is not None:
                wakes.append(idle.wake_at)
            if not machine.stepping:
                return
        if process.handle(Flush()):
            self._note(f"{self._who(process.party)} flushed")
        elif not machine.encoding:
            process.asleep_until = min(wakes, default=None)
            self._note(f"{self._who(process.party)} idle until {process.asleep_until}")

    def _carry_out(self, process: Process) -> None:
        machine = process.machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                self._carry_out_one(process, action)
                if process.party not in self.processes:
                    return

    def _carry_out_one(self, process: Process, action: WorkerAction) -> None:
        match action:
            case ToPeer():
                peer = process.peers.get(action.slot)
                if peer is not None:
                    self.send(process.party, peer, FrameItem(process.slot, action.data))
            case ToCoordinator():
                self.send(process.party, process.driver.party, (process.slot, process.epoch, action.message))
            case ConnectPeers():
                self._connect(process, action)
            case ClosePeers():
                self._close_peers(process)
            case WriteState():
                storing.write(self, process, action)
            case DropState():
                storing.drop(self, process, action)
            case ReadState():
                storing.read(self, process, action)
            case ReadPrepared():
                storing.read_prepared(self, process, action)
            case Exit():
                machine = process.machine
                if machine.slice is not None and process.driver is self.driver:
                    self.reports.extend(machine.slice.reports({}))
                self.kill(process, f"left: {action.reason}", None, cut=False, announced=True)
            case _:
                assert_never(action)

    def _connect(self, process: Process, action: ConnectPeers) -> None:
        wanted = {peer.slot: peer.port for peer in action.peers}  # a simulated worker listens at its party
        incarnation = process.machine.incarnation

        def act() -> None:
            if process.machine.incarnation != incarnation:
                return
            missing = [slot for slot, party in wanted.items() if party not in self.processes]
            if missing:
                process.handle(PeersUnreachable(f"worker {missing[0]} is gone"))
                return
            process.peers = wanted
            process.handle(PeersConnected())

        self.send(process.party, process.party, Event("connected", act))

    def _close_peers(self, process: Process) -> None:
        for party in process.peers.values():
            peer = self.processes.get(party)
            if peer is not None and peer.peers.get(process.slot) == process.party:
                self.lose_peer(peer, process.slot, process.party, f"worker {process.slot} was reset")
        process.peers = {}

    # The coordinator.

    def coordinate(self, driver: Driver) -> None:
        """Carries out what a coordinator wants."""
        coordinator = driver.coordinator
        while coordinator.actions:
            actions, coordinator.actions = coordinator.actions, []
            for action in actions:
                self._carry_out_of_driver(driver, action)
        driver.tick_at = coordinator.next_tick(self.now)

    def _carry_out_of_driver(self, driver: Driver, action: CoordinatorAction) -> None:
        match action:
            case Send():
                self._to_worker(driver, action)
            case Launch():
                self.spawn(driver, action.slot, action.launch)
            case Kill():
                self._cancel(driver, action)
            case CloseLink():
                self._close_link(driver, action)
            case StatusChanged():
                self._note(f"status {action.status}")
            case CheckpointEnded():
                self._checkpoint_ended(action)
            case Restarting():
                if driver is self.driver or action.cause.kind != "user":  # who was overtaken may ask too late
                    self.causes.append(action.cause)
                self.count("restarted")
                self._note(f"restart {action.attempt}: {action.cause.message}")
            case WasPublished():
                pass  # nobody on a simulated driver keeps what it has read of a table
            case Claim() | Commit() | Delete() | Sweep() | MarkPublished() | MarkSwept():
                storing.of_driver(self, driver, action)
            case _:
                assert_never(action)

    def _checkpoint_ended(self, action: CheckpointEnded) -> None:
        if action.stats is None:
            self.count("aborted a checkpoint")
            self._note(f"checkpoint {action.checkpoint}: {action.reason}")
            return
        self.count("completed a checkpoint")
        if action.stats.final:
            self.covered["completed the last checkpoint"] += 1

    def spawn(self, driver: Driver, slot: int, launch: int) -> None:
        """A worker's process starts, and will say hello."""
        self._parties += 1
        party = self._parties
        load = self.load
        make = lambda _: replace(load(), run_id=driver.run_id)  # noqa: E731 - what a real one unpickles
        recording = None if self.recordings is None else self.recordings.begin(self, slot, driver.run_id)
        outside = None if recording is None else recording.outside
        backend = self.backend if self.settings is not None else None
        machine = Worker(slot, make, random.Random, backend, outside=outside)
        self.processes[party] = Process(party, driver, slot, launch, machine, recording=recording)
        hello = Hello(slot, "simulated", party, party, self.name, driver.coordinator.incarnation, launch)
        self.send(party, driver.party, hello, self.chance.randint(*self.conditions.startup))

    def _to_worker(self, driver: Driver, action: Send) -> None:
        if isinstance(action.message, Trigger) and action.slot == 0:
            checkpoints = driver.coordinator.checkpoints
            self.covered["several checkpoints under way"] += checkpoints is not None and len(checkpoints.pending) > 1
        for process in self.processes.values():
            if process.driver is driver and process.slot == action.slot and process.epoch == action.epoch:
                self.send(driver.party, process.party, action.message)
                return
        hello = driver.coordinator.roster.slots[action.slot].hello
        welcomed = self.processes.get(hello.pid) if hello is not None else None
        if welcomed is not None:
            welcomed.epoch = action.epoch
            self.send(driver.party, welcomed.party, action.message)

    def _cancel(self, driver: Driver, action: Kill) -> None:
        """A Spark job is cancelled: the driver hears of its end at once, and the process lives on for a while."""
        for process in list(self.processes.values()):
            if process.driver is driver and (process.slot, process.launch) == (action.slot, action.launch):
                doomed, told = process, self.chance.random() < 0.5
                if told:
                    self._spark_ended(process, action.launch, "it was cancelled")

                def act(doomed: Process = doomed, told: bool = told) -> None:
                    if doomed.party in self.processes:
                        self.kill(doomed, "ended by its driver", cut=True, announced=not told)

                self.later(self.now + self.chance.randint(*self.conditions.zombie), "a process ends", act)

    def _close_link(self, driver: Driver, action: CloseLink) -> None:
        for process in self.processes.values():
            if process.driver is driver and process.slot == action.slot and process.epoch == action.epoch:
                closed = Event("link closed", lambda process=process: process.handle(CoordinatorLost("closed")))  # type: ignore[misc]
                self.send(driver.party, process.party, closed)

    # Telling.

    def count(self, what: str) -> None:
        """Something worth counting happened."""
        self.covered[what] += 1
        self._note(what)

    def _note(self, line: str) -> None:
        text = f"{self.now - EPOCH:>12} {line}"
        self._hash.update(text.encode())
        if self._keep_trace:
            self.trace.append(text)
        if self._anchored:
            self._anchor(line)

    def _anchor(self, line: str) -> None:
        """Faults that wait for a line like this one get their turn."""
        due = [fault for fault in self._anchored if fault.after in line]
        if due:
            self._anchored = [fault for fault in self._anchored if fault not in due]
            placed = [replace(fault, turn=self.turns + fault.turn, after="") for fault in due]
            self._faults = deque(sorted([*self._faults, *placed], key=lambda fault: fault.turn))

    def _who(self, party: int) -> str:
        if party < 0:
            return "coordinator" if party == self.driver.party else "an old coordinator"
        process = self.processes.get(party)
        return f"worker {process.slot}" if process is not None else f"process {party}"


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

    @property
    def is_active(self) -> bool:
        """Whether the job has not ended: it was run to its end before it is handed out."""
        return False

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
        return job_metrics(self.simulation.plan, self.simulation.reports, self.simulation.coordinator.attempts.restarts)
