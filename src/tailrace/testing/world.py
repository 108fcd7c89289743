"""The parts of a simulated cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, overload

from tailrace.coordinator.actions import Send
from tailrace.coordinator.machine import Coordinator
from tailrace.elements.frame_codec import decode as decode_frame
from tailrace.protocol.deployment import PeerHello
from tailrace.protocol.succession import Rejoin
from tailrace.storage.origins import Origin
from tailrace.task.contract.events import Event as WorkerEvent
from tailrace.task.contract.events import Flush, Step
from tailrace.task.subtask.idleness import Idle
from tailrace.task.worker.machine import Worker
from tailrace.task.worker.rendezvous import Meeting
from tailrace.testing.clocks import Clocks
from tailrace.testing.memorystore import MemoryStore
from tailrace.testing.recording import LiveRecording

EPOCH = 1_700_000_000_000_000
"""Start of the virtual clock (int64 microseconds): a fixed moment in 2023."""


@dataclass
class Conditions:
    """Behaviour of the simulated world. All times are microseconds, all choices uniform over these ranges."""

    delay: tuple[int, int] = (1, 2_000)
    step_cost: tuple[int, int] = (1, 200)
    budget: tuple[int, int] = (1, 64)
    max_turns: int = 5_000_000
    """Number of turns after which a simulation that has not ended counts as one that never will."""
    encode_limit: tuple[int, int] = (1, 64)
    zombie: tuple[int, int] = (0, 4_000_000)
    """Time that the process of a cancelled Spark job lives on, and that a worker takes to notice a dead driver."""
    startup: tuple[int, int] = (0, 0)
    """Time that a worker's process takes until it sends its `Hello`."""
    publishing: tuple[int, int] = (0, 0)
    """Time that a call of a sink to publish takes. It is made at its end."""
    refused: float = 0.0
    """Probability with which such a call fails, before or behind its effect."""
    slots: int = 0
    """Task slots of the cluster, at the beginning; 0: as many as are needed."""
    executor_slots: int = 0
    """Task slots of each executor, which processes fill one after the other; 0: no process knows its executor."""

    @classmethod
    def calm(cls) -> Conditions:
        """No delays and large steps: the fastest way to the result."""
        return cls(delay=(0, 0), step_cost=(1, 1), budget=(1024, 1024), encode_limit=(4096, 4096), zombie=(0, 0))


@dataclass(slots=True)
class SimulatedLink:
    """One direction between two parties; items arrive in the order in which they are sent."""

    queue: deque[tuple[int, Any]] = field(default_factory=deque)
    last_arrival: int = 0


@dataclass(eq=False)
class SimulatedProcess:
    """A worker's process."""

    party: int
    driver: Driver
    place: int
    """The slot or standby that it was started for."""
    launch: int
    machine: Worker
    meeting: Meeting
    observers: list[Observer]
    clocks: Clocks
    slot: int = -1
    """The slot that it holds, by the coordinator's last message."""
    epoch: int = 0
    asleep_until: int | None = 0
    """0: may be stepped; None: only a message wakes it; else the clock does."""
    frozen_until: int = 0
    peers: dict[int, int] = field(default_factory=dict)
    """Slot -> party, of the attempt that runs."""
    cut: set[int] = field(default_factory=set)
    """Peers that live but whose link to this process has closed: nothing from them arrives."""
    early: list[tuple[PeerHello, int]] = field(default_factory=list)
    """Calls of peers that came before this worker knew which peers its attempt needs: (the peer's hello, its party)."""
    writers: dict[int, Any] = field(default_factory=dict)
    """The files that it is writing, by checkpoint; None for one that has failed."""
    recording: LiveRecording | None = None
    executor: str = ""
    """The executor that it runs in; empty where it knows none."""
    called: Driver | None = None
    """The driver with another coordinator that it has called last, since its own is lost."""
    waits_until: int = 0
    """The time until which it waits for one."""

    def __post_init__(self) -> None:
        self.slot = self.place

    @overload
    def handle(self, event: Step) -> Idle | None: ...

    @overload
    def handle(self, event: Flush) -> bool: ...

    @overload
    def handle(self, event: WorkerEvent) -> object: ...

    def handle(self, event: WorkerEvent) -> object:
        """Lets the worker handle an event."""
        recording = self.recording
        answer = self.machine.handle(event) if recording is None else recording.handle(self.machine, event)
        for observer in self.observers:
            observer.on_event(self, event)
        return answer


@dataclass(eq=False)
class Driver:
    """A driver with the coordinator of the job. After a crash its store operations that are on their way may still be
    carried out. A driver that was frozen wakes up."""

    party: int
    run_id: str
    coordinator: Coordinator
    store: MemoryStore | None
    fresh: Callable[[int], Coordinator]
    """Makes the coordinator anew, as it was before the job began. Its argument is the driver's `term`."""
    clocks: Clocks
    origin: Origin | None = None
    """The checkpoint that it has started from."""
    term: int = 0
    """Number of coordinators of its run that were lost before."""
    alive: bool = True
    reunion: dict[int, Rejoin] | None = None
    """The workers of the coordinator that was lost before this one, by their parties, while they come; else None."""
    expected: bool = False
    """True if all workers of the coordinator that was lost before this one lived on then."""
    frozen_until: int = 0
    tick_at: int | None = None
    """Time at which its coordinator is to look at the clock next; None: it need not."""

    def now(self) -> int:
        """The clock that its coordinator waits by."""
        return self.clocks.steady()


class Observer:
    """Receives the events of a simulated cluster, and changes nothing. A subclass implements the methods for the events
    that it needs."""

    def on_line(self, line: str) -> None:
        """Receives a line of the trace."""

    def on_message(self, driver: Driver, action: Send) -> None:
        """Receives a message from a coordinator to a worker; it is not under way yet."""

    def on_event(self, process: SimulatedProcess, event: WorkerEvent) -> None:
        """Receives an event that a worker has handled."""

    def dies(self, process: SimulatedProcess) -> None:
        """Receives that a worker's process has left, or was killed."""


@dataclass(frozen=True, slots=True)
class FrameItem:
    """An item on a link between two workers: bytes from the worker of a slot."""

    slot: int
    data: bytes
    party: int
    """The party that has sent it."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event at a party that is no message: `act` is called without arguments."""

    what: str
    act: Callable[[], None]
    reads_ahead: bool = False
    """True where a standby receives state that it reads ahead of a loss: the job makes no progress by it."""


@dataclass(frozen=True, slots=True)
class StoreWork:
    """An operation on the storage that a party has requested. `orphan` does it when the party is gone."""

    what: str
    act: Callable[[], None]
    orphan: Callable[[], None]


def line_about(item: Any) -> str:
    """A line about an item that arrives."""
    if isinstance(item, FrameItem):
        frame = decode_frame(item.data)
        return f"frame kind {frame.kind} {frame.channel} seq {frame.seq} x{frame.count}"
    if isinstance(item, Event | StoreWork):
        return item.what
    message = item[2] if isinstance(item, tuple) else item
    number = getattr(message, "checkpoint", None)
    return type(message).__name__ + ("" if number is None else f" {number}")
