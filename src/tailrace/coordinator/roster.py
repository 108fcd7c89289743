"""Which worker holds which slot, under which epoch, and when it was last heard."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def launch(self) -> int:
        """A Spark job is started for the slot: the number of the start."""
        self.launches += 1
        self.running.add(self.launches)
        return self.launches

    def anew(self) -> None:
        """The job starts anew: what was known of the attempt before does not count."""
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

    @property
    def connected(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.connected]

    @property
    def complete(self) -> bool:
        return all(slot.connected for slot in self.slots)

    def peers(self) -> list[Peer]:
        """Where every worker listens."""
        return [Peer(s.index, s.hello.host, s.hello.port, s.epoch) for s in self.slots if s.hello is not None]
