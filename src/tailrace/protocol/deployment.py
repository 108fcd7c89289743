"""How a worker joins a job, is told its part, reports, and leaves. The messages and the worker's half of the order.

    worker                          coordinator
    Hello(slot, address)      ->
                              <-    Welcome(epoch)          the newest hello of a slot wins; an older link is closed
                              <-    Deploy(plan, peers)     when all slots are filled
    Deployed                  ->
                              <-    Start                   when all have deployed
    Progress                  ->                            again and again
    SubtasksFinished          ->                            all tasks of the slice ended; what its sinks prepared
                              <-    Publish(prepared)       when all slices have ended; to one worker
    Published                 ->
                              <-    Leave                   at the end, and whenever the job is over for another reason
    (closes)

`Failed` may come from a worker at any time. Messages are msgspec structs, tagged by name; fields are only ever added,
with defaults, so an older side can be read. The coordinator never unpickles `plan` or `prepared`.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from tailrace.errors import ProtocolViolation


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The root of all control messages."""


# From a worker.


class Hello(Message, frozen=True):
    """A worker is there. `host` and `port` are where other workers reach it."""

    slot: int
    host: str
    port: int
    pid: int
    job: str
    incarnation: int
    task_attempt: int = 0


class Heartbeat(Message, frozen=True):
    """A worker's process lives. Sent on a link of its own by a thread of its own; `slot` and `pid` say whose."""

    slot: int
    pid: int


class Deployed(Message, frozen=True):
    """The plan was read, functions are open, peers are connected."""


class SubtaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures of one subtask since its start. Times are int64 microseconds."""

    vertex: int
    subtask: int
    records_in: int = 0
    records_out: int = 0
    records_sunk: int = 0
    """Those of `records_out` that went into sinks."""
    watermark: int = 0
    timed: bool = False
    source: bool = False
    busy_micros: int = 0
    queued_bytes: int = 0
    state_entries: int = 0
    blocked: bool = False
    finished: bool = False
    metrics: dict[str, float] = {}


class Progress(Message, frozen=True):
    """Figures of all subtasks of a worker."""

    subtasks: list[SubtaskReport]
    elapsed_micros: int
    refused: dict[str, int] = {}
    """Connections refused at the worker's port, by reason."""


class SubtasksFinished(Message, frozen=True):
    """All subtasks of the slice ended. `prepared` is what is to be published: (node id, bytes)."""

    prepared: list[tuple[int, bytes]]


class Published(Message, frozen=True):
    """Everything of a `Publish` is visible."""


class Failed(Message, frozen=True):
    """The worker's part failed. `kind` says whose fault it is."""

    kind: str
    message: str
    operator: str | None = None
    subtask: int | None = None
    record: str | None = None
    peer: int | None = None
    """The slot of the peer that was lost, where that was the cause."""


# From the coordinator.


class Welcome(Message, frozen=True):
    """The worker holds its slot under this epoch."""

    epoch: int


class Peer(msgspec.Struct, frozen=True):
    """Where a worker listens."""

    slot: int
    host: str
    port: int
    epoch: int


class Deploy(Message, frozen=True):
    """The worker's part. `plan` is opaque to the coordinator; the worker unpickles it."""

    plan: bytes
    peers: list[Peer]


class Start(Message, frozen=True):
    """All workers are ready: run."""


class Publish(Message, frozen=True):
    """Make these visible: (node id, prepared bytes of all its subtasks)."""

    prepared: list[tuple[int, list[bytes]]]


class Leave(Message, frozen=True):
    """The job is over for this worker."""

    reason: str


class PeerHello(Message, frozen=True):
    """The first message on a link between two workers, both ways: who calls."""

    slot: int
    epoch: int
    incarnation: int
    job: str


AnyMessage = (
    Hello
    | Heartbeat
    | Deployed
    | Progress
    | SubtasksFinished
    | Published
    | Failed
    | Welcome
    | Deploy
    | Start
    | Publish
    | Leave
    | PeerHello
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decode(data: bytes) -> AnyMessage:
    """A message from bytes. Raises `ProtocolViolation` for anything that is none."""
    try:
        message: AnyMessage = _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"no control message: {error}") from error
    return message


class FailureKind(Enum):
    """Who erred, for `Failed.kind`."""

    USER = "user"
    """The user's code or data."""
    PEER = "peer"
    """Another worker: its link was lost, or it broke the protocol."""
    IMPORT = "import"
    """The worker cannot import something that the plan needs."""
    INTERNAL = "internal"
    """We did."""


class Phase(Enum):
    """Where a worker stands."""

    JOINING = "joining"
    JOINED = "joined"
    DEPLOYED = "deployed"
    RUNNING = "running"
    FINISHED = "finished"
    LEFT = "left"


AFTER: dict[tuple[Phase, type[Message]], Phase] = {
    (Phase.JOINING, Welcome): Phase.JOINED,
    (Phase.JOINED, Deploy): Phase.DEPLOYED,
    (Phase.DEPLOYED, Start): Phase.RUNNING,
    (Phase.FINISHED, Publish): Phase.FINISHED,
}
"""Which message is legal in which phase of a worker, and the phase after it. `Leave` is legal in all of them."""


def next_phase(phase: Phase, message: Message) -> Phase:
    """The worker's phase after a message from the coordinator. Raises `ProtocolViolation` where it is not legal."""
    if isinstance(message, Leave):
        return Phase.LEFT
    after = AFTER.get((phase, type(message)))
    if after is None:
        raise ProtocolViolation(f"{type(message).__name__} came while the worker was {phase.value}")
    return after
