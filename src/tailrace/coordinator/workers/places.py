"""Places in which Spark jobs run worker processes: one for each slot, and one for each standby."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import TypeVar

from tailrace.coordinator.actions import Kill, Launch
from tailrace.coordinator.workers.standby_placement import Executor
from tailrace.protocol.deployment import Hello

Start = tuple[int, int]
"""A start of a Spark job: (the place that it was started for, which one of that place it is)."""


@dataclass
class WorkerPlace:
    """Who holds a slot, or stands by, and which Spark jobs run for it.

    Invariant R1: `epoch` grows with every hello and never decreases: a worker that speaks under an older one is not heard.
    """

    index: int
    epoch: int = 0
    hello: Hello | None = None
    """The worker that holds the place now, or None."""
    launches: int = 0
    """How many times a Spark job was started for the place."""
    start: Start | None = None
    """The start that is wanted: the newest one of the place, or for a slot that of the standby which has taken it."""
    running: set[Start] = field(default_factory=set)
    """Starts whose Spark job has not ended."""
    unwanted: set[Start] = field(default_factory=set)
    """Starts whose Spark job was told to end."""
    heard_at: int = 0
    """When the worker was last heard (int64 microseconds of the coordinator's clock, which never goes back)."""

    @property
    def connected(self) -> bool:
        return self.hello is not None

    @property
    def spark_ended(self) -> bool:
        """Whether no Spark job of the place is left."""
        return not self.running

    @property
    def abandoned(self) -> bool:
        """Whether no Spark job is left that would bring the worker that is wanted."""
        return self.start not in self.running or self.start in self.unwanted

    def is_held_by(self, hello: Hello) -> bool:
        """Whether this process is of the start that is wanted."""
        return self.start == start_of(hello)

    def admit(self, hello: Hello, now: int) -> int | None:
        """A worker says hello. The epoch of the one that it replaces, or None."""
        replaced = self.epoch if self.connected else None
        self.epoch += 1
        self.hello = hello
        self.heard_at = now
        return replaced

    def silent_at(self, lease: int) -> int:
        """When its worker has been silent for `lease`, if it is not heard until then."""
        return self.heard_at + lease

    def launch(self) -> Launch:
        """A Spark job is to be started for the place."""
        self.launches += 1
        self.start = (self.index, self.launches)
        self.running.add(self.start)
        return Launch(*self.start)

    def kill(self) -> list[Kill]:
        """Whatever runs for the place is to end."""
        doomed = sorted(self.running - self.unwanted)
        self.unwanted.update(doomed)
        return [Kill(*start) for start in doomed]

    def relaunch(self) -> list[Kill | Launch]:
        """Its worker is lost: another one is started, and what may be left of the old one is ended."""
        return [*self.kill(), self.launch()]

    def job_ended(self, start: Start) -> bool:
        """A Spark job of the place has ended. Whether it had been told to."""
        told = start in self.unwanted
        self.running.discard(start)
        self.unwanted.discard(start)
        return told


class LongestSilence:
    """Which worker has been silent for longest. It is asked behind each message, and there may be thousands in a second: a
    place is looked at again only where it seemed to be that one and has been heard since.

    Invariant R2: each place that is connected is in here once, with a time at which it was heard, or one before.
    """

    def __init__(self) -> None:
        self._heard: list[tuple[int, int]] = []
        """A heap of (when it was heard, which place), as it was when that was looked at last."""
        self._inside: set[int] = set()

    def joined(self, place: WorkerPlace) -> None:
        """A worker holds a place now."""
        if place.index not in self._inside:
            self._inside.add(place.index)
            heappush(self._heard, (place.heard_at, place.index))

    def longest(self, at: Callable[[int], WorkerPlace]) -> WorkerPlace | None:
        """The place that is connected and was heard before all others; None where none is."""
        while self._heard:
            heard_at, index = self._heard[0]
            place = at(index)
            if not place.connected:
                heappop(self._heard)
                self._inside.discard(index)
            elif place.heard_at == heard_at:
                return place
            else:
                heapreplace(self._heard, (place.heard_at, index))
        return None


T = TypeVar("T", bound=WorkerPlace)


class Each:
    """Whether something is true of each place. It is asked whenever one more has come to that: the place that was lacking
    last is looked at first."""

    def __init__(self) -> None:
        self._lacking = 0

    def of(self, places: Sequence[T], holds: Callable[[T], bool]) -> bool:
        """Of all of these, which are always the same ones."""
        for _ in places:
            if not holds(places[self._lacking]):
                return False
            self._lacking = (self._lacking + 1) % len(places)
        return True


def start_of(hello: Hello) -> Start:
    """The start of the process that says hello."""
    return (hello.slot if hello.place is None else hello.place, hello.launch)


def executor_of(hello: Hello) -> Executor:
    """Where that process runs, as far as it knows."""
    return (hello.host, hello.executor)
