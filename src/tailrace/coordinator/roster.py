"""Which worker holds which slot, under which epoch, when it was last heard, and which Spark jobs run for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.coordinator.actions import Kill, Launch
from tailrace.protocol.deployment import Hello, Peer, SubtaskReport


@dataclass
class Slot:
    """One worker slot.

    Invariant R1: `epoch` grows with every hello and never decreases: whoever speaks under an older one is not heard.
    """

    index: int
    epoch: int = 0
    hello: Hello | None = None
    """The worker that holds the slot now, or None."""
    deployed: bool = False
    finished: bool = False
    launches: int = 0
    """How many times a Spark job was started for the slot; the last one is the one that is wanted."""
    running: set[int] = field(default_factory=set)
    """Starts whose Spark job has not ended."""
    unwanted: set[int] = field(default_factory=set)
    """Starts whose Spark job was told to end."""
    attempt: int = 0
    """How many times the slice of the slot was started anew. All slices are, together, for now."""
    clean: bool = True
    """Whether the worker runs nothing of an attempt that is over."""
    reset_at: int = 0
    """When it was told to drop what it runs."""
    heard_at: int = 0
    """When the worker was last heard (int64 microseconds of the coordinator's clock)."""
    prepared: list[tuple[str, bytes]] = field(default_factory=list)
    reports: list[SubtaskReport] = field(default_factory=list)
    elapsed: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def connected(self) -> bool:
        return self.hello is not None

    @property
    def spark_ended(self) -> bool:
        """Whether no Spark job of the slot is left."""
        return not self.running

    @property
    def abandoned(self) -> bool:
        """Whether no Spark job is left that would bring the worker that is wanted."""
        return self.launches not in self.running or self.launches in self.unwanted

    def launch(self) -> Launch:
        """A Spark job is to be started for the slot."""
        self.launches += 1
        self.running.add(self.launches)
        return Launch(self.index, self.launches)

    def kill(self) -> list[Kill]:
        """Whatever runs for the slot is to end."""
        doomed = sorted(self.running - self.unwanted)
        self.unwanted.update(doomed)
        return [Kill(self.index, launch) for launch in doomed]

    def relaunch(self) -> list[Kill | Launch]:
        """Its worker is lost: another one is started, and what may be left of the old one is ended."""
        return [*self.kill(), self.launch()]

    def job_ended(self, launch: int) -> bool:
        """A Spark job of the slot has ended. Whether it had been told to."""
        told = launch in self.unwanted
        self.running.discard(launch)
        self.unwanted.discard(launch)
        return told

    def anew(self) -> None:
        """The slice starts anew: what was known of the attempt before does not count."""
        self.attempt += 1
        self.deployed = self.finished = False
        self.prepared, self.reports = [], []


class Roster:
    """All slots of a job."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(index) for index in range(count)]

    def admit(self, hello: Hello, now: int) -> tuple[int, int | None]:
        """A worker says hello: (its epoch, the epoch of the worker it replaces or None)."""
        slot = self.slots[hello.slot]
        replaced = slot.epoch if slot.connected else None
        slot.epoch += 1
        slot.hello = hello
        slot.deployed = slot.finished = False
        slot.clean = True
        slot.heard_at = now
        return slot.epoch, replaced

    def holds(self, index: int, epoch: int) -> bool:
        """Whether the worker of this epoch still holds the slot."""
        slot = self.slots[index]
        return slot.connected and slot.epoch == epoch

    def lose(self, index: int) -> None:
        """The worker of a slot is gone."""
        self.slots[index].hello = None

    def silent(self, now: int, lease: int) -> Slot | None:
        """A slot whose worker has not been heard for `lease`."""
        return next((slot for slot in self.connected if now - slot.heard_at >= lease), None)

    def silent_at(self, lease: int) -> int | None:
        """When a worker has been silent for `lease`, if nobody is heard until then."""
        return min((slot.heard_at + lease for slot in self.connected), default=None)

    def holding_up(self) -> list[Slot]:
        """The slots whose workers are to drop what they run, and have not."""
        return [slot for slot in self.connected if not slot.clean]

    @property
    def connected(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.connected]

    @property
    def complete(self) -> bool:
        return all(slot.connected for slot in self.slots)

    def peers(self) -> list[Peer]:
        """Where every worker listens."""
        return [Peer(s.index, s.hello.host, s.hello.port, s.epoch) for s in self.slots if s.hello is not None]
