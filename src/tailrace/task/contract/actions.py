"""Actions of a worker, as data. Its drivers carry them out: `runtime.worker.main_loop`, and the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailrace.protocol.deployment import Peer
from tailrace.protocol.message_codec import FromWorker
from tailrace.protocol.succession import Rejoin
from tailrace.state.format import Placed


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """An action: send this message to the coordinator."""

    message: FromWorker | Rejoin


@dataclass(frozen=True, slots=True)
class ConnectPeers:
    """An action: connect to these workers. `PeersConnected` or `PeersUnreachable` answers it."""

    peers: tuple[Peer, ...]
    late: bool = False
    """True if all of them run already and are to be called, because the worker takes the place of a lost one."""
    changing: bool = False
    """True if lost workers are replaced."""
    together: frozenset[int] = frozenset()
    """Slots of replacements that start at the same time."""


@dataclass(frozen=True, slots=True)
class AwaitPeer:
    """An action: await the call of this worker, which has taken the slot of a peer. The link to the peer is closed, if there
    still is one. `PeerBack` answers it when the worker has called."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class ClosePeers:
    """An action: close the links to other workers, and drop whatever still comes on them."""


@dataclass(frozen=True, slots=True)
class HoldSlot:
    """An action: this standby holds a slot now; send a hello for it to the coordinator."""

    slot: int


@dataclass(frozen=True, slots=True)
class ReadState:
    """An action: read these operators (uid -> key groups [first, last)) of a checkpoint. `StatePartRead` answers for each
    part, then `StateRead` for the end, or `StateUnreadable`, all with the number of the request."""

    number: int
    manifest: bytes
    folder: str
    """The folder of the job that the checkpoint lies in, as a URL; empty for the folder of this job."""
    required: dict[str, tuple[int, int]]
    held: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    """Files whose content is held already, by operator and key group: they are not to be read again."""
    worker: int | None = None
    """The worker to whose channels records in flight are limited. None: all records on their way to the operators are
    read."""


@dataclass(frozen=True, slots=True)
class ReadPlaced:
    """An action: read output that sinks have prepared, or records in flight that are nearly due, from state files.
    `PlacedRead` answers it, with the bytes in this order, or `PlacedUnreadable`, both with the number of the request."""

    number: int
    what: str
    """The content in words, for errors."""
    folder: str
    """The folder of the job that the files lie in, as a URL; empty for the folder of this job."""
    required: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """An action: end the process; the worker is done."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToPeer:
    """An action: send these bytes to the worker of a slot."""

    slot: int
    data: bytes


@dataclass(frozen=True, slots=True)
class WriteState:
    """An action: append these bytes to the file of a checkpoint, and make it durable with the last ones. `StateWritten`
    answers the last action, or `StateNotWritten` any of them."""

    checkpoint: int
    name: str
    data: list[bytes]
    last: bool


@dataclass(frozen=True, slots=True)
class DropState:
    """An action: drop the file of a checkpoint; nothing of it stays."""

    checkpoint: int
    name: str


@dataclass(frozen=True, slots=True)
class BeginCalls:
    """An action: begin asynchronous calls of an operator, one for each item of `numbers`, with the records of these numbers.
    `CallsAnswered` answers them, in any order and any number at once."""

    uid: str
    numbers: list[tuple[int, ...]]
    records: list[list[Any]] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CallSink:
    """An action: call a method of a sink, in a thread where nothing but calls of this sink is done, one after the other.
    `SinkAnswered` answers it, with the number of the request."""

    number: int
    uid: str
    method: str
    args: tuple[Any, ...]
    sink: Any = field(compare=False, repr=False)
    name: str = field(default="", compare=False)
    """The name of the sink's operator, for warnings."""


Action = (
    ToCoordinator
    | ConnectPeers
    | AwaitPeer
    | ClosePeers
    | HoldSlot
    | ReadState
    | ReadPlaced
    | WriteState
    | DropState
    | Exit
    | ToPeer
    | BeginCalls
    | CallSink
)
