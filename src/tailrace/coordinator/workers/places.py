"""Places in which Spark jobs run worker processes: one for each slot, and one for each standby."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tailrace.coordinator.actions import Kill, Launch, Send
from tailrace.coordinator.workers.standby_placement import Executor
from tailrace.protocol.deployment import Hello
from tailrace.protocol.standby import TakeSlot

Start = tuple[int, int]
"""A start of a Spark job: (the place that it was started for, its number among the starts of that place)."""


@dataclass
class WorkerPlace:
    """A place of a worker, for a slot or a standby: the process that holds it, and the Spark jobs that run for it.

    Invariant R1: `epoch` grows with every hello and never decreases: messages under an older one are dropped.
    Invariant R3: no two Spark jobs are started under one number of one place, whatever sizes the job has meanwhile.
    """

    index: int
    epoch: int = 0
    hello: Hello | None = None
    """The worker that holds the place now, or None."""
    left: Executor | None = None
    """The executor of the worker that was lost last."""
    launches: int = 0
    """The number of Spark jobs that were started for the place."""
    start: Start | None = None
    """The current start: the newest one of the place. For a slot that a standby has taken, the standby's."""
    running: set[Start] = field(default_factory=set)
    """Starts whose Spark job has not ended."""
    unwanted: set[Start] = field(default_factory=set)
    """Starts whose Spark job was cancelled by the coordinator."""
    received_at: int = 0
    """The time of the last sign of life (int64 microseconds of the coordinator's clock, which never goes back)."""

    def lose(self) -> None:
        """Notes that the worker of the place is gone."""
        self.left = self.left if self.hello is None else executor_of(self.hello)
        self.hello = None

    @property
    def connected(self) -> bool:
        return self.hello is not None

    @property
    def spark_ended(self) -> bool:
        """True if no Spark job of the place is left."""
        return not self.running

    @property
    def abandoned(self) -> bool:
        """True if no Spark job is left that would bring the worker of the current start."""
        return self.start not in self.running or self.start in self.unwanted

    def is_held_by(self, hello: Hello) -> bool:
        """True if this process belongs to the current start."""
        return self.start == start_of(hello)

    def admit(self, hello: Hello, now: int) -> int | None:
        """Admits a worker that sends `Hello`. Returns the epoch of the worker that it replaces, or None."""
        replaced = self.epoch if self.connected else None
        self.epoch += 1
        self.hello = hello
        self.received_at = now
        return replaced

    def silent_at(self, lease: int) -> int:
        """The time at which the worker has been silent for `lease`, if no sign of life comes until then."""
        return self.received_at + lease

    def launch(self) -> Launch:
        """Starts a Spark job for the place."""
        self.launches += 1
        self.start = (self.index, self.launches)
        self.running.add(self.start)
        return Launch(*self.start)

    def kill(self) -> list[Kill]:
        """Ends all Spark jobs of the place."""
        doomed = sorted(self.running - self.unwanted)
        self.unwanted.update(doomed)
        return [Kill(*start) for start in doomed]

    def relaunch(self) -> list[Kill | Launch]:
        """Starts another worker in place of a lost one, and ends what may be left of the old one."""
        return [*self.kill(), self.launch()]

    def hand_over(self, slot: WorkerPlace) -> Send:
        """Sends the worker of the place to hold a slot from now on, with its Spark job. It will send `Hello` for it."""
        assert self.start is not None
        order = Send(self.index, self.epoch, TakeSlot(slot.index))
        self.running.discard(self.start)
        slot.running.add(self.start)
        slot.start, self.start = self.start, None
        self.hello = None
        return order

    def job_ended(self, start: Start) -> bool:
        """Notes that a Spark job of the place has ended. Returns True if the coordinator had cancelled it."""
        requested = start in self.unwanted
        self.running.discard(start)
        self.unwanted.discard(start)
        return requested


T = TypeVar("T", bound=WorkerPlace)


class Each:
    """A test of whether something is true of each place. It is made whenever one more place may pass, so it begins with the
    place that failed last."""

    def __init__(self) -> None:
        self._lacking = 0

    def of(self, places: Sequence[T], holds: Callable[[T], bool]) -> bool:
        """True if `holds` is true of all these places. Each call passes the same places."""
        for _ in places:
            if not holds(places[self._lacking]):
                return False
            self._lacking = (self._lacking + 1) % len(places)
        return True


def start_of(hello: Hello) -> Start:
    """The start of the process that sends `Hello`."""
    return (hello.slot if hello.place is None else hello.place, hello.launch)


def name_of_executor(hello: Hello) -> str:
    """The name of the executor in which the process runs, with its host; empty where the process does not know it."""
    return f"{hello.host}/{hello.executor}" if hello.executor else ""


def executor_of(hello: Hello) -> Executor:
    """The executor in which the process runs, as far as it knows."""
    return (hello.host, hello.executor)
