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
    spark_ended: bool = False
    """Whether the Spark job of the slot has ended."""
    heard_at: int = 0
    """When the worker was last heard (int64 microseconds of the coordinator's clock)."""
    prepared: list[tuple[int, bytes]] = field(default_factory=list)
    reports: list[SubtaskReport] = field(default_factory=list)
    elapsed: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def connected(self) -> bool:
        return self.hello is not None


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
