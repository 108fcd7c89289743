"""What a worker wants done, as data. Its drivers carry it out: `runtime.worker.process`, and the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.protocol.deployment import Peer
from tailrace.protocol.wire import AnyMessage
from tailrace.state.format import Placed


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """An action: this message goes to the coordinator."""

    message: AnyMessage


@dataclass(frozen=True, slots=True)
class ConnectPeers:
    """An action: connect to these workers. `PeersConnected` or `PeersUnreachable` answers it."""

    peers: tuple[Peer, ...]
    late: bool = False
    """Whether they run, and are all to be called: the worker takes the place of one that was lost."""
    changing: bool = False
    """Whether lost ones are replaced."""
    together: frozenset[int] = frozenset()
    """Slots of those that take lost ones' places at the same time."""


@dataclass(frozen=True, slots=True)
class ReplacePeer:
    """An action: this worker has taken the place of the one of its slot. The link to that one is closed, if there still is
    one. `PeerBack`, when this one has called."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class ClosePeers:
    """An action: close the links to other workers; whatever comes on them does not count any more."""


@dataclass(frozen=True, slots=True)
class HoldSlot:
    """An action: this worker, a standby so far, holds a slot now: say hello to the coordinator for it."""

    slot: int


@dataclass(frozen=True, slots=True)
class ReadState:
    """An action: read these operators (uid -> key groups [first, last)) of a checkpoint. `StatePartRead`
    answers for each part, then `StateRead` for the end, or `StateUnreadable`, all with the same number."""

    number: int
    manifest: bytes
    folder: str
    """The job's folder that the checkpoint lies in, as a URL; empty for our own."""
    wanted: dict[str, tuple[int, int]]
    held: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    """By operator and key group, the files of which everything is there: not to be read again."""
    logs: bool = True
    """Whether records in flight are wanted."""
    worker: int | None = None
    """Of records that barriers have overtaken: those alone that the channels of this worker had. None: those on their way to
    the operators, whose ever they were."""


@dataclass(frozen=True, slots=True)
class ReadPlaced:
    """An action: read what is in state files: what sinks have prepared, or records in flight that are nearly due.
    `PlacedRead` answers it, with the bytes in this order, or `PlacedUnreadable`, both with the same number."""

    number: int
    what: str
    """In words, for errors."""
    folder: str
    """The job's folder that the files lie in, as a URL; empty for our own."""
    wanted: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """An action: the worker is done. `lost` when nobody told it so."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToPeer:
    """An action: these bytes go to the worker of slot `slot`."""

    slot: int
    data: bytes


@dataclass(frozen=True, slots=True)
class WriteState:
    """An action: append these bytes to the file of a checkpoint, and make it durable when they are the last. `StateWritten`
    answers the last one, or `StateNotWritten` any of them."""

    checkpoint: int
    name: str
    data: list[bytes]
    last: bool


@dataclass(frozen=True, slots=True)
class DropState:
    """An action: the file of a checkpoint is not wanted any more; nothing of it stays."""

    checkpoint: int
    name: str


Action = (
    ToCoordinator
    | ConnectPeers
    | ReplacePeer
    | ClosePeers
    | HoldSlot
    | ReadState
    | ReadPlaced
    | WriteState
    | DropState
    | Exit
    | ToPeer
)
