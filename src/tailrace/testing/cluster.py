"""A simulated cluster: processes, drivers, the links between them, and the clock. The seed decides what happens next.

At each turn the cluster picks one of the things that may happen now: a message arrives, a worker takes a step, a
coordinator looks at the clock. Where nothing may happen now, the clock jumps to the next thing that will. `workers` and
`drivers` decide what that does to a worker or a driver.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tailrace.coordinator.actions import NotHot
from tailrace.errors import OWN_FAULT, InternalError
from tailrace.task.contract.events import PeerLost
from tailrace.testing.clocks import Clocks
from tailrace.testing.world import EPOCH, Conditions, Driver, Event, Observer, SimulatedLink, SimulatedProcess


@dataclass(order=True, slots=True)
class Later:
    """An action that is due at some time and that no link delivers."""

    at: int
    number: int
    what: str = field(compare=False)
    act: Callable[[], None] = field(compare=False)


Choice = tuple[int, int] | SimulatedProcess | Driver | Later
"""A choice of what happens now: a link delivers, a worker steps, a coordinator looks at the clock, or a `Later` is due."""


class Cluster:
    """The parties of a simulated cluster, the items under way between them, and the trace."""

    def __init__(self, seed: int, conditions: Conditions, keep_trace: bool, ahead: int = 0) -> None:
        self.conditions = conditions
        self.seed = seed
        self.chance = random.Random(f"tailrace simulation {seed}")
        self.now = EPOCH
        """The right time, int64 microseconds. It advances steadily."""
        self.turns = 0
        self.links: dict[tuple[int, int], SimulatedLink] = {}
        self.processes: dict[int, SimulatedProcess] = {}
        self.drivers: dict[int, Driver] = {}
        self.observers: list[Observer] = []
        self.trace: list[str] = []
        self.ahead: dict[int, int] = defaultdict(lambda: ahead)
        """Microseconds by which the wall clock of each machine is ahead of the right time."""
        self.covered: Counter[str] = Counter()
        """Counts of events: checkpoints, aborts, restarts, …"""
        self.coordinate: Callable[[Driver], None] = _nobody
        """Carries out the actions of a coordinator; set by `Drivers`. It is called after each event of a coordinator."""
        self.slots = conditions.slots
        """Number of task slots that there are; 0: as many as are needed."""
        self.waiting: dict[tuple[Driver, int, int], Callable[[], None]] = {}
        """Starts of processes (the driver, the place, the launch) that wait for a task slot, the oldest first."""
        self._later: list[Later] = []
        self._parties = self._executors = 0
        self._keep_trace = keep_trace
        self._hash = hashlib.sha256()

    @property
    def driver(self) -> Driver:
        """The newest driver."""
        return next(reversed(self.drivers.values()))

    def party(self) -> int:
        """The number of a new party."""
        self._parties += 1
        return self._parties

    def clocks(self, machine: int) -> Clocks:
        """The clocks of a process that begins on this machine."""
        return Clocks(lambda: self.now, lambda: self.now + self.ahead[machine])

    # The choice of what happens next.

    def next(self) -> Choice | None:
        """Picks one of the things that may happen now; None where nothing may."""
        choices = self._possible()
        if not choices:
            return None
        choice = choices[self.chance.randrange(len(choices))] if len(choices) > 1 else choices[0]
        return heapq.heappop(self._later) if choice is None else choice

    @property
    def busy(self) -> bool:
        """True where anything may happen now."""
        return bool(self._possible())

    def _possible(self) -> list[Any]:
        now, processes = self.now, self.processes
        ready: list[Any] = []
        for key, link in self.links.items():
            queue = link.queue
            if queue and queue[0][0] <= now and self._thaw(key[1]) <= now:
                ready.append(key)
        for process in processes.values():
            wake = process.asleep_until
            if wake is not None and wake <= now and process.frozen_until <= now and process.machine.working:
                ready.append(process)
        for driver in self.drivers.values():
            if driver.tick_at is not None and driver.tick_at <= now and driver.frozen_until <= now and driver.alive:
                ready.append(driver)
        if self._later and self._later[0].at <= now:
            ready.append(None)
        return ready

    def _thaw(self, party: int) -> int:
        if party < 0:
            return self.drivers[party].frozen_until
        process = self.processes.get(party)
        return 0 if process is None else process.frozen_until

    def sleep(self) -> bool:
        """Lets the clock jump to the next thing that will happen, where nothing may happen now. False where nothing ever
        will."""
        due = [max(link.queue[0][0], self._thaw(k[1])) for k, link in self.links.items() if link.queue]
        due += [
            max(p.asleep_until, p.frozen_until)
            for p in self.processes.values()
            if p.asleep_until is not None and p.machine.working
        ]
        due += [max(d.tick_at, d.frozen_until) for d in self.drivers.values() if d.tick_at is not None and d.alive]
        due += [self._later[0].at] if self._later else []
        if due:
            self.now = max(self.now, min(due))
        return bool(due)

    @property
    def frozen(self) -> bool:
        """True while a process or driver is frozen that will wake up."""
        thaws = [process.frozen_until for process in self.processes.values()]
        thaws += [driver.frozen_until for driver in self.drivers.values()]
        return any(thaw > self.now for thaw in thaws)

    # Links.

    def send(self, source: int, target: int, item: Any, extra: int = 0) -> None:
        """Puts an item on a link."""
        link = self.links.get((source, target))
        if link is None:
            link = self.links[source, target] = SimulatedLink()
        low, high = self.conditions.delay
        delay = extra + (low if low == high else self.chance.randint(low, high))
        link.last_arrival = max(link.last_arrival, self.now + delay)
        link.queue.append((link.last_arrival, item))

    def receive(self, key: tuple[int, int]) -> Any:
        """Takes the item that a link delivers now."""
        link = self.links[key]
        item = link.queue.popleft()[1]
        if not link.queue and key[0] > 0 and key[0] not in self.processes:
            del self.links[key]
        return item

    def later(self, at: int, what: str, act: Callable[[], None]) -> None:
        """Schedules an action for this time. It belongs to no party."""
        heapq.heappush(self._later, Later(at, self.party(), what, act))

    def cut_short(self, party: int) -> None:
        """Ends a party: by chance, its last messages do not arrive, and its last requests to the storage are not carried
        out."""
        for (source, _), link in self.links.items():
            if source == party and link.queue and self.chance.random() < 0.5:
                for _ in range(self.chance.randint(0, len(link.queue))):
                    link.queue.pop()

    def lose_peer(self, process: SimulatedProcess, slot: int, peer: int, why: str, *, cut: bool = False) -> None:
        """Closes the connection of a process to a peer, after everything that came over it before. `cut`: the peer lives,
        and what it sends from then on does not arrive."""
        incarnation = process.machine.incarnation

        def act() -> None:
            if process.machine.incarnation == incarnation and process.peers.get(slot) == peer:
                if cut:
                    process.cut.add(peer)
                process.handle(PeerLost(slot, why))

        self.send(peer, process.party, Event(f"peer {slot} lost", act))

    # Processes.

    def give(self, start: tuple[Driver, int, int], spawn: Callable[[], None]) -> None:
        """Starts a process when there is a task slot for it."""
        self.waiting[start] = spawn
        self.start_waiting()

    def start_waiting(self) -> None:
        """Starts the processes for which there are task slots."""
        while self.waiting and (not self.slots or len(self.processes) < self.slots):
            start = next(iter(self.waiting))
            spawn = self.waiting.pop(start)
            if start[0].alive:  # else its application is gone, and its Spark jobs with it
                spawn()

    def set_slots(self, count: int, which: int) -> None:
        """Gives the cluster another number of task slots, and lets its driver know, some time later. Processes that have
        none any more die: `which` chooses among them."""
        self.count("has fewer task slots" if count < self.slots else "has more task slots")
        self.slots = count
        while len(self.processes) > count:
            here = sorted(self.processes)
            self.kill(self.processes[here[which % len(here)]], "its machine has gone", cut=True, announced=True)
        self.start_waiting()
        self.later(self.now + self.chance.randint(*self.conditions.delay), "task slots are counted", self.report_slots)

    def report_slots(self) -> None:
        """Reports to the newest driver how many task slots there are."""
        if self.slots and self.driver.alive:
            self.driver.coordinator.room(self.slots, self.driver.now())
            self.coordinate(self.driver)

    def executor(self) -> str:
        """The executor in which the next process starts: the first one with a free task slot, or another one."""
        most = self.conditions.executor_slots
        if not most:
            return ""
        taken = Counter(process.executor for process in self.processes.values())
        free = next((name for name in sorted(taken, key=int) if taken[name] < most), "")
        self._executors += not free
        return free or str(self._executors)

    def kill(
        self, process: SimulatedProcess, why: str, error: str | None = "it died", *, cut: bool, announced: bool
    ) -> None:
        """Ends a process. What it had sent still arrives, or with `cut` a part of it; then each process with a connection
        to it notices. `announced`: Spark reports the end to the driver."""
        for observer in self.observers:
            observer.dies(process)
        self.count(why)
        del self.processes[process.party]
        self.start_waiting()
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
            Event(f"link of {slot} lost", lambda: coordinator.link_lost(slot, epoch, why, driver.now())),
        )
        if announced:
            self.spark_ended(process, launch, error)

    def spark_ended(self, process: SimulatedProcess, launch: int, error: str | None) -> None:
        """Schedules Spark's report to the driver that a worker's job has ended."""
        coordinator, slot = process.driver.coordinator, process.place
        driver, what = process.driver, f"spark job {launch} of {slot} ended"

        def act() -> None:
            if driver.frozen_until > self.now:
                self.later(driver.frozen_until, what, act)
            elif driver.alive:
                coordinator.slot_ended(slot, error, driver.now(), launch=launch)
                self.coordinate(driver)

        self.later(self.now + self.chance.randint(*self.conditions.delay), what, act)  # Spark reports it

    # Reports.

    def not_hot(self, action: NotHot) -> None:
        """Notes that a hot standby has given up. Raises `InternalError` where it did so by a fault of ours."""
        self.count("a hot standby gave up")
        self.note(f"standby {action.place} does not follow worker {action.slot}: {action.reason}")
        if OWN_FAULT in action.reason:
            raise InternalError(action.reason, ())

    def count(self, what: str) -> None:
        """Counts an event, and notes it in the trace."""
        self.covered[what] += 1
        self.note(what)

    def note(self, line: str) -> None:
        """Adds a line to the trace."""
        text = f"{self.now - EPOCH:>12} {line}"
        self._hash.update(text.encode())
        if self._keep_trace:
            self.trace.append(text)
        for observer in self.observers:
            observer.on_line(line)

    @property
    def digest(self) -> str:
        """A hash over the whole trace."""
        return self._hash.hexdigest()

    def who(self, party: int) -> str:
        """The name of a party in the trace."""
        if party < 0:
            return "coordinator" if party == self.driver.party else "an old coordinator"
        process = self.processes.get(party)
        return f"worker {process.slot}" if process is not None else f"process {party}"


def _nobody(driver: Driver) -> None:
    raise AssertionError(f"nobody carries out what the coordinator of {driver.run_id} wants")
